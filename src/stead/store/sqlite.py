"""SQLite through apsw, the only SQLite library that may touch a store (two in one process break each other's locks)."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path
from time import sleep
from typing import Any, ClassVar

import apsw

from stead.core.errors import SteadError
from stead.store import faults
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

# What a full disk is called while the shared-memory file grows or is synced.
_NO_SPACE = (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP)
_making = threading.Lock()

# The connections to each file, and the process that opened them. A forked child inherits what SQLite believes to hold of locks
# and holds none, so that its commits could be lost: it may not open a file that its parent had open.
_open_files: dict[Path, tuple[int, int]] = {}


class SQLite:
    """A store in one file, with its `-wal` and `-shm` beside it, all 0600."""

    name = "sqlite"
    types: ClassVar[dict[str, str]] = {"blob": "BLOB", "key": "INTEGER PRIMARY KEY", "float": "REAL", "keyed": " WITHOUT ROWID"}

    def __init__(self, path: Path, *, vfs: str | None = None) -> None:
        """Raises `usage` for a path that SQLite cannot take."""
        if not _is_text(path):
            message = f"{str(path)!r} is not UTF-8, and SQLite opens no other paths."
            raise SteadError("usage", message, hint="Choose another data folder (STEAD_DATA).")
        self.path = path
        self._vfs = vfs

    def describe(self) -> str:
        return str(self.path)

    def exists(self) -> bool:
        try:
            return os.stat(self.path).st_size > 0
        except FileNotFoundError:
            return False
        except OSError as error:
            raise _from_os(error, self.path) from error

    def writable(self) -> bool:
        """Whether this process may write here: without that SQLite would quietly open the file for reading."""
        return _may_write(self.path.parent) and (_may_write(self.path) or not self.path.exists())

    def writer(self) -> Conn:
        if not self.writable():
            raise SteadError("read_only", f"{self.path} cannot be written.", hint="What is stored can still be read.")
        try:
            self._make_file()
            self._make_private()
        except OSError as error:
            raise _from_os(error, self.path) from error
        conn = self._open(apsw.SQLITE_OPEN_READWRITE)
        try:
            for statement in (*_EACH, *_BEFORE_FIRST_TABLE):
                conn.q(statement)
            conn.to_wal()
        except BaseException:
            conn.close()
            raise
        return conn

    def reader(self) -> Conn:
        if self.writable():
            # A WAL reader must be able to make the -shm file, so the file is opened for writing and then forbidden to write.
            try:
                self._make_private()  # before -wal and -shm take its mode over
            except OSError as error:
                raise _from_os(error, self.path) from error
            conn = self._open(apsw.SQLITE_OPEN_READWRITE)
        elif self._wal_bytes():
            conn = self._open(apsw.SQLITE_OPEN_READONLY)
        else:  # nobody writes and nothing waits in the log: the file alone is the store
            conn = self._open(apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI, f"{self.path.absolute().as_uri()}?immutable=1")
        try:
            for statement in (f"PRAGMA busy_timeout={BUSY_MS}", "PRAGMA query_only=ON"):
                conn.q(statement)
        except BaseException:
            conn.close()
            raise
        return conn

    def tables(self, conn: Conn) -> set[str]:
        return {name for (name,) in conn.q("SELECT name FROM sqlite_master WHERE type='table'")}

    def backup(self, target: Path) -> Path | None:
        part = target.with_name(f".{target.name}.part")  # what has the name of a backup is a whole one
        try:
            part.unlink(missing_ok=True)
            os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise _from_os(error, target) from error
        from stead.store.safefile import sync_folder

        try:
            self._copy_to(part)
            faults.point("sqlite.backup_written")
            part.replace(target)
            sync_folder(target.parent)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, apsw.Error):
                raise translate(error, target) from error
            raise
        return target

    def _copy_to(self, target: Path) -> None:
        source = self._open(apsw.SQLITE_OPEN_READWRITE)
        copy = apsw.Connection(str(target))
        try:
            source.q(f"PRAGMA busy_timeout={BUSY_MS}")
            with copy.backup("main", source.raw, "main") as running:
                running.step()
            copy.execute("PRAGMA journal_mode=DELETE").fetchall()
        finally:
            copy.close()
            source.close()

    def _make_file(self) -> None:
        """Make the file if it is not there. SQLite gives -wal and -shm the mode of the main file, so that one decides for all
        three, whatever the umask. An existing file is never opened here: closing any descriptor of it would take away the locks
        of this process's other connections."""
        with _making:
            try:
                fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                return
            try:
                os.fchmod(fd, 0o600)
            finally:
                os.close(fd)

    def _make_private(self) -> None:
        found = os.stat(self.path)
        # Only a file: whatever else a link of this name leads to is not ours to close.
        if stat.S_ISREG(found.st_mode) and stat.S_IMODE(found.st_mode) & 0o177 and found.st_uid == os.geteuid():
            os.chmod(self.path, 0o600)

    def _wal_bytes(self) -> int:
        try:
            return os.stat(f"{self.path}-wal").st_size
        except OSError:
            return 0

    def _open(self, flags: int, name: str | None = None) -> SQLiteConn:
        _opened(self.path)
        try:
            return SQLiteConn(apsw.Connection(name or str(self.path), flags=flags, vfs=self._vfs), self.path)
        except BaseException as error:
            _closed(self.path)
            if isinstance(error, apsw.Error):
                raise translate(error, self.path) from error
            raise


