"""`stead diff`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.domain import changes, hunks
from stead.interfaces.cli import out
from stead.interfaces.cli.place import opened, session_named
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.app import Stead


def diff(
    session: Annotated[str | None, typer.Argument(help="Which session; default: the one last used in this project.")] = None,
    folder: Annotated[str, typer.Option("--dir", "-C", metavar="DIR", help="The project folder.")] = ".",
    patch: Annotated[bool, typer.Option("--patch", "-p", help="The lines, as a patch that git and patch read.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> int:
    """Show what a session changed in files: from before its first to after its last change."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session, folder)
        files = changed_files(house, found.id)
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


def changed_files(house: Stead, session: str) -> list[dict[str, Any]]:
    """The net changes of a session, each with its hunks."""
    with house.store.view() as view:
        net = changes.net(changes.listed(view, session))
    return [{**changes.change_json(one, house.store.blobs.get), "review": "pending"} for one in net]


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
