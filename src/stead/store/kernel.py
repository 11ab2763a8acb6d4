"""The store's own tables and their numbered migrations. Feature tables are not here: they are rebuilt, never migrated."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from stead.core.errors import SteadError
from stead.store import faults
from stead.store.database import Conn, Database

Migration = Callable[[Conn, dict[str, str]], None]


def _first(conn: Conn, types: dict[str, str]) -> None:
    for statement in (
        "CREATE TABLE kernel(version INTEGER NOT NULL, store TEXT NOT NULL, seq BIGINT NOT NULL, created BIGINT NOT NULL)",
        "CREATE TABLE events(seq {key}, stream TEXT NOT NULL, kind TEXT NOT NULL, v INTEGER NOT NULL, ts BIGINT NOT NULL,"
        " actor TEXT NOT NULL, run TEXT, op TEXT, data {blob} NOT NULL)",
        "CREATE INDEX events_stream ON events(stream, seq)",
        "CREATE TABLE blobs(hash TEXT PRIMARY KEY, size BIGINT NOT NULL, stored BIGINT NOT NULL, codec TEXT NOT NULL,"
        " data {blob}, touched BIGINT NOT NULL)",
        "CREATE TABLE projections(name TEXT PRIMARY KEY, version INTEGER NOT NULL)",
        "CREATE TABLE tombstones(stream TEXT PRIMARY KEY, seq BIGINT NOT NULL)",
    ):
        conn.q(statement.format_map(types))


def _second(conn: Conn, types: dict[str, str]) -> None:
    """How far the rebuild of a feature's tables has come, see `rebuild.py`."""
    conn.q("CREATE TABLE rebuilds(name TEXT PRIMARY KEY, version INTEGER NOT NULL, seq BIGINT NOT NULL)")


def _third(conn: Conn, types: dict[str, str]) -> None:
    """A blob may be a delta on another, see `deltas.py`."""
    conn.q("ALTER TABLE blobs ADD COLUMN base TEXT")
    conn.q("CREATE INDEX blobs_base ON blobs(base)")


MIGRATIONS: Sequence[Migration] = (_first, _second, _third)
"""Migration n brings a kernel of version n to n + 1. Never change one that was released."""

KERNEL_VERSION = len(MIGRATIONS)

TABLES = {"kernel": 1, "events": 1, "blobs": 1, "projections": 1, "tombstones": 1, "rebuilds": 2}
"""The kernel's tables, with the version that brought them."""
INDEXES = {"events_stream": "events(stream, seq)", "blobs_base": "blobs(base)"}
"""The kernel's indexes, as `Feature.indexes` names them."""


def version_of(database: Database, conn: Conn) -> int:
    """The kernel version of the store behind `conn`, 0 when there is none yet."""
    if "kernel" not in database.tables(conn):
        return 0
    rows = conn.q("SELECT version FROM kernel")
    return int(rows[0][0]) if rows else 0


def migrate(database: Database, conn: Conn, migrations: Sequence[Migration], *, store: str, now: int) -> None:
    """Bring the store to the newest kernel, or leave it exactly as it was: one transaction for all steps."""
    conn.begin()
    try:
        version = version_of(database, conn)  # again: another process may have been faster
        refuse_newer(version, len(migrations))
        for step in migrations[version:]:
            step(conn, database.types)
        if version == 0:
            conn.q("INSERT INTO kernel(version, store, seq, created) VALUES(?,?,0,?)", (len(migrations), store, now))
        else:
            conn.q("UPDATE kernel SET version=?", (len(migrations),))
        faults.point("kernel.before_commit")
        conn.commit()
    except BaseException:
        conn.rollback()
        raise


def refuse_torn(there: Collection[str], version: int, place: str) -> None:
    """Raise `store_damaged` where some of the kernel's tables are there and others are not: no start leaves it like that, and what
    they held cannot be made from the rest. `version` is 0 where the table `kernel` says nothing."""
    found = [name for name in TABLES if name in there]
    lost = [name for name, since in TABLES.items() if name not in there and since <= (version or 1)]
    if found and (lost or not version):
        what = f"has lost its table {', '.join(lost)}" if lost else "has an empty table kernel"
        raise SteadError(
            "store_damaged",
            f"{place} {what}. Nothing was changed.",
            hint="Put the database back from a backup (see backups/); what is in the other tables can still be read with SQL.",
        )


def refuse_newer(found: int, ours: int) -> None:
    """An older program never writes into a newer store."""
    if found > ours:
        raise SteadError(
            "store_newer",
            f"This store has kernel version {found}; this stead knows versions up to {ours}.",
            hint="Use the newer stead, or another data folder (STEAD_DATA). Nothing is wrong with the store.",
        )
