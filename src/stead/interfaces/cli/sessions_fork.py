"""`stead sessions fork`."""

from __future__ import annotations

from typing import Annotated

import typer

from stead.app.shown import session_json
from stead.domain import sessions
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened, session_named


def fork(
    session: Annotated[str, typer.Argument(help="Which: id, start of the id (6 or more), or title.")],
    message: Annotated[
        str | None,
        typer.Option("--message", metavar="ID", help="Up to this answer, or before this message of yours. Default: all of it."),
    ] = None,
    title: Annotated[str | None, typer.Option("--title", metavar="TEXT", help="The title of the new session.")] = None,
    json: Json = False,
) -> int:
    """Begin a session of its own with the messages of another. Files are not touched."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session)
        new = house.fork(found.id, message, title=title)
        with house.store.view() as view:
            shown = session_json(view, sessions.get(view, new))
    if json:
        out.json({"session": shown})
    else:
        out.line(new)
        out.note(f"`stead run -r {new} PROMPT` goes on with it.")
    return 0
