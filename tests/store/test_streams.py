"""Large contents come and go piece by piece, and are the same as if they had come at once."""

from __future__ import annotations

import io
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.store import blobs, faults, safefile
from stead.store.blobfiles import Files
from stead.store.collect import collect
from stead.store.store import Store
from tests.store.children import Child

LIMIT = 1 << 20


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "STREAMED_BYTES", LIMIT)


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size // 2) + b"same again " * (size // 22)


def stored(store: Store, raw: bytes) -> str:
    prepared = store.blobs.prepare_stream(io.BytesIO(raw))
    return str(store.write(lambda tx: tx.put(prepared)))


@pytest.mark.parametrize("size", [0, 1, LIMIT - 2, LIMIT, LIMIT + 1, 5 * LIMIT + 7])
def test_what_came_in_pieces_is_the_same(store: Store, size: int) -> None:
    raw = content(size)
    digest = stored(store, raw)
    assert digest == store.blobs.prepare(raw).hash
    assert store.blobs.get(digest) == raw and b"".join(store.blobs.chunks(digest)) == raw
    assert all(0 < len(piece) <= LIMIT for piece in store.blobs.chunks(digest))
    assert stored(store, raw) == digest and store.blobs.get(digest) == raw


def test_it_is_never_whole_in_memory(store: Store, tmp_path: Path) -> None:
    if store.folder is None:
        pytest.skip("without a folder everything is in the database")
    large = tmp_path / "large"
    with large.open("wb") as file:
        for n in range(64):
            file.write(random.Random(n).randbytes(LIMIT))
    tracemalloc.start()
    try:
        with large.open("rb") as file:
            prepared = store.blobs.prepare_stream(file)
        digest = store.write(lambda tx: tx.put(prepared))
        total = sum(len(piece) for piece in store.blobs.chunks(digest))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == 64 * LIMIT and most < 16 * LIMIT


def test_a_damaged_file_is_told_before_its_last_piece(store: Store) -> None:
    if store.folder is None:
        pytest.skip("without a folder everything is in the database")
    raw = content(4 * LIMIT)
    digest = stored(store, raw)
    path = store.folder / "blobs" / digest[:2] / digest[2:]
    for spoil in (lambda data: data[:-10], lambda data: data[:100] + b"\xff" * 50 + data[150:]):
        whole = path.read_bytes()
        path.write_bytes(spoil(whole))
        got = 0
        with pytest.raises(SteadError) as failed:
            for piece in store.blobs.chunks(digest):
                got += len(piece)
        assert failed.value.code == "store_damaged" and got < len(raw)
        path.write_bytes(whole)
    assert b"".join(store.blobs.chunks(digest)) == raw


def test_a_write_that_fails_leaves_nothing_and_what_nobody_stored_is_collected(store: Store) -> None:
    if store.folder is None:
        pytest.skip("without a folder everything is in the database")

    def full(name: str) -> None:
        raise OSError(28, "full")

    faults.arm("streams.written", full)
    with pytest.raises(SteadError) as failed:
        store.blobs.prepare_stream(io.BytesIO(content(3 * LIMIT)))
    assert failed.value.code == "disk_full"
    assert [path for path in (store.folder / "blobs").rglob("*") if path.is_file()] == []
    prepared = store.blobs.prepare_stream(io.BytesIO(content(3 * LIMIT)))
    digest = prepared.hash
    del prepared
    collect(store, age_ms=0)
    assert store.blobs.file_size(digest) == 0


def test_more_than_the_most_is_refused_and_leaves_nothing(store: Store) -> None:
    for size in (100, LIMIT - 1, LIMIT, 3 * LIMIT):
        raw = random.Random(size).randbytes(size)
        with pytest.raises(SteadError) as failed:
            store.blobs.prepare_stream(io.BytesIO(raw), most=size - 1)
        assert failed.value.code == "bad_value"
        assert store.blobs.prepare_stream(io.BytesIO(raw), most=size).size == size
    if store.folder is not None:
        assert safefile.leftovers(store.folder / "blobs") == []


def test_a_second_stream_does_not_take_the_first_for_a_dead_writers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between its last byte and its name a temporary file is still its writer's."""
    one, two = content(3 * LIMIT), content(4 * LIMIT)
    real, others = Files.found, []

    def found(self: Files, name: str, form: Any) -> Any:
        if not others:
            others.append("")
            others[0] = stored(store, two)
        return real(self, name, form)

    monkeypatch.setattr(Files, "found", found)
    digest = stored(store, one)
    assert store.blobs.get(digest) == one and store.blobs.get(others[0]) == two


def test_what_a_dead_writer_left_goes_with_the_next_collection(opener: Callable[..., Store], tmp_path: Path) -> None:
    raw = content(3 * LIMIT)

    def run() -> None:
        faults.arm("streams.written")
        opener().blobs.prepare_stream(io.BytesIO(raw))

    assert Child(run).killed()
    (left,) = safefile.leftovers(tmp_path / "house" / "blobs")
    collect(opener())
    assert not left.exists()


@pytest.mark.parametrize("harm", ["none", "cut", "spoilt", "longer"])
def test_a_stream_keeps_what_lies_there_and_mends_what_is_damaged(store: Store, tmp_path: Path, harm: str) -> None:
    raw = random.Random(5).randbytes(3 * LIMIT)  # stored raw, for it does not get smaller
    prepared = store.blobs.prepare(raw)
    digest = str(store.write(lambda tx: tx.put(prepared)))
    path = tmp_path / "house" / "blobs" / digest[:2] / digest[2:]
    harms = {"none": raw, "cut": raw[:-1], "spoilt": b"x" + raw[1:], "longer": raw + b"\0" * 9}
    path.write_bytes(harms[harm])
    before = path.stat().st_ino
    assert stored(store, raw) == digest
    assert store.blobs.get(digest) == raw == b"".join(store.blobs.chunks(digest))
    assert (path.stat().st_ino == before) is (harm == "none")
    with store.view() as view:
        assert view.q("SELECT stored FROM blobs") == [(path.stat().st_size,)]


def test_what_is_stored_as_a_delta_stays_one(store: Store) -> None:
    raw = random.Random(6).randbytes(2 * LIMIT)
    key = stored(store, raw)
    prepared = store.blobs.prepare(raw + b"more", after=key)
    digest = str(store.write(lambda tx: tx.put(prepared)))
    assert prepared.base == key and stored(store, raw + b"more") == digest
    assert [found for found, _ in store.blobs.files()] == [key]
    assert b"".join(store.blobs.chunks(digest)) == raw + b"more"
