"""Durable append: stead through its public API, beside a bare group-commit loop that writes the same rows, a raw commit, and the
peers that are installed."""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import apsw
import orjson
import peers
from common import Figures, Table, Timed, compare, house, lengthen, name, text

from stead.app import FEATURES
from stead.domain import sessions
from stead.store import open_store
from stead.store.sqlite import _EACH, PAGE_BYTES

EVENT = "INSERT INTO events(seq, stream, kind, v, ts, actor, run, op, data) VALUES(?,?,?,?,?,?,?,?,?)"
PART = "INSERT INTO parts(session, message, n, seq) VALUES(?,?,?,?)"


def tables(quick: bool) -> Iterator[Table]:
    """All jobs of appending."""
    rounds, events = (1, 200) if quick else (3, 1_500)
    for size in (600, 8192):
        for clients in (1, 8, 64):
            each = max(events // (1, 2)[size > 600] // {1: 1, 8: 2, 64: 3}[clients], 20)
            yield _append(size, clients, each, rounds)
    yield _lengths(100 if quick else 300, rounds)


def _append(size: int, clients: int, each: int, rounds: int) -> Table:
    part = text(size)
    contestants: dict[str, Callable[[], Figures]] = {}
    if clients == 1:
        contestants["raw FULL commit, one table"] = _in_folder(lambda folder: raw_commit(folder, part, each))
        contestants["raw file, preallocated, fdatasync"] = _in_folder(lambda folder: raw_file(folder, size, each))
        contestants["raw FULL commit, the same rows"] = _in_folder(lambda folder: raw_rows(folder, part, each))
    contestants["bare group commit, the same rows"] = _in_folder(lambda folder: bare(folder, clients, each, part))
    contestants["stead"] = _in_folder(lambda folder: ours(folder, clients, each, part))
    if clients == 1:
        contestants["stead, from a thread"] = _in_folder(lambda folder: ours_thread(folder, each, part))
    rows = compare(contestants, rounds)
    rows.update(peers.ask({"job": "append", "size": size, "clients": clients, "each": max(each // 10, 10)}, rounds))
    return Table(
        f"Durable append, {clients} session{'s' * (clients > 1)}, {size:,} B", "p50 us" if clients == 1 else "events/s", rows
    )


def _lengths(count: int, rounds: int) -> Table:
    rows: dict[str, Figures] = {}
    for length in (10, 100, 1_000, 10_000):
        rows.update(
            compare({f"stead, {length:,} messages": _in_folder(lambda folder, n=length: at_length(folder, n, count))}, rounds)
        )
    for length in (10, 100, 1_000):
        found = peers.ask({"job": "length", "size": 600, "length": length, "each": max(count // 10, 10)}, 1)
        rows.update({f"{who}, {length:,} messages": figures for who, figures in found.items()})
    return Table("Durable append to a conversation of so many messages, 600 B", "bytes/event", rows)


def _in_folder(work: Callable[[Path], Figures]) -> Callable[[], Figures]:
    def run() -> Figures:
        with tempfile.TemporaryDirectory(prefix="stead-bench-") as folder:
            return work(Path(folder))

    return run


# --- the limits ---------------------------------------------------------------------------------------------------------------


def raw_file(folder: Path, size: int, count: int) -> Figures:
    fd = os.open(folder / "raw", os.O_CREAT | os.O_RDWR, 0o600)
    body = b"x" * size
    try:
        os.posix_fallocate(fd, 0, count * size)
        os.fsync(fd)
        timed = Timed()
        timed.called(lambda n: (os.write(fd, body), os.fdatasync(fd)), count)
        return timed.figures()
    finally:
        os.close(fd)


def raw_commit(folder: Path, part: Any, count: int) -> Figures:
    """One row, one table, one commit, in the calling thread."""
    connection = apsw.Connection(str(folder / "raw.db"))
    run = connection.cursor().execute
    for statement in (
        f"PRAGMA page_size={PAGE_BYTES}",
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "CREATE TABLE e(n INTEGER PRIMARY KEY, b)",
    ):
        run(statement).fetchall()

    def append(n: int) -> None:
        run("BEGIN IMMEDIATE")
        run("INSERT INTO e(b) VALUES(?)", (orjson.dumps({"message": 1, "n": n, "part": part}),))
        run("COMMIT")

    timed = Timed()
    timed.called(append, count)
    connection.close()
    return timed.figures()


class Rows:
    """The rows of an append in the tables of a real store, by a bare connection with the same settings."""

    def __init__(self, folder: Path, clients: int) -> None:
        with house(folder, clients):
            pass
        self.connection = apsw.Connection(str(folder / "stead.db"))
        self.cursor = self.connection.cursor()
        for statement in _EACH:
            self.cursor.execute(statement).fetchall()
        self.seq: int = self.cursor.execute("SELECT max(seq) FROM events").fetchall()[0][0]

    def commit(self, batch: list[tuple[str, int, Any]]) -> None:
        events, parts, now = [], [], time.time_ns() // 1_000_000
        for session, n, part in batch:
            self.seq += 1
            data = orjson.dumps({"message": 1, "n": n, "part": part})
            events.append((self.seq, session, "part.added", 1, now, "system", None, None, data))
            parts.append((session, 1, n, self.seq))
        self.cursor.execute("BEGIN IMMEDIATE")
        self.cursor.executemany(EVENT, events)
        self.cursor.executemany(PART, parts)
        self.cursor.execute("COMMIT")


def raw_rows(folder: Path, part: Any, count: int) -> Figures:
    rows = Rows(folder, 1)
    timed = Timed()
    timed.called(lambda n: rows.commit([(name(0), n, part)]), count)
    rows.connection.close()
    return timed.figures()


def bare(folder: Path, clients: int, each: int, part: Any) -> Figures:
    """One thread that commits all that waits, and nothing else: no checks, no savepoints, no projectors, no listeners."""
    rows = Rows(folder, clients)
    queue: SimpleQueue[Any] = SimpleQueue()

    def tell(futures: list[asyncio.Future[None]]) -> None:
        for future in futures:
            future.set_result(None)

    def write(loop: asyncio.AbstractEventLoop) -> None:
        while (item := queue.get()) is not None:
            batch = [item]
            while len(batch) < 256:
                try:
                    batch.append(queue.get_nowait())
                except Empty:
                    break
            rows.commit([row for row, _ in batch])
            loop.call_soon_threadsafe(tell, [future for _, future in batch])

    async def run() -> Figures:
        loop = asyncio.get_running_loop()
        thread = threading.Thread(target=write, args=(loop,))
        thread.start()

        async def append(session: int, n: int) -> None:
            future: asyncio.Future[None] = loop.create_future()
            queue.put(((name(session), n, part), future))
            await future

        timed = Timed()
        await asyncio.gather(*(timed.awaited(lambda n, k=k: append(k, n), each) for k in range(clients)))  # type: ignore[misc]
        figures = timed.figures()
        queue.put(None)
        thread.join()
        return figures

    try:
        return asyncio.run(run())
    finally:
        rows.connection.close()


# --- ours ---------------------------------------------------------------------------------------------------------------------


def ours(folder: Path, clients: int, each: int, part: Any) -> Figures:
    async def run() -> Figures:
        def append(session: int, n: int) -> Any:
            return store.commit(lambda tx: sessions.add_part(tx, name(session), 1, n, part))

        timed = Timed()
        await asyncio.gather(*(timed.awaited(lambda n, k=k: append(k, n), each) for k in range(clients)))  # type: ignore[misc]
        return timed.figures()

    with house(folder, clients) as store:
        return asyncio.run(run())


def ours_thread(folder: Path, each: int, part: Any) -> Figures:
    with house(folder, 1) as store:
        timed = Timed()
        timed.called(lambda n: store.write(lambda tx: sessions.add_part(tx, name(0), 1, n, part)), each)
        return timed.figures()


def at_length(folder: Path, length: int, count: int) -> Figures:
    """Appends of one part to the last message of a conversation."""
    with house(folder, 1) as store:
        lengthen(store, name(0), length - 1)
    with open_store(folder, FEATURES) as store:  # closing brought what was written so far into the database
        part = text(600)
        timed = Timed()
        timed.called(lambda n: store.write(lambda tx: sessions.add_part(tx, name(0), length, 3 + n, part)), count)
        return timed.figures()
