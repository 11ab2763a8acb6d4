"""`stead diff`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from stead.app.shown import changed_files
from stead.domain import hunks
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Folder, Json
from stead.interfaces.cli.place import opened, session_named
from stead.interfaces.cli.tables import table


def diff(
    session: Annotated[str | None, typer.Argument(help="Which session; default: the one last used in this project.")] = None,
    folder: Folder = ".",
    patch: Annotated[bool, typer.Option("--patch", "-p", help="The lines, as a patch that git and patch read.")] = False,
    json: Json = False,
) -> int:
    """Show what a session changed in files: from before its first to after its last change."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session, folder)
        files = changed_files(house.store, found.id)
    if json:
        out.json({"files": files, "not_covered": []})
    elif patch:
        write_patch(files)
    else:
        table(
            ("path", "status", "additions", "deletions"),
            [[file["path"], file["status"], file["additions"], file["deletions"]] for file in files],
        )
        if sys.stdout.isatty():
            out.note("--patch shows the lines." if files else f"Session {found.id} changed no file.")
    return 0


def write_patch(files: list[dict[str, Any]]) -> None:
    """The files as one patch: exact for other programs, coloured and without control characters on a terminal."""
    for file in files:
        text = hunks.patch(file["path"], file["status"], None if file.get("binary") else file["hunks"])
        if not sys.stdout.isatty():
            sys.stdout.write(text)
            continue
        from stead.interfaces.cli.effect import coloured

        for line in coloured(text):
            out.line(line)
