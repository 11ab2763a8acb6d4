"""`stead doctor`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened
from stead.interfaces.cli.tables import table


def doctor(
    repair: Annotated[bool, typer.Option("--repair", help="Make right what can be made right from what is there.")] = False,
    full: Annotated[bool, typer.Option("--full", help="Read every blob instead of some.")] = False,
    json: Json = False,
) -> int:
    """Look whether the store is as it should be."""
    found = _examined(repair, full)
    if json:
        out.json(found)
    else:
        _print(found)
    return 0 if found["ok"] else 1


def _examined(repair: bool, full: bool) -> dict[str, Any]:
    from stead.app.doctor import as_json, examine
    from stead.interfaces.cli.waiting import Waiting
    from stead.store.check import Check

    try:
        with opened() as house:
            waiting = Waiting(house.store.clock)
            return examine(
                house, repair=repair, full=full, progress=lambda what, at, total: waiting.told(f"Looking at the {what}", at, total)
            )
    except SteadError as error:
        if error.code in ("usage", "internal"):
            raise
        return as_json([Check("open", False, f"{error.message} {error.hint or ''}".strip())])


def _print(found: dict[str, Any]) -> None:
    if not sys.stdout.isatty():
        table(["name", "ok", "detail"], [[one["name"], one["ok"], one["detail"]] for one in found["checks"]])
        return
    for one in found["checks"]:
        mark = out.style("✓", "green", sys.stdout) if one["ok"] else out.style("✗", "red", sys.stdout)
        out.line(f"{mark} {one['name']}: {out.plain(one['detail'])}")
