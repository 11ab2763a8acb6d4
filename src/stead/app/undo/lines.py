"""How many lines an undo changes in a file, for its preview."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stead.app.undo.plan import Item
from stead.domain import hunks

if TYPE_CHECKING:
    from stead.store.store import Store

_MOST = 8 << 20


def counts(store: Store, item: Item) -> tuple[int, int]:
    """(additions, deletions) that the item makes to what stands there; (0, 0) where the contents are too large, or not text, or
    what stands there is not in the store."""
    if max(item.have.get("size", 0), item.want.state.get("size", 0)) > _MOST:
        return 0, 0
    digest = item.have.get("blob")
    if digest is not None and not store.blobs.has(digest):
        return 0, 0
    return hunks.count(None if digest is None else store.blobs.get(digest), item.want.text(store.blobs.get))
