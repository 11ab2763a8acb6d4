"""`stead sessions show`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.core.text import cut_bytes
from stead.domain import runs, sessions
from stead.interfaces.cli import out
from stead.interfaces.cli.place import opened, session_named
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.domain.sessions import Message, Session
    from stead.store.blobs import Blobs

MOST_BYTES = 64 << 10


def show(
    session: Annotated[str, typer.Argument(help="Which: id, start of the id (6 or more), or title.")],
    limit: Annotated[int | None, typer.Option("--limit", metavar="N", min=1, help="Only the newest N messages.")] = None,
    before: Annotated[str | None, typer.Option("--before", metavar="MESSAGE", help="Only messages before this one.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Long texts whole; otherwise they are cut after 64 KiB.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show a session's messages, oldest first."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session)
            messages = sessions.messages(view, found.id, limit=limit, before=_number(found, before))
            last = runs.last(view, found.id)
            shown = {**_about(view, found, last), "parent": found.parent, "forked_from": None, "head": _head(view, found)}
        bodies = [_message(one, house.store.blobs, full) for one in messages]
    if json:
        out.json({"session": shown, "messages": bodies})
    elif sys.stdout.isatty():
        from stead.interfaces.cli.reading import conversation

        conversation(shown, bodies)
    else:
        _rows(bodies)
    return 0


def _about(view: Any, found: Session, last: Any) -> dict[str, Any]:
    from stead.interfaces.cli.sessions_list import session_json

    return session_json(view, found, last)


def _number(found: Session, before: str | None) -> int | None:
    """The number of the message that `--before` names: its id, or the number alone."""
    if before is None:
        return None
    number = before.removeprefix(f"{found.id}.")
    if not (number.isascii() and number.isdecimal()):
        raise SteadError("not_found", f"Session {found.id} has no message {before!r}.")
    return int(number)


def _head(view: Any, found: Session) -> str | None:
    newest = sessions.messages(view, found.id, limit=1)
    return newest[0].id if newest else None


def _message(one: Message, blobs: Blobs, full: bool) -> dict[str, Any]:
    """A message with its moved texts back in place, the long ones cut."""
    one.parts[:] = [(n, _whole(part, blobs, full)) for n, part in one.parts]
    body = sessions.message_json(one)
    if not full:
        for part in body["parts"]:
            _mark(part)
    return body


def _whole(value: Any, blobs: Blobs, full: bool) -> Any:
    """`value` with moved strings in their places. A string that will be cut is not read beyond what is kept, except arguments."""
    if isinstance(value, dict):
        if isinstance(value.get("$blob"), str):
            return blobs.resolve(value)
        return {key: _whole(item, blobs, full) for key, item in value.items()}
    return [_whole(item, blobs, full) for item in value] if isinstance(value, list) else value


def _mark(part: dict[str, Any]) -> None:
    """Cut the part's long texts; `bytes` is the size of the longest of them before."""
    longest = 0
    for name in ("text", "output", "error", "summary", "arguments"):
        text = part.get(name)
        if not isinstance(text, str) or len(text) * 4 <= MOST_BYTES:
            continue
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > MOST_BYTES:
            part[name] = cut_bytes(text, MOST_BYTES)
            longest = max(longest, size)
    if isinstance(part.get("input"), dict):
        longest = max(longest, _cut_input(part["input"]))
    if longest:
        part["truncated"], part["bytes"] = True, longest


def _cut_input(given: dict[str, Any]) -> int:
    longest = 0
    for name, value in given.items():
        if isinstance(value, str) and (size := len(value.encode("utf-8", "surrogatepass"))) > MOST_BYTES:
            given[name] = cut_bytes(value, MOST_BYTES)
            longest = max(longest, size)
    return longest


def _rows(bodies: list[dict[str, Any]]) -> None:
    """One row a part, for other programs of the shell."""
    rows = []
    for body in bodies:
        for part in body["parts"]:
            rows.append([part["id"], body["role"], body["created"], part["type"], *_cells(part)])
    table(["part", "role", "created", "type", "tool", "status", "text"], rows)


def _cells(part: dict[str, Any]) -> list[Any]:
    if part["type"] == "tool":
        text = part.get("error") or part.get("output") or ""
        return [part.get("tool"), part.get("status"), text]
    if part["type"] in ("text", "reasoning", "notice"):
        return ["", "", part.get("text")]
    rest = {name: value for name, value in part.items() if name not in ("id", "type")}
    return ["", "", out.json_text(rest)]
