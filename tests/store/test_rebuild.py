"""The log is the truth: every projection can be dropped and filled again, and yesterday's events are read today."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from stead.core import events
from stead.core.events import Event, Fact, UnknownFact, event, lifts
from stead.store import Feature, Store, Tx, rebuild
from tests.store.notes import NOTES, Erased, Written, erase_stream, write

Opener = Callable[..., Store]


def again(feature: Feature, version: int) -> Feature:
    """The same feature in another version."""
    made = Feature(
        feature.name, version=version, tables=feature.tables, indexes=feature.indexes, kept={"drawer": "id TEXT PRIMARY KEY"}
    )
    made.projectors = feature.projectors
    return made


@pytest.mark.parametrize("seed", range(3))
def test_a_rebuild_gives_what_grew_with_the_log(store: Store, seed: int) -> None:
    """The `store` fixture compares at the end; here a random history is made, rebuilt, and goes on."""
    rng = random.Random(seed)
    dead: set[str] = set()
    for n in range(120):
        name = f"s{rng.randrange(6)}"
        if name in dead:
            continue
        if rng.random() < 0.03:
            store.write(erase_stream(name))
            dead.add(name)
        elif rng.random() < 0.2:
            seq = rng.randrange(n + 1)
            store.write(lambda tx, seq=seq, name=name: tx.append(name, Erased(seq=seq)))
        else:
            store.write(write(name, rng.choice(["\0", "ü", "\ud800", "x" * 9]) * rng.randrange(4)))
        if n == 60:
            live = store.dump()
            store.rebuild()
            assert store.dump() == live


def test_damaged_and_dropped_tables_come_back(store: Store) -> None:
    store.write(lambda tx: [write("a", str(n))(tx) for n in range(10)])
    live = store.dump()
    store.write(lambda tx: tx.q("UPDATE notes SET text='damaged'"))
    store.rebuild(["notes"])
    assert store.dump() == live
    store.write(lambda tx: tx.q("DROP TABLE notes"))
    store.rebuild()
    assert store.dump() == live


def test_a_rebuild_that_fails_changes_nothing(store: Store) -> None:
    store.write(lambda tx: [write("a")(tx) for _ in range(5)])
    live = store.dump()

    def stop(done: int, total: int) -> None:
        raise ValueError(f"{done} of {total}")

    with pytest.raises(ValueError, match="5 of 5"):
        store.rebuild(progress=stop)
    assert store.dump() == live and store.write(write("a"))


def test_a_long_log_is_rebuilt_in_pieces_that_are_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rebuild, "_CHUNK", 10)
    store.write(lambda tx: [write("a")(tx) for _ in range(25)])
    told: list[tuple[int, int]] = []
    store.rebuild(progress=lambda done, total: told.append((done, total)))
    assert told == [(10, 25), (20, 25), (25, 25)]


def test_tables_of_another_version_are_filled_anew_at_opening_and_kept_ones_stay(opener: Opener) -> None:
    store = opener(features=[again(NOTES, 1)])
    store.write(lambda tx: [write("a", str(n))(tx) for n in range(5)])
    live = store.dump()
    store.write(lambda tx: tx.q("UPDATE notes SET text='by an old projector'"))
    store.write(lambda tx: tx.q("INSERT INTO drawer(id) VALUES('kept')"))
    store.close()
    same = opener(features=[again(NOTES, 1)])
    assert same.dump() != live  # nothing is rebuilt without a reason
    same.close()
    newer = opener(features=[again(NOTES, 2)])
    assert newer.dump() == live
    with newer.view() as view:
        assert view.q("SELECT id FROM drawer") == [("kept",)]


def test_a_feature_that_is_new_is_filled_from_the_whole_log(opener: Opener) -> None:
    store = opener(features=[])
    store.write(lambda tx: [tx.append("a", Written(text=str(n))) for n in range(5)])
    store.close()
    assert [row[2] for row in opener().dump()["notes"]] == list("01234")


def test_a_start_killed_inside_of_a_rebuild_is_finished_by_the_next(opener: Opener) -> None:
    from stead.store import faults

    store = opener(features=[again(NOTES, 1)])
    store.write(lambda tx: [write("a", str(n))(tx) for n in range(5)])
    live = store.dump()
    store.write(lambda tx: tx.q("DELETE FROM notes"))
    store.close()

    def fail(name: str) -> None:
        raise ValueError(name)

    for _ in range(3):
        faults.arm("rebuild.chunk", fail)
        with pytest.raises(ValueError):
            opener(features=[again(NOTES, 2)])
    assert opener(features=[again(NOTES, 2)]).dump() == live


def test_events_of_a_kind_that_nobody_knows_are_kept_and_passed_on(store: Store) -> None:
    row = ("a", "future.thing", 3, 7, "system", None, None, b'{"x":[1]}')

    def job(tx: Tx) -> int:
        seq = tx.append("a", Written(text="before")).seq + 1
        tx._next += 1
        tx.q("INSERT INTO events(seq, stream, kind, v, ts, actor, run, op, data) VALUES(?,?,?,?,?,?,?,?,?)", seq, *row)
        tx.append("a", Written(text="after"))
        return seq

    seq = store.write(job)
    store.rebuild()
    with store.view() as view:
        found = view.events(after=seq - 1, limit=1)[0]
        assert view.q("SELECT stream, kind, v, ts, actor, run, op, data FROM events WHERE seq=?", seq) == [row]
    assert found.data == UnknownFact(original_kind="future.thing", original={"x": [1]})
    assert len(store.dump()["notes"]) == 2


def test_events_of_a_version_newer_than_ours_are_kept_and_projected_by_nobody(store: Store) -> None:
    def job(tx: Tx) -> None:
        seq = tx.append("a", Written(text="ours")).seq
        tx.q("UPDATE events SET v=99 WHERE seq=?", seq)
        tx.q("DELETE FROM notes")
        tx.q("DELETE FROM notebooks")

    store.write(job)
    with store.view() as view:
        assert isinstance(view.events()[0].data, UnknownFact)
    store.rebuild()
    assert store.dump()["notes"] == []


def test_old_versions_are_lifted_step_by_step_when_read_and_when_rebuilt(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "KINDS", dict(events.KINDS))
    monkeypatch.setattr(events, "_LIFTS", dict(events._LIFTS))

    @event("lamp.lit", v=3)
    class Lit(Fact):
        watts: int
        place: str
        extra: str = "default"

    @lifts("lamp.lit", 1)
    def _to_watts(data: dict[str, Any]) -> dict[str, Any]:
        return {"watts": data["power"] * 10}

    @lifts("lamp.lit", 2)
    def _to_place(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "place": "unknown"}

    lamps = Feature("lamps", tables={"lamps": "seq {key}, watts INTEGER NOT NULL, place TEXT NOT NULL"})

    @lamps.projects(Lit)
    def _lit(tx: Tx, e: Event[Lit]) -> None:
        tx.q("INSERT INTO lamps(seq, watts, place) VALUES(?,?,?)", e.seq, e.data.watts, e.data.place)

    store = opener(features=[lamps])
    seq = store.write(lambda tx: tx.append("a", Lit(watts=1, place="here")).seq)

    def age(tx: Tx) -> None:
        tx.q("UPDATE events SET v=1, data=? WHERE seq=?", b'{"power":6,"forgotten":true}', seq)
        tx._next += 1
        columns = "stream, kind, ts, actor"
        tx.q(
            f"INSERT INTO events(seq, v, data, {columns}) SELECT ?, 2, ?, {columns} FROM events WHERE seq=?",
            *(seq + 1, b'{"watts":7}', seq),
        )

    store.write(age)
    store.rebuild()
    assert store.dump()["lamps"] == [(seq, 60, "unknown"), (seq + 1, 7, "unknown")]
    with store.view() as view:
        assert [found.data for found in view.events()] == [Lit(watts=60, place="unknown"), Lit(watts=7, place="unknown")]


def test_projectors_are_given_what_the_log_holds(opener: Opener) -> None:
    """What a caller passes may differ from what JSON gives back (tuples, surrogates that make a pair): live and rebuilt agree."""
    seen: list[Any] = []
    spy = Feature("spy", tables={"spied": "seq {key}"})

    @spy.projects(Written)
    def _spy(tx: Tx, e: Event[Written]) -> None:
        seen.append(e.data.value)

    store = opener(features=[spy])
    store.write(write("a", value=("tuple", {"pair": "\ud83d\ude00"})))
    store.rebuild()
    assert seen == [["tuple", {"pair": "😀"}]] * 2
