"""How a module of `domain/` tells the store what it has: tables that are projections of the log, and the functions that fill them.

This is the whole registration: a `Feature` per module, listed explicitly where the store is opened.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from stead.core.events import Event, Fact

if TYPE_CHECKING:
    from stead.store.log import Projector, Tx

F = TypeVar("F", bound=Fact)


class Feature:
    """A module's tables and projectors.

    `tables` maps a name to its column list in the SQL that both databases read (`{blob}`, `{key}` and `{float}` stand for the
    types that differ, see `Database.types`); `indexes` maps a name to `table(columns)`. Raise `version` when a projector's result
    changes: the tables are then rebuilt from the log at the next start. `kept` tables are not projections: they are created once
    and never rebuilt.
    """

    def __init__(
        self,
        name: str,
        *,
        version: int = 1,
        tables: Mapping[str, str] | None = None,
        indexes: Mapping[str, str] | None = None,
        kept: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.version = version
        self.tables = dict(tables or {})
        self.indexes = dict(indexes or {})
        self.kept = dict(kept or {})
        self.projectors: dict[type[Fact], list[Projector]] = {}

    def projects(self, *kinds: type[Fact]) -> Callable[[Callable[[Tx, Event[F]], None]], Callable[[Tx, Event[F]], None]]:
        """Register the function below to run in the transaction of every event of these kinds.

        It may read the event and the feature's own tables, nothing else: then a rebuild gives what was there (I1, I8).
        """

        def register(fn: Callable[[Tx, Event[F]], None]) -> Callable[[Tx, Event[F]], None]:
            for kind in kinds:
                self.projectors.setdefault(kind, []).append(fn)
            return fn

        return register


def projectors_of(features: Iterable[Feature]) -> dict[type[Fact], Sequence[Projector]]:
    """All projectors by event class, in the order of the features."""
    merged: dict[type[Fact], list[Projector]] = {}
    for feature in features:
        for kind, functions in feature.projectors.items():
            merged.setdefault(kind, []).extend(functions)
    return dict(merged)
