"""Blobs that nothing names go, in place, and never one that somebody is about to name."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.store import Feature, Store, Tx, collect, faults
from stead.store.collect import DAY_MS
from tests.store.children import Child
from tests.store.notes import NOTES, Written, erase_stream
from tests.support import scale

Opener = Callable[..., Store]
KEPT = Feature("drawer", kept={"drawer": "id TEXT PRIMARY KEY, body {blob} NOT NULL"})


def content(n: int, size: int = 100_000) -> bytes:
    """Bytes that do not get smaller: over 64 KiB they lie in a file."""
    return b"".join(hashlib.sha256(f"{n}.{k}".encode()).digest() for k in range(size // 32 + 1))


def put(store: Store, raw: bytes, *, stream: str | None = None) -> str:
    """Store a blob, and where there is a stream an event that names it."""
    prepared = store.blobs.prepare(raw)

    def job(tx: Tx) -> str:
        digest = tx.put(prepared)
        if stream is not None:
            tx.append(stream, Written(text="with a blob", value={"blob": digest}))
        return digest

    return store.write(job)


def hashes(store: Store) -> set[str]:
    with store.view() as view:
        return {digest for (digest,) in view.q("SELECT hash FROM blobs")}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(opener: Opener, clock: ManualClock) -> Store:
    return opener(features=[NOTES, KEPT], clock=clock)


def test_only_what_is_old_and_named_by_nothing_goes(store: Store, clock: ManualClock) -> None:
    named = {put(store, content(n, size), stream="a") for n, size in ((1, 100), (2, 100_000))}
    nested = store.blobs.pack({"text": "a long text " * 2000})
    store.write(lambda tx: tx.append("a", Written(text="", value=tx.unpack(nested))))
    kept = put(store, content(3, 100))
    store.write(lambda tx: tx.q("INSERT INTO drawer(id, body) VALUES('a',?)", b'{"$blob":"' + kept.encode() + b'"}'))
    loose = {put(store, content(n, size)) for n, size in ((4, 100), (5, 100_000))}
    clock.advance(DAY_MS)
    young = put(store, content(6, 100))
    assert loose <= hashes(store)
    done = collect.collect(store)
    assert (done["blobs"], done["whole"]) == (2, True) and done["bytes"] > 100_000
    assert hashes(store) == named | {kept, young, nested.blobs[0].hash}
    assert {digest for digest, _ in store.blobs.files()} & loose == set()
    for digest in hashes(store):
        store.blobs.get(digest)
    assert collect.collect(store)["blobs"] == 0


def test_what_is_stored_again_is_young_again(store: Store, clock: ManualClock) -> None:
    digest = put(store, content(1))
    clock.advance(DAY_MS)
    assert put(store, content(1)) == digest
    assert collect.collect(store)["blobs"] == 0
    assert store.blobs.get(digest) == content(1)


def test_what_was_named_after_the_log_was_looked_through_stays(store: Store, clock: ManualClock) -> None:
    digest = put(store, content(1))
    clock.advance(DAY_MS)
    before = clock.now()
    left, at = collect.unnamed(store, before=before)
    assert set(left) == {digest}
    store.write(lambda tx: tx.append("a", Written(text="", value={"blob": digest})))
    assert store.write(lambda tx: collect._remove(tx, store, left, at, before))[0] == {}
    assert store.blobs.get(digest) == content(1)


def test_a_file_that_somebody_is_about_to_store_stays(store: Store) -> None:
    """Between its file and its row a blob is held by who prepared it, in this process or another."""
    digest = put(store, content(1))
    prepared = store.blobs.prepare(content(1))
    done = collect.collect(store, age_ms=0)
    assert done["blobs"] == 1 and hashes(store) == set()
    assert [found for found, _ in store.blobs.files()] == [digest]
    store.write(lambda tx, prepared=prepared: tx.append("a", Written(text="", value={"blob": tx.put(prepared)})))
    del prepared
    assert collect.collect(store, age_ms=0)["blobs"] == 0
    assert store.blobs.get(digest) == content(1)


def test_the_same_blob_stored_again_and_again_beside_a_collection_is_never_lost(store: Store) -> None:
    rounds, raw = max(scale(500), 40), content(7)
    over, errors = threading.Event(), list[BaseException]()

    def collecting() -> None:
        try:
            while not over.is_set():
                collect.collect(store, age_ms=0)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=collecting)
    thread.start()
    try:
        for n in range(rounds):
            digest = put(store, raw, stream=f"s{n}")
            assert store.blobs.get(digest) == raw
            store.write(erase_stream(f"s{n}"))
    finally:
        over.set()
        thread.join()
    assert errors == []
    put(store, raw, stream="last")
    collect.collect(store, age_ms=0)
    assert store.blobs.get(hashlib.sha256(raw).hexdigest()) == raw


def test_a_collection_killed_at_any_point_is_finished_by_the_next(opener: Opener) -> None:
    def fill(at: int) -> None:
        store = opener(features=[NOTES, KEPT])
        put(store, content(1), stream="a")
        for n in (2, 3, 4):
            put(store, content(10 * at + n, 100_000 if n < 4 else 100))
        store.close()

    def work(at: int) -> bool:
        def run() -> None:
            store, left = opener(features=[NOTES, KEPT]), at

            def passing(name: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    faults.kill(name)

            faults.watch(passing)
            collect.collect(store, age_ms=0)

        return Child(run).killed()

    at = 1
    fill(at)
    while work(at):
        store = opener(features=[NOTES, KEPT])
        collect.collect(store, age_ms=0)
        assert hashes(store) == {hashlib.sha256(content(1)).hexdigest()}
        assert [digest for digest, _ in store.blobs.files()] == [hashlib.sha256(content(1)).hexdigest()]
        assert store.blobs.get(hashlib.sha256(content(1)).hexdigest()) == content(1)
        store.close()
        at += 1
        fill(at)
    assert at > 6


def test_a_damaged_or_foreign_file_in_the_folder_of_blobs_stops_no_collection(store: Store, tmp_path: Path) -> None:
    digest = put(store, content(1), stream="a")
    folder = next(path for path in (tmp_path / "house" / "blobs").iterdir())
    (folder / ".something.stead-0123456789abcdef.tmp").write_bytes(b"half")
    os.truncate(folder / digest[2:], 10)
    collect.collect(store, age_ms=0)
    assert {path.name for path in folder.iterdir()} == {digest[2:], ".something.stead-0123456789abcdef.tmp"}
    with pytest.raises(SteadError):
        store.blobs.get(digest)


def test_b063_room_is_given_back_in_place_and_in_small_steps(tmp_path: Path) -> None:
    """Cleaning up never needs a second copy of the store: what lies on the disk at any moment is little more than before."""
    from stead.store import open_store

    house = tmp_path / "house"
    with open_store(house, [NOTES, KEPT], clock=ManualClock()) as store:
        for n in range(max(scale(3_000), 200)):
            put(store, content(n, 30_000), stream="gone")
        store.write(erase_stream("gone"))
        store.database.shrink()
        before = peak = _bytes(house)

        def measure(name: str) -> None:
            nonlocal peak
            peak = max(peak, _bytes(house))

        faults.watch(measure)
        done = collect.collect(store, age_ms=0)
        faults.disarm()
        assert done["whole"] and done["blobs"] >= 200 and before > 6_000_000
        assert peak < before + 16_000_000 and _bytes(house) < before / 10  # 8 MB of write-ahead log, and one job's share
        with store.view() as view:
            assert store.database.free(view._conn) == 0


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def names(data: Any) -> set[str]:
    return set(collect.names_in([data]))


def test_names_are_found_in_any_json_that_may_be_stored() -> None:
    digest = "0123456789abcdef" * 4
    for text in ('{"blob":"%s"}', '{"$blob": "%s"}', '[{"x":{"$blob":"%s","size":3}}]', '{"blob" :\n"%s"}'):
        assert names((text % digest).encode()) == {digest}
        assert names(text % digest) == {digest}
        assert names(memoryview((text % digest).encode())) == {digest}
    assert names(b'{"blob":"0123"}') == names(b'{"other":"%s"}' % digest.encode()) == set()
