"""Undo data that is given up to save room: until it is freed a trim can be reverted, and then nothing is missing.

`change.trimmed` marks the changes of a session up to a point in the log; they cannot be taken back from then on. After the time of
grace `change.freed` takes the names of their contents out of their events and rows, in one job, so that nothing refers to the blobs
any more. `change.untrimmed` instead makes them what they were, and a policy spares them from then on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from stead.domain.changes.events import ChangeFreed, ChangeTrimmed, ChangeUntrimmed, TrimsTold
from stead.domain.sessions import get, last_user
from stead.domain.settings import Retention
from stead.store.database import Reads
from stead.store.log import Tx

GRACE_MS = 7 * 24 * 60 * 60 * 1000
"""How long a trim can be reverted."""
_DAY_MS = 24 * 60 * 60 * 1000
_SHARE = 200


@dataclass(frozen=True, slots=True)
class Trim:
    """One trim of a session: `changes` that it made unavailable, with `bytes` of contents that no other change needed; `created` in
    ms."""

    seq: int
    session: str
    upto: int
    changes: int
    bytes: int
    created: int
    state: Literal["open", "reverted", "freeing", "freed"]
    told: bool

    @property
    def until(self) -> int:
        """Until when (ms) it can be reverted."""
        return self.created + GRACE_MS


_COLUMNS = "seq, session, upto, changes, bytes, created, state, told"


def trims(view: Reads, *states: str) -> list[Trim]:
    """The trims in these states (all of them without), oldest first."""
    where = f"WHERE state IN ({','.join('?' * len(states))})" if states else ""
    return [_trim(row) for row in view.q(f"SELECT {_COLUMNS} FROM trims {where} ORDER BY seq", *states)]


def untold(view: Reads) -> list[Trim]:
    """The trims of which nobody was told yet, oldest first."""
    return [_trim(row) for row in view.q(f"SELECT {_COLUMNS} FROM trims WHERE told=0 ORDER BY seq")]


def _trim(row: tuple[Any, ...]) -> Trim:
    return Trim(*cast(Any, (*row[:7], bool(row[7]))))


def untrimmed_sessions(view: Reads) -> list[str]:
    """The sessions with changes that are not trimmed."""
    return [session for (session,) in view.q("SELECT DISTINCT session FROM changes WHERE trimmed IS NULL ORDER BY session")]


def cut(view: Reads, session: str, policy: Retention, now: int, size_of: Callable[[str], int]) -> int:
    """The `seq` up to which the policy does not keep undo data of this session, 0 for nothing. Where the clock went back, more is
    kept. `size_of` says what a blob takes in bytes."""
    firsts: list[int] = []
    if policy.messages is not None and (oldest := _nth_user(view, session, policy.messages)) is not None:
        firsts.append(_first(view, session, "message>=?", oldest))
    if policy.days is not None:
        firsts.append(_first(view, session, "created>=?", now - policy.days * _DAY_MS))
    if policy.bytes is not None:
        firsts.append(_first_within(view, session, policy.bytes, size_of))
    return max(firsts, default=1) - 1


def _nth_user(view: Reads, session: str, count: int) -> int | None:
    """The number of the oldest of the newest `count` messages of the user; None where there are no more than these."""
    at: int | None = None
    if get(view, session).messages <= count:
        return None
    for _ in range(count):
        at = last_user(view, session, before=at)
        if at is None:
            return None
    return at


def _first(view: Reads, session: str, where: str, value: int) -> int:
    """The first change that fits; behind the last one where none does."""
    row = view.one(f"SELECT min(seq) FROM changes WHERE session=? AND {where}", session, value)
    return int(row[0]) if row and row[0] is not None else _last(view, session) + 1


def _last(view: Reads, session: str) -> int:
    row = view.one("SELECT max(seq) FROM changes WHERE session=?", session)
    return int(row[0]) if row and row[0] is not None else 0


def _first_within(view: Reads, session: str, most: int, size_of: Callable[[str], int]) -> int:
    """The oldest change of the newest that take at most so many bytes together."""
    seen: set[str] = set()
    total, first = 0, _last(view, session) + 1
    for seq, *blobs in view.q("SELECT seq, before_blob, after_blob FROM changes WHERE session=? ORDER BY seq DESC", session):
        new = {blob for blob in blobs if blob is not None} - seen
        total += sum(size_of(blob) for blob in new)
        if total > most:
            break
        seen |= new
        first = int(seq)
    return first


def left(view: Reads, session: str, upto: int, *, every: bool = False) -> bool:
    """Whether `trim` would find something."""
    where = "session=? AND seq<=? AND trimmed IS NULL AND state<>'captured' AND spared<=?"
    return view.one(f"SELECT 1 FROM changes WHERE {where} LIMIT 1", session, upto, int(every)) is not None


def references(view: Reads) -> Counter[str]:
    """How many sides of changes that are not trimmed name each blob."""
    rows = view.q("SELECT before_blob, after_blob FROM changes WHERE trimmed IS NULL")
    return Counter(blob for row in rows for blob in row if blob is not None)


def trim(
    tx: Tx, session: str, upto: int, size_of: Callable[[str], int], known: Counter[str], *, every: bool = False
) -> tuple[int, Counter[str]]:
    """Give up the undo data of the session's changes up to `upto`. Gives how many these are, and what they name; nothing is written
    for none. `known` are the references that there are, for the sum of bytes. `every`: also those that a revert spared. A change
    that is not known to have happened is passed over."""
    rows = tx.q(
        "SELECT before_blob, after_blob FROM changes WHERE session=? AND seq<=? AND trimmed IS NULL AND state<>'captured'"
        " AND spared<=?",
        *(session, upto, int(every)),
    )
    named = Counter(blob for row in rows for blob in row if blob is not None)
    if rows:
        size = sum(size_of(blob) for blob, count in named.items() if known[blob] <= count)
        tx.append(session, ChangeTrimmed(upto=upto, changes=len(rows), bytes=size, all=every))
    return len(rows), named


def untrim(tx: Tx, now: int) -> list[Trim]:
    """Revert the trims whose time of grace is not over, and give them; durable with the job. Exact: no content has gone."""
    found = [one for one in trims(tx, "open") if one.until > now]
    for one in found:
        tx.append(one.session, ChangeUntrimmed(trim=one.seq))
    return found


def free(tx: Tx, trim: int) -> bool:
    """Have some changes of a trim name their contents no more, for good. True while there are more: call it again."""
    found = next((one for one in trims(tx, "open", "freeing") if one.seq == trim), None)
    if found is None:
        return False
    rows = tx.q(
        "SELECT seq FROM changes WHERE trimmed=? AND (before_blob IS NOT NULL OR after_blob IS NOT NULL) ORDER BY seq LIMIT ?",
        *(trim, _SHARE + 1),
    )
    share, more = [int(seq) for (seq,) in rows[:_SHARE]], len(rows) > _SHARE
    for seq in share:
        tx.unname(seq, found.session)
    tx.append(found.session, ChangeFreed(trim=trim, upto=share[-1] if share else 0, last=not more))
    return more


def tell(tx: Tx) -> list[Trim]:
    """The trims of which nobody was told yet; from then on somebody was."""
    found = untold(tx)
    if found:
        tx.append("system", TrimsTold(upto=found[-1].seq))
    return [one for one in found if one.state == "open"]


def contents(view: Reads) -> list[tuple[str, int]]:
    """The blobs that changes name, each with when (ms) it was first one."""
    first: dict[str, int] = {}
    for created, *blobs in view.q("SELECT created, before_blob, after_blob FROM changes ORDER BY seq"):
        for blob in blobs:
            if blob is not None:
                first.setdefault(blob, int(created))
    return list(first.items())


def shown(one: Trim) -> dict[str, Any]:
    """`{session, changes, bytes, at, until, state}`; times in ms."""
    return {
        "session": one.session,
        "changes": one.changes,
        "bytes": one.bytes,
        "at": one.created,
        "until": one.until,
        "state": one.state,
    }
