"""Runs: one prompt's life, begun once, ended exactly once, closed by a restart that may be repeated."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.domain import runs, sessions
from stead.store import Store
from tests.domain import house
from tests.domain.house import SESSION, recover


def now(store: Store, run: str = "run1") -> runs.Run:
    with store.view() as view:
        return runs.get(view, run)


def kinds(store: Store, kind: str, name: str = SESSION) -> list[Any]:
    with store.view() as view:
        return [event.data for event in view.events(stream=name) if event.kind == kind]


def results(store: Store) -> dict[str, dict[str, Any]]:
    with store.view() as view:
        return {
            part["call"]: part
            for message in sessions.messages(view, SESSION)
            for _, part in message.parts
            if isinstance(part, dict) and part.get("type") == "tool"
        }


def test_a_prompt_and_its_run_are_stored_in_one_job(store: Store, run: runs.Run) -> None:
    assert (run.status, run.outcome, run.prompt, run.message) == ("running", None, 1, 2)
    with store.view() as view:
        prompt, answer = sessions.messages(view, SESSION)
        assert (prompt.role, prompt.run, prompt.parts) == ("user", "run1", [(0, {"type": "text", "text": "hello"})])
        assert (answer.role, answer.run, answer.model, answer.parts) == ("assistant", "run1", "openai/m", [])
        assert runs.active(view, SESSION) == runs.last(view, SESSION) == run
        assert runs.newest(view, [SESSION, "other"]) == {SESSION: run}


def test_f366_a_prompt_that_fails_half_way_leaves_neither_message_nor_run(store: Store) -> None:
    house.session(store)
    before = store.dump()
    with pytest.raises(SteadError) as failed:
        house.start(store, text="x" * 70_000)  # the part is refused behind the message
    assert failed.value.code == "bad_value"
    assert store.dump() == before


def test_the_same_key_gives_the_same_run_and_stores_nothing(store: Store) -> None:
    house.session(store)
    first = house.start(store, key="k")
    with store.view() as view:
        count = len(view.events())
    assert house.start(store, "run2", text="other", key="k") == first
    house.end(store, first)
    assert house.start(store, "run3", key="k").id == "run1"
    with store.view() as view:
        assert len(view.events()) == count + 1
        assert runs.with_key(view, SESSION, "k") == now(store) and runs.with_key(view, SESSION, "other") is None


def test_one_run_at_a_time_in_a_session_and_many_beside_each_other(store: Store, run: runs.Run) -> None:
    with pytest.raises(SteadError) as failed:
        house.start(store, "run2")
    assert failed.value.code == "conflict"
    house.session(store, "other00000000000")
    house.start(store, "run3", "other00000000000")
    assert house.end(store, run)
    assert house.start(store, "run2").status == "running"


def test_a_run_ends_exactly_once_whoever_is_first(store: Store, run: runs.Run) -> None:
    barrier = threading.Barrier(8)
    won: list[str] = []

    def work(outcome: Any) -> None:
        barrier.wait()
        if house.end(store, run, outcome):
            won.append(outcome)

    threads = [threading.Thread(target=work, args=(outcome,)) for outcome in ("done", "aborted", "error", "limit") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1 and [fact.outcome for fact in kinds(store, "run.ended")] == won  # I6
    assert now(store).outcome == won[0] and recover(store, "owner1") == []
    assert now(store).outcome == won[0]


def test_a_session_says_how_its_newest_run_stands(store: Store, run: runs.Run) -> None:
    assert runs.session_status(None) == "idle" and runs.session_status(run) == "running"
    store.write(lambda tx: tx.append(SESSION, runs.RunWaiting(run="run1", ask="a"), run="run1"))
    assert runs.session_status(now(store)) == "waiting"
    store.write(lambda tx: tx.append(SESSION, runs.RunResumed(run="run1", owner="owner2"), run="run1"))
    assert (now(store).status, now(store).owner) == ("running", "owner2")
    house.end(store, run, "error", error={"code": "stream_cut", "message": "cut"})
    assert runs.session_status(now(store)) == "error" and (now(store).code, now(store).error) == ("stream_cut", "cut")
    for n, (outcome, status) in enumerate({"done": "idle", "denied": "idle", "limit": "idle", "aborted": "aborted"}.items()):
        made = house.start(store, f"next{n}")
        house.end(store, made, outcome)  # type: ignore[arg-type]
        assert runs.session_status(now(store, f"next{n}")) == status


def test_an_abort_is_asked_for_until_the_run_ended(store: Store, run: runs.Run) -> None:
    def ask() -> bool:
        return store.write(lambda tx: runs.request_abort(tx, "run1", by="person:p"))

    with store.view() as view:
        assert not runs.abort_requested(view, "run1") and not runs.abort_requested(view, "nobody")
    assert ask()
    with store.view() as view:
        assert runs.abort_requested(view, "run1")
    house.end(store, run, "aborted")
    assert not ask()


# --- restart ------------------------------------------------------------------------------------------------------------------


def test_recovery_closes_what_a_dead_process_left_once(store: Store, run: runs.Run, clock: ManualClock) -> None:
    house.call(store, run, 0, "ended", started=True)
    end = sessions.ToolEnded(message=run.message, n=0, call="ended", result={"status": "done", "output": "42"})
    store.write(lambda tx: tx.append(SESSION, end, run="run1"))
    house.step(store, run, 1)
    house.call(store, run, 2, "started", started=True)
    house.call(store, run, 3, "pending")
    clock.advance(2_500)
    assert recover(store, "owner0", "owner1") == ["run1"]
    after = store.dump()
    for _ in range(3):
        assert recover(store, "owner1") == []  # I7
    assert store.dump() == after
    found = now(store)
    assert (found.status, found.outcome, found.code, found.steps) == ("ended", "interrupted", "run_interrupted", 1)
    assert len(kinds(store, "run.ended")) == 1
    calls = results(store)
    assert calls["ended"]["output"] == "42"
    assert calls["started"]["status"] == "error" and calls["started"]["cut"] and "duration_ms" not in calls["started"]
    assert "outcome is unknown" in calls["started"]["error"] and " s." not in calls["started"]["error"]  # nobody saw how long
    assert "Nothing was executed" in calls["pending"]["error"] and "duration_ms" not in calls["pending"]
    assert len(kinds(store, "tool.ended")) == 3  # I13: one for each call
    with store.view() as view:
        assert sessions.messages(view, SESSION)[-1].parts[-1][1]["code"] == "run_interrupted"
    assert house.start(store, "run2").status == "running"


def test_a_clock_that_went_back_gives_no_negative_duration(store: Store, run: runs.Run, clock: ManualClock) -> None:
    house.call(store, run, 0, "c", started=True)
    clock.advance(-60_000)
    store.write(lambda tx: runs.close_calls(tx, run, why="The program ended"))
    assert results(store)["c"]["duration_ms"] == 0


def test_recovery_leaves_alone_what_lives_waits_or_has_ended(store: Store, run: runs.Run) -> None:
    house.session(store, "other00000000000")
    waiting = house.start(store, "waits", "other00000000000")
    store.write(lambda tx: tx.append(waiting.session, runs.RunWaiting(run="waits", ask="a"), run="waits"))
    with store.view() as view:
        assert runs.owned(view, "owner1") and not runs.owned(view, "owner2")
    before = store.dump()
    assert recover(store) == recover(store, "owner2", "") == []
    assert store.dump() == before
    assert recover(store, "owner1") == ["run1"]
    assert now(store, "waits").status == "waiting"


def test_results_that_a_part_already_holds_are_not_given_twice(store: Store, run: runs.Run) -> None:
    part = {"type": "tool", "call": "c", "tool": "bash", "arguments": "{}", "status": "error", "error": "known"}
    store.write(lambda tx: sessions.add_part(tx, SESSION, run.message, 0, part, run="run1"))
    recover(store, "owner1")
    assert kinds(store, "tool.ended") == [] and results(store)["c"]["error"] == "known"


def test_a_run_whose_session_was_deleted_needs_no_recovery(store: Store, run: runs.Run) -> None:
    house.delete(store)
    assert recover(store, "owner1") == []


@pytest.mark.parametrize("attempt", [lambda tx: runs.end(tx, "x", "done", steps=0), lambda tx: runs.request_abort(tx, "x", by="p")])
def test_a_run_that_does_not_exist_is_not_found(store: Store, attempt: Callable[[Any], Any]) -> None:
    with pytest.raises(SteadError) as failed:
        store.write(attempt)
    assert failed.value.code == "not_found"
