"""What every surface shows of runs and asks."""

from __future__ import annotations

from typing import Any

from stead.domain import asks, changes, runs, sessions, usage
from stead.store.blobs import Blobs
from stead.store.store import Store


def run_json(store: Store, run: str) -> dict[str, Any]:
    """A run: `{session, run, outcome, result, error, usage, cost, changes, asks}`. Raises `not_found`."""
    with store.view() as view:
        found = runs.get(view, run)
        message = sessions.message(view, found.session, found.message)
        used = usage.of_run(view, run)
        net = changes.net(changes.listed(view, found.session, run=run))
        open_asks = [ask for ask in asks.open_asks(view, found.session) if ask.run == run]
    return {
        "session": found.session,
        "run": run,
        "outcome": found.outcome or found.status,
        "result": answer([part for _, part in message.parts], store.blobs),
        "error": {"code": found.code, "message": found.error} if found.code else None,
        "usage": used["tokens"],
        "cost": used["cost"],
        "changes": [_without_hunks(changes.change_json(one, store.blobs.get)) for one in net],
        "asks": [ask_json(ask) for ask in open_asks],
    }


def answer(parts: list[dict[str, Any]], blobs: Blobs) -> str:
    """The final answer in a message: the text of the last model call that had any."""
    texts: list[str] = []
    for part in parts:
        kind = part.get("type")
        if kind == "step":
            texts.append("")
        elif kind == "text" and isinstance(text := blobs.resolve(part).get("text"), str):
            texts.append(text)
    last: list[str] = []
    for text in reversed(texts):
        if text:
            last.append(text)
        elif last:
            break
    return "\n\n".join(reversed(last))


def ask_json(ask: asks.Ask) -> dict[str, Any]:
    """An ask: its id, where it belongs, its state, and what it is about."""
    return {"id": ask.id, "session": ask.session, "run": ask.run, "kind": ask.kind, "status": ask.status, **ask.about}


def _without_hunks(change: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in change.items() if name not in ("hunks", "binary")}
