"""What an event costs, in counts that are the same on every machine: bytes written, syncs, steps of a query. It does not grow."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.app import FEATURES
from stead.domain import runs, sessions, usage
from stead.store import Store, Tx, open_store
from tests.store.children import Child
from tests.store.counting import Counting, counted
from tests.support import scale

SESSION = "s" * 16
TEXT = {"type": "text", "text": "x" * 500}


def begin(tx: Tx, session: str = SESSION) -> None:
    sessions.create(tx, session, "p" * 16, title="A title", agent="build", model="m/x")


def message(n: int, session: str = SESSION) -> Callable[[Tx], Any]:
    """A job that adds a message of three parts, as one step of a run does."""

    def job(tx: Tx) -> None:
        number = sessions.add_message(tx, session, "assistant", model="m/x")
        for k in range(3):
            sessions.add_part(tx, session, number, k, TEXT)

    return job


def written() -> int:
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("wchar")).split()[1])


# --- bytes --------------------------------------------------------------------------------------------------------------------


def bytes_per_event(folder: Path, events: int, *, group: int = 1) -> tuple[float, float]:
    """Bytes written per 600 B event for the first and the second `events` of a session, all projections included."""
    with open_store(folder, FEATURES) as store:
        store.write(begin)
        number = store.write(lambda tx: sessions.add_message(tx, SESSION, "assistant"))
        store.write(lambda tx: sessions.add_part(tx, SESSION, number, 0, TEXT))
        found = []
        at = 1
        for _ in range(2):
            before = written()
            for _ in range(events // group):
                first = at
                at += group
                store.write(lambda tx, first=first: [sessions.add_part(tx, SESSION, number, first + k, TEXT) for k in range(group)])
            found.append((written() - before) / events)
    return found[0], found[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/io")
def test_an_event_alone_writes_at_most_11_kb_and_no_more_in_a_longer_history(tmp_path: Path) -> None:
    first, second = Child(lambda: bytes_per_event(tmp_path / "house", 400)).result()
    assert second <= 11_000, (first, second)
    assert second <= first * 1.10, (first, second)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/io")
def test_events_that_share_a_commit_share_its_pages(tmp_path: Path) -> None:
    _, alone = Child(lambda: bytes_per_event(tmp_path / "a", 256)).result()
    _, grouped = Child(lambda: bytes_per_event(tmp_path / "b", 256, group=64)).result()
    assert grouped <= 3_000 and grouped * 3 < alone, (alone, grouped)


# --- syncs --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    with counted(monkeypatch) as vfs:
        yield vfs


def test_a_commit_is_one_sync_whatever_it_holds(tmp_path: Path, counting: Counting) -> None:
    with open_store(tmp_path / "house", FEATURES) as store:
        store.write(begin)
        store.write(message(0))
        counting.clear()
        for n in range(20):
            store.write(message(n))
        assert counting.syncs == ["wal"] * 20
        futures = [store.submit(message(n)) for n in range(60)]
        heard: list[Any] = []
        store.listen(heard.append)
        for future in futures:
            future.result(10)
        assert len(counting.syncs) < 20 + 60
        counting.clear()
        with store.view() as view:
            sessions.messages(view, SESSION)
        assert counting.syncs == []


# --- steps of queries ---------------------------------------------------------------------------------------------------------


def steps(store: Store, query: Callable[[Any], Any]) -> int:
    """The steps that SQLite's machine takes for a query: a count, not a time."""
    taken = 0

    def tick() -> bool:
        nonlocal taken
        taken += 1
        return False

    with store.view() as view:
        query(view)
        raw = view._conn.raw  # type: ignore[attr-defined]
        raw.set_progress_handler(tick, 1)
        query(view)
        raw.set_progress_handler(None)
    return taken


@pytest.fixture
def house(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "house", FEATURES) as store:
        store.write(begin)
        yield store


def lengthen(store: Store, messages: int) -> None:
    store.write(lambda tx: [message(n)(tx) for n in range(messages)])


def growth(store: Store, query: Callable[[Any], Any], longer: Callable[[], Any]) -> float:
    before = steps(store, query)
    longer()
    return steps(store, query) / before


def test_a_page_of_a_session_does_not_grow_with_its_history(house: Store) -> None:
    lengthen(house, 100)
    assert growth(house, lambda view: sessions.messages(view, SESSION, limit=50), lambda: lengthen(house, scale(90_000))) <= 1.05
    assert growth(house, lambda view: sessions.messages(view, SESSION, limit=50, before=60), lambda: lengthen(house, 300)) <= 1.05
    assert growth(house, lambda view: sessions.next_part(view, SESSION, 20), lambda: lengthen(house, 300)) <= 1.05


