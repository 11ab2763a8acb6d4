"""SQLite through apsw, the only SQLite library that may touch a store (two in one process break each other's locks)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import apsw

from stead.core.errors import SteadError
from stead.store.database import Conn, Row, clean

PAGE_BYTES = 2048
WAL_LIMIT = 16 << 20
BUSY_MS = 5000

_BEFORE_FIRST_TABLE = (f"PRAGMA page_size={PAGE_BYTES}", "PRAGMA auto_vacuum=INCREMENTAL")
_EACH = (
    f"PRAGMA busy_timeout={BUSY_MS}",
    "PRAGMA synchronous=FULL",
    "PRAGMA fullfsync=ON",  # macOS: fsync alone does not reach the platter; elsewhere it means nothing
    "PRAGMA checkpoint_fullfsync=ON",
    "PRAGMA foreign_keys=ON",
    "PRAGMA secure_delete=ON",
    "PRAGMA wal_autocheckpoint=4000",
    f"PRAGMA journal_size_limit={WAL_LIMIT}",
)


class SQLite:
    """A store in one file, with its `-wal` and `-shm` beside it, all 0600."""

    name = "sqlite"
    types: ClassVar[dict[str, str]] = {"blob": "BLOB", "key": "INTEGER PRIMARY KEY", "float": "REAL", "keyed": " WITHOUT ROWID"}

    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return self.path.exists() and self.path.stat().st_size > 0

    def writer(self) -> Conn:
        try:
            # SQLite gives -wal and -shm the mode of the main file, so that one decides for all three, whatever the umask.
            os.close(os.open(self.path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise _from_os(error, self.path) from error
        conn = self._open(apsw.SQLITE_OPEN_READWRITE)
        for statement in (*_BEFORE_FIRST_TABLE, *_EACH, "PRAGMA journal_mode=WAL"):
            conn.q(statement)
        return conn

    def reader(self) -> Conn:
        # A WAL reader must be able to make the -shm file, so the file is opened for writing and then forbidden to write.
        writable = os.access(self.path, os.W_OK) and os.access(self.path.parent, os.W_OK)
        conn = self._open(apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY)
        conn.q(f"PRAGMA busy_timeout={BUSY_MS}")
        conn.q("PRAGMA query_only=ON")
        return conn

    def tables(self, conn: Conn) -> set[str]:
        return {name for (name,) in conn.q("SELECT name FROM sqlite_master WHERE type='table'")}

    def backup(self, target: Path) -> Path | None:
        source = self._open(apsw.SQLITE_OPEN_READWRITE)
        os.close(os.open(target, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
        copy = apsw.Connection(str(target))
        try:
            with copy.backup("main", source.raw, "main") as running:
                running.step()
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        finally:
            copy.close()
            source.close()
        return target

    def _open(self, flags: int) -> SQLiteConn:
        try:
            return SQLiteConn(apsw.Connection(str(self.path), flags=flags), self.path)
        except apsw.Error as error:
            raise translate(error, self.path) from error


class SQLiteConn:
    """A connection; see `database.Conn`."""

    def __init__(self, raw: apsw.Connection, path: Path) -> None:
        self.raw = raw
        self._path = path
        self._run = raw.cursor().execute

    def q(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._run(sql, [clean(arg) for arg in args]).fetchall()
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def begin(self) -> None:
        self.q("BEGIN IMMEDIATE")

    def begin_read(self) -> None:
        self.q("BEGIN")

    def commit(self) -> None:
        self.q("COMMIT")

    def rollback(self) -> None:
        if self.raw.in_transaction:
            self.q("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    def close(self) -> None:
        self.raw.close()


def translate(error: apsw.Error, path: Path) -> Exception:
    """The stable error for what SQLite said; a mistake in our own SQL stays what it is."""
    code = getattr(error, "extendedresult", 0)
    if isinstance(error, apsw.FullError):
        return SteadError("disk_full", f"There is no space left to write {path}.", hint="Free some space; nothing stored was lost.")
    if isinstance(error, (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)):
        return SteadError("store_busy", f"{path} is held by another process.", hint="Try again, or see `stead doctor`.")
    if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError, apsw.CantOpenError)):
        return SteadError("read_only", f"{path} cannot be opened for writing: {error}.")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return SteadError("store_damaged", f"{path} is not a readable store: {error} (SQLite code {code}).")
    if isinstance(error, apsw.IOError):
        return SteadError("store_damaged", f"Reading or writing {path} failed: {error} (SQLite code {code}).")
    return error


def _from_os(error: OSError, path: Path) -> SteadError:
    from stead.store.safefile import from_os

    return from_os(error, path)
