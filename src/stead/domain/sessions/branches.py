"""Branches: which messages the conversation is made of now. An undo leaves some, a redo brings them back, a new prompt goes on
without."""

from __future__ import annotations

from stead.core.errors import SteadError
from stead.core.jsontext import loads
from stead.domain.sessions.events import BranchLeft, BranchResumed
from stead.store.database import Reads
from stead.store.log import Tx


def head(view: Reads, session: str) -> int:
    """The number of the last message of the active branch, 0 when there is none."""
    row = view.one("SELECT max(n) FROM messages WHERE session=? AND left_by=0", session)
    return int((row[0] if row else None) or 0)


def numbers(view: Reads, session: str, *, since: int = 0, left: int = 0) -> list[int]:
    """The numbers of the messages of the active branch from `since` on; or of those that the `branch.left` of the `seq` `left`
    left."""
    rows = view.q("SELECT n FROM messages WHERE session=? AND left_by=? AND n>=? ORDER BY n", session, left, since)
    return [int(n) for (n,) in rows]


def last_user(view: Reads, session: str, *, before: int | None = None) -> int | None:
    """The number of the last message of the user on the active branch (of those below `before`)."""
    row = view.one(
        "SELECT n FROM messages WHERE session=? AND left_by=0 AND role='user' AND n<? ORDER BY n DESC LIMIT 1",
        *(session, 1 << 60 if before is None else before),
    )
    return None if row is None else int(row[0])


def leave_branch(tx: Tx, session: str, first: int, rewind: str) -> int | None:
    """Take message `first` and all behind it out of the conversation; they stay readable. Gives the `seq` of what says so, None and
    nothing where there is no such message."""
    if not numbers(tx, session, since=first):
        return None
    return tx.append(session, BranchLeft(first=first, rewind=rewind)).seq


def may_resume(view: Reads, session: str, left: int) -> bool:
    """Whether the messages that a `branch.left` left can come back: nothing was said since where they stood."""
    row = view.one("SELECT parent FROM messages WHERE session=? AND left_by=? ORDER BY n LIMIT 1", session, left)
    return row is not None and int(row[0]) == head(view, session)


def resume_branch(tx: Tx, session: str, left: int) -> None:
    """Bring back what a `branch.left` left. Raises `conflict` when something was said since."""
    if not may_resume(tx, session, left):
        raise SteadError("conflict", "Something was said since, so the messages that were left do not come back.")
    tx.append(session, BranchResumed(left=left))


def calls_named(view: Reads, session: str, text: str) -> list[tuple[int, int, str]]:
    """The tool calls that ran and have this name, or the part of this id: (message, part number, name)."""
    rows = view.q(
        "SELECT p.message, p.n, e.data FROM parts p JOIN events e ON e.seq=p.started WHERE p.session=? ORDER BY p.message, p.n",
        session,
    )
    found = [(int(message), int(n), str(loads(data)["call"])) for message, n, data in rows]
    return [one for one in found if text in (one[2], f"{session}.{one[0]}.{one[1]}")]


def up_to(view: Reads, session: str, n: int) -> list[int]:
    """The numbers of the messages that lead to message `n`, whatever branch it is on, oldest first, with it."""
    parents: dict[int, int] = dict(view.q("SELECT n, parent FROM messages WHERE session=? AND n<=?", session, n))
    found = []
    while n in parents:
        found.append(int(n))
        n = parents[n]
    return found[::-1]
