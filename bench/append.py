"""What a durable append costs: ours beside the limit of the disk and beside bare SQLite, in the same run.

    python bench/append.py [EVENTS]

One event is a text part of a session, about 600 bytes of JSON, with everything that is projected from it. `x limit` is the median
over that of a preallocated file with fdatasync. Times depend on the machine, the ratios hardly; bytes and syncs not at all.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw

from stead.app import FEATURES
from stead.domain import sessions
from stead.store import Store, Tx, open_store

TEXT = {"type": "text", "text": "x" * 500}
BODY = json.dumps({"message": 1, "n": 1, "part": TEXT}).encode().ljust(600)
CLIENTS = 64
Timed = tuple[list[float], float, int]


def written() -> int:
    try:
        with open("/proc/self/io") as file:
            return int(next(line for line in file if line.startswith("wchar")).split()[1])
    except OSError:
        return 0


def measure(work: Callable[[], Any], count: int) -> Timed:
    """Seconds of each call, seconds of all, bytes written by all."""
    before, begin = written(), time.perf_counter()
    each = []
    for _ in range(count):
        start = time.perf_counter()
        work()
        each.append(time.perf_counter() - start)
    return each, time.perf_counter() - begin, written() - before


def raw_file(folder: Path, count: int) -> Timed:
    fd = os.open(folder / "raw", os.O_CREAT | os.O_RDWR, 0o600)
    os.posix_fallocate(fd, 0, (count + 1) * len(BODY))
    os.fsync(fd)

    def append() -> None:
        os.write(fd, BODY)
        os.fdatasync(fd)

    try:
        return measure(append, count)
    finally:
        os.close(fd)


def raw_sqlite(folder: Path, count: int) -> Timed:
    connection = apsw.Connection(str(folder / "raw.db"))
    for statement in (
        "PRAGMA page_size=2048",
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "CREATE TABLE e(n INTEGER PRIMARY KEY, b)",
    ):
        connection.execute(statement).fetchall()

    def append() -> None:
        connection.execute("BEGIN IMMEDIATE").fetchall()
        connection.execute("INSERT INTO e(b) VALUES(?)", (BODY,)).fetchall()
        connection.execute("COMMIT").fetchall()

    append()
    try:
        return measure(append, count)
    finally:
        connection.close()


@contextmanager
def house(folder: Path, count: int) -> Iterator[tuple[Store, list[int]]]:
    """A store with `count` sessions, each with one message."""
    with open_store(folder, FEATURES) as store:

        def begin(tx: Tx) -> list[int]:
            for n in range(count):
                sessions.create(tx, f"session{n:09}", "project", title="t", agent="build", model="m/x")
            return [sessions.add_message(tx, f"session{n:09}", "assistant") for n in range(count)]

        yield store, store.write(begin)


def part(session: int, n: int) -> Callable[[Tx], Any]:
    return lambda tx: sessions.add_part(tx, f"session{session:09}", 1, n, TEXT)


def ours(folder: Path, count: int) -> Timed:
    numbers = iter(range(count))
    with house(folder / "direct", 1) as (store, _):
        return measure(lambda: store.write(part(0, next(numbers))), count)


def ours_async(folder: Path, count: int) -> Timed:
    async def run(store: Store) -> Timed:
        before, begin = written(), time.perf_counter()
        each = []
        for n in range(count):
            start = time.perf_counter()
            await store.commit(part(0, n))
            each.append(time.perf_counter() - start)
        return each, time.perf_counter() - begin, written() - before

    with house(folder / "async", 1) as (store, _):
        return asyncio.run(run(store))


def ours_group(folder: Path, count: int) -> Timed:
    """64 sessions of one event loop."""
    each: list[float] = []

    async def client(store: Store, session: int) -> None:
        for n in range(count // CLIENTS):
            start = time.perf_counter()
            await store.commit(part(session, n))
            each.append(time.perf_counter() - start)

    async def run(store: Store) -> Timed:
        before, begin = written(), time.perf_counter()
        await asyncio.gather(*(client(store, n) for n in range(CLIENTS)))
        return each, time.perf_counter() - begin, written() - before

    with house(folder / "group", CLIENTS) as (store, _):
        return asyncio.run(run(store))


CONTESTANTS: dict[str, tuple[Callable[[Path, int], Timed], int]] = {
    "raw file, preallocated, fdatasync": (raw_file, 1),
    "raw apsw, FULL, a commit each": (raw_sqlite, 1),
    "stead, one session, from a thread": (ours, 1),
    "stead, one session, from a coroutine": (ours_async, 1),
    f"stead, {CLIENTS} sessions, from coroutines": (ours_group, 16),
}


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    rounds: dict[str, list[Timed]] = {name: [] for name in CONTESTANTS}
    for _ in range(3):
        for name, (contestant, times) in CONTESTANTS.items():
            with tempfile.TemporaryDirectory(prefix="stead-bench-") as folder:
                rounds[name].append(contestant(Path(folder), count * times))
    found: dict[str, dict[str, float]] = {}
    for name, timed in rounds.items():
        each, total, size = sorted(timed, key=lambda one: statistics.median(one[0]))[1]
        ordered = sorted(each)
        found[name] = {
            "p50_us": statistics.median(ordered) * 1e6,
            "p99_us": ordered[len(ordered) * 99 // 100] * 1e6,
            "per_second": len(each) / total,
            "bytes_per_event": size / len(each),
        }
    limit = found[next(iter(found))]
    print(f"{'':42}{'p50 us':>9}{'x limit':>9}{'p99 us':>9}{'events/s':>10}{'x limit':>9}{'bytes/event':>13}")
    for name, one in found.items():
        one["p50_over_limit"] = one["p50_us"] / limit["p50_us"]
        one["per_second_over_limit"] = one["per_second"] / limit["per_second"]
        print(
            f"{name:42}{one['p50_us']:9,.0f}{one['p50_over_limit']:9.2f}{one['p99_us']:9,.0f}"
            f"{one['per_second']:10,.0f}{one['per_second_over_limit']:9.2f}{one['bytes_per_event']:13,.0f}"
        )
    print(json.dumps({"append": {name: {key: round(value, 3) for key, value in one.items()} for name, one in found.items()}}))


if __name__ == "__main__":
    main()
