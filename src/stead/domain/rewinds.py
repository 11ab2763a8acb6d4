"""Rewinds: undo and redo, of files, of the conversation, or both. Each is an operation of its own, so it can itself be undone.

`rewind.planned` says what is to be done, the `change.captured` of each file with it; then the disk is changed; `rewind.ended` notes
the end and moves the conversation in the same job. A rewind whose process died is finished by whoever opens the store next, or
given up where no file was touched yet.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.domain import changes, runs, sessions
from stead.domain.sessions import SessionDeleted
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

Kind = Literal["undo", "redo"]


@event("rewind.planned")
class RewindPlanned(Fact):
    """`files`: how many paths are to change; each has its `change.captured`. `first`: the message from which on the conversation is
    left, or comes back; None when it stays. `about`: the message or call that was asked for. `of`: the undo that a redo takes
    back."""

    id: str
    what: Kind
    files: int
    owner: str
    first: int | None = None
    about: str | None = None
    of: str | None = None


@event("rewind.ended")
class RewindEnded(Fact):
    """`done`: whether it was carried out; else nothing was touched. `left`: the `seq` of the `branch.left` that it brought."""

    id: str
    done: bool
    left: int | None = None


FEATURE = Feature(
    "rewinds",
    tables={
        "rewinds": """
            id TEXT PRIMARY KEY, session TEXT NOT NULL, what TEXT NOT NULL, files INTEGER NOT NULL, owner TEXT NOT NULL,
            first INTEGER, about TEXT, of TEXT, state TEXT NOT NULL, branch BIGINT, seq BIGINT NOT NULL, created BIGINT NOT NULL,
            files_redone INTEGER NOT NULL, conversation_redone INTEGER NOT NULL
        """,
    },
    indexes={"rewinds_session": "rewinds(session, seq)", "rewinds_state": "rewinds(state)"},
)


@FEATURE.projects(RewindPlanned)
def _planned(tx: Tx, e: Event[RewindPlanned]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO rewinds(id, session, what, files, owner, first, about, of, state, seq, created, files_redone,"
        " conversation_redone) VALUES(?,?,?,?,?,?,?,?,'planned',?,?,0,0)",
        *(d.id, e.stream, d.what, d.files, d.owner, d.first, d.about, d.of, e.seq, e.ts),
    )


@FEATURE.projects(RewindEnded)
def _ended(tx: Tx, e: Event[RewindEnded]) -> None:
    d = e.data
    tx.q("UPDATE rewinds SET state=?, branch=? WHERE id=?", "done" if d.done else "abandoned", d.left, d.id)
    row = tx.one("SELECT of, files, first FROM rewinds WHERE id=?", d.id)
    if d.done and row is not None and row[0] is not None:
        if row[1]:
            tx.q("UPDATE rewinds SET files_redone=1 WHERE id=?", row[0])
        if row[2] is not None:
            tx.q("UPDATE rewinds SET conversation_redone=1 WHERE id=?", row[0])


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    tx.q("DELETE FROM rewinds WHERE session=?", e.data.session)


@dataclass(frozen=True, slots=True)
class Rewind:
    """An undo or redo. `branch` is the `branch.left` of the conversation that it left, `seq` its place in the log."""

    id: str
    session: str
    what: Kind
    files: int
    owner: str
    first: int | None
    about: str | None
    of: str | None
    state: Literal["planned", "done", "abandoned"]
    branch: int | None
    seq: int
    created: int
    files_redone: bool
    conversation_redone: bool

    @property
    def files_open(self) -> bool:
        """Whether it changed files and that was not taken back."""
        return self.files > 0 and not self.files_redone

    @property
    def conversation_open(self) -> bool:
        """Whether it moved the conversation and that was not taken back."""
        return self.branch is not None and not self.conversation_redone


_COLUMNS = "id, session, what, files, owner, first, about, of, state, branch, seq, created, files_redone, conversation_redone"


def get(view: Reads, rewind: str) -> Rewind:
    """The rewind with this id. Raises `not_found`."""
    row = view.one(f"SELECT {_COLUMNS} FROM rewinds WHERE id=?", rewind)
    if row is None:
        raise SteadError("not_found", f"There is no undo {rewind!r}.")
    return _rewind(row)


def listed(view: Reads, session: str) -> list[Rewind]:
    """The rewinds of a session, oldest first."""
    return [_rewind(row) for row in view.q(f"SELECT {_COLUMNS} FROM rewinds WHERE session=? ORDER BY seq", session)]


def open_in(view: Reads, session: str) -> Rewind | None:
    """The rewind of this session that is under way."""
    row = view.one(f"SELECT {_COLUMNS} FROM rewinds WHERE session=? AND state='planned' LIMIT 1", session)
    return _rewind(row) if row else None


def newest_undo(view: Reads, session: str) -> Rewind | None:
    """The newest undo of which something can be redone."""
    rows = view.q(f"SELECT {_COLUMNS} FROM rewinds WHERE session=? AND what='undo' AND state='done' ORDER BY seq DESC", session)
    return next((one for one in map(_rewind, rows) if one.files_open or one.conversation_open), None)


def owners(view: Reads) -> set[str]:
    """The processes that work on rewinds."""
    return {owner for (owner,) in view.q("SELECT DISTINCT owner FROM rewinds WHERE state='planned'")}


def left_by(view: Reads, dead: set[str]) -> list[Rewind]:
    """The rewinds that these processes left under way."""
    rows = view.q(f"SELECT {_COLUMNS} FROM rewinds WHERE state='planned' ORDER BY seq")
    return [one for one in map(_rewind, rows) if one.owner in dead]


def refuse_under_way(view: Reads, session: str) -> None:
    """Raise `conflict` while files or messages of this session are being taken back."""
    if open_in(view, session) is not None:
        message = f"An undo is under way in session {session}."
        raise SteadError("conflict", message, hint="It takes a moment; try again then.", details={"session": session})


def begin(tx: Tx, session: str, planned: RewindPlanned) -> None:
    """Plan a rewind. Raises `conflict` when a run or another rewind is under way in the session, `usage` when it is in the
    trash."""
    sessions.in_use(tx, session)
    refuse_under_way(tx, session)
    run = runs.active(tx, session)
    if run is not None:
        doing = "waits for an answer" if run.status == "waiting" else "is at work"
        message = f"A run {doing} in session {session}, so nothing was taken back."
        hint = f"`stead sessions stop {session}` ends it; then try again."
        raise SteadError("conflict", message, hint=hint, details={"session": session, "run": run.id})
    tx.append(session, planned)


def end(tx: Tx, rewind: Rewind, *, done: bool) -> bool:
    """Note the end of a rewind, and move the conversation with it. False when another process was faster."""
    now = get(tx, rewind.id)
    if now.state != "planned":
        return False
    left = None
    if done and rewind.first is not None:
        if rewind.what == "undo":
            left = sessions.leave_branch(tx, rewind.session, rewind.first, rewind.id)
        elif rewind.of is not None and (branch := get(tx, rewind.of).branch) is not None:
            sessions.resume_branch(tx, rewind.session, branch)
    tx.append(rewind.session, RewindEnded(id=rewind.id, done=done, left=left))
    return True


def all_captured(view: Reads, rewind: Rewind) -> bool:
    """Whether everything that it is to do stands in the log: only then a file was touched."""
    return len(changes.of_rewind(view, rewind.session, rewind.id)) == rewind.files


def _rewind(row: tuple[Any, ...]) -> Rewind:
    return Rewind(*(*row[:12], bool(row[12]), bool(row[13])))
