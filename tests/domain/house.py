"""Short ways to make what the tests of sessions, runs and the nouns above them need."""

from __future__ import annotations

from typing import Any

from stead.agent import closing
from stead.core.parts import NO_TOKENS
from stead.domain import asks, changes, partials, queue, runs, sessions, todos, usage
from stead.store import Store, Tx

FEATURES = [
    sessions.FEATURE,
    runs.FEATURE,
    queue.FEATURE,
    partials.FEATURE,
    asks.FEATURE,
    changes.FEATURE,
    todos.FEATURE,
    usage.FEATURE,
]
SESSION, PROJECT = "session000000001", "project000000001"


def session(store: Store, name: str = SESSION, **fields: Any) -> str:
    about: dict[str, Any] = {"title": "A title", "agent": "build", "model": "openai/m", **fields}
    project = about.pop("project", PROJECT)
    return store.write(lambda tx: sessions.create(tx, name, project, **about))


def start(store: Store, run: str = "run1", session: str = SESSION, text: str = "hello", **fields: Any) -> runs.Run:
    about: dict[str, Any] = {
        "agent": "build",
        "model": "openai/m",
        "owner": "owner1",
        "project": PROJECT,
        "max_steps": 9,
        **fields,
    }
    return store.write(lambda tx: runs.start(tx, run, session, [{"type": "text", "text": text}], **about))


def call(store: Store, run: runs.Run, n: int, call: str = "c1", *, started: bool = False) -> None:
    """A tool call of a run: pending, or started."""
    part = {"type": "tool", "call": call, "tool": "bash", "arguments": "{}", "status": "pending"}

    def job(tx: Tx) -> None:
        sessions.add_part(tx, run.session, run.message, n, part, run=run.id)
        if started:
            tx.append(run.session, sessions.ToolStarted(message=run.message, n=n, call=call), run=run.id)

    store.write(job)


def step(store: Store, run: runs.Run, n: int, *, cost: float | None = 0.25, model: str = "m", **tokens: int) -> None:
    part = {"type": "step", "model": model, "tokens": {**NO_TOKENS, **tokens}, "cost": cost, "finish": "stop"}
    fact = sessions.StepEnded(message=run.message, n=n, part=part, project=run.project, provider="openai")
    store.write(lambda tx: tx.append(run.session, fact, run=run.id))


def delete(store: Store, name: str = SESSION) -> None:
    """Delete a session for good, as the store is meant to be asked for it."""

    def job(tx: Tx) -> None:
        kept = usage.sums_of(tx, name)
        tx.forget_stream(name)
        tx.append("system", sessions.SessionDeleted(session=name, usage=kept))

    store.write(job)


def recover(store: Store, *dead: str) -> list[str]:
    """What a restart does about the runs of dead processes; gives those that it ended."""
    with store.view() as view:
        left = [closing.look(store, run) for run in runs.left_by(view, dead)]
    return [one.run.id for one in left if store.write(lambda tx, one=one: closing.interrupt(tx, one))]  # type: ignore[misc]


def end(store: Store, run: runs.Run, outcome: runs.Outcome = "done", **fields: Any) -> bool:
    return store.write(lambda tx: runs.end(tx, run.id, outcome, steps=1, **fields))
