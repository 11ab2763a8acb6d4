"""SQLite through apsw, the only SQLite library that may touch a store (two in one process break each other's locks)."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any, ClassVar

import apsw

from stead.core.clock import SystemClock
from stead.core.errors import SteadError
from stead.store import faults
from stead.store.database import Conn, Row, clean
from stead.store.turns import enter

PAGE_BYTES = 2048
WAL_LIMIT = 16 << 20
RECYCLE_COMMITS = 200
"""After so many commits the write-ahead log is brought into the database and written over from its beginning: a sync of a file that
grows takes half as long again. Each time costs two syncs more, 1 % of them."""
BUSY_MS = 5000
TURN_SECONDS = 0.01
"""How long a process may go on beginning before it stands in the queue again; see `turns.py`."""
PROTOCOL_SECONDS = 3.0
"""How long after the first time a lock that the file system did not understand is asked for again. SQLite itself tries for about
ten seconds, unless it is told at once: who waited for that is not made to wait a second time."""
READ_CACHE_KIB = 512
"""The page cache of a reading connection. Up to four lie idle, and what they keep the operating system's cache has as well."""

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
# On a network file system: no memory is shared, and the end of a commit is in the folder before anybody hears of it.
_SAFE = ("PRAGMA mmap_size=0", "PRAGMA synchronous=EXTRA")

_SHM_BYTES = 32 << 10  # what the shared-memory file has at least, once it is whole
# What a full disk is called while the shared-memory file grows or is synced.
_NO_SPACE = (apsw.SQLITE_IOERR_SHMSIZE, apsw.SQLITE_IOERR_SHMMAP)
_NO_SHARED_LOG = (
    "WSL 1 and some network file systems cannot share a write-ahead log. Use a data folder on a disk of this machine (STEAD_DATA),"
    " or set STEAD_FILESYSTEM=network: slower, and one process at a time."
)
_SHORT = (
    "Network file systems do this. Close every stead, then copy the whole folder to a disk of this machine and name that with"
    " STEAD_DATA."
)
_VACUUM_PAGES = 1000
_PATIENCE_MS = 50
_TRIES, _TRY_SECONDS = 40, 0.05  # a reader is done in that time, unless it never is
_making = threading.Lock()
_monotonic = SystemClock().monotonic

# The connections to each file, and the process that opened them. A forked child inherits what SQLite believes to hold of locks
# and holds none, so that its commits could be lost: it may not open a file that its parent had open.
_open_files: dict[Path, tuple[int, int]] = {}


