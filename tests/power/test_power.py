"""The power fails at any moment: acknowledged events are there, the database is whole, every blob that is named is readable."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.store import Store, faults, open_store, safefile, sqlite
from tests.crash import scenario
from tests.power.disk import Disk, Inode
from tests.power.trial import EVER, lived
from tests.store.children import Child
from tests.store.notes import NOTES, erase_stream, write
from tests.support import scale

pytestmark = pytest.mark.power


def with_synchronous(mode: str) -> None:
    """As if the store asked SQLite for less."""
    sqlite._EACH = tuple(line.replace("synchronous=FULL", f"synchronous={mode}") for line in sqlite._EACH)


def without_syncs() -> None:
    """As if safefile synced neither files nor folders."""
    safefile.walk.sync = lambda fd: None


def nothing() -> None:
    pass


# --- a store's life -----------------------------------------------------------------------------------------------------------


def large(n: int) -> bytes:
    return b"".join(hashlib.sha256(f"{n}.{k}".encode()).digest() for k in range(2_500))


class Notes:
    """A small life of a store: notes, blobs in the database and in files, a deletion, checkpoints, closing, opening again."""

    def __init__(self, place: Path) -> None:
        self.place, self.told = place, place.with_name(f"{place.name}-told")
        place.mkdir(parents=True)

    def tell(self, word: str, *about: Any) -> None:
        """Note what the store said was durable, where no power fails."""
        with self.told.open("a") as file:
            file.write(" ".join(map(str, (word, *about))) + "\n")

    def live(self) -> None:
        for life in range(2):
            store = open_store(self.place, [NOTES], clock=ManualClock())
            try:
                store.write(lambda tx: tx.q("PRAGMA wal_autocheckpoint=12"))
                for n in range(7):
                    self.one(store, life * 10 + n)
                if life == 0:
                    store.write(erase_stream("s1"))
                    self.tell("gone", "s1")
            finally:
                store.close()

    def one(self, store: Store, n: int) -> None:
        stream, text = f"s{n % 3 if n < 10 else 0}", f"{n} " + "x" * 300 * (n % 4)
        prepared = store.blobs.prepare(large(n) if n % 3 == 0 else f"small {n}".encode())
        _, seq = store.write(lambda tx: (tx.put(prepared), write(stream, text, {"blob": prepared.hash})(tx)))
        self.tell("note", seq, stream)

    def check(self) -> None:
        """The store as it was found after the power came back."""
        lines = [line.split() for line in self.told.read_text().splitlines()] if self.told.exists() else []
        with open_store(self.place, [NOTES], clock=ManualClock()) as store:
            with store.view() as view:
                assert view.q("PRAGMA integrity_check") == [("ok",)]
                events = view.events()
            found = {event.seq for event in events}
            gone = {event.data.stream for event in events if event.kind == "notebook.gone"}
            for word, *about in lines:
                if word == "gone":
                    assert about[0] in gone
                else:  # a deletion may have become durable although nobody was told so
                    assert int(about[0]) in found or about[1] in gone, f"acknowledged and lost: {about}"
            for event in events:
                for digest in event.data.blobs():
                    assert store.blobs.get(digest)
            now = store.dump()
            store.rebuild()
            assert store.dump() == now
            assert store.write(write("after")) > max(found, default=0)


def trial(place: Path, cut: int, seed: int, less: Callable[[], None] = nothing) -> bool:
    """A life of notes whose power fails at its `cut`th operation, and what is found after it; False when it was over before."""
    notes = Notes(place)

    def work() -> None:
        less()
        notes.live()

    failed = lived(place, work, cut=cut, seed=seed)
    Child(notes.check).result()
    return failed


def lost(place: Path, less: Callable[[], None], *how: str) -> str:
    """Cut a life here and there until something is lost or broken (in one of the ways `how`, where that is said); what it was."""
    for cut in range(60, 300, 6):
        try:
            trial(place / str(cut), cut, cut, less)
        except AssertionError as error:
            if not how or any(way in str(error) for way in how):
                return str(error)
    return ""


@pytest.mark.slow
def test_a_few_cuts(place: Path) -> None:
    rng = random.Random(11)
    for seed in range(20):
        trial(place / str(seed), rng.randrange(1, 330), seed)


def test_a_blob_whose_name_another_process_did_not_make_durable_is_made_so_before_it_is_named(place: Path) -> None:
    for seed in range(8):
        notes = Notes(place / str(seed))

        def live(notes: Notes = notes) -> None:
            with open_store(notes.place, [NOTES], clock=ManualClock()) as store:
                faults.arm("safefile.renamed", faults.enospc)
                with suppress(SteadError, OSError):
                    store.blobs.prepare(large(0))  # the file is there; its name is not durable
                faults.disarm()
                notes.one(store, 0)

        assert not lived(notes.place, live, seed=seed)
        Child(notes.check).result()


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_the_power_fails_at_every_operation(place: Path, seed: int) -> None:
    cut = 1
    while trial(place / "place", cut, seed * 100_000 + cut):
        cut += 1
        _clear(place)
    assert cut > 100


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


# --- a prompt's life ----------------------------------------------------------------------------------------------------------


class Prompt:
    """The whole of a prompt's life (tests/crash/scenario.py), with the project's files and all that lies in the data folder."""

    def __init__(self, place: Path, name: str) -> None:
        self.place, self.told = place / name / "disk", place / name / "told"
        self.data, self.root = self.place / "data", self.place / "project"
        self.place.mkdir(parents=True)
        scenario.prepare(self.root)

    def play(self, less: Callable[[], None] = nothing, **disk: int) -> bool:
        def work() -> None:
            less()
            scenario.play(self.data, self.root, os.open(self.told, os.O_CREAT | os.O_WRONLY | os.O_APPEND))

        return lived(self.place, work, **disk)

    def recover(self, **disk: int) -> bool:
        return lived(self.place, lambda: scenario.recover(self.data), **disk)

    def check(self) -> None:
        told = self.told.read_text().splitlines() if self.told.exists() else []
        Child(lambda: scenario.check(self.data, self.root, told)).result()


def length(place: Path) -> int:
    """How many operations a whole prompt needs."""

    def count() -> int:
        from tests.power.disk import attach

        prompt = Prompt(place, "whole")
        disk = Disk(prompt.place)
        attach(disk)
        scenario.play(prompt.data, prompt.root, os.open(os.devnull, os.O_WRONLY))
        return disk.operations

    operations: int = Child(count).result()
    return operations


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_the_power_fails_in_a_prompt_and_in_its_recovery(place: Path, part: int) -> None:
    rng = random.Random(part)
    whole = length(place)
    for seed in range(scale(500)):
        prompt = Prompt(place, str(seed))
        prompt.play(cut=rng.randrange(1, whole + 9), seed=seed)
        for again in range(rng.randrange(3)):
            prompt.recover(cut=rng.randrange(1, 90), seed=seed + again)
        prompt.check()


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_a_disk_that_is_full_after_some_bytes_costs_what_did_not_fit_and_nothing_else(place: Path, part: int) -> None:
    rng = random.Random(100 + part)
    for seed in range(scale(400)):
        prompt = Prompt(place, str(seed))
        cut = rng.choice([EVER, rng.randrange(1, 500)])
        prompt.play(cut=cut, seed=seed, space=rng.randrange(1, 700_000))
        prompt.recover(seed=seed, space=rng.randrange(1, 60_000))  # not much room yet, and the power fails when it is done
        prompt.check()


@pytest.mark.long
@pytest.mark.parametrize("part", range(8))
def test_the_power_fails_at_every_operation_of_a_prompt(place: Path, part: int) -> None:
    for cut in range(1 + part, length(place) + 2, 8):
        for seed in range(3):
            _clear(place)
            prompt = Prompt(place, "one")
            prompt.play(cut=cut, seed=cut * 10 + seed)
            prompt.check()


# --- the disk itself: it must lose what may be lost ---------------------------------------------------------------------------


@pytest.mark.slow
def test_the_disk_loses_acknowledged_events_when_commits_are_not_synced(place: Path) -> None:
    """What `test_a_few_cuts` never sees with synchronous=FULL, it sees with NORMAL."""
    assert lost(place, lambda: with_synchronous("NORMAL"), "acknowledged and lost")


@pytest.mark.slow
def test_without_syncs_the_database_itself_breaks(place: Path) -> None:
    """`synchronous=OFF`: not only what was acknowledged is gone; some of the databases cannot be read at all."""
    assert lost(place, lambda: with_synchronous("OFF"), "store_damaged", "integrity_check", "is not a readable store")


@pytest.mark.slow
def test_the_disk_loses_blobs_when_files_or_their_names_are_not_synced(place: Path) -> None:
    assert lost(place, without_syncs, "Blob ")


def test_a_write_is_torn_by_sectors_and_lost_by_subsets() -> None:
    inode = Inode()
    inode.pending.append((0, b"a" * 2 * 512))
    inode.sync()
    inode.pending.append((0, b"b" * 2 * 512))
    seen = {inode.after(random.Random(seed)) for seed in range(scale(10_000))}
    assert {b"a" * 1024, b"b" * 1024, b"a" * 512 + b"b" * 512} <= seen


def test_a_length_and_a_name_are_lost_as_well(place: Path) -> None:
    def live() -> None:
        folder = place / "disk"
        safefile.write_private(folder / "kept", b"kept")
        fd = os.open(folder / "long", os.O_CREAT | os.O_WRONLY)
        os.write(fd, b"x" * 10)
        os.fsync(fd)
        os.ftruncate(fd, 4)
        os.rename(folder / "kept", folder / "moved")

    seen = set()
    for seed in range(60):
        (place / "disk").mkdir()
        lived(place / "disk", live, seed=seed)
        for path in (place / "disk").iterdir():
            seen.add((path.name, path.stat().st_size))
            assert path.name == "long" or path.read_bytes() == b"kept"
        shutil.rmtree(place / "disk")
    assert seen == {("kept", 4), ("moved", 4), ("long", 10), ("long", 4)}