def test_a_page_of_sessions_does_not_grow_with_their_number_nor_with_its_depth(house: Store) -> None:
    def more(count: int, first: int) -> None:
        def job(tx: Tx) -> None:
            for n in range(first, first + count):
                begin(tx, f"{n:016}")
                sessions.add_message(tx, f"{n:016}", "user")

        house.write(job)

    more(200, 0)
    for first, project in ((1_000, None), (2_000, "p" * 16)):

        def page(view: Any, project: str | None = project) -> Any:
            return sessions.page(view, *([project] if project else []))

        assert growth(house, page, lambda first=first: more(600, first)) <= 1.05  # type: ignore[misc]
    with house.view() as view:
        newest = sessions.page(view, limit=1)[0]
        deep = sessions.page(view, limit=700)[-1]
    shallow = steps(house, lambda view: sessions.page(view, before=(newest.updated, newest.seq)))
    assert steps(house, lambda view: sessions.page(view, before=(deep.updated, deep.seq))) <= shallow * 1.1


@pytest.mark.parametrize(
    ("index", "query"),
    [
        ("sessions_updated", lambda view: sessions.page(view)),
        ("sessions_updated", lambda view: sessions.page(view, before=(1, 1))),
        ("sessions_listed", lambda view: sessions.page(view, "p")),
        ("sessions_listed", lambda view: sessions.latest(view, "p")),
        ("runs_session", lambda view: runs.active(view, SESSION)),
        ("runs_open", lambda view: runs.owned(view, "o")),
        ("usage_calls_session", lambda view: usage.sums_of(view, SESSION)),
        ("events_stream", lambda view: view.events(stream=SESSION)),
    ],
)
def test_a_query_uses_its_index(house: Store, index: str, query: Callable[[Any], Any]) -> None:
    plans: list[str] = []

    class Explained:
        def __init__(self, view: Any) -> None:
            self._conn = view._conn

        def q(self, sql: str, *args: Any) -> Any:
            plans.extend(row[3] for row in self._conn.q(f"EXPLAIN QUERY PLAN {sql}", args))
            return self._conn.q(sql, args)

        def one(self, sql: str, *args: Any) -> Any:
            rows = self.q(sql, *args)
            return rows[0] if rows else None

        def events(self, *, stream: str) -> Any:
            from stead.store.log import EVENT_COLUMNS

            return self.q(f"SELECT {EVENT_COLUMNS} FROM events WHERE seq>? AND stream=? ORDER BY seq LIMIT ?", 0, stream, 9)

    with house.view() as view:
        query(Explained(view))
    assert any(index in plan for plan in plans), plans
    assert not any(plan.startswith("SCAN") and "INDEX" not in plan for plan in plans), plans
    assert not any("TEMP B-TREE FOR ORDER BY" in plan for plan in plans), plans


def test_the_list_of_todos_costs_the_same_after_a_hundred_changes(house: Store) -> None:
    from stead.domain import todos

    def replace(times: int) -> None:
        for _ in range(times):
            house.write(lambda tx: todos.replace(tx, SESSION, [("a", "pending"), ("b", "done")]))

    def cost() -> int:
        taken = 0

        def tick() -> bool:
            nonlocal taken
            taken += 1
            return False

        def job(tx: Any) -> None:
            tx._conn.raw.set_progress_handler(tick, 1)
            todos.replace(tx, SESSION, [("a", "done")])
            tx._conn.raw.set_progress_handler(None)

        house.write(job)
        return taken

    replace(5)
    before = cost()
    replace(100)
    assert cost() <= before * 1.1


def test_a_run_begins_at_the_same_cost_in_a_session_of_many(house: Store) -> None:
    def run(n: int) -> None:
        def job(tx: Tx) -> None:
            about: dict[str, Any] = {"agent": "a", "model": "m/x", "owner": "o", "project": "p", "max_steps": 9}
            runs.start(tx, f"r{n}", SESSION, [TEXT], **about)
            runs.end(tx, f"r{n}", "done", steps=0)

        house.write(job)

    for n in range(3):
        run(n)
    assert growth(house, lambda view: runs.active(view, SESSION), lambda: [run(n) for n in range(10, 150)]) <= 1.05
    assert growth(house, lambda view: runs.last(view, SESSION), lambda: [run(n) for n in range(200, 250)]) <= 1.05
