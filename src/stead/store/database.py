"""What the store asks of a database; `sqlite.py` and `postgres.py` answer. SQL is written once, with `?` for parameters."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol

Row = tuple[Any, ...]


class Conn(Protocol):
    """One connection, used by one thread at a time."""

    def q(self, sql: str, args: Sequence[Any] = ()) -> list[Row]:
        """Run one statement and give all its rows. Text is stored without NUL and lone surrogates (U+FFFD stands for them)."""
        ...

    def begin(self) -> None:
        """Begin a write transaction and become the only writer until it ends."""
        ...

    def begin_read(self) -> None:
        """Begin a read transaction that sees one moment of the store."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None:
        """End the transaction without its changes; quiet when there is none."""
        ...

    @property
    def in_transaction(self) -> bool: ...

    @property
    def usable(self) -> bool:
        """Whether the connection may be used for another transaction; one that was lost is replaced by its owner."""
        ...

    def tend(self) -> bool:
        """Between two transactions: keep the write-ahead log within its bound, and warn of who does not let it. True when it is
        over it and wants a `checkpoint` as soon as there is nothing else to do."""
        ...

    def checkpoint(self, *, wait_ms: int = 0) -> bool:
        """Bring the write-ahead log into the database and begin it anew; False when a reader was in the way for `wait_ms`, in
        which nobody can write."""
        ...

    def close(self) -> None: ...


class Reads(Protocol):
    """What a query needs: a `View`, or the `Tx` of a job."""

    def q(self, sql: str, *args: Any) -> list[Row]:
        """Run one query and give all its rows."""
        ...

    def one(self, sql: str, *args: Any) -> Row | None:
        """The first row, or None."""
        ...


class Database(Protocol):
    """A kind of database at one address."""

    name: str
    types: ClassVar[dict[str, str]]
    """The SQL types that differ, by token: `{blob}`, `{key}` (an integer primary key that we number ourselves), `{float}`; and,
    as `keyed`, the ending of a table that is stored in the order of its key, as `pass_over` the ending of a query that takes a row
    which others may be taking at the same moment, as `now_ms` the database's own time in ms."""
    shared: bool
    """Whether processes on several machines may use it at once."""

    def writer(self) -> Conn:
        """Open a connection that may write. Raises `read_only` where nothing can be written."""
        ...

    def reader(self) -> Conn:
        """Open a connection that cannot write."""
        ...

    def describe(self) -> str:
        """Where the database lies, for a message: without a password."""
        ...

    def exists(self) -> bool:
        """Whether a store was ever made here."""
        ...

    def writable(self) -> bool:
        """Whether this process may write here, as far as that can be told without trying."""
        ...

    def tables(self, conn: Conn) -> set[str]:
        """The names of the tables."""
        ...

    def alone(self, conn: Conn) -> None:
        """Wait until no view is open, and let none begin until the transaction of `conn` ends, where a view could see tables that
        are exchanged in the middle of it. Raises `store_busy` after a second."""
        ...

    def indexes(self, conn: Conn) -> dict[str, str]:
        """The names of the indexes, each with that of its table."""
        ...

    def sizes(self, conn: Conn) -> dict[str, int]:
        """How many bytes each table takes, with its indexes."""
        ...

    def free(self, conn: Conn) -> int:
        """The bytes that are kept for what comes and hold nothing now."""
        ...

    def log_bytes(self) -> int:
        """The bytes of the write-ahead log, where we keep one."""
        ...

    def faults(self, conn: Conn) -> list[str]:
        """What the database itself finds wrong with what it holds; it reads all of it."""
        ...

    def shrink(self) -> bool:
        """Give free room back in place, in small steps, and begin the write-ahead log anew. False when a reader or a full disk
        kept it from that for some seconds. Others may work meanwhile."""
        ...

    def backup(self, target: Path) -> Path | None:
        """Write a consistent copy of the database to `target` and give its path; None where the server has its own tools."""
        ...


def clean(value: Any) -> Any:
    """A parameter as both databases can hold it: text without NUL and lone surrogates. Exact text belongs into bytes."""
    if isinstance(value, str) and ("\0" in value or not value.isascii()):
        from stead.core.jsontext import shown

        return shown(value).replace("\0", "\ufffd")
    return value