class SQLiteConn:
    """A connection; see `database.Conn`."""

    def __init__(self, raw: apsw.Connection, path: Path) -> None:
        self.raw = raw
        self._path = path
        self._run = raw.cursor().execute
        self._over = False

    def q(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        try:
            return self._run(sql, [clean(arg) for arg in args]).fetchall()
        except apsw.Error as error:
            raise translate(error, self._path) from error

    def to_wal(self) -> None:
        """Switch to the write-ahead log. SQLite does not wait by itself when another process is doing the same just now."""
        for _ in range(BUSY_MS // 10):
            try:
                mode = self._run("PRAGMA journal_mode=WAL").fetchall()
            except apsw.BusyError:
                sleep(0.01)
                continue
            except apsw.Error as error:
                raise translate(error, self._path) from error
            if mode != [("wal",)]:
                raise SteadError("read_only", f"{self._path} lies on a file system that does not allow a write-ahead log.")
            return
        raise SteadError("store_busy", f"{self._path} is held by another process.", hint="Try again in a moment.")

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

    @property
    def usable(self) -> bool:
        return True

    def close(self) -> None:
        if not self._over:
            self._over = True
            self.raw.close()
            _closed(self._path)


def translate(error: apsw.Error, path: Path) -> Exception:
    """The stable error for what SQLite said; a mistake in our own SQL stays what it is."""
    code = getattr(error, "extendedresult", 0)
    if isinstance(error, apsw.FullError) or code in _NO_SPACE:
        return SteadError("disk_full", f"There is no space left to write {path}.", hint="Free some space; nothing stored was lost.")
    if isinstance(error, (apsw.BusyError, apsw.LockedError, apsw.ProtocolError)):
        return SteadError("store_busy", f"{path} is held by another process.", hint="Try again in a moment.")
    if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError)):
        return SteadError("read_only", f"{path} cannot be written: {error}.")
    if isinstance(error, apsw.CantOpenError):
        return SteadError("read_only", f"{path} cannot be opened: {error}.", hint="Check the rights of the file and its folder.")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return SteadError("store_damaged", f"{path} is not a readable store: {error} (SQLite code {code}).")
    if isinstance(error, apsw.IOError):
        return SteadError("store_damaged", f"Reading or writing {path} failed: {error} (SQLite code {code}).")
    return error


def _opened(path: Path) -> None:
    with _making:
        process, count = _open_files.get(path, (os.getpid(), 0))
        if count and process != os.getpid():
            raise SteadError("internal", "This process was forked from one with an open store; start a fresh process.")
        _open_files[path] = (os.getpid(), count + 1)


def _closed(path: Path) -> None:
    with _making:
        process, count = _open_files.get(path, (os.getpid(), 0))
        if process == os.getpid() and count:
            _open_files[path] = (process, count - 1)


def _after_fork() -> None:
    global _making
    _making = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def _is_text(path: Path) -> bool:
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return False
    return True


def _may_write(path: Path) -> bool:
    return os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids)


def _from_os(error: OSError, path: Path) -> SteadError:
    from stead.store.safefile import from_os

    return from_os(error, path)
