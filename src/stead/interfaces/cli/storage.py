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
    trim: Annotated[bool, typer.Option("--trim", help="First trim undo data as the setting `retention` says.")] = False,
    untrim: Annotated[bool, typer.Option("--untrim", help="First revert what was trimmed in the last 7 days.")] = False,
    json: Json = False,
) -> int:
    """Show what takes room on the disk, or print a blob."""
    if what is not None:
        return _blob(what, hash)
    from stead.app.storage import sizes

    if trim and untrim:
        raise SteadError("usage", "Undo data is either trimmed or brought back.")
    with opened() as house:
        if trim or untrim:
            _retain(house, untrim, json)
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


def _retain(house: Any, untrim: bool, json: bool) -> None:
    from stead.app.retention import announcement, apply, revert

    if untrim:
        done = revert(house)
        said = f"Brought the undo data of {done['changes']:,} changes back; the policy spares it from now on."
    else:
        apply(house, every=True)
        said = announcement(house) or "There was nothing to trim."
    if not json:
        out.note(said)


def _undo(found: dict[str, Any]) -> list[list[Any]]:
    rows = [["undo", "data", found["bytes"]]]
    rows += [["undo", f"since {name}", found[key]] for key, name in (("day", "a day"), ("week", "a week"), ("month", "30 days"))]
    return rows + [
        ["trimmed", f"{one['session']} {one['changes']:,} changes, {one['state']}", one["bytes"]] for one in found["trims"]
    ]


def _print(found: dict[str, Any]) -> None:
    rows = [[name, "", found[name]] for name in ("bytes", "blobs", "wal", "pending_purge")]
    rows += _undo(found["undo"])
    rows += [["table", name, size] for name, size in found["tables"].items()]
    rows += [["session", f"{one['session']} {one['title']}", one["bytes"]] for one in found["sessions"]]
    rows += [["kind", one["kind"], one["bytes"]] for one in found["kinds"]]
    table(["what", "name", "size"], rows)
    if found["undo"]["gib"]:
        out.note(f"Undo data takes over {found['undo']['gib']} GiB; the setting `retention` can limit it.")
    if any(one["state"] == "open" for one in found["undo"]["trims"]):
        out.note("`stead storage --untrim` reverts what was trimmed, for 7 days.")
