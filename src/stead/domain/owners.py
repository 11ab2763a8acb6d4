"""Who works for a store that several machines share: each working process beats here, by the database's own clock.

On one machine the operating system's locks say who lives (`store/lock.py`); here silence does: an owner that has not beaten for as
long as it promised counts as dead. What it still believes to own is taken from it by the epoch of its runs.
"""

from __future__ import annotations

from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

FEATURE = Feature("owners", kept={"owners": "id TEXT PRIMARY KEY, beat BIGINT NOT NULL, lease BIGINT NOT NULL"})


def beat(tx: Tx, owner: str, lease: int, clock: str) -> None:
    """A sign of life that holds for `lease` ms. `clock` is the database's time in ms, as SQL (`Database.types`)."""
    tx.q(
        f"INSERT INTO owners(id, beat, lease) VALUES(?,{clock},?)"
        " ON CONFLICT(id) DO UPDATE SET beat=excluded.beat, lease=excluded.lease",
        *(owner, lease),
    )


def forget(tx: Tx, owner: str) -> None:
    """The process ended, and what it left is closed."""
    tx.q("DELETE FROM owners WHERE id=?", owner)


def living(view: Reads, clock: str) -> set[str]:
    """The owners whose last sign of life still holds."""
    return {owner for (owner,) in view.q(f"SELECT id FROM owners WHERE beat+lease>={clock}")}


def silent(view: Reads, clock: str) -> set[str]:
    """The owners that beat once and do no more."""
    return {owner for (owner,) in view.q(f"SELECT id FROM owners WHERE beat+lease<{clock}")}


def last_beat(view: Reads, owner: str) -> int | None:
    """When the owner was last heard of, in ms of the database's clock."""
    row = view.one("SELECT beat FROM owners WHERE id=?", owner)
    return int(row[0]) if row else None
