"""What a durable append costs in counts that are the same on every machine: one sync a commit, so many bytes an event, at any
length of the conversation. All through the public API, with everything that is projected."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.app import FEATURES
from stead.domain import sessions
from stead.store import Store, Tx, open_store
from stead.store.sqlite import PAGE_BYTES, RECYCLE_COMMITS
from tests.store.counting import Counting, counted
from tests.support import scale

TEXT = {"type": "text", "text": "x" * 500}
CLIENTS = 64


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    with counted(monkeypatch) as vfs:
        yield vfs


@pytest.fixture
def house(tmp_path: Path, counting: Counting) -> Iterator[Store]:
    """A store with 64 sessions, each with one message."""
    with open_store(tmp_path / "house", FEATURES) as store:

        def begin(tx: Tx) -> None:
            for n in range(CLIENTS):
                sessions.create(tx, name(n), "p" * 16, title="A title", agent="build", model="m/x")
                sessions.add_message(tx, name(n), "assistant", model="m/x")

        store.write(begin)
        counting.clear()
        yield store


def name(session: int) -> str:
    return f"session{session:09}"


def part(session: int, n: int) -> Callable[[Tx], Any]:
    """A job that appends one event of about 600 bytes."""
    return lambda tx: sessions.add_part(tx, name(session), 1, n, TEXT)


def checkpoints(store: Store, pages: int) -> None:
    store.write(lambda tx: tx.q(f"PRAGMA wal_autocheckpoint={pages}"))


async def clients(store: Store, each: int, first: int) -> None:
    """64 sessions of one event loop, each appending one event after the other."""

    async def client(session: int) -> None:
        for n in range(first, first + each):
            await store.commit(part(session, n))

    await asyncio.gather(*(client(n) for n in range(CLIENTS)))


def test_without_checkpoints_a_batch_is_exactly_one_sync_of_the_log(house: Store, counting: Counting) -> None:
    checkpoints(house, 0)
    counting.clear()
    commits: list[int] = []
    house.listen(lambda events: commits.append(len(events)))
    alone = RECYCLE_COMMITS + scale(400)  # nothing of ours brings it into the database either
    for n in range(alone):
        house.write(part(0, n))
    assert counting.syncs == ["wal"] * alone
    asyncio.run(clients(house, 20 + scale(5), first=alone))
    assert counting.syncs == ["wal"] * len(commits)
    assert max(commits) > 1  # jobs that waited shared one
    assert counting.written["db"] == 0


def test_with_checkpoints_it_is_at_most_1_02_on_average(house: Store, counting: Counting) -> None:
    count = 2_000
    for n in range(count):
        house.write(part(0, n))
    assert counting.syncs.count("db") >= 2, "no checkpoint was met"
    assert count <= counting.syncs.count("wal") <= count * 1.02


def test_the_log_is_written_over_instead_of_growing(house: Store, tmp_path: Path) -> None:
    sizes = []
    for n in range(RECYCLE_COMMITS * 5):
        house.write(part(0, n))
        sizes.append((tmp_path / "house" / "stead.db-wal").stat().st_size)
    assert sizes[-1] == sizes[RECYCLE_COMMITS * 2]
    assert sizes[-1] <= 6 * RECYCLE_COMMITS * PAGE_BYTES


def test_an_event_alone_writes_at_most_12_kb_its_checkpoints_included(house: Store, counting: Counting) -> None:
    assert PAGE_BYTES == 2048
    with house.view() as view:
        assert view.one("PRAGMA page_size") == (PAGE_BYTES,)
    count = 2_000
    for n in range(count):
        house.write(part(0, n))
    assert counting.written["db"] > 0, "no checkpoint was met"
    assert sum(counting.written.values()) / count <= 12_000
    assert counting.written["wal"] / count <= 5 * (PAGE_BYTES + 24)  # three leaves, and what a new page of one of them costs


@pytest.mark.slow
def test_an_event_of_64_sessions_that_share_commits_writes_at_most_8_kb(house: Store, counting: Counting) -> None:
    rounds = 300 + scale(500)
    for n in range(rounds):
        house.write(lambda tx, n=n: [part(session, n)(tx) for session in range(CLIENTS)])  # type: ignore[misc]
    assert counting.syncs.count("db") >= 2, "no checkpoint was met"
    assert sum(counting.written.values()) / (rounds * CLIENTS) <= 8 * 1024


def test_the_length_of_the_conversation_changes_nothing(house: Store, counting: Counting) -> None:
    checkpoints(house, 0)
    found: dict[int, float] = {}
    length = 1
    for wanted in (100, max(1_000, scale(10_000))):

        def lengthen(tx: Tx, count: int = wanted - length) -> None:
            for _ in range(count):
                sessions.add_part(tx, name(0), sessions.add_message(tx, name(0), "assistant", model="m/x"), 0, TEXT)

        house.write(lengthen)
        length = wanted
        counting.clear()
        for _ in range(300):
            house.write(lambda tx: lengthen(tx, 1))
        length += 300
        found[wanted] = counting.written["wal"] / 300
    short, long = found.values()
    assert long <= short * 1.10, found
