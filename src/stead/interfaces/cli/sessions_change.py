"""`stead sessions rename|archive|unarchive|delete|restore|stop`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.domain import sessions
from stead.domain.people import LOCAL_ACTOR
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened, session_named

if TYPE_CHECKING:
    from stead.domain.sessions import Session

Which = Annotated[str, typer.Argument(help="Which: id, start of the id (6 or more), or title.")]


def rename(session: Which, title: Annotated[str, typer.Argument(help="The new title.")], json: Json = False) -> int:
    """Give a session another title."""
    return _change(session, json, "Renamed", title=title)


def archive(session: Which, json: Json = False) -> int:
    """Put a session out of the way; it stays complete, and lists still show it."""
    return _change(session, json, "Archived", archived=True)


def unarchive(session: Which, json: Json = False) -> int:
    """Bring an archived session back."""
    return _change(session, json, "Unarchived", archived=False)


def restore(session: Which, json: Json = False) -> int:
    """Take a session out of the trash."""
    return _change(session, json, "Restored", trashed=False)


def delete(
    session: Which,
    now: Annotated[bool, typer.Option("--now", help="For good: it cannot be brought back.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask whether it is meant.")] = False,
    json: Json = False,
) -> int:
    """Move a session to the trash; `sessions restore` takes it out again. With --now: delete it for good."""
    if not now:
        return _change(session, json, "Moved to the trash:", trashed=True)
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session)
        if not yes:
            _confirm(found)
        gone = house.delete(found.id)
    if json:
        out.json({"deleted": gone})
    else:
        out.note(f"Deleted for good: {found.title} ({found.id}). What it cost stays in `stead usage`.")
    return 0


def stop(session: Which, json: Json = False) -> int:
    """End a session's run, in whichever process it works. What was done is kept."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session)
        stopped = house.stop(found.id)
    if json:
        out.json({"session": found.id, "stopped": stopped})
    else:
        out.note(f"Stopping the run of {found.title} ({found.id})." if stopped else "Nothing runs there.")
    return 0


def _change(session: str, json: bool, said: str, **values: Any) -> int:
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session)
        house.store.write(lambda tx: sessions.change(tx, found.id, **values), actor=LOCAL_ACTOR)
        with house.store.view() as view:
            now = sessions.get(view, found.id)
    if json:
        shown = {"id": now.id, "title": now.title, "archived": now.archived, "pinned": now.pinned, "trashed": now.trashed}
        out.json({"session": shown})
    else:
        out.note(f"{said} {now.title} ({now.id}).")
    return 0


def _confirm(found: Session) -> None:
    from stead.interfaces.cli.asking import can_ask

    what = f"Delete {out.plain(found.title)} ({found.id}, {found.messages} messages) for good?"
    if not can_ask():
        raise SteadError("confirm_required", what, hint="-y says yes.")
    out.say(f"{what} [y/n] > ")
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise SteadError("confirm_required", "Nothing was deleted.")
