"""PostgreSQL through psycopg 3. No session-level state, so that a transaction pooler may stand between."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, LiteralString

import psycopg

from stead import __version__
from stead.core.errors import SteadError
from stead.store.database import Conn, Row, clean
from stead.store.kernel import refuse_torn

# One number for every stead store: the lock lives in its database, so two databases never meet.
_WRITER_LOCK = 0x5374656164
WAIT_MS = 5000
STILL_MS = 3_000
"""A process that stands still in the middle of a commit keeps everybody else from writing no longer than this: the server takes the
connection away."""
_WAIT = "Wait for it or end it, then try again."


class Postgres:
    """A store in one PostgreSQL database."""

    name = "postgres"
    types: ClassVar[dict[str, str]] = {
        "blob": "BYTEA",
        "key": "BIGINT PRIMARY KEY",
        "float": "DOUBLE PRECISION",
        "keyed": "",
        "pass_over": " FOR UPDATE SKIP LOCKED",
        "now_ms": "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS BIGINT)",
    }
    shared = True

    def __init__(self, url: str) -> None:
        self.url = url

    def describe(self) -> str:
        return "The database"

    def writable(self) -> bool:
        return True

    def exists(self) -> bool:
        conn = self.reader()
        try:
            there = self.tables(conn)
        finally:
            conn.close()
        if "kernel" not in there:  # without it no view can begin
            refuse_torn(there, 0, self.describe())
        return "kernel" in there

    def writer(self) -> Conn:
        return PostgresConn(self._connect())

    def reader(self) -> Conn:
        return PostgresConn(self._connect())

    def tables(self, conn: Conn) -> set[str]:
        rows = conn.q("SELECT tablename FROM pg_tables WHERE schemaname = current_schema()")
        return {name for (name,) in rows}

    def alone(self, conn: Conn) -> None:
        conn.q("SET LOCAL lock_timeout='1s'")
        conn.q("LOCK TABLE kernel IN ACCESS EXCLUSIVE MODE")
        conn.q("SET LOCAL lock_timeout=0")

    def indexes(self, conn: Conn) -> dict[str, str]:
        return dict(conn.q("SELECT indexname, tablename FROM pg_indexes WHERE schemaname = current_schema()"))

    def sizes(self, conn: Conn) -> dict[str, int]:
        rows = conn.q(
            "SELECT relname, pg_total_relation_size(oid) FROM pg_class"
            " WHERE relkind='r' AND relnamespace=(SELECT oid FROM pg_namespace WHERE nspname=current_schema())"
        )
        return {str(name): int(size) for name, size in rows}

    def free(self, conn: Conn) -> int:
        return 0  # the server keeps and reuses its free room itself

    def log_bytes(self) -> int:
        return 0

    def faults(self, conn: Conn) -> list[str]:
        found = []
        for table in sorted(self.tables(conn)):
            conn.q("SAVEPOINT look")
            try:
                conn.q(f"SELECT count(t.*::text) FROM {table} t")  # every value of every row is read
            except Exception as error:
                conn.q("ROLLBACK TO SAVEPOINT look")
                found.append(f"{table}: {str(error).strip()}")
            conn.q("RELEASE SAVEPOINT look")
        return found

    def shrink(self) -> bool:
        conn = self.writer()
        try:
            for table in sorted(self.tables(conn)):
                conn.q(f"VACUUM {table}")
        finally:
            conn.close()
        return True

    def backup(self, target: Path) -> Path | None:
        return None  # pg_dump and the server's own backups know how

    def _connect(self) -> psycopg.Connection[Row]:
        try:
            # prepare_threshold=None: a prepared statement is session state and fails behind a transaction pooler.
            return psycopg.connect(self.url, autocommit=True, prepare_threshold=None, fallback_application_name=_name())
        except psycopg.Error as error:
            raise SteadError("store_busy", f"The database server did not let us in: {str(error).strip()}") from error


class PostgresConn:
    """A connection; see `database.Conn`."""

    def __init__(self, raw: psycopg.Connection[Row]) -> None:
        self.raw = raw

    def q(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        try:
            cursor = self.raw.execute(_translate(sql), [clean(arg) for arg in args])
            return cursor.fetchall() if cursor.description else []
        except psycopg.Error as error:
            raise translate(error) from error

    def begin(self) -> None:
        self.q("BEGIN")
        try:  # commit order is seq order
            self.q(
                "SELECT set_config('lock_timeout', ?, true), set_config('idle_in_transaction_session_timeout', ?, true),"
                " pg_advisory_xact_lock(?)",
                (str(WAIT_MS), str(STILL_MS), _WRITER_LOCK),
            )
        except SteadError as error:
            if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
                raise
            self.rollback()
            raise SteadError("store_busy", f"The store is held by {self._writing()}.", hint=_WAIT) from error

    def _writing(self) -> str:
        """Who writes just now, as they called themselves when they connected."""
        rows = self.q(
            "SELECT a.application_name, to_char(a.backend_start AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS\"Z\"')"
            " FROM pg_locks l JOIN pg_stat_activity a ON a.pid=l.pid WHERE l.locktype='advisory' AND l.granted"
            " AND (l.classid::bigint << 32) + l.objid::bigint=? AND l.database=(SELECT oid FROM pg_database"
            " WHERE datname=current_database())",
            (_WRITER_LOCK,),
        )
        return ", ".join(f"{name or 'another process'} (since {since})" for name, since in rows) or "another process"

    def begin_read(self) -> None:
        # With the lock before anything is read, a view is wholly before or wholly after an exchange of tables (`alone`).
        self.q("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; LOCK TABLE kernel IN ACCESS SHARE MODE")

    def commit(self) -> None:
        try:
            said = self.raw.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise translate(error) from error
        if said != "COMMIT":  # a transaction that met an error is rolled back, and the server calls that a success
            raise SteadError("internal", f"The database answered COMMIT with {said}.")

    def rollback(self) -> None:
        if self.in_transaction:
            self.q("ROLLBACK")

    @property
    def in_transaction(self) -> bool:
        return self.raw.info.transaction_status != psycopg.pq.TransactionStatus.IDLE

    @property
    def usable(self) -> bool:
        return not self.raw.closed

    def tend(self) -> bool:
        return False  # the server sees to its log itself

    def checkpoint(self, *, wait_ms: int = 0) -> bool:
        return True

    def close(self) -> None:
        self.raw.close()


def _name() -> str:
    """What others are told of this process when they wait for it."""
    return f"process {os.getpid()} on {os.uname().nodename[:24]}, stead {__version__}"


def translate(error: psycopg.Error) -> Exception:
    """The stable error for what the server said; a mistake in our own SQL stays what it is."""
    if isinstance(error, psycopg.errors.DiskFull):
        return SteadError("disk_full", "The database server has no space left.")
    if isinstance(error, psycopg.errors.ReadOnlySqlTransaction):
        return SteadError("read_only", "The database does not take writes.")
    if isinstance(error, psycopg.errors.LockNotAvailable):
        return SteadError("store_busy", "Somebody reads the database for long.", hint="Try again in a moment.")
    lost = (psycopg.OperationalError, psycopg.errors.AdminShutdown, psycopg.errors.IdleInTransactionSessionTimeout)
    if isinstance(error, lost):
        return SteadError("store_busy", f"The connection to the database was lost: {str(error).strip()}")
    return error


@cache
def _translate(sql: str) -> LiteralString:
    text: Any = sql.replace("%", "%%").replace("?", "%s")  # our own SQL, with values only as parameters
    return text  # type: ignore[no-any-return]
