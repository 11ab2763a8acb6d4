"""`stead sessions show`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.app.shown import message_json, session_json, tree_json, with_open
from stead.domain import sessions
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened, session_named
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.domain.sessions import Session


def show(
    session: Annotated[str, typer.Argument(help="Which: id, start of the id (6 or more), or title.")],
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest N messages.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="MESSAGE", help="Only messages before this one.")] = None,
    all_branches: Annotated[bool, typer.Option("--all-branches", help="Also messages that an undo left.")] = False,
    tree: Annotated[bool, typer.Option("--tree", help="The branches as a tree, with forks and children.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Long texts whole; otherwise they are cut after 64 KiB.")] = False,
    json: Json = False,
) -> int:
    """Show a session's messages, oldest first."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session)
            shown = session_json(view, found)
            branches = tree_json(view, found) if tree else None
            which: dict[str, Any] = {"limit": limit, "before": _number(found, before), "all_branches": all_branches}
            messages = [] if tree else with_open(view, sessions.messages(view, found.id, **which))
        bodies = [message_json(one, house.store.blobs, full=full) for one in messages]
    if json:
        out.json({"session": shown, "messages": bodies} if branches is None else {"session": shown, **branches})
    elif branches is not None:
        from stead.interfaces.cli.branches import drawn

        for line in drawn(branches):
            out.line(line)
    elif sys.stdout.isatty():
        from stead.interfaces.cli.reading import conversation

        conversation(shown, bodies)
    else:
        _rows(bodies)
    return 0


def _number(found: Session, before: str | None) -> int | None:
    """The number of the message that `--before` names: its id, or the number alone."""
    if before is None:
        return None
    return sessions.number(found.id, before)


def _rows(bodies: list[dict[str, Any]]) -> None:
    """One row a part, for other programs of the shell."""
    rows = []
    for body in bodies:
        for part in body["parts"]:
            rows.append([part["id"], body["role"], body["created"], part["type"], *_cells(part)])
    table(["part", "role", "created", "type", "tool", "status", "text"], rows)


def _cells(part: dict[str, Any]) -> list[Any]:
    if part["type"] == "tool":
        text = "\n".join(filter(None, (part.get("error"), part.get("output"))))
        return [part.get("tool"), part.get("status"), text]
    if part["type"] in ("text", "reasoning", "notice"):
        return ["", next((mark for mark in ("cut", "open") if part.get(mark)), ""), part.get("text")]
    rest = {name: value for name, value in part.items() if name not in ("id", "type")}
    return ["", "", out.json_text(rest)]
