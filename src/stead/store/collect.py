"""Blobs that nothing refers to any more go, and the room they took is given back, in place.

Which blobs go is decided in a write job: nothing in the log or in a kept table names them, and for a day nobody stored them. Their
rows go with that commit; then their files, each under its own lock after one more look (`Blobs.discard`). A collection that is
killed between the two leaves files without rows, which the next one finds.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.store import faults
from stead.store.blobfiles import name_of

if TYPE_CHECKING:
    from stead.store.blobs import Prepared
    from stead.store.database import Reads
    from stead.store.log import Tx
    from stead.store.store import Store

DAY_MS = 24 * 60 * 60 * 1000
_NAMED = re.compile(rb'blob"\s*:\s*"([0-9a-f]{64})"')
_PAGE = 1000
_SHARE_BYTES = 4 << 20
_TRIES = 3


def names_in(data: Iterable[Any]) -> Iterator[str]:
    """The hashes that stored JSON names as blobs: never fewer than it refers to."""
    for one in data:
        raw = one.encode("utf-8", "surrogatepass") if isinstance(one, str) else bytes(one)
        if b'blob"' in raw:
            yield from (match.decode() for match in _NAMED.findall(raw))


def unnamed(store: Store, *, before: int, among: Collection[str] | None = None) -> tuple[dict[str, int], int]:
    """The blobs that nothing names and nobody stored since `before` (ms), with the bytes they take; and the `seq` up to which the
    log was looked through. Reads page by page: what is appended meanwhile is for `collect` to see."""
    with store.view() as view:
        left = {digest: int(size) for digest, size in view.q("SELECT hash, stored FROM blobs WHERE touched<?", before)}
        if among is not None:
            left = {digest: size for digest, size in left.items() if digest in among}
        for digest in _kept_names(view, store) if left else ():
            left.pop(digest, None)
    at = 0
    while left:
        with store.view() as view:
            rows = view.q("SELECT seq, data FROM events WHERE seq>? ORDER BY seq LIMIT ?", at, _PAGE)
        for digest in names_in(data for _, data in rows):
            left.pop(digest, None)
        if not rows:
            break
        at = int(rows[-1][0])
    return left, at


def collect(store: Store, *, age_ms: int = DAY_MS, among: Collection[str] | None = None) -> dict[str, Any]:
    """Remove the blobs that nothing names and nobody stored for `age_ms`, and give their room back. `among`: only these.

    Gives `{"blobs", "bytes", "whole"}`; `whole` is False when a reader, or a full disk, kept old content in free room alive, or a
    blob stays because what lies on it cannot be stored otherwise. What goes first needs no room; then a key with something on it
    that stays is freed of that, one key at a time, so that little more than one lies twice. Idempotent, may be killed at any point,
    and others may work meanwhile. It waits: not for a job.
    """
    before = store.clock.now() - age_ms + 1
    left, at = unnamed(store, before=before, among=among)
    gone: dict[str, int] = {}
    at = _drop(store, left, at, before, gone)
    if among is None:
        store.blobs.sweep()
        for name, size in store.blobs.file_names():
            if store.blobs.discard(name):
                gone.setdefault(name[:64], size)
            faults.point("collect.file_gone")
    whole = store.database.shrink()
    if keys := _keys(store, left):
        for key in keys:
            at = _without(store, key, left[key], at, before, gone)
        whole = store.database.shrink() and not any(_stays(store, key, at) for key in keys)
    return {"blobs": len(gone), "bytes": sum(gone.values()), "whole": whole}


def _drop(store: Store, left: dict[str, int], at: int, before: int, gone: dict[str, int]) -> int:
    """Remove blobs, share by share, with their files, and add them to `gone`: not those on which others lie. Gives the `seq` up to
    which the log was looked through."""
    with store.view() as view:
        deltas = {digest for (digest,) in view.q("SELECT hash FROM blobs WHERE base IS NOT NULL") if digest in left}
    # Taken from the end: what lies on a key goes before it.
    waiting = dict(sorted(left.items(), key=lambda item: item[0] in deltas))
    while waiting:
        share = _share(waiting)
        removed, at = store.write(lambda tx, share=share, at=at: _remove(tx, store, share, at, before))  # type: ignore[misc]
        faults.point("collect.rows_gone")
        for name, size in removed.items():
            gone[name[:64]] = size
            store.blobs.discard(name)
            faults.point("collect.file_gone")
    return at


def _keys(store: Store, left: dict[str, int]) -> list[str]:
    """Those of these blobs on which others are deltas."""
    with store.view() as view:
        return [base for (base,) in view.q("SELECT DISTINCT base FROM blobs WHERE base IS NOT NULL") if base in left]


def _without(store: Store, key: str, size: int, at: int, before: int, gone: dict[str, int]) -> int:
    """Remove a key on which others lie that stay: what was deleted for good must not live on in it."""
    for _ in range(_TRIES):  # others may put a new version on it meanwhile
        try:
            _release(store, key)
        except SteadError as error:
            if error.code != "disk_full":
                raise
            return at  # the key stays for now, and nothing is lost
        at = _drop(store, {key: size}, at, before, gone)
        if key in gone:
            break
    return at


def _release(store: Store, key: str) -> None:
    """Have what lies on a key lie on another, one by one: one is stored whole, the next ones as deltas on that."""
    with store.view() as view:
        kept = [digest for (digest,) in view.q("SELECT hash FROM blobs WHERE base=? ORDER BY touched, hash", key)]
    on = None
    for digest in kept:
        try:
            prepared = store.blobs.remade(digest, on)
        except SteadError as error:
            if error.code not in ("store_damaged", "not_found"):
                raise
            continue  # what cannot be read stays as it is, and its key with it
        store.write(partial(_reform, prepared=prepared, key=key))
        faults.point("collect.released")
        store.blobs.discard(name_of(digest, key))
        on = digest if prepared.base is None else on


def _reform(tx: Tx, prepared: Prepared, key: str) -> None:
    """Give a stored blob its new form, if it still lies on this key."""
    if prepared.base is not None and not tx.one("SELECT 1 FROM blobs WHERE hash=? AND base IS NULL", prepared.base):
        prepared = prepared.whole()
    tx.q(
        "UPDATE blobs SET codec=?, data=?, stored=?, base=? WHERE hash=? AND base=?",
        *(prepared.codec, prepared.stored, prepared.taken, prepared.base, prepared.hash, key),
    )


def _stays(store: Store, key: str, at: int) -> bool:
    """Whether a blob that should go is there all the same, and nothing has named it since."""
    with store.view() as view:
        there = view.one("SELECT 1 FROM blobs WHERE hash=?", key)
        return there is not None and key not in names_in(data for (data,) in view.q("SELECT data FROM events WHERE seq>?", at))


def _share(left: dict[str, int]) -> dict[str, int]:
    """What one job removes, taken out of `left`: what is removed is overwritten, so that each takes as much of the log again."""
    share: dict[str, int] = {}
    while left and sum(share.values()) < _SHARE_BYTES and len(share) < _PAGE:
        digest, size = left.popitem()
        share[digest] = size
    return share


def _remove(tx: Tx, store: Store, share: dict[str, int], at: int, before: int) -> tuple[dict[str, int], int]:
    """Decide, with what was appended since the log was looked through, and remove the rows. Gives what went, by the names that
    their files would have, and the `seq` up to which the log is looked through now."""
    named = set(names_in(data for (data,) in tx.q("SELECT data FROM events WHERE seq>?", at))) | set(_kept_names(tx, store))
    gone = {}
    for digest, size in share.items():
        if digest in named:
            continue
        unused = "NOT EXISTS (SELECT 1 FROM blobs d WHERE d.base=blobs.hash)"
        for _, base in tx.q(f"DELETE FROM blobs WHERE hash=? AND touched<? AND {unused} RETURNING hash, base", digest, before):
            gone[name_of(digest, base)] = size or store.blobs.file_size(digest)  # rows of before do not say what a file takes
    faults.point("collect.decided")
    return gone, at


def _kept_names(view: Reads, store: Store) -> Iterator[str]:
    for feature in store.features:
        for table in feature.kept:
            for row in view.q(f"SELECT * FROM {table}"):
                yield from names_in(value for value in row if isinstance(value, (str, bytes, memoryview)))
