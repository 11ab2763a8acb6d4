"""`stead sessions list`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.app.shown import sessions_json
from stead.core.errors import SteadError
from stead.domain import projects, sessions
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened, project_here
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.domain.sessions import Session
    from stead.store.database import Reads

COLUMNS: tuple[str, ...] = ("id", "title", "project", "path", "agent", "model", "status", "last_run", "created", "updated")
COLUMNS += ("messages", "cost", "pinned", "archived")


def list_sessions(
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, max=1000, help="How many at most.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", metavar="NEXT", help="Go on where a page ended: its `next`.")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="PROJECT", help="Those of this project: path, name or id.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Those of all projects; the default outside of one.")] = False,
    trash: Annotated[bool, typer.Option("--trash", help="Those in the trash.")] = False,
    json: Json = False,
) -> int:
    """List sessions, the last used first: those of the current folder's project."""
    if project is not None and everything:
        raise SteadError("usage", "--project and --all cannot be used together.")
    before = _position(cursor)
    with opened() as house, house.store.view() as view:
        chosen = _chosen(view, project, everything)
        which = projects.members(view, chosen) if chosen else []
        found = sessions.page(view, *which, limit=limit + 1, before=before, trashed=trash)
        now = house.store.clock.now()
        more, found = len(found) > limit, found[:limit]
        rows = sessions_json(view, found)
    last = f"{found[-1].updated}.{found[-1].seq}" if more else None
    if json:
        out.json({"sessions": rows, "next": last})
    elif sys.stdout.isatty():
        _draw(rows, found, now, here=chosen is not None)
        if last:
            out.note(f"There are more: --cursor {last}")
    else:
        table(COLUMNS, [_flat(row) for row in rows])
    return 0


def _position(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    updated, dot, seq = cursor.partition(".")
    if not dot or not (updated.isdecimal() and updated.isascii() and seq.isdecimal() and seq.isascii()):
        raise SteadError("usage", f"{cursor!r} is no cursor.", hint="It is what the page before gave as `next`.")
    return int(updated), int(seq)


def _chosen(view: Reads, project: str | None, everything: bool) -> str | None:
    if everything:
        return None
    if project is not None:
        return projects.resolve(view, project).id
    try:
        here = project_here(view)
    except SteadError:  # the current folder is gone
        return None
    return here.id if here else None


def _flat(row: dict[str, Any]) -> list[Any]:
    return [row[name] for name in COLUMNS]


def _draw(rows: list[dict[str, Any]], found: list[Session], now: int, *, here: bool) -> None:
    if not rows:
        out.note("There are no sessions here." if here else "There are no sessions.")
        return
    heads = ["id", "title", "status", "updated", "cost", "messages" if here else "path"]
    drawn = []
    for row, one in zip(rows, found, strict=True):
        title = f"{'* ' if one.pinned else ''}{row['title']}{' (archived)' if one.archived else ''}"
        status = row["status"]
        if status == "idle" and row["last_run"] not in (None, "done"):
            status = row["last_run"]
        updated, cost = out.local_time(one.updated, now), out.dollars(one.cost)
        drawn.append([one.id[:10], title, status, updated, cost, one.messages if here else row["path"]])
    table(heads, drawn)
