"""What is said of changes in the log, and the tables that follow from it."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from stead.core.events import Event, Fact, event
from stead.domain.sessions import SessionDeleted
from stead.store.feature import Feature
from stead.store.log import Tx

Kind = Literal["absent", "file", "symlink", "directory", "other"]
Why = Literal["too_large", "budget", "index_not_ready", "outside", "special"]


class FileState(TypedDict):
    """A path at one moment. `blob` is the SHA-256 of the stored content (of a symlink: of its target's bytes); it is missing
    for what has no content, and for what could not be kept. `mode` are permission bits, `size` bytes."""

    kind: Kind
    mode: NotRequired[int]
    size: NotRequired[int]
    blob: NotRequired[str]


@event("change.captured")
class ChangeCaptured(Fact):
    """What a path is, stored, and what it is about to become; by a tool call, or by the rewind `rewind`.

    `in_place`: the file keeps its inode, so a crash may leave it torn; restart then finishes the write from the `after` blob.
    `folders`: the folders that were made for it, outermost first. `undoes`: the `seq` of the changes that this one takes back;
    `partly`: it takes back a piece of them, and they stand with this one behind them. `origin`: the path it is renamed from.
    """

    call: str
    message: int
    path: str
    before: FileState
    after: FileState
    in_place: bool = False
    encoded: bool = False
    folders: tuple[str, ...] = ()
    rewind: str | None = None
    undoes: tuple[int, ...] = ()
    partly: bool = False
    origin: str | None = None


@event("change.applied")
class ChangeApplied(Fact):
    """`mode`: the permission bits that the file has now; for a new one they were not known before."""

    captured: int
    additions: int
    deletions: int
    mode: int | None = None


@event("change.failed")
class ChangeFailed(Fact):
    """The write did not happen; the file is as it was."""

    captured: int
    reason: str


@event("change.found")
class ChangeFound(Fact):
    """What a command changed, seen after it ended. `origin`: the path that it was renamed from."""

    call: str
    message: int
    path: str
    before: FileState
    after: FileState
    additions: int = 0
    deletions: int = 0
    encoded: bool = False
    origin: str | None = None


@event("change.uncovered")
class ChangeUncovered(Fact):
    """A change that cannot be taken back, and why not."""

    call: str
    message: int
    path: str
    why: Why
    encoded: bool = False


@event("change.kept")
class ChangeKept(Fact):
    """The person agrees with what a path has become, up to this state; what is changed later is pending again."""

    path: str
    state: FileState


@event("change.trimmed")
class ChangeTrimmed(Fact):
    """The undo data of the session's changes up to the `seq` `upto` is given up; until it is freed that can be reverted. `all`:
    also of changes that a revert had spared. `bytes`: what their contents take that no other change needs."""

    upto: int
    changes: int
    bytes: int
    all: bool = False


@event("change.untrimmed")
class ChangeUntrimmed(Fact):
    """The `change.trimmed` of this `seq` is reverted; what it had named is spared from then on."""

    trim: int


@event("change.freed")
class ChangeFreed(Fact):
    """Of the `change.trimmed` `trim`, the changes up to the `seq` `upto` name their contents no more: the same job took the names
    out of their events. `last`: these were all."""

    trim: int
    upto: int
    last: bool


@event("trims.told")
class TrimsTold(Fact):
    """A person was told of the trims up to the `seq` `upto`."""

    upto: int


FEATURE = Feature(
    "changes",
    version=4,
    tables={
        "changes": """
            seq {key}, session TEXT NOT NULL, run TEXT, message INTEGER NOT NULL, call TEXT NOT NULL,
            path TEXT NOT NULL, state TEXT NOT NULL, before_kind TEXT NOT NULL, before_blob TEXT,
            before_mode INTEGER, after_kind TEXT NOT NULL, after_blob TEXT, after_mode INTEGER,
            in_place INTEGER NOT NULL, encoded INTEGER NOT NULL, additions INTEGER NOT NULL,
            deletions INTEGER NOT NULL, before_size BIGINT, after_size BIGINT,
            rewind TEXT, undone BIGINT, partly INTEGER NOT NULL, origin TEXT,
            found INTEGER NOT NULL, created BIGINT NOT NULL, trimmed BIGINT, spared INTEGER NOT NULL
        """,
        "uncovered": """
            seq {key}, session TEXT NOT NULL, run TEXT, message INTEGER NOT NULL, call TEXT NOT NULL, path TEXT NOT NULL,
            why TEXT NOT NULL, encoded INTEGER NOT NULL
        """,
        "made_folders": """
            change BIGINT NOT NULL, n INTEGER NOT NULL, session TEXT NOT NULL, path TEXT NOT NULL, PRIMARY KEY(change, n)
        """,
        "trims": """
            seq {key}, session TEXT NOT NULL, upto BIGINT NOT NULL, changes INTEGER NOT NULL, bytes BIGINT NOT NULL,
            created BIGINT NOT NULL, state TEXT NOT NULL, told INTEGER NOT NULL
        """,
        "undoing": "change BIGINT NOT NULL, target BIGINT NOT NULL, session TEXT NOT NULL, PRIMARY KEY(change, target)",
        "kept_states": """
            session TEXT NOT NULL, path TEXT NOT NULL, kind TEXT NOT NULL, mode INTEGER, blob TEXT, PRIMARY KEY(session, path)
        """,
    },
    indexes={
        "changes_session": "changes(session, seq)",
        "changes_open": "changes(state)",
        "changes_path": "changes(session, path, seq)",
        "changes_undone": "changes(undone)",
        "changes_trimmed": "changes(trimmed)",
        "trims_state": "trims(state)",
        "trims_told": "trims(told)",
        "uncovered_session": "uncovered(session, seq)",
    },
)

_NEW = (
    "INSERT INTO changes(seq, session, run, message, call, path, state, before_kind, before_blob, before_mode, after_kind,"
    " after_blob, after_mode, in_place, encoded, additions, deletions, before_size, after_size, rewind, partly, origin,"
    " found, created, spared) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,0)"
)


@FEATURE.projects(ChangeCaptured)
def _captured(tx: Tx, e: Event[ChangeCaptured]) -> None:
    d, before, after = e.data, e.data.before, e.data.after
    tx.q(
        _NEW,
        *(e.seq, e.stream, e.run, d.message, d.call, d.path, "captured", before["kind"], before.get("blob"), before.get("mode")),
        *(after["kind"], after.get("blob"), after.get("mode"), int(d.in_place), int(d.encoded), 0, 0),
        *(before.get("size"), after.get("size"), d.rewind, int(d.partly), d.origin, 0, e.ts),
    )
    for n, folder in enumerate(d.folders):
        tx.q("INSERT INTO made_folders(change, n, session, path) VALUES(?,?,?,?)", e.seq, n, e.stream, folder)
    for target in d.undoes:
        tx.q("INSERT INTO undoing(change, target, session) VALUES(?,?,?)", e.seq, target, e.stream)


@FEATURE.projects(ChangeApplied)
def _applied(tx: Tx, e: Event[ChangeApplied]) -> None:
    d = e.data
    tx.q(
        "UPDATE changes SET state='applied', additions=?, deletions=?, after_mode=coalesce(?, after_mode) WHERE seq=?",
        *(d.additions, d.deletions, d.mode, d.captured),
    )
    for (target,) in tx.q("SELECT target FROM undoing WHERE change=? ORDER BY target", d.captured):
        tx.q("UPDATE changes SET undone=NULL WHERE undone=?", target)  # what it had taken back stands again
        tx.q("UPDATE changes SET undone=? WHERE seq=? AND session=?", d.captured, target, e.stream)


@FEATURE.projects(ChangeFailed)
def _failed(tx: Tx, e: Event[ChangeFailed]) -> None:
    tx.q("UPDATE changes SET state='failed' WHERE seq=?", e.data.captured)


@FEATURE.projects(ChangeFound)
def _found(tx: Tx, e: Event[ChangeFound]) -> None:
    d, before, after = e.data, e.data.before, e.data.after
    tx.q(
        _NEW,
        *(e.seq, e.stream, e.run, d.message, d.call, d.path, "applied", before["kind"], before.get("blob"), before.get("mode")),
        *(after["kind"], after.get("blob"), after.get("mode"), 0, int(d.encoded), d.additions, d.deletions),
        *(before.get("size"), after.get("size"), None, 0, d.origin, 1, e.ts),
    )


@FEATURE.projects(ChangeUncovered)
def _uncovered(tx: Tx, e: Event[ChangeUncovered]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO uncovered(seq, session, run, message, call, path, why, encoded) VALUES(?,?,?,?,?,?,?,?)",
        *(e.seq, e.stream, e.run, d.message, d.call, d.path, d.why, int(d.encoded)),
    )


@FEATURE.projects(ChangeKept)
def _kept(tx: Tx, e: Event[ChangeKept]) -> None:
    state = e.data.state
    tx.q(
        "INSERT INTO kept_states(session, path, kind, mode, blob) VALUES(?,?,?,?,?) ON CONFLICT(session, path) DO UPDATE SET"
        " kind=excluded.kind, mode=excluded.mode, blob=excluded.blob",
        *(e.stream, e.data.path, state["kind"], state.get("mode"), state.get("blob")),
    )


@FEATURE.projects(ChangeTrimmed)
def _trimmed(tx: Tx, e: Event[ChangeTrimmed]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO trims(seq, session, upto, changes, bytes, created, state, told) VALUES(?,?,?,?,?,?,'open',0)",
        *(e.seq, e.stream, d.upto, d.changes, d.bytes, e.ts),
    )
    tx.q(
        "UPDATE changes SET trimmed=? WHERE session=? AND seq<=? AND trimmed IS NULL AND state<>'captured' AND spared<=?",
        *(e.seq, e.stream, d.upto, int(d.all)),
    )


@FEATURE.projects(ChangeUntrimmed)
def _untrimmed(tx: Tx, e: Event[ChangeUntrimmed]) -> None:
    tx.q("UPDATE changes SET trimmed=NULL, spared=1 WHERE trimmed=? AND session=?", e.data.trim, e.stream)
    tx.q("UPDATE trims SET state='reverted' WHERE seq=?", e.data.trim)


@FEATURE.projects(ChangeFreed)
def _freed(tx: Tx, e: Event[ChangeFreed]) -> None:
    d = e.data
    tx.q("UPDATE changes SET before_blob=NULL, after_blob=NULL WHERE trimmed=? AND session=? AND seq<=?", d.trim, e.stream, d.upto)
    tx.q("UPDATE trims SET state=? WHERE seq=?", "freed" if d.last else "freeing", d.trim)


@FEATURE.projects(TrimsTold)
def _told(tx: Tx, e: Event[TrimsTold]) -> None:
    tx.q("UPDATE trims SET told=1 WHERE seq<=?", e.data.upto)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    for table in ("changes", "uncovered", "made_folders", "undoing", "kept_states", "trims"):
        tx.q(f"DELETE FROM {table} WHERE session=?", e.data.session)