class SQLite:
    """A store in one file, with its `-wal` and `-shm` beside it, all 0600."""

    name = "sqlite"
    types: ClassVar[dict[str, str]] = {
        "blob": "BLOB",
        "key": "INTEGER PRIMARY KEY",
        "float": "REAL",
        "keyed": " WITHOUT ROWID",
        "pass_over": "",
        "now_ms": "CAST(unixepoch('subsec') * 1000 AS INTEGER)",
    }
    shared = False
    safe = False
    """Without a write-ahead log, for a file system that cannot carry one: a commit waits for readers, and they for it."""

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
            for statement in (*_EACH, *(_SAFE if self.safe else ())):
                conn.q(statement)
            if conn.q("PRAGMA auto_vacuum") != [(2,)]:  # a new file; to say it again would wait for whoever writes
                for statement in _BEFORE_FIRST_TABLE:
                    conn.q(statement)
            conn.to_journal("DELETE" if self.safe else "WAL")
            if not self.safe:  # where nobody else has it open there is no queue
                conn.queue_at(self.path.parent)
        except BaseException:
            conn.close()
            raise
        return conn

    def leave_wal(self) -> None:
        """Bring what waits in the write-ahead log into the file and go on without one. The caller is the only process that has
        the store open, and has no other connection to it; no memory is shared on the way."""
        conn = self._open(apsw.SQLITE_OPEN_READWRITE)
        try:
            for statement in (f"PRAGMA busy_timeout={BUSY_MS}", *_SAFE, "PRAGMA locking_mode=EXCLUSIVE"):
                conn.q(statement)
            conn.to_journal("DELETE")
        finally:
            conn.close()

    def reader(self) -> Conn:
        if self.writable():
            # A WAL reader must be able to make the -shm file, so the file is opened for writing and then forbidden to write.
            try:
                self._make_private()  # before -wal and -shm take its mode over
            except OSError as error:
                raise _from_os(error, self.path) from error
            conn = self._open(apsw.SQLITE_OPEN_READWRITE)
            if not self.safe and self._bytes("-shm") < _SHM_BYTES and not self._has_room(conn):
                conn = self._open_frozen()
        elif self.safe and self._bytes("-wal"):
            raise SteadError(
                "read_only",
                f"{self.path} has a write-ahead log, which cannot be used on a network file system, and may not be changed here.",
                hint="Open the store once where it can be written, or copy the folder to a disk of this machine (STEAD_DATA).",
            )
        elif self._bytes("-wal") or self._bytes("-journal"):
            conn = self._open(apsw.SQLITE_OPEN_READONLY)
        else:  # nobody writes and nothing waits in the log: the file alone is the store
            conn = self._open_frozen()
        try:
            for statement in (f"PRAGMA busy_timeout={BUSY_MS}", f"PRAGMA cache_size=-{READ_CACHE_KIB}", "PRAGMA query_only=ON"):
                conn.q(statement)
        except BaseException:
            conn.close()
            raise
        return conn

    def _has_room(self, conn: SQLiteConn) -> bool:
        """Whether the memory that readers of the log share could be made. False, and `conn` closed, on a full disk with nothing in
        the log: then nobody writes, and the file alone is the store."""
        try:
            for statement in (f"PRAGMA busy_timeout={BUSY_MS}", "PRAGMA schema_version"):
                conn.q(statement)
        except BaseException as error:
            conn.close()
            full = isinstance(error, SteadError) and error.code == "disk_full"
            if full and not self._bytes("-wal") and not self._bytes("-journal"):
                return False
            raise
        return True

    def tables(self, conn: Conn) -> set[str]:
        return {name for (name,) in conn.q("SELECT name FROM sqlite_master WHERE type='table'")}

    def alone(self, conn: Conn) -> None:
        pass  # a view keeps what it saw, tables and all

    def indexes(self, conn: Conn) -> dict[str, str]:
        return dict(conn.q("SELECT name, tbl_name FROM sqlite_master WHERE type='index'"))

    def sizes(self, conn: Conn) -> dict[str, int]:
        rows = conn.q(
            "SELECT coalesce(m.tbl_name, s.name), sum(s.pgsize) FROM dbstat s LEFT JOIN sqlite_master m ON m.name=s.name"
            " WHERE s.aggregate=TRUE GROUP BY 1"
        )
        return {name: int(size) for name, size in rows}

    def free(self, conn: Conn) -> int:
        return int(conn.q("PRAGMA freelist_count")[0][0]) * int(conn.q("PRAGMA page_size")[0][0])

    def log_bytes(self) -> int:
        return self._bytes("-wal")

    def faults(self, conn: Conn) -> list[str]:
        said = [str(row[0]) for row in conn.q("PRAGMA quick_check(20)") if row[0] != "ok"]
        return said + [
            f"{row[0]}: row {row[1]} refers to a row of {row[2]} that is not there" for row in conn.q("PRAGMA foreign_key_check")
        ]

    def shrink(self) -> bool:
        conn = self.writer()
        try:
            while (left := self.free(conn)) > 0:
                conn.begin()
                conn.q(f"PRAGMA incremental_vacuum({_VACUUM_PAGES})")
                conn.commit()
                conn.checkpoint()  # so that the log stays short, and little room is needed on the disk
                faults.point("sqlite.vacuumed")
                if self.free(conn) >= left:
                    break
            for _ in range(_TRIES):
                if conn.checkpoint():
                    return True
                sleep(_TRY_SECONDS)
            return False
        except SteadError as error:
            if error.code not in ("store_busy", "disk_full"):
                raise
            return False
        finally:
            conn.close()

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

    def _bytes(self, beside: str) -> int:
        """The size of `-wal` or `-journal`, 0 when it is not there."""
        try:
            return os.stat(f"{self.path}{beside}").st_size
        except OSError:
            return 0

    def _open_frozen(self) -> SQLiteConn:
        """Open the file to read it as it lies there, without locks: for one view, as nobody knows when somebody writes again."""
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        conn = self._open(flags, f"{self.path.absolute().as_uri()}?immutable=1")
        conn.usable = False
        return conn

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
        self.usable = True
        self._run = raw.cursor().execute
        self._over = False
        self._since = _monotonic()  # when the connection, or its newest transaction, was begun
        self._queue, self._let_in = -1, -TURN_SECONDS
        self._warned = False
        self._tend_at = WAL_LIMIT
        self._since_recycled = 0

    def q(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        try:
            # Most text needs no cleaning, and a call for each parameter is a third of what a short statement costs.
            sound = [arg if type(arg) is not str or (arg.isascii() and "\0" not in arg) else clean(arg) for arg in args]
            return self._run(sql, sound).fetchall()
        except apsw.ProtocolError as error:
            return self._again(sql, sound, error)
        except apsw.Error as error:
            raise translate(error, self._path, self.raw.system_errno) from error

    def _again(self, sql: str, args: Sequence[Any], failed: apsw.ProtocolError) -> list[Row]:
        """Once more what failed with SQLITE_PROTOCOL: no transaction could begin, so nothing of it was done."""
        while _monotonic() - self._since < PROTOCOL_SECONDS:
            sleep(0.05)
            try:
                return self._run(sql, args).fetchall()
            except apsw.ProtocolError:
                continue
            except apsw.Error as error:
                raise translate(error, self._path) from error
        raise translate(failed, self._path) from failed

    def to_journal(self, mode: str) -> None:
        """Switch to the journal `mode`. SQLite does not wait by itself when another process is doing the same just now."""
        clock = SystemClock()
        until = clock.monotonic() + BUSY_MS / 1000
        while True:
            try:
                got = self.q(f"PRAGMA journal_mode={mode}")
                break
            except SteadError as error:
                if not isinstance(error.__cause__, apsw.BusyError) or clock.monotonic() >= until:
                    raise
                sleep(0.01)
        if got != [(mode.lower(),)]:
            raise SteadError(
                "read_only",
                f"{self._path} lies on a file system that does not allow the journal mode {mode} (it stays at {got[0][0]}).",
                hint="Use a data folder on a disk of this machine (STEAD_DATA).",
            )

    def queue_at(self, folder: Path) -> None:
        """Wait for write transactions in one queue with all who write in this folder."""
        with suppress(OSError):
            self._queue = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)

    def begin(self) -> None:
        if self._queue < 0:
            self._since = _monotonic()
            self.q("BEGIN IMMEDIATE")
            return
        clock = SystemClock()
        self.raw.set_busy_timeout(0)  # the waiting is ours, as long in all
        try:
            # Each turn is for several commits: to change the process for every one of them would cost half of the rate.
            if clock.monotonic() - self._let_in < TURN_SECONDS and self._begun():
                return
            begun = enter(self._queue, self._begun, BUSY_MS / 1000)
            self._let_in = clock.monotonic()
        finally:
            self.raw.set_busy_timeout(BUSY_MS)
        if not begun:
            raise translate(apsw.BusyError(), self._path)

    def _begun(self) -> bool:
        self._since = _monotonic()
        try:
            self._run("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        except apsw.ProtocolError as error:
            self._again("BEGIN IMMEDIATE", (), error)
        except apsw.Error as error:
            raise translate(error, self._path) from error
        return True

    def begin_read(self) -> None:
        self._since = _monotonic()
        self.q("BEGIN")

    def commit(self) -> None:
        self.q("COMMIT")

    def rollback(self) -> None:
        if self.raw.in_transaction:
            self.q("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        return self.raw.in_transaction

    def tend(self) -> bool:
        self._since_recycled += 1
        if self._since_recycled >= RECYCLE_COMMITS:
            self._since_recycled = 0
            self._recycle()
        size = self._log_bytes()
        if size <= WAL_LIMIT:
            self._tend_at, self._warned = WAL_LIMIT, False
            return False
        if size > self._tend_at:
            # Views that overlap without end never leave a moment in which the log could be begun anew: those that come now wait
            # on nothing, and the ones that are there end soon. If one does not, it is asked again only when much has been added.
            if self.checkpoint(wait_ms=_PATIENCE_MS):
                return False
            self._tend_at = size + WAL_LIMIT // 4
        if size > 2 * WAL_LIMIT and not self._warned:
            self._warned = True
            _warn(self._path, size)
        return True

    def _recycle(self) -> None:
        """What SQLite does by itself after so many pages, after so many commits; waits for nobody, and a failure is tried again."""
        with suppress(SteadError, apsw.Error):
            if self.q("PRAGMA wal_autocheckpoint") != [(0,)]:
                self.q("PRAGMA wal_checkpoint(PASSIVE)")

    def checkpoint(self, *, wait_ms: int = 0) -> bool:
        self.q(f"PRAGMA busy_timeout={wait_ms}")  # meanwhile nobody else can write
        try:
            if not wait_ms:
                _, there, done = self.q("PRAGMA wal_checkpoint(PASSIVE)")[0]
                if there != done:
                    return False
            return bool(self.q("PRAGMA wal_checkpoint(TRUNCATE)")[0][0] == 0)
        finally:
            self.q(f"PRAGMA busy_timeout={BUSY_MS}")

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._path}-wal").st_size
        except OSError:
            return 0

    def close(self) -> None:
        if not self._over:
            self._over = True
            if self._queue >= 0:
                os.close(self._queue)
            self.raw.close()
            _closed(self._path)


def translate(error: apsw.Error, path: Path, system: int = 0) -> Exception:
    """The stable error for what SQLite said; a mistake in our own SQL stays what it is. `system` is the system's last error for the
    connection: SQLite knows a full disk, and takes a quota or a limit for damage."""
    code = getattr(error, "extendedresult", 0)
    limited = code == apsw.SQLITE_IOERR_WRITE and system in (errno.EDQUOT, errno.EFBIG, errno.ENOSPC)
    if isinstance(error, apsw.FullError) or code in _NO_SPACE or limited:
        return SteadError("disk_full", f"There is no space left to write {path}.", hint="Free some space; nothing stored was lost.")
    if isinstance(error, (apsw.BusyError, apsw.LockedError)):
        from stead.store import holders

        who = holders.named(path.parent / "locks", holders.of_writing(path))
        return SteadError("store_busy", f"{path} is held by {who}.", hint="Wait for it or end it, then try again.")
    if isinstance(error, apsw.ProtocolError):
        return SteadError("store_busy", f"{path} could not be locked: locking protocol (SQLite code {code}).", hint=_NO_SHARED_LOG)
    if code == apsw.SQLITE_IOERR_SHORT_READ:
        message = f"{path} could not be read to its end: its write-ahead log {path.name}-wal is shorter than it claims"
        return SteadError("store_damaged", f"{message} (SQLite code {code}). Nothing was changed.", hint=_SHORT)
    if isinstance(error, (apsw.ReadOnlyError, apsw.PermissionsError)):
        return SteadError("read_only", f"{path} cannot be written: {error}.")
    if isinstance(error, apsw.CantOpenError):
        return SteadError("read_only", f"{path} cannot be opened: {error}.", hint="Check the rights of the file and its folder.")
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError)):
        return SteadError("store_damaged", f"{path} is not a readable store: {error} (SQLite code {code}).")
    if isinstance(error, apsw.IOError):
        return SteadError("store_damaged", f"Reading or writing {path} failed: {error} (SQLite code {code}).")
    return error


def _warn(path: Path, size: int) -> None:
    """Say in the log who keeps the write-ahead log from being begun anew."""
    import logging

    from stead.store import holders

    who = holders.named(path.parent / "locks", holders.of_reading(path))
    logging.getLogger("stead.store").warning("the write-ahead log has %d MiB: %s has not ended reading", size >> 20, who)


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
