"""`stead storage`."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened
from stead.interfaces.cli.tables import table


def storage(
    what: Annotated[str | None, typer.Argument(help="`blob`: print the content of one.")] = None,
    hash: Annotated[str | None, typer.Argument(help="Which blob: its hash, or the start of it (6 or more).")] = None,
    collect: Annotated[bool, typer.Option("--collect", help="First remove what nothing refers to any more.")] = False,
    json: Json = False,
) -> int:
    """Show what takes room on the disk, or print a blob."""
    if what is not None:
        return _blob(what, hash)
    from stead.app.storage import sizes

    with opened() as house:
        if collect:
            _collect(house, json)
        found = sizes(house)
    if json:
        out.json(found)
    else:
        _print(found)
    return 0


def _blob(what: str, hash: str | None) -> int:
    from stead.app.storage import blob

    if what != "blob" or hash is None:
        raise SteadError("usage", "`stead storage blob HASH` prints a blob; `stead storage` shows sizes.")
    with opened() as house:
        content = blob(house, hash)
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    return 0


def _collect(house: Any, json: bool) -> None:
    from stead.store.collect import collect

    done = collect(house.store)
    if not json:
        out.note(f"Removed {done['blobs']} blobs of {done['bytes']:,} bytes.")


def _print(found: dict[str, Any]) -> None:
    rows = [[name, "", found[name]] for name in ("bytes", "blobs", "wal", "pending_purge")]
    rows += [["table", name, size] for name, size in found["tables"].items()]
    rows += [["session", f"{one['session']} {one['title']}", one["bytes"]] for one in found["sessions"]]
    rows += [["kind", one["kind"], one["bytes"]] for one in found["kinds"]]
    table(["what", "name", "size"], rows)
