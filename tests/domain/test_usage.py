"""Usage: a row for every call, ledgers that outlive their sessions, sums that are exact."""

from __future__ import annotations

from typing import Any

import pytest

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.core.parts import NO_TOKENS
from stead.domain import runs, sessions, usage
from stead.store import Store, Tx
from tests.domain import house
from tests.domain.house import PROJECT, SESSION

DAY = 86_400_000


def report(store: Store, *by: str, **which: Any) -> dict[str, Any]:
    with store.view() as view:
        return usage.report(view, by, **which)


def failed_call(store: Store, stream: str, run: str | None = None, **about: Any) -> None:
    fields: dict[str, Any] = {"purpose": "failed", "project": PROJECT, "provider": "openai", "model": "m", "estimated": True}
    fact = sessions.CallEnded(**{**fields, "tokens": {**NO_TOKENS, "input": 3}, "cost": None, **about})
    store.write(lambda tx: tx.append(stream, fact, run=run))


def test_a_call_is_in_the_details_of_its_run_and_in_the_ledger_of_its_day(store: Store, run: runs.Run) -> None:
    house.step(store, run, 0, input=10, cache_read=20, cache_write=30, output=40, reasoning=50)
    house.step(store, run, 1, cost=0.5, input=1)
    with store.view() as view:
        mine = usage.of_run(view, "run1")
    assert mine == {
        "calls": 2,
        "tokens": {"input": 11, "cache_read": 20, "cache_write": 30, "output": 40, "reasoning": 50},
        "cost": 0.75,
        "estimated": False,
    }
    shown = report(store, "day", "model", "project")
    (row,) = shown["rows"]
    assert (row["day"], row["model"], row["project"], row["calls"]) == ("2023-11-14", "openai/m", PROJECT, 2)
    assert row["cost"] == shown["total"]["cost"] == 0.75
    with store.view() as view:
        assert sessions.get(view, SESSION).cost == 0.75


def test_sums_of_money_are_exact(store: Store, run: runs.Run) -> None:
    for n in range(300):
        house.step(store, run, n, cost=0.000_001_1)
    assert report(store)["total"]["cost"] == 0.000_33


def test_a_price_that_is_unknown_is_never_a_price_of_zero(store: Store, run: runs.Run) -> None:
    house.step(store, run, 0, cost=0.25)
    house.step(store, run, 1, cost=None)
    total = report(store)["total"]
    assert (total["cost"], total["unknown_cost_calls"], total["calls"]) == (None, 1, 2)
    with store.view() as view:
        assert usage.of_run(view, "run1")["cost"] is None and sessions.get(view, SESSION).cost is None
        assert usage.of_run(view, "nobody")["cost"] == 0


def test_calls_that_gave_no_step_are_counted_too(store: Store, run: runs.Run) -> None:
    failed_call(store, SESSION, "run1")
    failed_call(store, SESSION, "run1", purpose="title", cost=0.5, estimated=False)
    with store.view() as view:
        found = usage.of_run(view, "run1")
    assert found["calls"] == 2 and found["tokens"]["input"] == 6


def test_a_report_is_grouped_and_cut_by_days_and_projects(store: Store, run: runs.Run, clock: ManualClock) -> None:
    house.step(store, run, 0, input=1)
    clock.advance(DAY)
    house.step(store, run, 1, input=2, model="other")
    house.session(store, "second0000000000", project="second")
    second = house.start(store, "run2", "second0000000000", project="second")
    house.step(store, second, 0, input=4)
    tokens = {(row["day"], row["model"]): row["input"] for row in report(store, "day", "model")["rows"]}
    assert tokens == {("2023-11-14", "openai/m"): 1, ("2023-11-15", "openai/m"): 4, ("2023-11-15", "openai/other"): 2}
    assert report(store, since="2023-11-15")["total"]["input"] == 6
    assert report(store, until="2023-11-14")["total"]["input"] == 1
    assert report(store, project="second")["total"]["input"] == 4
    assert [row["session"] for row in report(store, "session")["rows"]] == ["second0000000000", SESSION]
    assert report(store, "day", since="2030-01-01") == {"rows": [], "total": report(store, until="1999-01-01")["total"]}


def test_the_ledger_outlives_its_sessions_and_a_rebuild(store: Store, run: runs.Run, clock: ManualClock) -> None:
    """The `store` fixture compares with a rebuild at the end, where the session's own events are gone (I8)."""
    house.session(store, "second0000000000")
    second = house.start(store, "run2", "second0000000000")
    house.step(store, run, 0, input=10)
    house.step(store, second, 0, input=100)
    clock.advance(DAY)
    house.step(store, run, 1, input=1, cost=None)
    failed_call(store, SESSION, "run1")
    before = report(store, "day", "model"), report(store)
    days = store.dump()["usage_sessions"]

    def messages() -> dict[tuple[str, str], int]:
        sums: dict[tuple[str, str], int] = {}
        for _, day, role, count in store.dump()["usage_messages"]:
            sums[day, role] = sums.get((day, role), 0) + count
        return sums

    counted = messages()
    house.delete(store)
    for _ in range(2):
        assert (report(store, "day", "model"), report(store)) == before
        assert store.dump()["usage_sessions"] == days and messages() == counted
        assert [row["session"] for row in report(store, "session")["rows"]] == ["second0000000000"]
        store.rebuild()
    house.delete(store, "second0000000000")
    assert (report(store, "day", "model"), report(store)) == before and messages() == counted


def test_usage_that_comes_after_its_session_was_deleted_is_kept_in_the_system_stream(store: Store, run: runs.Run) -> None:
    house.step(store, run, 0, input=10)
    house.delete(store)
    with pytest.raises(SteadError):
        failed_call(store, SESSION, "run1")
    failed_call(store, "system")
    assert report(store)["total"]["input"] == 13


@pytest.mark.parametrize("fail_at", ["usage", "sessions"])
def test_f366_a_step_and_its_usage_and_its_day_commit_together_or_not_at_all(store: Store, run: runs.Run, fail_at: str) -> None:
    before = store.dump()
    part = {"type": "step", "model": "m", "tokens": {**NO_TOKENS}, "cost": 0.1, "finish": "stop"}
    broken = {**part, "tokens": {"input": 1}} if fail_at == "usage" else {**part, "cost": "free"}
    fact = sessions.StepEnded(message=run.message, n=0, part=broken, project=PROJECT, provider="openai")
    with pytest.raises((KeyError, TypeError)):  # one projector fails behind another that had succeeded
        store.write(lambda tx: tx.append(SESSION, fact))
    assert store.dump() == before
    with store.view() as view:
        assert not any(event.kind == "step.ended" for event in view.events(stream=SESSION))

    def job(tx: Tx) -> None:
        tx.append(SESSION, sessions.StepEnded(message=run.message, n=0, part=part, project=PROJECT, provider="openai"))
        raise ValueError

    with pytest.raises(ValueError):
        store.write(job)
    assert store.dump() == before


def test_a_call_without_an_end_counts_in_its_session_as_well(store: Store, run: runs.Run) -> None:
    house.step(store, run, 0, cost=0.5)
    failed_call(store, run.session, run=run.id, cost=0.25)
    with store.view() as view:
        assert sessions.get(view, run.session).cost == 0.75
    failed_call(store, run.session, run=run.id, cost=None)
    with store.view() as view:
        assert sessions.get(view, run.session).cost is None
        assert usage.of_run(view, run.id)["estimated"]
