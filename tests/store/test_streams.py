"""Large contents come and go piece by piece, and are the same as if they had come at once."""

from __future__ import annotations

import io
import random
import tracemalloc
from pathlib import Path

import pytest

from stead.core.errors import SteadError
from stead.store import blobs, faults
from stead.store.collect import collect
from stead.store.store import Store

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
    with pytest.raises(OSError):
        store.blobs.prepare_stream(io.BytesIO(content(3 * LIMIT)))
    assert [path for path in (store.folder / "blobs").rglob("*") if path.is_file()] == []
    prepared = store.blobs.prepare_stream(io.BytesIO(content(3 * LIMIT)))
    digest = prepared.hash
    del prepared
    collect(store, age_ms=0)
    assert store.blobs.file_size(digest) == 0
