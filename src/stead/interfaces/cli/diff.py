"""`stead diff`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stead.app.shown import changed_files, not_covered, patch_of
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Folder, Json
from stead.interfaces.cli.place import opened, session_named
from stead.interfaces.cli.tables import table


def diff(
    session: Annotated[str | None, typer.Argument(help="Which session; default: the one last used in this project.")] = None,
    folder: Folder = ".",
    patch: Annotated[bool, typer.Option("--patch", "-p", help="The lines, as a patch that git and patch read.")] = False,
    every: Annotated[bool, typer.Option("--all", help="Also what was taken back.")] = False,
    json: Json = False,
) -> int:
    """Show what a session changed in files: from before its first to after its last change."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session, folder)
            lost = not_covered(view, found.id)
        files = changed_files(house.store, found.id, undone=every)
        lines = patch_of(house.store, found.id) if patch and not json else b""
    if json:
        out.json({"files": files, "not_covered": lost})
    elif patch:
        write_patch(lines)
    else:
        table(
            ("path", "status", "additions", "deletions", "review"),
            [[file["path"], file["status"], file["additions"], file["deletions"], file["review"]] for file in files],
        )
        if sys.stdout.isatty():
            out.note("--patch shows the lines." if files else f"Session {found.id} changed no file.")
    return 0


def write_patch(patch: bytes) -> None:
    """A patch: exact for other programs, coloured and without control characters on a terminal."""
    if not sys.stdout.isatty():
        sys.stdout.buffer.write(patch)
        sys.stdout.buffer.flush()
        return
    from stead.interfaces.cli.effect import coloured

    for line in coloured(patch):
        out.line(line)
