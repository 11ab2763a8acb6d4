"""`stead storage`: what the store takes on the disk, by table, session and kind of event; and collecting what nothing needs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.app.retention import undo_sizes
from stead.core.errors import SteadError
from stead.domain import sessions
from stead.store import collect
from stead.store.collect import names_in

if TYPE_CHECKING:
    from stead.app.house import Stead
    from stead.store.reader import View
    from stead.store.store import Store

SESSIONS = 20
_PAGE = 1000


def sizes(house: Stead) -> dict[str, Any]:
    """`{"bytes", "tables": {name: bytes}, "blobs", "wal", "pending_purge", "sessions": [{"session", "title", "bytes"}], "kinds":
    [{"kind", "events", "bytes"}], "undo"}`, all in bytes; `undo` is that of `retention.undo_sizes`.

    `bytes` is everything; a table counts with its indexes; `blobs` is what they take in the database and in files; `pending_purge`
    is what a collection would free: blobs that nothing names, files without a row, free pages. The sessions are the largest, each
    with its events and with what the blobs that they name take. It reads the whole log.
    """
    store = house.store
    with store.view() as view:
        tables = store.database.sizes(view._conn)
        free = store.database.free(view._conn)
        rows = {digest: int(size) for digest, size in view.q("SELECT hash, stored FROM blobs")}
    files = dict(store.blobs.files())
    wal = store.database.log_bytes()
    stored = {digest: size or files.get(digest, 0) for digest, size in rows.items()}
    orphans = sum(size for digest, size in files.items() if digest not in rows)
    unnamed, _ = collect.unnamed(store, before=store.clock.now() + 1)
    return {
        "bytes": _everything(store, tables, free),
        "tables": dict(sorted(tables.items(), key=lambda item: (-item[1], item[0]))),
        "blobs": sum(stored.values()) + orphans,
        "wal": wal,
        "pending_purge": sum(stored.get(digest, 0) for digest in unnamed) + orphans + free,
        "sessions": _by_session(store, stored),
        "kinds": _by_kind(store),
        "undo": undo_sizes(house, stored),
    }


def blob(house: Stead, text: str) -> bytes:
    """The content of the blob whose hash begins with `text` (6 characters or more). Raises `not_found`, `ambiguous`."""
    if len(text) < 6 or not text.isalnum():
        raise SteadError("not_found", f"There is no blob {text}.")
    with house.store.view() as view:
        found = [digest for (digest,) in view.q("SELECT hash FROM blobs WHERE hash>=? AND hash<? LIMIT 2", text, text + "g")]
    if len(found) > 1:
        raise SteadError("ambiguous", f"Several blobs begin with {text}.")
    if not found:
        raise SteadError("not_found", f"There is no blob {text}.")
    return house.store.blobs.get(found[0])


def _everything(store: Store, tables: dict[str, int], free: int) -> int:
    """The files of the data folder; where the database lies elsewhere, it and them."""
    below = sum(path.stat().st_size for path in _files(store.folder)) if store.folder is not None else 0
    return below if store.database.name == "sqlite" else below + sum(tables.values()) + free


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]


def _by_kind(store: Store) -> list[dict[str, Any]]:
    with store.view() as view:
        rows = view.q("SELECT kind, count(*), sum(length(data)) FROM events GROUP BY kind ORDER BY 3 DESC, 1")
    return [{"kind": kind, "events": int(count), "bytes": int(size)} for kind, count, size in rows]


def _by_session(store: Store, stored: dict[str, int]) -> list[dict[str, Any]]:
    named, sums = _named(store), {}
    with store.view() as view:
        for stream, size in view.q("SELECT stream, sum(length(data)) FROM events GROUP BY stream"):
            sums[stream] = int(size) + sum(stored.get(digest, 0) for digest in named.get(stream, ()))
        found = []
        for stream, size in sorted(sums.items(), key=lambda item: (-item[1], item[0])):
            title = _title(view, stream)
            if title is not None:
                found.append({"session": stream, "title": title, "bytes": size})
            if len(found) == SESSIONS:
                break
    return found


def _title(view: View, stream: str) -> str | None:
    try:
        return sessions.get(view, stream).title
    except SteadError:  # a project's stream, or that of the system
        return None


def _named(store: Store) -> dict[str, set[str]]:
    """The blobs that each stream names."""
    named: dict[str, set[str]] = {}
    at = 0
    while True:
        with store.view() as view:
            rows = view.q("SELECT seq, stream, data FROM events WHERE seq>? ORDER BY seq LIMIT ?", at, _PAGE)
        if not rows:
            return named
        for _, stream, data in rows:
            if found := set(names_in([data])):
                named.setdefault(stream, set()).update(found)
        at = int(rows[-1][0])
