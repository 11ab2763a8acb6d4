"""What a thousand small edits of one file take, and what it costs to get a version back."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from common import Figures, Table

from stead.store import codec
from stead.store.store import Store, open_store

EDITS = 1_000


def source(size: int) -> list[bytes]:
    """Lines that look like a program's."""
    dice = random.Random(1)
    lines: list[bytes] = []
    while sum(map(len, lines)) < size:
        names = (dice.randrange(10**6), dice.randrange(10**4), dice.random())
        lines.append(b"    value_%d = call_%d(argument=%f)\n" % names)
    return lines


def stored(store: Store, lines: list[bytes], edits: int) -> tuple[Figures, list[str]]:
    """Edit one line after another and store each version."""
    dice, digest, hashes, cpu = random.Random(2), None, [], []
    for n in range(edits):
        lines[dice.randrange(len(lines))] = b"    changed_%d = %d\n" % (n, n * n)
        content = b"".join(lines)
        begun = time.process_time()
        prepared = store.blobs.prepare(content, after=digest)
        cpu.append(time.process_time() - begun)
        digest = store.write(lambda tx, prepared=prepared: tx.put(prepared))  # type: ignore[misc]
        hashes.append(digest)
    with store.view() as view:
        taken = sum(row[0] or store.blobs.file_size(row[1]) for row in view.q("SELECT stored, hash FROM blobs"))
    return {"MB": taken / 1e6, "store msCPU": statistics.median(cpu) * 1000}, hashes


def restored(store: Store, hashes: list[str]) -> float:
    """Milliseconds to have a version back, median: any of them, so that two in a row seldom lie on the same key."""
    times = []
    for digest in random.Random(3).sample(hashes, min(200, len(hashes))):
        begun = time.perf_counter()
        store.blobs.get(digest)
        times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def whole(lines: list[bytes], edits: int) -> Figures:
    """Each version by itself, as one zstd frame; and one decompressed."""
    content, packed, cpu, times = b"".join(lines), b"", [], []
    for _ in range(50):
        begun = time.process_time()
        packed = codec.compress(content)
        cpu.append(time.process_time() - begun)
        begun = time.perf_counter()
        codec.decompress(packed)
        times.append(time.perf_counter() - begun)
    figures = {"store msCPU": statistics.median(cpu) * 1000, "restore ms": statistics.median(times) * 1000}
    return {"MB": len(packed) * edits / 1e6, **figures}


def tables(quick: bool) -> Iterator[Table]:
    """The tables of this job."""
    edits = EDITS // 10 if quick else EDITS
    for size, name, limit in ((100_000, "100 KB", 2), (1_000_000, "1 MB", 6)):
        lines = source(size)
        base = whole(lines, edits)
        with tempfile.TemporaryDirectory() as place, open_store(Path(place) / "data", []) as store:
            figures, hashes = stored(store, lines, edits)
            figures["restore ms"] = restored(store, hashes)
        for column in ("store msCPU", "restore ms"):
            figures[f"x {column.split()[0]}"] = figures[column] / base[column]
        rows = {"each version whole": base, "stead": figures}
        note = f"limit of a thousand: {limit} MB; `x store`, `x restore`: to one zstd frame, without its hash and its place"
        yield Table(f"{edits:,} edits of a file of {name}", "MB", rows, note)
