"""Projections made anew from the log: the proof that the log is the truth (I8).

A rebuild fills shadow tables beside those in use, a chunk a transaction, and notes in `rebuilds` how far it came. The transaction
that meets the end of the log puts the shadows in the place of the tables. Between two chunks everybody reads and writes as ever;
what a kill leaves is gone on with; processes that rebuild the same help each other. See docs/decisions/0012.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from stead.core.errors import SteadError
from stead.store import faults
from stead.store.database import Database, Reads, Row
from stead.store.feature import Feature
from stead.store.kernel import INDEXES
from stead.store.log import EVENT_COLUMNS, Tx, read_event

_CHUNK = 500
_SHADOW = "__new"
_SECOND = "__2"


def stale(view: Reads, features: Sequence[Feature], there: Set[str]) -> list[Feature]:
    """The features whose tables are not all among those that are `there`, or were filled by an older version of their projectors.
    Raises `store_newer` when a newer one filled them: tables never go back."""
    have: dict[str, int] = dict(view.q("SELECT name, version FROM projections"))
    for feature in features:
        _refuse(feature, have.get(feature.name, 0))
    return [one for one in features if have.get(one.name) != one.version or not there >= {*one.tables, *one.kept}]


def refuse_writing(have: Sequence[Row], versions: Mapping[str, int]) -> None:
    """Raise `store_newer` unless a program with these feature versions may project events into tables that are as `have` says
    (name and version). A feature that it does not know would miss what it appends."""
    for name, version in have:
        if version > versions.get(name, 0):
            raise _newer(name)


def step(tx: Tx, database: Database, features: Sequence[Feature]) -> tuple[int, int]:
    """Do one chunk of the rebuild of these features, the last with the swap. Gives how far it is and how far there is to go, as
    `seq`; both are the same when it is done."""
    at, total = fill(tx, database, features)
    if at == total:
        swap(tx, database, features)
    return at, total


def fill(tx: Tx, database: Database, features: Sequence[Feature]) -> tuple[int, int]:
    """Bring the shadows of these features one chunk further, making them first where there are none; see `step`."""
    total = int((tx.one("SELECT max(seq) FROM events") or (0,))[0] or 0)
    marks = _marks(tx, database, features)
    at = min(marks.values(), default=total)
    rows = tx.q(f"SELECT {EVENT_COLUMNS} FROM events WHERE seq>? ORDER BY seq LIMIT {_CHUNK}", at)
    shadows = [(marks[feature.name], feature.projectors, _Shadow(tx, feature)) for feature in features]
    for row in rows:
        event = read_event(row)
        for mark, projectors, shadow in shadows:
            if event.seq > mark:
                for project in projectors.get(type(event.data), ()):
                    project(shadow, event)
    at = int(rows[-1][0]) if len(rows) == _CHUNK else total
    for name, mark in marks.items():
        tx.q("UPDATE rebuilds SET seq=? WHERE name=?", max(at, mark), name)
    faults.point("rebuild.chunk")
    return at, total


def swap(tx: Tx, database: Database, features: Sequence[Feature]) -> None:
    """Put the filled shadows in the place of the tables. Raises `store_busy` where a view does not end in a moment."""
    database.alone(tx._conn)
    for feature in features:
        for table in feature.tables:
            tx.q(f"DROP TABLE IF EXISTS {table}")
            tx.q(f"ALTER TABLE {table}{_SHADOW} RENAME TO {table}")
        _done(tx, feature)
    faults.point("rebuild.swapped")


def drop(tx: Tx, features: Sequence[Feature]) -> None:
    """Forget the shadows of these features; quiet where there are none."""
    for feature in features:
        for table in feature.tables:
            tx.q(f"DROP TABLE IF EXISTS {table}{_SHADOW}")
        tx.q("DELETE FROM rebuilds WHERE name=?", feature.name)


def create(tx: Tx, database: Database, features: Sequence[Feature]) -> None:
    """Make the tables of these features for a log that holds nothing yet."""
    drop(tx, features)
    for feature in features:
        for table in feature.tables:
            tx.q(f"DROP TABLE IF EXISTS {table}")
        _create(tx, database, feature, "")
        _done(tx, feature)


def compare(tx: Tx, database: Database, features: Sequence[Feature]) -> dict[str, tuple[int, int]]:
    """What differs between the tables in use and their filled shadows: by table how many rows are missing, and how many are there
    that should not be."""
    tables = {table for feature in features for table in feature.tables}
    there = database.tables(tx._conn)
    found = {table: _differences(tx, table) if table in there else (_count(tx, table + _SHADOW), 0) for table in sorted(tables)}
    return {table: counts for table, counts in found.items() if counts != (0, 0)}


def _differences(tx: Tx, table: str) -> tuple[int, int]:
    shadow = table + _SHADOW
    tx.q("SAVEPOINT compare")
    try:
        missing, extra = (
            _count(tx, f"(SELECT * FROM {a} EXCEPT SELECT * FROM {b}) AS d") for a, b in ((shadow, table), (table, shadow))
        )
    except Exception:  # another shape: none of its rows is right
        tx.q("ROLLBACK TO SAVEPOINT compare")
        return _count(tx, shadow), _count(tx, table)
    finally:
        tx.q("RELEASE SAVEPOINT compare")
    return missing, max(extra, _count(tx, table) - _count(tx, shadow) + missing)


def _count(tx: Tx, table: str) -> int:
    return int(tx.q(f"SELECT count(*) FROM {table}")[0][0])


def _marks(tx: Tx, database: Database, features: Sequence[Feature]) -> dict[str, int]:
    """How far the shadow of each feature is. One that is missing, or of an older version, is made anew."""
    begun = {name: (version, seq) for name, version, seq in tx.q("SELECT name, version, seq FROM rebuilds")}
    marks = {}
    for feature in features:
        version, seq = begun.get(feature.name, (0, 0))
        _refuse(feature, version)
        if version != feature.version:
            drop(tx, [feature])
            _create(tx, database, feature, _SHADOW)
            tx.q("INSERT INTO rebuilds(name, version, seq) VALUES(?,?,0)", feature.name, feature.version)
            seq = 0
        marks[feature.name] = seq
    return marks


def _create(tx: Tx, database: Database, feature: Feature, suffix: str) -> None:
    types = database.types
    for table, columns in feature.kept.items():
        tx.q(f"CREATE TABLE IF NOT EXISTS {table}({columns.format_map(types)}){_ending(columns, types)}")
    for table, columns in feature.tables.items():
        tx.q(f"CREATE TABLE {table}{suffix}({columns.format_map(types)}){_ending(columns, types)}")
    taken = database.indexes(tx._conn)
    for name, on in feature.indexes.items():
        # An index keeps its name when its table is renamed, so those of a shadow take the name that those in use have not.
        free = name if name not in taken else f"{name}{_SECOND}"
        table, columns = on.split("(", 1)
        tx.q(f"CREATE INDEX {free} ON {table}{suffix if table in feature.tables else ''}({columns}")


def lost_indexes(there: Mapping[str, str], features: Sequence[Feature]) -> dict[str, str]:
    """The indexes, as `Feature.indexes` names them, that are not among those that are `there` (name and table)."""
    wanted = {**INDEXES, **{name: on for feature in features for name, on in feature.indexes.items()}}
    return {name: on for name, on in wanted.items() if on.split("(", 1)[0] not in (there.get(name), there.get(f"{name}{_SECOND}"))}


def make_indexes(tx: Tx, there: Mapping[str, str], lost: Mapping[str, str]) -> None:
    """Make the indexes that `lost_indexes` found, under the name that a shadow's has not."""
    for name, on in lost.items():
        tx.q(f"CREATE INDEX IF NOT EXISTS {name if name not in there else f'{name}{_SECOND}'} ON {on}")


