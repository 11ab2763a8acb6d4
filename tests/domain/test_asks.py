"""Asks: opened durably, answered once, closed when nobody waits any more."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.domain import asks, runs, sessions
from stead.store import Store
from tests.domain import house
from tests.domain.house import SESSION, recover


def ask(store: Store, run: runs.Run, name: str = "ask1", kind: asks.Kind = "approval", **about: Any) -> None:
    shown = about or {"tool": "bash", "arguments": "{}"}
    store.write(lambda tx: asks.open_ask(tx, name, run.session, run.id, kind=kind, message=run.message, n=0, about=shown))


def get(store: Store, name: str = "ask1") -> asks.Ask:
    with store.view() as view:
        return asks.get(view, name)


def answer(store: Store, value: dict[str, Any], name: str = "ask1") -> asks.Ask:
    return store.write(lambda tx: asks.answer(tx, name, value, by="person:p"))


def names(store: Store, session: str | None = None) -> list[str]:
    with store.view() as view:
        return [one.id for one in asks.open_asks(view, session)]


def test_an_ask_is_open_until_it_is_answered(store: Store, run: runs.Run) -> None:
    ask(store, run, kind="question", question="Which\0 one\ud83d?", options=["a", "b"])
    found = get(store)
    assert (found.session, found.run, found.kind, found.status, found.answer) == (SESSION, "run1", "question", "open", None)
    assert found.about == {"question": "Which\0 one\ud83d?", "options": ["a", "b"]}
    answered = answer(store, {"text": "b\0"})
    assert (answered.status, answered.answer, answered.answered_by) == ("answered", {"text": "b\0"}, "person:p")
    assert names(store) == []


def test_of_two_answers_the_first_counts_and_the_second_is_told(store: Store, run: runs.Run) -> None:
    ask(store, run)
    barrier = threading.Barrier(6)
    got: list[str] = []

    def work(n: int) -> None:
        barrier.wait()
        try:
            answer(store, {"allow": True, "reason": str(n)})
            got.append("answered")
        except SteadError as error:
            got.append(error.code)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == ["answered", *["ask_closed"] * 5]
    with store.view() as view:
        assert sum(event.kind == "ask.answered" for event in view.events(stream=SESSION)) == 1


def test_open_asks_are_listed_oldest_first(store: Store, run: runs.Run) -> None:
    house.session(store, "other00000000000")
    other = house.start(store, "run2", "other00000000000")
    for name, owner in (("z", run), ("m", other), ("a", run)):
        ask(store, owner, name)
    assert names(store) == ["z", "m", "a"] and names(store, SESSION) == ["z", "a"]


def test_asks_of_a_session_in_the_trash_are_listed_only_where_they_are_wanted(store: Store, run: runs.Run) -> None:
    house.session(store, "other00000000000")
    ask(store, run, "here")
    ask(store, house.start(store, "run2", "other00000000000"), "there")
    store.write(lambda tx: sessions.change(tx, SESSION, trashed=True))
    assert names(store) == ["there"] and names(store, SESSION) == []
    with store.view() as view:
        assert [one.id for one in asks.open_asks(view, trashed=True)] == ["here", "there"]
    store.write(lambda tx: sessions.change(tx, SESSION, trashed=False))
    assert names(store) == ["here", "there"]


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        *(("question", wrong) for wrong in (None, "yes", 5, [], {}, {"text": 5}, {"text": None}, {"text": "a", "by": "b"})),
        *(
            ("approval", wrong)
            for wrong in (None, True, {}, {"allow": 1}, {"allow": True, "rules": [5]}, {"allow": True, "rules": "x"})
        ),
        ("approval", {"allow": True, "reason": {"text": "x"}}),
        ("question", {"text": {"head": "x"}}),
    ],
)
def test_what_is_no_answer_is_refused_in_words(store: Store, run: runs.Run, kind: asks.Kind, wrong: Any) -> None:
    ask(store, run, kind=kind)
    with pytest.raises(SteadError) as failed:
        answer(store, wrong)
    assert failed.value.code == "usage" and get(store).status == "open"


def test_a_long_answer_is_stored_whole(store: Store, run: runs.Run) -> None:
    ask(store, run, kind="question")
    ask(store, run, "ask2")
    said = {
        "ask1": {"text": "a\0b \ud83d" + "x" * 70_000},
        "ask2": {"allow": False, "reason": "y" * 70_000, "rules": ["z" * 9_000]},
    }
    for name, value in said.items():
        packed = store.blobs.pack(value)
        store.write(lambda tx, name=name, packed=packed: asks.answer(tx, name, tx.unpack(packed), by="person:p"))  # type: ignore[misc]
        assert store.blobs.resolve(get(store, name).answer) == value


@pytest.mark.parametrize("outcome", ["done", "aborted", "interrupted"])
def test_nobody_waits_for_an_answer_to_a_run_that_ended(store: Store, run: runs.Run, outcome: Any) -> None:
    ask(store, run)
    ask(store, run, "ask2")
    answer(store, {"allow": True}, "ask2")
    house.end(store, run, outcome)
    assert names(store) == [] and get(store).status == "closed" and get(store, "ask2").status == "answered"
    with pytest.raises(SteadError) as failed:
        answer(store, {"allow": True})
    assert failed.value.code == "ask_closed"


def test_a_run_that_died_with_an_open_ask_waits_on_and_the_ask_keeps_its_id(store: Store, run: runs.Run) -> None:
    ask(store, run)
    for _ in range(2):
        assert recover(store, "owner1") == []
        with store.view() as view:
            assert runs.get(view, run.id).status == "waiting"
        assert names(store) == ["ask1"] and get(store).status == "open"


def test_a_run_that_died_behind_an_answer_before_anything_came_of_it_waits_on(store: Store, run: runs.Run) -> None:
    house.call(store, run, 0, "c")
    ask(store, run)
    answer(store, {"allow": True})
    assert recover(store, "owner1") == []
    with store.view() as view:
        found = asks.resumable(view, SESSION, run.id)
    assert found is not None and found.status == "answered"


def test_a_run_that_died_while_the_approved_call_ran_is_interrupted(store: Store, run: runs.Run) -> None:
    house.call(store, run, 0, "c")
    ask(store, run)
    answer(store, {"allow": True})
    store.write(lambda tx: tx.append(SESSION, sessions.ToolStarted(message=run.message, n=0, call="c"), run=run.id))
    assert recover(store, "owner1") == [run.id]


def test_a_waiting_run_keeps_its_ask_over_a_restart(store: Store, run: runs.Run) -> None:
    ask(store, run)
    store.write(lambda tx: tx.append(SESSION, runs.RunWaiting(run="run1", ask="ask1"), run="run1"))
    recover(store, "owner1")
    assert names(store) == ["ask1"] and answer(store, {"allow": True}).status == "answered"


def test_asks_can_be_withdrawn_by_hand(store: Store, run: runs.Run) -> None:
    for name in ("a", "b"):
        ask(store, run, name)
    answer(store, {"allow": False}, "a")
    store.write(lambda tx: asks.close_open(tx, SESSION, "run1", "nobody could be asked"))
    store.write(lambda tx: asks.close_open(tx, SESSION, "run1", "again"))
    assert get(store, "a").status == "answered" and get(store, "b").status == "closed"
    with store.view() as view:
        assert sum(event.kind == "ask.closed" for event in view.events(stream=SESSION)) == 1


def test_an_ask_that_does_not_exist_is_not_found(store: Store) -> None:
    for attempt in (lambda: get(store, "x"), lambda: answer(store, {}, "x")):
        with pytest.raises(SteadError) as failed:
            attempt()
        assert failed.value.code == "not_found"
