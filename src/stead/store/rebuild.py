"""Projections made anew from the log: the proof that the log is the truth (I8)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stead.store import faults
from stead.store.database import Reads
from stead.store.feature import Feature, projectors_of
from stead.store.log import EVENT_COLUMNS, Tx, read_event

_CHUNK = 1000


def stale(view: Reads, features: Sequence[Feature]) -> list[Feature]:
    """The features whose tables are missing or were filled by another version of their projectors."""
    have: dict[str, int] = dict(view.q("SELECT name, version FROM projections"))
    return [feature for feature in features if have.get(feature.name) != feature.version]


def bring_up(tx: Tx, features: Sequence[Feature], types: dict[str, str]) -> None:
    """Make missing tables and rebuild stale ones."""
    run(tx, stale(tx, features), types, None)


def run(tx: Tx, features: Sequence[Feature], types: dict[str, str], progress: Callable[[int, int], None] | None) -> None:
    """Drop, create and fill the tables of these features, in the transaction of `tx`."""
    for feature in features:
        _create(tx, feature, types)
    projectors = projectors_of(features)
    total = (tx.one("SELECT max(seq) FROM events") or (0,))[0] or 0
    at = 0
    while rows := tx.q(f"SELECT {EVENT_COLUMNS} FROM events WHERE seq>? ORDER BY seq LIMIT {_CHUNK}", at):
        for row in rows:
            event = read_event(row)
            for project in projectors.get(type(event.data), ()):
                project(tx, event)
        at = rows[-1][0]
        faults.point("rebuild.chunk")
        if progress:
            progress(at, total)
    for feature in features:
        tx.q(
            "INSERT INTO projections(name, version) VALUES(?,?) ON CONFLICT(name) DO UPDATE SET version=excluded.version",
            feature.name,
            feature.version,
        )


def _create(tx: Tx, feature: Feature, types: dict[str, str]) -> None:
    for table, columns in feature.kept.items():
        tx.q(f"CREATE TABLE IF NOT EXISTS {table}({columns.format_map(types)}){_suffix(columns, types)}")
    for table, columns in feature.tables.items():
        tx.q(f"DROP TABLE IF EXISTS {table}")
        tx.q(f"CREATE TABLE {table}({columns.format_map(types)}){_suffix(columns, types)}")
    for name, columns in feature.indexes.items():
        tx.q(f"CREATE INDEX IF NOT EXISTS {name} ON {columns}")


def _suffix(columns: str, types: dict[str, str]) -> str:
    """A table keyed by several columns is stored in the order of its key, where the database can: one page less per write."""
    return types["keyed"] if "PRIMARY KEY(" in columns else ""