def _ending(columns: str, types: dict[str, str]) -> str:
    """A table keyed by several columns is stored in the order of its key, where the database can: one page less per write."""
    return types["keyed"] if "PRIMARY KEY(" in columns else ""


def _done(tx: Tx, feature: Feature) -> None:
    tx.q("DELETE FROM rebuilds WHERE name=?", feature.name)
    tx.q(
        "INSERT INTO projections(name, version) VALUES(?,?) ON CONFLICT(name) DO UPDATE SET version=excluded.version",
        *(feature.name, feature.version),
    )


def _refuse(feature: Feature, found: int) -> None:
    if found > feature.version:
        raise _newer(feature.name)


def _newer(name: str) -> SteadError:
    return SteadError(
        "store_newer",
        f"The tables of {name} in this store were made by a newer stead.",
        hint="Use the newer stead, or another data folder (STEAD_DATA). Nothing is wrong with the store.",
    )


class _Shadow(Tx):
    """What a projector is given in a rebuild: its own tables are the shadows, and any other it must not touch."""

    __slots__ = ("_kept", "_own")

    def __init__(self, tx: Tx, feature: Feature) -> None:
        super().__init__(tx._conn, {}, tx.next_seq, tx.now, tx.actor)
        self._own, self._kept = frozenset(feature.tables), frozenset(feature.kept)

    def q(self, sql: str, *args: Any) -> list[Row]:
        return self._conn.q(_shadowed(sql, self._own, self._kept), args)

    def one(self, sql: str, *args: Any) -> Row | None:
        rows = self.q(sql, *args)
        return rows[0] if rows else None


# A quoted text; a table, by the word before it; a name before a dot.
_NAMES = re.compile(r"'[^']*'|\b((?:FROM|JOIN|INTO|UPDATE)\s+)(\w+)(?!\w|\.)|(?<![\w.])(\w+)(?=\.)", re.IGNORECASE)


@lru_cache(1024)
def _shadowed(sql: str, own: frozenset[str], kept: frozenset[str]) -> str:
    def renamed(match: re.Match[str]) -> str:
        before, table, qualifier = match.groups()
        if qualifier is not None:
            return f"{qualifier}{_SHADOW}" if qualifier in own else qualifier
        if table is None or table in kept or table.upper() == "SET":  # a text; DO UPDATE SET
            return match[0]
        if table not in own:
            raise SteadError("internal", f"A projector may not use the table {table}: it is not its own.")
        return f"{before}{table}{_SHADOW}"

    return _NAMES.sub(renamed, sql)
