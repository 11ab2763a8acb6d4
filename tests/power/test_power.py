"""The power fails at any moment: acknowledged events are there, the database is whole, every blob that is named is readable."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.store import Store, faults, open_store, safefile, sqlite
from tests.power.disk import Disk, Inode, PowerCut, PowerOs, PowerVFS
from tests.store.notes import NOTES, erase_stream, write
from tests.support import scale

pytestmark = pytest.mark.power
_names = itertools.count()


class Acknowledged:
    """What the store said was durable."""

    def __init__(self) -> None:
        self.notes: dict[int, str] = {}
        self.blobs: set[str] = set()
        self.gone: set[str] = set()


def large(n: int) -> bytes:
    return b"".join(hashlib.sha256(f"{n}.{k}".encode()).digest() for k in range(2_500))


def live(folder: Path, acknowledged: Acknowledged) -> None:
    """A small life of a store: notes, blobs in the database and in files, a deletion, checkpoints, closing, opening again."""
    for life in range(2):
        store = open_store(folder, [NOTES], clock=ManualClock())
        try:
            store.write(lambda tx: tx.q("PRAGMA wal_autocheckpoint=12"))
            for n in range(7):
                _one(store, life * 10 + n, acknowledged)
            if life == 0:
                store.write(erase_stream("s1"))
                acknowledged.gone.add("s1")
        finally:
            store.close()


def _one(store: Store, n: int, acknowledged: Acknowledged) -> None:
    stream, text = f"s{n % 3 if n < 10 else 0}", f"{n} " + "x" * 300 * (n % 4)
    prepared = store.blobs.prepare(large(n) if n % 3 == 0 else f"small {n}".encode())
    digest = store.write(lambda tx: (tx.put(prepared), write(stream, text, {"blob": prepared.hash})(tx)))
    acknowledged.notes[digest[1]] = stream
    acknowledged.blobs.add(prepared.hash)


def check(folder: Path, acknowledged: Acknowledged) -> None:
    """The store as it was found after the power came back."""
    with open_store(folder, [NOTES], clock=ManualClock()) as store:
        with store.view() as view:
            assert view.q("PRAGMA integrity_check") == [("ok",)]
            events = view.events()
        found = {event.seq for event in events}
        lost = {seq for seq, stream in acknowledged.notes.items() if seq not in found and stream not in acknowledged.gone}
        # The deletion may have become durable although nobody was told so.
        if any(event.kind == "notebook.gone" for event in events):
            lost = {seq for seq in lost if acknowledged.notes[seq] != "s1"}
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
        for event in events:
            for digest in event.data.blobs():
                assert store.blobs.get(digest)
        assert acknowledged.gone <= {event.data.stream for event in events if event.kind == "notebook.gone"}
        now = store.dump()
        store.rebuild()
        assert store.dump() == now
        assert store.write(write("after")) > max(found, default=0)


@pytest.fixture
def trial(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., bool]]:
    """`trial(cut, seed)`: a life whose power fails at its `cut`th operation, and what is found after it; False when it was over
    before."""
    first = sqlite.SQLite.__init__
    made = tmp_path.resolve()

    def run(cut: int, seed: int, life: Callable[[Path, Acknowledged], None] = live) -> bool:
        name = f"power-{next(_names)}"
        disk = Disk(made / name)
        disk.limit = cut
        acknowledged = Acknowledged()
        vfs = PowerVFS(name, disk)
        shim = PowerOs(disk)
        disk.root.mkdir()
        with monkeypatch.context() as patched:
            patched.setattr(sqlite.SQLite, "__init__", lambda self, path, vfs=None: first(self, path, vfs=name))
            patched.setattr(safefile, "os", shim)
            with suppress(SteadError, PowerCut):
                life(disk.root, acknowledged)
        over = disk.operations <= cut
        vfs.unregister()
        disk.cut(made / f"{name}-after", random.Random(seed))
        check(made / f"{name}-after", acknowledged)
        return not over

    yield run


def test_a_few_cuts(trial: Callable[..., bool]) -> None:
    rng = random.Random(11)
    for seed in range(30):
        trial(rng.randrange(1, 330), seed)


def test_a_blob_whose_name_another_process_did_not_make_durable_is_made_so_before_it_is_named(
    trial: Callable[..., bool],
) -> None:
    def life(folder: Path, acknowledged: Acknowledged) -> None:
        with open_store(folder, [NOTES], clock=ManualClock()) as store:
            faults.arm("safefile.renamed", faults.enospc)
            with suppress(SteadError, OSError):
                store.blobs.prepare(large(0))  # the file is there; its name is not durable
            faults.disarm()
            _one(store, 0, acknowledged)

    for seed in range(12):
        assert not trial(1 << 60, seed, life)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_the_power_fails_at_every_operation(trial: Callable[..., bool], seed: int) -> None:
    cut = 1
    while trial(cut, seed * 100_000 + cut):
        cut += 1
    assert cut > 100


# --- the disk itself: it must lose what may be lost ---------------------------------------------------------------------------


def lost(trial: Callable[..., bool], cuts: int) -> int:
    """In how many of these cuts something was lost or broken."""
    found = 0
    for cut in range(60, 60 + cuts * 4, 4):
        try:
            trial(cut, cut)
        except (AssertionError, SteadError):
            found += 1
    return found


def test_the_disk_loses_acknowledged_events_when_commits_are_not_synced(
    trial: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_EACH", tuple(s.replace("synchronous=FULL", "synchronous=NORMAL") for s in sqlite._EACH))
    assert lost(trial, 40) > 0


def test_the_disk_loses_blobs_when_files_or_their_names_are_not_synced(
    trial: Callable[..., bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(safefile, "_sync", lambda fd: None)
    assert lost(trial, 40) > 0


def test_a_write_is_torn_by_sectors_and_lost_by_subsets() -> None:
    inode = Inode()
    inode.pending.append((0, b"a" * 2 * 512))
    inode.sync()
    inode.pending.append((0, b"b" * 2 * 512))
    seen = {inode.after(random.Random(seed)) for seed in range(scale(10_000))}
    assert {b"a" * 1024, b"b" * 1024, b"a" * 512 + b"b" * 512} <= seen
