"""Runs that wait for a person: their answers, and going on with what was answered. Jobs for the house to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.domain import asks, runs, sessions
from stead.store.log import Tx
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.calls import Asker
    from stead.agent.gate import Rule
    from stead.app.house import Stead


def answer(store: Store, ask: str, value: dict[str, Any], by: str) -> Callable[[Tx], asks.Ask]:
    """The job that answers an ask; see `Stead.answer`."""
    with store.view() as view:
        asks.check(asks.get(view, ask).kind, value)
    for rule in value.get("rules", ()):  # one that cannot be read is refused now, and not passed over later
        from stead.agent.gate import parse

        parse(rule, "allow", "session", "approval")
    packed = store.blobs.pack(value)

    def job(tx: Tx) -> asks.Ask:
        if (found := asks.get(tx, ask)).status == "open":
            sessions.in_use(tx, found.session)
        return asks.answer(tx, ask, tx.unpack(packed), by=by)

    return job


def resume(house: Stead, session: str, on_ask: Asker | None, rules: Sequence[Rule]) -> Callable[[Tx], runs.Run]:
    """The job that takes up a waiting run; see `Stead.resume`. `rules` are added to those that were agreed."""
    from stead.app.starting import stored

    owner = house.owner()

    def job(tx: Tx) -> runs.Run:
        sessions.in_use(tx, session)
        run = runs.active(tx, session)
        if run is None or run.status != "waiting":
            hint = "A prompt goes on with the session." if run is None else f"`stead sessions stop {session}` ends it."
            state = "has ended" if run is None else "is at work"
            raise SteadError("not_found", f"No run of session {session} waits for an answer; the last one {state}.", hint=hint)
        ask = asks.resumable(tx, session, run.id)
        if ask is not None and ask.status == "open" and not callable(on_ask):
            choice = "--text TEXT" if ask.kind == "question" else "--allow (or --deny)"
            hint = f"`stead inbox answer {ask.id} {choice}` gives it."
            raise SteadError("conflict", f"Run {run.id} still waits for an answer.", hint=hint, details={"run": run.id})
        terms = {"rules": [*runs.terms(tx, run).get("rules", ()), *map(list, map(stored, rules))]} if rules else None
        return runs.resume(tx, run.id, owner, terms)

    return job
