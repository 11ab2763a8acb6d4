"""A rebuild goes in chunks beside the tables in use: killed anywhere it is gone on with, and nobody is disturbed meanwhile."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.core.events import Event
from stead.store import Feature, Store, Tx, faults, rebuild
from tests.store.children import Child, Gate
from tests.store.notes import NOTES, Erased, Written, erase_stream, write

Opener = Callable[..., Store]


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "_CHUNK", 7)


def notes(version: int, **more: Any) -> Feature:
    """The notes in another version of their tables."""
    made = Feature("notes", version=version, tables={**NOTES.tables, **more}, indexes=NOTES.indexes)
    made.projectors = NOTES.projectors
    return made


def live_on(store: Store, rng: random.Random, dead: set[str]) -> None:
    """One thing that happens: a note, one erased, a whole stream deleted."""
    name = f"s{rng.randrange(30)}"
    if name in dead:
        return
    if rng.random() < 0.06:
        store.write(erase_stream(name))
        dead.add(name)
    elif rng.random() < 0.2:
        with store.view() as view:
            newest = view.newest()
        store.write(lambda tx: tx.append(name, Erased(seq=rng.randrange(newest + 1))))
    else:
        store.write(write(name, f"note of {name}"))


@pytest.mark.parametrize("seed", range(4))
def test_what_happens_between_two_chunks_is_in_it_and_readers_see_whole_tables(store: Store, seed: int) -> None:
    rng, dead = random.Random(seed), set[str]()
    for _ in range(90):
        live_on(store, rng, dead)
    at, total, chunks = 0, 1, 0
    while at != total:
        live = store.dump()
        at, total = store.write(lambda tx: rebuild.step(tx, store.database, store.features))
        assert store.dump() == live
        chunks += 1
        for _ in range(rng.randrange(4) if chunks < 30 else 0):
            live_on(store, rng, dead)
    assert chunks > 3
    with store.view() as view:
        assert view.q("SELECT * FROM rebuilds") == []
        assert {name for name in view.tables(store.database) if "__new" in name} == set()


def test_indexes_and_keys_are_there_after_any_number_of_rebuilds(store: Store) -> None:
    store.write(lambda tx: [write("a")(tx) for _ in range(20)])
    for _ in range(5):
        store.rebuild()
        with store.view() as view:
            named = [name for name in store.database.indexes(view._conn) if name.startswith("notes_stream")]
        assert len(named) == 1
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        store.write(lambda tx: tx.q("INSERT INTO notes(seq, stream, text, size) VALUES(1,'a','',0)"))


@pytest.mark.slow
def test_a_start_killed_at_any_point_of_a_rebuild_is_finished_by_the_next(opener: Opener) -> None:
    store = opener(features=[notes(1)])
    rng, dead = random.Random(5), set[str]()
    for _ in range(40):
        live_on(store, rng, dead)
    live = store.dump()
    store.write(lambda tx: tx.q("UPDATE notes SET text='by an old projector'"))
    store.close()
    version, at, killed = 2, 0, 0
    while True:
        at += 1

        def start(version: int = version, at: int = at) -> None:
            left = at

            def passing(name: str) -> None:
                nonlocal left
                left -= 1
                if left == 0:
                    faults.kill(name)

            faults.watch(passing)
            opener(features=[notes(version)]).close()

        died = Child(start).killed()
        killed += died
        finished = opener(features=[notes(version)])
        assert finished.dump() == live, f"after a kill at point {at}"
        with finished.view() as view:
            assert view.q("SELECT version FROM projections") == [(version,)]
        finished.close()
        if not died:
            break
        version += 1
    assert killed >= 15
    assert {"rebuild.chunk", "rebuild.swapped", "writer.before_commit", "writer.after_commit"} <= set(
        points_of_last(opener, version)
    )


def points_of_last(opener: Opener, version: int) -> list[str]:
    def passing() -> list[str]:
        passed: list[str] = []
        faults.watch(passed.append)
        opener(features=[notes(version + 1)]).close()
        return passed

    return list(Child(passing).result())


def test_what_was_broken_off_goes_on_where_it_was_and_says_how_far_it_is(opener: Opener) -> None:
    store = opener(features=[notes(1)])
    store.write(lambda tx: [write("a")(tx) for _ in range(50)])
    store.close()

    def start() -> None:
        faults.arm("writer.after_commit", count=4)  # tables looked at, then three chunks
        opener(features=[notes(2)])

    assert Child(start).killed()
    told: list[tuple[int, int]] = []
    opener(features=[notes(2)], progress=lambda at, total: told.append((at, total)))
    assert told == [(28, 50), (35, 50), (42, 50), (49, 50), (50, 50)]


def test_processes_that_start_together_rebuild_together(opener: Opener) -> None:
    store = opener(features=[notes(1)])
    store.write(lambda tx: [write(f"s{n % 5}")(tx) for n in range(200)])
    live = store.dump()
    store.close()
    gate = Gate()

    def start() -> tuple[int, bool]:
        gate.wait()
        told: list[int] = []
        mine = opener(features=[notes(2)], progress=lambda at, total: told.append(at))
        whole = set(live["notes"]) <= set(mine.dump()["notes"])
        mine.write(write("s0", "after"))
        mine.close()
        return len(told), whole

    children = [Child(start) for _ in range(4)]
    gate.open()
    found = [child.result() for child in children]
    assert all(whole for _, whole in found)
    assert sum(chunks for chunks, _ in found) <= 200 // 7 + 1 + 4 + 4  # together once, not each of them all
    store = opener(features=[notes(2)])
    assert len(store.dump()["notes"]) == 204
    grown = store.dump()
    store.rebuild()
    assert store.dump() == grown


def test_an_older_program_writes_until_the_exchange_and_is_refused_from_then_on(opener: Opener) -> None:
    """Its events of meanwhile are in the new tables; it never fills them the old way, nor offers to."""
    old = opener(features=[notes(1)])
    old.write(lambda tx: [write("a")(tx) for _ in range(20)])
    seen: list[int] = []

    def meanwhile(at: int, total: int) -> None:
        if at < total and len(seen) < 3:
            seen.append(old.write(write("a", "by the older program")))

    new = opener(features=[notes(2)], progress=meanwhile)
    assert len(seen) >= 2 and {row[0] for row in new.dump()["notes"]} >= set(seen)
    with pytest.raises(SteadError, match="newer stead") as refused:
        old.write(write("a"))
    assert refused.value.code == "store_newer"
    with pytest.raises(SteadError) as refused:
        opener(features=[notes(1)])
    assert refused.value.code == "store_newer"
    new.write(write("a"))


def test_two_versions_never_rebuild_in_turns(opener: Opener) -> None:
    """The newer one begins the shadows anew; the older one gives up instead of doing the same."""
    store = opener(features=[notes(1)])
    store.write(lambda tx: [write("a")(tx) for _ in range(30)])
    two, three = notes(2), notes(3)
    assert store.write(lambda tx: rebuild.step(tx, store.database, [two])) == (7, 30)
    assert store.write(lambda tx: rebuild.step(tx, store.database, [three])) == (7, 30)
    with pytest.raises(SteadError) as refused:
        store.write(lambda tx: rebuild.step(tx, store.database, [two]))
    assert refused.value.code == "store_newer"
    assert store.write(lambda tx: rebuild.step(tx, store.database, [three])) == (14, 30)


def test_a_program_that_lacks_a_feature_reads_and_does_not_write(opener: Opener) -> None:
    """What it appends would be missing in tables that it does not know."""
    opener(features=[NOTES]).close()
    without = opener(features=[])
    with without.view() as view:
        assert view.events() == []
    with pytest.raises(SteadError) as refused:
        without.write(lambda tx: tx.append("a", Written(text="lost")))
    assert refused.value.code == "store_newer"


@pytest.mark.parametrize(
    "sql, becomes",
    [
        ("INSERT INTO notes(seq) VALUES(1)", "INSERT INTO notes__new(seq) VALUES(1)"),
        ("UPDATE notes SET notes=notes.notes+1", "UPDATE notes__new SET notes=notes__new.notes+1"),
        ("DELETE FROM notes WHERE text='FROM notes'", "DELETE FROM notes__new WHERE text='FROM notes'"),
        (
            "SELECT n.text FROM notes n JOIN books ON n.x=books.x",
            "SELECT n.text FROM notes__new n JOIN books__new ON n.x=books__new.x",
        ),
        (
            "INSERT INTO notes(seq) VALUES(1) ON CONFLICT(seq) DO UPDATE SET n=excluded.n",
            "INSERT INTO notes__new(seq) VALUES(1) ON CONFLICT(seq) DO UPDATE SET n=excluded.n",
        ),
        ("DELETE FROM kept WHERE a=1", "DELETE FROM kept WHERE a=1"),
    ],
)
def test_a_projector_is_led_to_the_shadows(sql: str, becomes: str) -> None:
    assert rebuild._shadowed(sql, frozenset({"notes", "books"}), frozenset({"kept"})) == becomes


def test_a_projector_that_uses_what_is_not_its_own_fails_the_rebuild(opener: Opener) -> None:
    thief = Feature("thief", tables={"stolen": "seq {key}"})

    @thief.projects(Written)
    def _steal(tx: Tx, e: Event[Written]) -> None:
        tx.q("INSERT INTO stolen(seq) SELECT seq FROM notes WHERE seq=?", e.seq)

    store = opener(features=[NOTES, thief])
    store.write(write("a"))
    live = store.dump()
    with pytest.raises(SteadError, match="not its own"):
        store.rebuild()
    assert store.dump() == live


def test_readers_of_several_tables_never_give_way_to_an_exchange(store: Store) -> None:
    """A view that read one table and wants the next, while the exchange has that one and wants the first, is no deadlock; and what
    it sees is whole, before or after."""
    store.write(lambda tx: [write("a")(tx) for _ in range(20)])
    over, errors, views = threading.Event(), list[BaseException](), 0

    def reading(first: str, second: str) -> None:
        nonlocal views
        while not over.is_set():
            try:
                with store.view() as view:
                    seen = {first: view.q(f"SELECT * FROM {first}")}
                    time.sleep(0.02)
                    seen[second] = view.q(f"SELECT * FROM {second}")
                assert (len(seen["notes"]), len(seen["notebooks"])) == (20, 1)
                views += 1
            except BaseException as error:
                errors.append(error)
                return

    names = [("notes", "notebooks"), ("notebooks", "notes")]
    threads = [threading.Thread(target=reading, args=pair) for pair in names]
    for thread in threads:
        thread.start()
    try:
        for _ in range(8):
            store.rebuild()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert errors == [] and views >= 2
