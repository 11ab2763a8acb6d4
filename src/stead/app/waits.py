"""Runs that wait for a person: their answers, and going on with what was answered. Jobs for the house to write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.domain import asks, runs
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.agent.calls import Asker
    from stead.agent.gate import Rule
    from stead.app.house import Stead

_FIELDS: dict[str, dict[str, type]] = {"question": {"text": str}, "approval": {"allow": bool}}
_MORE: dict[str, dict[str, type]] = {"question": {}, "approval": {"reason": str, "rules": list}}


def answer(ask: str, value: dict[str, Any], by: str) -> Callable[[Tx], asks.Ask]:
    """The job that answers an ask; see `Stead.answer`."""

    def job(tx: Tx) -> asks.Ask:
        found = asks.get(tx, ask)
        _check(found.kind, value)
        return asks.answer(tx, ask, value, by=by)

    return job


def resume(house: Stead, session: str, on_ask: Asker | None, rules: Sequence[Rule]) -> Callable[[Tx], runs.Run]:
    """The job that takes up a waiting run; see `Stead.resume`. `rules` are added to those that were agreed."""
    from stead.app.starting import stored

    owner = house.owner()

    def job(tx: Tx) -> runs.Run:
        run = runs.active(tx, session)
        if run is None or run.status != "waiting":
            hint = "A prompt goes on with the session." if run is None else f"`stead sessions stop {session}` ends it."
            state = "has ended" if run is None else "is at work"
            raise SteadError("not_found", f"No run of session {session} waits for an answer; the last one {state}.", hint=hint)
        ask = asks.resumable(tx, session, run.id)
        if ask is not None and ask.status == "open" and not callable(on_ask):
            raise SteadError(
                "conflict",
                f"Run {run.id} still waits for an answer.",
                hint=f"`stead inbox answer {ask.id}` gives it.",
                details={"ask": ask.id},
            )
        terms = {"rules": [*runs.terms(tx, run).get("rules", ()), *map(list, map(stored, rules))]} if rules else None
        return runs.resume(tx, run.id, owner, terms)

    return job


def _check(kind: asks.Kind, value: dict[str, Any]) -> None:
    """Refuse an answer that does not fit the kind of ask. Raises `usage`."""
    for name, wanted in _FIELDS[kind].items():
        if not isinstance(value.get(name), wanted):
            raise SteadError("usage", f"The answer to {'a question' if kind == 'question' else 'an approval'} needs {name!r}.")
    for name, given in value.items():
        wanted = {**_FIELDS[kind], **_MORE[kind]}.get(name)  # type: ignore[assignment]
        if wanted is None or not isinstance(given, wanted):
            raise SteadError("usage", f"{name!r} does not belong into the answer to {kind}, or is of the wrong kind.")
    for rule in value.get("rules", ()):
        from stead.agent.gate import parse

        parse(str(rule), "allow", "session", "approval")
