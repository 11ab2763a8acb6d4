"""Durability: the log, its one writer, its readers, blobs, locks. Knows no feature.

`open_store(path_or_url)` opens the store alone, without agents, settings or doors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stead.store.feature import Feature
    from stead.store.log import Tx
    from stead.store.reader import View
    from stead.store.store import Store, open_store

__all__ = ["Feature", "Store", "Tx", "View", "open_store"]

_HOMES = {"Feature": "feature", "Store": "store", "Tx": "log", "View": "reader", "open_store": "store"}


def __getattr__(name: str) -> object:
    """Load a name on first use, so that a reading command does not pay for the writer."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(f"stead.store.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'stead.store' has no attribute {name!r}")
