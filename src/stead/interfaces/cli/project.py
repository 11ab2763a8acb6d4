"""`stead project list|relink`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stead.core.clock import rfc3339
from stead.domain import projects
from stead.domain.people import LOCAL_ACTOR
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened
from stead.interfaces.cli.tables import table


def list_projects(json: Json = False) -> int:
    """List the projects, the last opened first. A folder that is gone is said to be missing."""
    with opened() as house, house.store.view() as view:
        found = projects.recent(view)
    if json:
        out.json({"projects": [one.to_json() for one in found]})
        return 0
    now = house.store.clock.now()
    at = out.local_time if sys.stdout.isatty() else lambda ms, now: rfc3339(ms)
    table(("id", "name", "path", "opened"), [[one.id, one.name, one.path, at(one.opened, now)] for one in found])
    return 0


def relink(
    project: Annotated[str, typer.Argument(metavar="PROJECT", help="The project: id, name or former path.")],
    folder: Annotated[str, typer.Option("-C", "--dir", metavar="DIR", help="Where its folder lies now.")] = ".",
    json: Json = False,
) -> int:
    """Say that a project's folder now lies here: its sessions and settings come along. What was begun here in the meantime is
    joined to it; nothing in the folder itself is touched."""
    with opened() as house:
        here = projects.identify(folder)
        with house.store.view() as view:
            moved = projects.resolve(view, project)
        house.store.write(lambda tx: projects.relink(tx, moved.id, here, join=True), actor=LOCAL_ACTOR)
        with house.store.view() as view:
            moved = projects.get(view, moved.id)
    if json:
        out.json({"project": moved.to_json()})
    else:
        out.note(f"{moved.name} now lies at {moved.path}.")
    return 0
