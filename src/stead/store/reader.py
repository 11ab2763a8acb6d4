"""Reading: views of one moment of the store. A view is short: it must never be held across a wait for a network or a person."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stead.core.errors import SteadError
from stead.core.events import Event
from stead.store.database import Conn, Database, Row
from stead.store.log import EVENT_COLUMNS, HEAD, last_seq, read_event

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

    def newest(self) -> int:
        """The highest `seq` that was ever given to an event, as far as this view sees."""
        _, gone, last, _ = self._conn.q(HEAD)[0]
        return max(int(gone), int(last or 0))

    def last_seq(self, stream: str) -> int:
        """The `seq` of the stream's last event, 0 when it has none."""
        return last_seq(self, stream)

    def tables(self, database: Database) -> set[str]:
        """The names of all tables."""
        return database.tables(self._conn)


class Readers:
    """A small pool of reading connections. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._idle: list[Conn] = []
        self._lock = threading.Lock()
        self._closed = False
        self._pid = os.getpid()
        self._first: str | None = None

    def begin_with(self, statement: str) -> None:
        """Have every connection run `statement` before anything else; it may make temporary views."""
        with self._lock:
            self._first = statement
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()

    @contextmanager
    def view(self) -> Iterator[View]:
        """A view of this moment, for the length of the `with` block."""
        conn = self._begin()
        try:
            yield View(conn)
            conn.rollback()  # nothing was written; and an error that the block swallowed is over with it
        except BaseException:
            conn.close()  # whatever it was in the middle of, nobody else should inherit it
            raise
        with self._lock:
            if not self._closed and conn.usable and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(conn)
                return
        conn.close()

    def _begin(self) -> Conn:
        """A connection in a read transaction."""
        if os.getpid() != self._pid:
            raise SteadError("internal", "This process was forked from one with an open store; start a fresh process.")
        with self._lock:
            if self._closed:
                raise SteadError("internal", "The store is closed.")
            conn = self._idle.pop() if self._idle else None
        if conn is not None:
            try:
                conn.begin_read()
                return conn
            except SteadError:  # lost while it lay idle: a fresh one tells whether the database is there
                conn.close()
        conn = self._database.reader()
        try:
            if self._first is not None:
                for statement in ("PRAGMA query_only=OFF", "PRAGMA temp_store=MEMORY", self._first, "PRAGMA query_only=ON"):
                    conn.q(statement)
            conn.begin_read()
        except BaseException:
            conn.close()
            raise
        return conn

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for conn in idle:
            conn.close()
