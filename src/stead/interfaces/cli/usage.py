"""`stead usage`."""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.domain import projects, usage
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.store.database import Reads

KEYS = ("day", "model", "project", "session")
COUNTS = ("calls", "input", "cache_read", "cache_write", "output", "reasoning", "cost", "unknown_cost_calls")


def show_usage(
    by: Annotated[str, typer.Option("--by", metavar="KEYS", help="Any of day,model,project,session.")] = "day,model",
    since: Annotated[str | None, typer.Option("--since", metavar="DAY", help="From this day (UTC) on: 2026-11-30.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="DAY", help="Up to and with this day (UTC).")] = None,
    project: Annotated[
        str | None, typer.Option("--project", metavar="PROJECT", help="Only this project: path, name or id.")
    ] = None,
    json: Json = False,
) -> int:
    """Show tokens and cost, of all projects and all time unless told otherwise."""
    keys = _keys(by)
    for name, day in (("--since", since), ("--until", until)):
        if day is not None and not _is_day(day):
            raise SteadError("usage", f"{name} takes a day such as 2026-11-30, not {day!r}.")
    with opened() as house, house.store.view() as view:
        chosen = projects.resolve(view, project).id if project is not None else None
        found = usage.report(view, keys, since=since, until=until, project=chosen)
        if json:
            out.json(found)
            return 0
        rows = [_row(view, row, keys) for row in found["rows"]]
    _print(rows, found, keys)
    return 0


def _keys(by: str) -> list[str]:
    keys = [key.strip() for key in by.split(",") if key.strip()]
    if not keys or any(key not in KEYS for key in keys):
        raise SteadError("usage", f"--by takes any of {','.join(KEYS)}, not {by!r}.")
    return keys


def _is_day(text: str) -> bool:
    from datetime import date

    try:
        return bool(re.fullmatch(r"\d{4}-\d\d-\d\d", text, re.ASCII)) and bool(date.fromisoformat(text))
    except ValueError:
        return False


def _row(view: Reads, row: dict[str, Any], keys: list[str]) -> list[Any]:
    cells = [row[key] for key in keys]
    if "project" in keys and sys.stdout.isatty():
        with suppress(SteadError):  # of a project that was removed the id is all that is left
            cells[keys.index("project")] = projects.get(view, row["project"]).path
    return [*cells, *(row[name] for name in COUNTS)]


def _print(rows: list[list[Any]], found: dict[str, Any], keys: list[str]) -> None:
    if not sys.stdout.isatty():
        table([*keys, *COUNTS], rows)
        return
    if not rows:
        out.note("No model was called yet.")
        return
    total = [*(["total", *[""] * (len(keys) - 1)]), *(found["total"][name] for name in COUNTS)]
    heads = [*keys, "calls", "input", "cached", "written", "output", "reasoning", "cost"]
    drawn = []
    for row in [*rows, total]:
        *head, calls, fresh, read, written, output, reasoning, cost, unknown = row
        money = out.dollars(cost) if not unknown else f"unknown ({unknown} calls)"
        drawn.append([*head, *(out.count(n) for n in (calls, fresh, read, written, output, reasoning)), money])
    empty = {at for at, name in enumerate(heads) if name in ("cached", "written", "reasoning") and drawn[-1][at] == "0"}
    heads, *drawn = [[value for at, value in enumerate(row) if at not in empty] for row in [heads, *drawn]]
    table(heads, drawn)
