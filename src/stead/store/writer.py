"""The one writer of a process. Jobs that wait share a commit; each has a savepoint, so that its error is its own;
nobody hears of a change before it is durable (I2)."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from stead.core.clock import Clock
from stead.core.errors import SteadError
from stead.core.events import Event, Fact
from stead.store import faults
from stead.store.database import Conn
from stead.store.feature import Projector
from stead.store.kernel import KERNEL_VERSION, refuse_newer
from stead.store.log import Tx

Job = Callable[[Tx], Any]
Listener = Callable[[Sequence[Event[Any]]], None]

BATCH_JOBS = 256
BATCH_SECONDS = 0.005
BATCH_BYTES = 1 << 20
SLOW_JOB_SECONDS = 0.05

log = logging.getLogger("stead.store")


class _Item:
    """A job and who waits for it: a thread's future, or one of an event loop."""

    __slots__ = ("actor", "error", "future", "job", "loop", "result")

    def __init__(
        self, job: Job, actor: str, future: Future[Any] | asyncio.Future[Any], loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.job = job
        self.actor = actor
        self.future = future
        self.loop = loop
        self.result: Any = None
        self.error: BaseException | None = None


class Writer:
    """Owns the only writing connection of the process. Thread-safe."""

    def __init__(self, conn: Conn, projectors: Mapping[type[Fact], Sequence[Projector]], clock: Clock, publish: Listener) -> None:
        self._conn = conn
        self._projectors = projectors
        self._clock = clock
        self._publish = publish
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="stead-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job, actor: str) -> Future[Any]:
        """Queue a job; the future resolves when it is durable. Cancelling the future does not cancel the job."""
        future: Future[Any] = Future()
        self._put(_Item(job, actor, future, None))
        return future

    async def commit(self, job: Job, actor: str) -> Any:
        """Run a job and give its result once it is durable. A cancelled caller's job may have been committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._put(_Item(job, actor, future, loop))
        return await future

    def close(self) -> None:
        """Commit what waits, then end the thread and the connection."""
        if not self._closed:
            self._closed = True
            self._queue.put(None)
            self._thread.join()
            self._conn.close()

    def _put(self, item: _Item) -> None:
        if self._closed:
            raise SteadError("internal", "The store is closed.")
        if os.getpid() != self._pid:
            raise SteadError("internal", "This process was forked from one with an open store; open it anew.")
        self._queue.put(item)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                if self._batch(item):
                    return
            except BaseException:  # the thread must outlive anything a batch does
                log.exception("the writer met an error outside of a job")

    def _batch(self, first: _Item) -> bool:
        """Run `first` and what waits behind it in one commit. True when the end of the queue was met."""
        done: list[_Item] = []
        events: list[Event[Any]] = []
        ended = False
        item: _Item | None = first
        try:
            self._conn.begin()
            version, seq = self._conn.q("SELECT version, seq FROM kernel")[0]
            refuse_newer(version, KERNEL_VERSION)
            start, written, next_seq = self._clock.monotonic(), 0, seq + 1
            while item is not None:
                tx = Tx(self._conn, self._projectors, next_seq, self._clock.now(), item.actor)
                done.append(item)
                self._one(item, tx)
                next_seq, written = tx.next_seq, written + tx.written
                events += tx.events
                item = None
                if len(done) < BATCH_JOBS and written < BATCH_BYTES and self._clock.monotonic() - start < BATCH_SECONDS:
                    item, ended = self._waiting()
            if next_seq > seq + 1:
                self._conn.q("UPDATE kernel SET seq=?", (next_seq - 1,))
            faults.point("writer.before_commit")
            self._conn.commit()
            faults.point("writer.after_commit")
        except BaseException as error:
            self._fail(done or [first], error)
            events = []
        if events:
            self._publish(events)
        _resolve(done or [first])
        return ended

    def _waiting(self) -> tuple[_Item | None, bool]:
        try:
            item = self._queue.get_nowait()
        except Empty:
            return None, False
        return item, item is None

    def _one(self, item: _Item, tx: Tx) -> None:
        """Run one job in its savepoint."""
        started = self._clock.monotonic()
        self._conn.q("SAVEPOINT job")
        try:
            item.result = item.job(tx)
        except BaseException as error:
            item.error = error
            tx.events.clear()
            if not self._conn.in_transaction:  # the database gave the whole transaction up, a full disk for one
                raise
            self._conn.q("ROLLBACK TO SAVEPOINT job")
        self._conn.q("RELEASE SAVEPOINT job")
        if (took := self._clock.monotonic() - started) > SLOW_JOB_SECONDS:
            log.warning("a job held the writer for %.0f ms: %s", took * 1000, getattr(item.job, "__qualname__", item.job))

    def _fail(self, items: list[_Item], error: BaseException) -> None:
        try:
            self._conn.rollback()
        except Exception:
            log.exception("rolling back failed")
        for item in items:
            item.error = item.error or error
            item.result = None


def _resolve(items: list[_Item]) -> None:
    """Tell every waiter, each event loop with one wake-up for the whole batch."""
    loops: dict[asyncio.AbstractEventLoop, list[_Item]] = {}
    for item in items:
        if item.loop is not None:
            loops.setdefault(item.loop, []).append(item)
        else:
            _settle(item)
    for loop, waiting in loops.items():
        try:
            loop.call_soon_threadsafe(_settle_all, waiting)
        except RuntimeError:
            log.debug("a loop closed before its %d jobs were told; they are committed", len(waiting))


def _settle_all(items: list[_Item]) -> None:
    for item in items:
        _settle(item)


def _settle(item: _Item) -> None:
    future = item.future
    if future.cancelled() or future.done():
        return
    if item.error is not None:
        future.set_exception(item.error)
    else:
        future.set_result(item.result)
