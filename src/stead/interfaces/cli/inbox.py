"""`stead inbox`: what waits for the person, from whatever session, and the answers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.app.shown import ask_json
from stead.core.errors import SteadError
from stead.domain import asks, runs, sessions
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import one_of, opened, session_named
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.app import Stead


def list_inbox(
    session: Annotated[str | None, typer.Option("--session", metavar="SESSION", help="Only of this session.")] = None,
    json: Json = False,
) -> int:
    """List open questions and approvals, the oldest first."""
    with opened() as house:
        with house.store.view() as view:
            found = asks.open_asks(view, session_named(view, session).id if session is not None else None)
            titles = {ask.session: sessions.get(view, ask.session).title for ask in found}
        shown = [ask_json(ask, house.store.blobs) for ask in found]
    if json:
        out.json({"asks": shown})
        return 0
    if not shown and sys.stdout.isatty():
        out.note("Nothing waits for you.")
    table(["id", "kind", "about", "title", "session"], [_row(one, titles[one["session"]]) for one in shown])
    return 0


def answer(
    ask: Annotated[str, typer.Argument(help="Which: the id, or its first letters.")],
    text: Annotated[str | None, typer.Option("--text", metavar="TEXT", help="The answer to a question.")] = None,
    allow: Annotated[bool, typer.Option("--allow", help="Let the call happen.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="Do not let the call happen.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why not; the agent reads it.")] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option("--rule", metavar="RULE", help="Allow what fits RULE, too, until the run ends or waits."),
    ] = None,
    json: Json = False,
) -> int:
    """Answer an open question or approval. A run at work goes on by itself; one that waits goes on with `stead run -r`."""
    given = _answer(text, allow=allow, deny=deny, reason=reason, rules=rule or [])
    with opened() as house:
        found = house.answer(_named(house, ask), given)
        with house.store.view() as view:
            waits = runs.get(view, found.run).status == "waiting"
        shown = ask_json(found, house.store.blobs)
    if json:
        out.json({"ask": shown, "waiting": waits})
    else:
        out.note("Answered." + (f" `stead run -r {found.session}` goes on with it." if waits else " The run goes on."))
    return 0


def _answer(text: str | None, *, allow: bool, deny: bool, reason: str | None, rules: list[str]) -> dict[str, Any]:
    """The answer that these options give. Raises `usage`."""
    if (text is not None) + allow + deny != 1:
        raise SteadError("usage", "An answer is one of --text TEXT, --allow and --deny.")
    if text is not None:
        given: dict[str, Any] = {"text": text}
    else:
        given = {"allow": allow}
    if reason is not None:
        given["reason"] = reason
    if rules:
        given["rules"] = rules
    return given


def _named(house: Stead, text: str) -> str:
    """The id of the ask that `text` names. An ask that is closed by now is found by its whole id, and refused with its state."""
    with house.store.view() as view:
        found = {ask.id: ask for ask in asks.open_asks(view, trashed=True)}
        return one_of(text, found, "open questions", lambda ask: sessions.get(view, found[ask].session).title) or text


def _row(shown: dict[str, Any], title: str) -> list[Any]:
    if shown["kind"] == "question":
        return [shown["id"], "question", str(shown["question"]), title, shown["session"]]
    from stead.interfaces.cli.progress import called

    return [shown["id"], "approval", called(shown), title, shown["session"]]
