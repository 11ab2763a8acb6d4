"""Group commit: who shares a commit, whose error is whose, who is told what and when. On both databases."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.store import Store, faults, open_store
from tests.store.notes import NOTES, Written, write

Opener = Callable[..., Store]


def texts(store: Store) -> list[str]:
    with store.view() as view:
        return [event.data.text for event in view.events()]


def commits(store: Store) -> list[int]:
    """The number of events in each commit from now on."""
    counts: list[int] = []
    store.listen(lambda events: counts.append(len(events)))
    return counts


@contextmanager
def busy(store: Store) -> Any:
    """Hold the writer inside of a job until the block ends, so that what the block submits waits and shares a commit with it."""
    inside, leave = threading.Event(), threading.Event()

    def job(tx: Any) -> None:
        inside.set()
        assert leave.wait(10)

    held = store.submit(job)
    assert inside.wait(10)
    try:
        yield
    finally:
        leave.set()
        held.exception(10)


def test_jobs_that_wait_share_a_commit_and_keep_their_order(store: Store) -> None:
    counts = commits(store)
    with busy(store):
        futures = [store.submit(write("a", str(n))) for n in range(40)]
    got = [future.result(10) for future in futures]
    assert got == sorted(got) and texts(store) == [str(n) for n in range(40)]
    assert counts == [40]


def test_a_batch_has_an_end(store: Store) -> None:
    counts = commits(store)
    with busy(store):
        futures = [store.submit(write("a")) for _ in range(300)]
    for future in futures:
        future.result(10)
    assert sum(counts) == 300 and max(counts) <= 256


def test_large_events_end_a_batch(store: Store) -> None:
    counts = commits(store)
    with busy(store):
        futures = [store.submit(write("a", "x" * 60_000)) for _ in range(30)]
    for future in futures:
        future.result(10)
    assert max(counts) <= 18 and sum(counts) == 30  # 1 MiB


def test_a_failing_job_undoes_only_itself(store: Store) -> None:
    def bad(tx: Any) -> None:
        tx.append("a", Written(text="bad"))
        raise ValueError("mine")

    counts = commits(store)
    with busy(store):
        first, second, third = store.submit(write("a", "1")), store.submit(bad), store.submit(write("a", "3"))
    assert first.result(10) < third.result(10)
    with pytest.raises(ValueError, match="mine"):
        second.result(10)
    assert texts(store) == ["1", "3"] and counts == [2]


def test_an_error_of_the_database_in_one_savepoint_leaves_the_others_alone(store: Store) -> None:
    with busy(store):
        first = store.submit(write("a", "1"))
        bad = store.submit(lambda tx: (tx.append("a", Written(text="bad")), tx.q("SELECT * FROM no_such_table")))
        third = store.submit(write("a", "3"))
    first.result(10), third.result(10)
    assert bad.exception(10) is not None
    assert texts(store) == ["1", "3"]


def test_an_error_that_a_job_swallows_does_not_hurt_its_neighbours(store: Store) -> None:
    def swallow(tx: Any) -> str:
        tx.append("a", Written(text="swallowed"))
        try:
            tx.q("SELECT * FROM no_such_table")
        except Exception:
            return "went on"
        raise AssertionError

    with busy(store):
        first, odd, third = store.submit(write("a", "1")), store.submit(swallow), store.submit(write("a", "3"))
    first.result(10), third.result(10)
    if odd.exception(10) is None:  # SQLite forgets the error, PostgreSQL does not: then the job is the one that failed
        assert odd.result() == "went on" and texts(store) == ["1", "swallowed", "3"]
    else:
        assert texts(store) == ["1", "3"]


@pytest.mark.parametrize("how", ["swallowed", "raised"])
def test_the_first_job_of_a_batch_has_no_savepoint_and_its_error_is_its_own_all_the_same(store: Store, how: str) -> None:
    def first(tx: Any) -> str:
        tx.append("a", Written(text="first"))
        waiting = [store.submit(write("a", str(n))) for n in range(3)]  # they are behind it in its own batch
        futures.extend(waiting)
        try:
            tx.q("SELECT * FROM no_such_table")
        except Exception:
            if how == "raised":
                raise
            return "went on"
        raise AssertionError

    futures: list[Future[Any]] = []
    odd = store.submit(first)
    failed = odd.exception(10) is not None
    assert failed or how == "swallowed"
    got = [future.result(10) for future in futures]
    assert got == sorted(got) and texts(store) == ([] if failed else ["first"]) + ["0", "1", "2"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration, asyncio.CancelledError, GeneratorExit])
def test_a_job_may_raise_anything_and_the_writer_goes_on(store: Store, error: type[BaseException]) -> None:
    def bad(tx: Any) -> None:
        tx.append("a", Written(text="bad"))
        raise error

    with busy(store):
        odd, after = store.submit(bad), store.submit(write("a", "after"))
    assert odd.exception(10) is not None
    assert after.result(10) and texts(store) == ["after"]


async def test_a_job_that_raises_stop_iteration_does_not_leave_a_coroutine_waiting(store: Store) -> None:
    def bad(tx: Any) -> None:
        raise StopIteration

    good = asyncio.create_task(store.commit(write("a")))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await asyncio.wait_for(store.commit(bad), 10)
    assert await asyncio.wait_for(good, 10)


def test_a_failing_commit_fails_every_job_of_its_batch(store: Store) -> None:
    store.write(write("a", "kept"))
    told: list[Any] = []
    store.listen(told.extend)

    def full(name: str) -> None:
        raise SteadError("disk_full", "no space")

    with busy(store):
        futures: list[Future[Any]] = [store.submit(write("a", str(n))) for n in range(5)]
        faults.arm("writer.before_commit", full)
    for future in futures:
        error = future.exception(10)
        assert isinstance(error, SteadError) and error.code == "disk_full"
    assert texts(store) == ["kept"] and told == []
    assert store.write(write("a", "again")) and texts(store) == ["kept", "again"]


def test_nobody_is_told_before_another_connection_can_read_it(store: Store, where: str) -> None:
    seen: list[bool] = []
    with open_store(where, [NOTES]) as second:

        def heard(events: Any) -> None:
            with second.view() as view:
                seen.append(view.events(after=events[0].seq - 1, limit=len(events)) == list(events))

        store.listen(heard)
        faults.arm("writer.before_commit", lambda name: seen.append(False) if texts(second) else None)
        store.write(write("a", "first", {"deep": [1, 2.5, "x"]}))
        with busy(store):
            futures = [store.submit(write("ab"[n % 2], value=(1, 2))) for n in range(20)]
        for future in futures:
            future.result(10)
    assert seen == [True, True]  # I2


def test_listeners_hear_every_commit_once_and_in_order_from_many_threads(store: Store) -> None:
    heard: list[int] = []
    stop = store.listen(lambda events: heard.extend(event.seq for event in events))
    got: list[list[int]] = [[] for _ in range(6)]

    def work(mine: list[int], name: str) -> None:
        for n in range(25):
            mine.append(store.write(write(name, str(n))))

    threads = [threading.Thread(target=work, args=(mine, f"s{n}")) for n, mine in enumerate(got)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard == sorted(heard) and sorted(seq for mine in got for seq in mine) == heard
    for n, mine in enumerate(got):
        with store.view() as view:
            assert [event.seq for event in view.events(stream=f"s{n}")] == mine
    stop()
    stop()  # twice is harmless
    store.write(write("a"))
    assert len(heard) == 150


@pytest.mark.parametrize("error", [ValueError, SystemExit, KeyboardInterrupt])
def test_a_listener_that_fails_hurts_nobody(store: Store, error: type[BaseException]) -> None:
    heard: list[int] = []

    def bad(events: Any) -> None:
        raise error

    store.listen(bad)
    store.listen(lambda events: heard.append(len(events)))
    assert store.submit(write("a")).result(10) and store.submit(write("a")).result(10)
    assert heard == [1, 1]


def test_waiting_for_a_job_inside_of_a_job_is_an_error_and_no_deadlock(store: Store) -> None:
    errors: list[BaseException] = []

    def nested(tx: Any) -> None:
        store.write(write("a"))

    def listener(events: Any) -> None:
        try:
            store.write(write("a"))
        except SteadError as error:
            errors.append(error)

    with pytest.raises(SteadError, match="cannot wait"):
        store.submit(nested).result(10)
    store.listen(listener)
    store.submit(write("a")).result(10)
    assert len(errors) == 1


async def test_coroutines_share_commits_too(store: Store) -> None:
    counts = commits(store)
    got = await asyncio.gather(*(store.commit(write(f"s{n % 8}")) for n in range(64)))
    assert sorted(got) == got and sum(counts) == 64 and len(counts) < 64


async def test_a_cancelled_callers_job_is_committed_all_the_same(store: Store) -> None:
    with busy(store):
        task = asyncio.create_task(store.commit(write("a", "committed")))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert await store.commit(write("a", "next")) and texts(store) == ["committed", "next"]


def test_the_future_of_a_job_cannot_be_cancelled(store: Store) -> None:
    with busy(store):
        future = store.submit(write("a", "done"))
        assert not future.cancel()
    assert future.result(10) and texts(store) == ["done"]


def test_a_loop_that_closed_meanwhile_stops_nothing(store: Store) -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        task = asyncio.ensure_future(store.commit(write("a", "from a dead loop")))
        await asyncio.sleep(0)
        task.cancel()

    with busy(store):
        loop.run_until_complete(begin())
        loop.close()
    assert store.write(write("a", "next")) and texts(store) == ["from a dead loop", "next"]


def test_closing_commits_what_waits_and_refuses_what_comes_later(opener: Opener, where: str) -> None:
    store = opener()
    futures = [store.submit(write("a", str(n))) for n in range(20)]
    store.close()
    store.close()
    assert [future.result(0) for future in futures] == sorted(future.result(0) for future in futures)
    with pytest.raises(SteadError, match="closed"):
        store.write(write("a"))
    with pytest.raises(SteadError, match="closed"), store.view():
        pass
    assert texts(opener()) == [str(n) for n in range(20)]


def test_a_store_closed_before_its_first_write_stays_closed(opener: Opener) -> None:
    opener().close()  # makes the tables
    store = opener()
    store.close()
    with pytest.raises(SteadError, match="closed"):
        store.write(write("a"))


def test_every_job_is_answered_when_the_store_closes_under_the_feet_of_its_users(opener: Opener) -> None:
    store = opener()
    store.write(write("a"))
    answered: list[str] = []

    def work() -> None:
        try:
            while True:
                store.submit(write("a")).result(10)
        except SteadError as error:
            answered.append(error.message)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    store.close()
    for thread in threads:
        thread.join(10)
    assert answered == ["The store is closed."] * 4


def test_a_newer_kernel_is_refused_at_the_next_write_and_at_opening(opener: Opener) -> None:
    store = opener()
    store.write(write("a"))
    store.write(lambda tx: tx.q("UPDATE kernel SET version=version+1"))  # another process migrated
    for attempt in (lambda: store.write(write("a")), opener):
        with pytest.raises(SteadError) as failed:
            attempt()
        assert failed.value.code == "store_newer"
    assert len(texts(store)) == 1
    store.close()
