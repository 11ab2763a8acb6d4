"""Reading: a page and the whole of a long session, and a page of many sessions, beside the same query in bare apsw."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import peers
from common import Table, compare, house, lengthen, milliseconds, name

from stead.domain import sessions
from stead.store import Store

BODIES = (
    "SELECT p.message, p.n, p.started, e.data, x.data FROM parts p JOIN events e ON e.seq=p.seq LEFT JOIN events x ON x.seq=p.ended"
    " WHERE p.session=? AND p.message>? ORDER BY p.message, p.n"
)
HEADS = "SELECT n, role, author, model, run, created, stop_sequence FROM messages WHERE session=? AND n>? ORDER BY n"
LIST = "SELECT * FROM sessions WHERE hidden=0 AND parent IS NULL AND trashed=0 ORDER BY updated DESC, seq DESC LIMIT 50"


def tables(quick: bool) -> Iterator[Table]:
    """All jobs of reading."""
    rounds = 1 if quick else 3
    for length in (100, 1_000) if quick else (100, 1_000, 10_000):
        yield from _session(length, rounds)
    yield _list(1_000 if quick else 10_000, rounds)


def _session(length: int, rounds: int) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as place, house(Path(place), 1) as store:
        lengthen(store, name(0), length - 1)
        connection = apsw.Connection(str(Path(place) / "stead.db"))

        def bare(after: int) -> Callable[[], Any]:
            return lambda: [connection.execute(query, (name(0), after)).fetchall() for query in (HEADS, BODIES)]

        asked = peers.ask({"job": "open", "size": 2_300, "length": length}, 1)
        for which, after, limit, column in (("Newest 50", length - 50, 50, "page ms"), ("The whole", 0, None, "whole ms")):
            work: dict[str, Callable[[], Any]] = {
                "bare apsw, rows as they are": bare(after),
                "stead, raw JSON": _view(store, lambda view, limit=limit: sessions.raw_messages(view, name(0), limit=limit)),  # type: ignore[misc]
                "stead, objects": _view(store, lambda view, limit=limit: sessions.messages(view, name(0), limit=limit)),  # type: ignore[misc]
            }
            rows = compare(
                {title: lambda one=one, limit=limit: milliseconds(one, 50 if limit else 5) for title, one in work.items()}, rounds
            )  # type: ignore[misc]
            rows.update({who: {"p50 ms": figures[column]} for who, figures in asked.items()})
            note = "a message has 3 parts, 2.3 KB; a peer's is one text of that size"
            yield Table(f"{which} of a session of {length:,} messages", "p50 ms", rows, note)
        connection.close()


def _list(count: int, rounds: int) -> Table:
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as place, house(Path(place), count) as store:
        connection = apsw.Connection(str(Path(place) / "stead.db"))
        work: dict[str, Callable[[], Any]] = {
            "bare apsw, rows as they are": lambda: connection.execute(LIST).fetchall(),
            "stead": _view(store, lambda view: sessions.page(view, limit=50)),
        }
        rows = compare({title: lambda one=one: milliseconds(one, 50) for title, one in work.items()}, rounds)  # type: ignore[misc]
        connection.close()
    return Table(f"List 50 of {count:,} sessions", "p50 ms", rows)


def _view(store: Store, query: Callable[[Any], Any]) -> Callable[[], Any]:
    def read() -> Any:
        with store.view() as view:
            return query(view)

    return read
