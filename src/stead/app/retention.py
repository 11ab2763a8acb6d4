"""Retention of undo data: what a policy trims at the start, what is freed after the time of grace, what a person is told of it."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.domain import rewinds, sessions, settings
from stead.domain.changes import trims
from stead.domain.people import LOCAL_ACTOR

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from stead.app.house import Stead
    from stead.domain.settings import Retention
    from stead.store.database import Reads
    from stead.store.log import Tx

    _Known = tuple[dict[str, int], Counter[str]]

GIB = 1 << 30
DAY_MS = 24 * 60 * 60 * 1000


def at_start(house: Stead) -> None:
    """Trim what the setting `retention` says and free what was trimmed longer ago than the time of grace. Where everything is kept
    it is a look at two small tables. What cannot be done now is left for the next start: it keeps no store from opening."""
    try:
        free(house)
        apply(house)
    except SteadError:
        import logging

        logging.getLogger("stead").warning("undo data could not be trimmed", exc_info=True)


def apply(house: Stead, *, every: bool = False) -> int:
    """Trim the undo data that the policy of each session does not keep, and give the number of changes; durable when it returns.
    Pinned sessions are passed over, and those in which an undo is under way. `every`: also what a revert brought back."""
    file_layer = house.user_file().settings
    with house.store.view() as view:
        if file_layer.get("retention", "keep") == "keep" and not settings.retained(view):
            return 0
        found = trims.untrimmed_sessions(view)
    known = cache(lambda: (_sizes(house), _references(house)))
    return sum(_apply(house, session, file_layer, every, known) for session in found)


def _apply(house: Stead, session: str, file_layer: Mapping[str, Any], every: bool, known: Callable[[], _Known]) -> int:
    def limit(view: Reads) -> int:
        try:
            about = sessions.get(view, session)
        except SteadError:  # deleted meanwhile
            return 0
        policy = _policy(view, about, file_layer)
        if policy is None or about.pinned or rewinds.open_in(view, session) is not None:
            return 0
        return trims.cut(view, session, policy, house.store.clock.now(), lambda digest: known()[0].get(digest, 0))

    with house.store.view() as view:
        upto = limit(view)
        if not upto or not trims.left(view, session, upto, every=every):
            return 0
    sizes, references = known()  # looks into a folder and through a table, so not in the job

    def job(tx: Tx) -> tuple[int, Counter[str]]:
        upto = limit(tx)  # once more: others work meanwhile
        return trims.trim(tx, session, upto, lambda digest: sizes.get(digest, 0), references, every=every)

    count, gone = house.store.write(job)
    references.subtract(gone)
    return count


def _references(house: Stead) -> Counter[str]:
    with house.store.view() as view:
        return trims.references(view)


def _policy(view: Reads, session: sessions.Session, file_layer: Mapping[str, Any]) -> Retention | None:
    values = settings.effective(view, project=session.project, session=session.id, file_layer=file_layer)
    return settings.retention_of(values["retention"].value)


def _sizes(house: Stead) -> dict[str, int]:
    """What blobs take, in bytes."""
    with house.store.view() as view:
        rows = {digest: int(size) for digest, size in view.q("SELECT hash, stored FROM blobs")}
    return {**rows, **dict(house.store.blobs.files())}


def free(house: Stead) -> int:
    """Free what was trimmed longer ago than the time of grace, and collect it; gives the number of trims. May be killed at any
    point: the next one goes on."""
    now = house.store.clock.now()
    with house.store.view() as view:
        due = [one.seq for one in trims.trims(view, "open", "freeing") if one.until <= now]
    for seq in due:
        while house.store.write(lambda tx, seq=seq: trims.free(tx, seq)):  # type: ignore[misc]
            pass
    if due:
        from stead.store.collect import collect

        collect(house.store)
    return len(due)


def revert(house: Stead, *, by: str = LOCAL_ACTOR) -> dict[str, int]:
    """Revert every trim whose time of grace is not over, exactly: `{"changes", "sessions"}`. Durable when it returns. What comes
    back is not trimmed by the policy again; `apply(every=True)` does."""
    now = house.store.clock.now()
    back = house.store.write(lambda tx: trims.untrim(tx, now), actor=by)
    return {"changes": sum(one.changes for one in back), "sessions": len({one.session for one in back})}


def announcement(house: Stead) -> str | None:
    """A sentence on what was trimmed since somebody was last told; None for nothing. It is said once."""
    with house.store.view() as view:
        if not trims.untold(view):
            return None
    try:
        news = house.store.write(trims.tell)
    except SteadError:  # a store that takes nothing says it again
        return None
    if not news:
        return None
    changes, size = sum(one.changes for one in news), sum(one.bytes for one in news)
    return (
        f"Retention trimmed undo data: {changes:,} changes, {size:,} bytes. `stead storage --untrim` reverts that for 7 days;"
        " `stead storage` says more."
    )


def undo_sizes(house: Stead, stored: Mapping[str, int]) -> dict[str, Any]:
    """What undo data takes: `{"bytes", "day", "week", "month", "gib", "trims": [{session, changes, bytes, at, until, state}]}`; the
    three are how much of it came in the last 1, 7 and 30 days, `gib` the whole GiB that it is past. `stored`: bytes by blob."""
    now = house.store.clock.now()
    with house.store.view() as view:
        named = [(stored.get(digest, 0), created) for digest, created in trims.contents(view)]
        told = [trims.shown(one) for one in trims.trims(view)]
    total = sum(size for size, _ in named)

    def since(days: int) -> int:
        return sum(size for size, created in named if created > now - days * DAY_MS)

    return {"bytes": total, "day": since(1), "week": since(7), "month": since(30), "gib": total // GIB, "trims": told}
