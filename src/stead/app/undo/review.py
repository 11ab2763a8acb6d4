"""Review: the person agrees with what a session changed, file by file or hunk by hunk. What is changed later is pending again."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from stead.core.errors import SteadError
from stead.domain import changes, hunks
from stead.domain.changes import FileState, Net

if TYPE_CHECKING:
    from stead.app.house import Stead
    from stead.store.blobs import Prepared
    from stead.store.log import Tx


def keep(
    house: Stead,
    session: str,
    paths: Collection[str] = (),
    *,
    chosen: Mapping[str, Sequence[str]] | None = None,
    seen: Mapping[str, FileState] | None = None,
    by: str,
) -> list[str]:
    """Note that the person agrees with these paths (none: with all that stand), of a path in `chosen` only with the hunks of
    these ids, and with those that were kept before. Gives the paths; durable when it returns, idempotent.

    `seen`: the state of a path that the person saw; raises `conflict` when it is another by now. Raises `not_found` for a path that
    the session did not change, and as `hunks.only` does.
    """
    store = house.store
    with store.view() as view:
        rows, agreed = changes.standing(view, session), changes.kept(view, session)
    found = {one.path: one for one in changes.net(rows, store.blobs.get)}
    if missing := [path for path in paths if path not in found]:
        raise SteadError("not_found", f"Session {session} has no standing change of {missing[0]!r}.")
    for path in paths or found:
        if seen is not None and path in seen and not changes.same(seen[path], found[path].after.state):
            raise SteadError("conflict", f"{path} was changed since it was shown.", details={"path": path})
        content, state = _agreed(house, found[path], (chosen or {}).get(path), agreed.get(path))
        prepared = None if content is None else store.blobs.prepare(content)
        store.write(partial(_note, session=session, path=path, state=state, prepared=prepared), actor=by)
    return list(paths or found)


def _note(tx: Tx, session: str, path: str, state: FileState, prepared: Prepared | None) -> None:
    if prepared is not None:
        tx.put(prepared)
    changes.keep(tx, session, path, state)


def _agreed(house: Stead, one: Net, chosen: Sequence[str] | None, before: FileState | None) -> tuple[bytes | None, FileState]:
    """The content and state up to which the person agrees now; the content only where it has to be stored."""
    load = house.store.blobs.get
    after = one.after
    if chosen is None:
        return after.content, after.state
    old, new = one.before.text(load), after.text(load)
    base = old if before is None else changes.Side(before).text(load)
    known = {hunk["id"] for hunk in hunks.reviewed(old, base, new) or () if hunk["review"] == "kept"}
    content = hunks.only(old, new, {*chosen, *known})
    prepared = house.store.blobs.prepare(content)
    return content, {**after.state, "size": len(content), "blob": prepared.hash}
