"""Reading: views of one moment of the store. A view is short: it must never be held across a wait for a network or a person."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stead.core.events import Event
from stead.store.database import Conn, Database, Row
from stead.store.log import EVENT_COLUMNS, read_event

_IDLE_CONNECTIONS = 4


class View:
    """One moment of the store."""

    __slots__ = ("_conn",)

    def __init__(self, conn: Conn) -> None:
        self._conn = conn

    def q(self, sql: str, *args: Any) -> list[Row]:
        """Run one query with `?` parameters and give all its rows."""
        return self._conn.q(sql, args)

    def one(self, sql: str, *args: Any) -> Row | None:
        """The first row, or None."""
        rows = self._conn.q(sql, args)
        return rows[0] if rows else None

    def events(self, *, after: int = 0, stream: str | None = None, limit: int = 1000) -> list[Event[Any]]:
        """Up to `limit` committed events behind `after`, in order. Ask again behind the last one for more."""
        where, args = ("seq>?", [after]) if stream is None else ("seq>? AND stream=?", [after, stream])
        query = f"SELECT {EVENT_COLUMNS} FROM events WHERE {where} ORDER BY seq LIMIT ?"
        return [read_event(row) for row in self._conn.q(query, [*args, limit])]


class Readers:
    """A small pool of reading connections. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._idle: list[Conn] = []
        self._lock = threading.Lock()
        self._closed = False

    @contextmanager
    def view(self) -> Iterator[View]:
        """A view of this moment, for the length of the `with` block."""
        with self._lock:
            conn = self._idle.pop() if self._idle else None
        if conn is None:
            conn = self._database.reader()
        try:
            conn.begin_read()
            yield View(conn)
            conn.commit()
        except BaseException:
            conn.close()  # whatever it was in the middle of, nobody else should inherit it
            raise
        with self._lock:
            if not self._closed and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(conn)
                return
        conn.close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()
