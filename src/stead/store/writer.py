"""The one writer of a process. Jobs that wait share a commit; each but the first has a savepoint, so that its error is its
own; nobody hears of a change before it is durable (I2)."""

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
from stead.store.kernel import refuse_newer
from stead.store.log import HEAD, Listener, Projector, Tx
from stead.store.rebuild import refuse_writing

Job = Callable[[Tx], Any]

BATCH_JOBS = 256
BATCH_SECONDS = 0.005
BATCH_BYTES = 1 << 20
SLOW_JOB_SECONDS = 0.05
IDLE_SECONDS = 1.0

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
    """Owns the only writing connection of the process. Thread-safe. `version` is the kernel version that it writes, `versions`
    are those of its features."""

    def __init__(
        self,
        connect: Callable[[], Conn],
        projectors: Mapping[type[Fact], Sequence[Projector]],
        clock: Clock,
        publish: Listener,
        version: int,
        versions: Mapping[str, int],
    ) -> None:
        self._connect = connect
        self._conn = connect()
        self._projectors = projectors
        self._clock = clock
        self._publish = publish
        self._version = version
        self._versions = versions
        self._made: int | None = -1
        self._queue: SimpleQueue[_Item | None] = SimpleQueue()
        self._pid = os.getpid()
        self._closed = False
        self._door = threading.Lock()  # no job gets in behind the end of the queue
        self._thread = threading.Thread(target=self._run, name="stead-writer", daemon=True)
        self._thread.start()

    def submit(self, job: Job, actor: str) -> Future[Any]:
        """Queue a job; the future resolves when it is durable and cannot be cancelled."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        self._put(_Item(job, actor, future, None))
        return future

    async def commit(self, job: Job, actor: str) -> Any:
        """Run a job and give its result once it is durable. A cancelled caller's job may have been committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._put(_Item(job, actor, future, loop))
        return await future

    def is_this_thread(self) -> bool:
        """Whether the caller is a job or a listener: it must not wait for another job."""
        return threading.current_thread() is self._thread

    def close(self) -> None:
        """Commit what waits, then end the thread and the connection."""
        with self._door:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        self._conn.close()

    def _put(self, item: _Item) -> None:
        if os.getpid() != self._pid:
            raise SteadError("internal", "This process was forked from one with an open store; start a fresh process.")
        with self._door:
            if self._closed:
                raise SteadError("internal", "The store is closed.")
            self._queue.put(item)

    def _run(self) -> None:
        ended = False
        while not ended:
            item = self._next()
            if item is None:
                return
            batch = [item]
            try:
                ended = self._batch(batch)
            except BaseException as error:  # the thread must outlive anything a batch does, and nobody may wait for ever
                log.exception("the writer met an error outside of a job")
                for one in batch:
                    one.error = one.error or error
            _resolve(batch)
            del item, batch  # with all that the jobs had hold of: the next may be long in coming

    def _next(self) -> _Item | None:
        """The next job. Where the write-ahead log is over its bound, it is begun anew as soon as there is nothing else to do."""
        try:
            while self._conn.tend():
                try:
                    return self._queue.get(timeout=IDLE_SECONDS)
                except Empty:
                    self._conn.checkpoint()
        except SteadError:
            log.warning("the write-ahead log could not be begun anew", exc_info=True)
        return self._queue.get()

    def _batch(self, batch: list[_Item]) -> bool:
        """Run the one job in `batch`, and those that wait behind it, in one commit, and tell the listeners. The caller tells who
        waits for the jobs. True when the end of the queue was met."""
        events: list[Event[Any]] = []
        ended = False
        try:
            self._begin()
            faults.point("writer.begun")
            version, gone, last, made = self._conn.q(HEAD)[0]
            refuse_newer(version, self._version)
            if made != self._made:  # tables of features are as another program made them
                refuse_writing(self._conn.q("SELECT name, version FROM projections"), self._versions)
                self._made = made
            start = at = self._clock.monotonic()
            written, next_seq = 0, max(gone, last or 0) + 1
            while True:
                tx = Tx(self._conn, self._projectors, next_seq, self._clock.now(), batch[-1].actor)
                self._one(batch[-1], tx, alone=len(batch) == 1)
                next_seq, written = tx.next_seq, written + tx.written
                events += tx.events
                began, at = at, self._clock.monotonic()
                if at - began > SLOW_JOB_SECONDS:
                    job = batch[-1].job
                    log.warning("a job held the writer for %.0f ms: %s", (at - began) * 1000, getattr(job, "__qualname__", job))
                if len(batch) >= BATCH_JOBS or written >= BATCH_BYTES or at - start >= BATCH_SECONDS or self._queue.empty():
                    break
                # Before the next is taken: a job that left a broken transaction behind fails alone.
                self._conn.q("SAVEPOINT job")
                item = self._queue.get_nowait()
                if item is None:
                    ended = True
                    break
                batch.append(item)
            faults.point("writer.before_commit")
            self._conn.commit()
        except BaseException as error:
            self._fail(batch, error)
            return ended
        faults.point("writer.after_commit")
        if events:
            self._publish(events)
        return ended

    def _begin(self) -> None:
        """Begin a transaction. A connection that was lost, or turns out to be just now, is replaced once: nothing was done yet."""
        if self._conn.usable:
            try:
                self._conn.begin()
                return
            except SteadError:
                if self._conn.usable:
                    raise
        self._conn.close()
        self._conn = self._connect()
        self._conn.begin()

    def _one(self, item: _Item, tx: Tx, alone: bool) -> None:
        """Run one job in the savepoint that was set for it; while it is alone the transaction is its savepoint, and its error goes
        up. An error that the job swallowed but the database remembers is the job's as well."""
        if alone:
            item.result = item.job(tx)
            return
        try:
            item.result = item.job(tx)
            self._conn.q("RELEASE SAVEPOINT job")
        except BaseException as error:
            item.result, item.error = None, error
            tx.events.clear()
            if not self._conn.in_transaction:  # the database gave the whole transaction up, a full disk for one
                raise
            self._conn.q("ROLLBACK TO SAVEPOINT job")
            self._conn.q("RELEASE SAVEPOINT job")

    def _fail(self, items: list[_Item], error: BaseException) -> None:
        try:
            self._conn.rollback()
        except Exception:
            if self._conn.usable:  # on one that is gone there is nothing left to undo
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
    future, error = item.future, item.error
    if future.done():
        return
    if error is None:
        future.set_result(item.result)
        return
    if isinstance(error, StopIteration):  # a future of an event loop cannot hold one
        error = RuntimeError("a job raised StopIteration").with_traceback(error.__traceback__)
    future.set_exception(error)
