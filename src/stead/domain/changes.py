"""Changes: what the agent's tools did to files. The before-image is durable before the file is touched (I5).

`change.captured` says what a file was and what it is about to become, `change.applied` that it happened; a crash between the two
is settled by looking at the disk. Paths are relative to the project with `/`, outside of it absolute; a name that is not UTF-8
is percent-encoded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

from stead.core.events import Event, Fact, event
from stead.domain.sessions import SessionDeleted
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx


class FileState(TypedDict):
    """A path at one moment. `blob` is the content's SHA-256; it is missing for what has no stored content."""

    kind: Literal["absent", "file", "symlink", "directory", "other"]
    mode: NotRequired[int]
    size: NotRequired[int]
    blob: NotRequired[str]


@event("change.captured")
class ChangeCaptured(Fact):
    """`in_place`: the file keeps its inode, so a crash may leave it torn; restart then finishes the write from the `after` blob.
    `folders`: the folders that were made for it, outermost first."""

    call: str
    message: int
    path: str
    before: FileState
    after: FileState
    in_place: bool = False
    encoded: bool = False
    folders: tuple[str, ...] = ()


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


FEATURE = Feature(
    "changes",
    tables={
        "changes": """
            seq {key}, session TEXT NOT NULL, run TEXT, message INTEGER NOT NULL, call TEXT NOT NULL,
            path TEXT NOT NULL, state TEXT NOT NULL, before_kind TEXT NOT NULL, before_blob TEXT,
            before_mode INTEGER, after_kind TEXT NOT NULL, after_blob TEXT, after_mode INTEGER,
            in_place INTEGER NOT NULL, encoded INTEGER NOT NULL, additions INTEGER NOT NULL,
            deletions INTEGER NOT NULL
        """,
    },
    indexes={"changes_session": "changes(session, seq)", "changes_open": "changes(state)"},
)


@FEATURE.projects(ChangeCaptured)
def _captured(tx: Tx, e: Event[ChangeCaptured]) -> None:
    d, before, after = e.data, e.data.before, e.data.after
    tx.q(
        "INSERT INTO changes(seq, session, run, message, call, path, state, before_kind, before_blob, before_mode, after_kind,"
        " after_blob, after_mode, in_place, encoded, additions, deletions) VALUES(?,?,?,?,?,?,'captured',?,?,?,?,?,?,?,?,0,0)",
        *(e.seq, e.stream, e.run, d.message, d.call, d.path, before["kind"], before.get("blob"), before.get("mode")),
        *(after["kind"], after.get("blob"), after.get("mode"), int(d.in_place), int(d.encoded)),
    )


@FEATURE.projects(ChangeApplied)
def _applied(tx: Tx, e: Event[ChangeApplied]) -> None:
    d = e.data
    tx.q(
        "UPDATE changes SET state='applied', additions=?, deletions=?, after_mode=coalesce(?, after_mode) WHERE seq=?",
        *(d.additions, d.deletions, d.mode, d.captured),
    )


@FEATURE.projects(ChangeFailed)
def _failed(tx: Tx, e: Event[ChangeFailed]) -> None:
    tx.q("UPDATE changes SET state='failed' WHERE seq=?", e.data.captured)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    tx.q("DELETE FROM changes WHERE session=?", e.data.session)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one path by one tool call."""

    seq: int
    session: str
    run: str | None
    message: int
    call: str
    path: str
    state: Literal["captured", "applied", "failed"]
    before_kind: str
    before_blob: str | None
    before_mode: int | None
    after_kind: str
    after_blob: str | None
    after_mode: int | None
    in_place: bool
    encoded: bool
    additions: int
    deletions: int


_COLUMNS = (
    "seq, session, run, message, call, path, state, before_kind, before_blob, before_mode, after_kind, after_blob, after_mode,"
    " in_place, encoded, additions, deletions"
)


def listed(view: Reads, session: str, *, run: str | None = None, message: int | None = None, after: int = 0) -> list[Change]:
    """The applied changes of a session in order; of one run, of one message, or behind a `seq`."""
    where, args = "session=? AND seq>? AND state='applied'", [session, after]
    for column, value in (("run", run), ("message", message)):
        if value is not None:
            where, args = f"{where} AND {column}=?", [*args, value]
    rows = view.q(f"SELECT {_COLUMNS} FROM changes WHERE {where} ORDER BY seq", *args)
    return [Change(*row) for row in rows]


def unsettled(view: Reads) -> list[Change]:
    """Changes of which nobody knows yet whether they happened."""
    return [Change(*row) for row in view.q(f"SELECT {_COLUMNS} FROM changes WHERE state='captured' ORDER BY seq")]


@dataclass(frozen=True, slots=True)
class Net:
    """What several changes of one path come to: its state before the first and after the last."""

    path: str
    encoded: bool
    before: FileState
    after: FileState

    @property
    def status(self) -> Literal["added", "modified", "deleted", "mode", "none"]:
        if self.before["kind"] == "absent":
            return "none" if self.after["kind"] == "absent" else "added"
        if self.after["kind"] == "absent":
            return "deleted"
        if self.before.get("blob") != self.after.get("blob") or self.before["kind"] != self.after["kind"]:
            return "modified"
        return "mode" if self.before.get("mode") != self.after.get("mode") else "none"


def net(changes: Sequence[Change]) -> list[Net]:
    """The net effect of changes path by path, in the order of each path's first change; paths that ended as they began are
    left out."""
    firsts: dict[str, Change] = {}
    lasts: dict[str, Change] = {}
    for change in changes:
        firsts.setdefault(change.path, change)
        lasts[change.path] = change
    found = []
    for path, first in firsts.items():
        last = lasts[path]
        before = _state(first.before_kind, first.before_mode, first.before_blob)
        after = _state(last.after_kind, last.after_mode, last.after_blob)
        if (one := Net(path, bool(first.encoded), before, after)).status != "none":
            found.append(one)
    return found


def _state(kind: Any, mode: int | None, blob: str | None) -> FileState:
    state: FileState = {"kind": kind}
    if mode is not None:
        state["mode"] = mode
    if blob is not None:
        state["blob"] = blob
    return state


def change_json(one: Net, load: Callable[[str], bytes], *, with_hunks: bool = False) -> dict[str, Any]:
    """A net change in the shape of product surfaces: path, status, additions, deletions; for a diff also hunks and `binary`."""
    from stead.domain.hunks import count, hunks

    before, after = (load(state["blob"]) if "blob" in state else b"" for state in (one.before, one.after))
    additions, deletions = count(before, after)
    shown: dict[str, Any] = {"path": one.path, **({"encoded": True} if one.encoded else {}), "status": one.status}
    shown.update(additions=additions, deletions=deletions)
    if with_hunks:
        found = hunks(before, after)
        shown.update({"binary": True, "hunks": []} if found is None else {"hunks": found})
    return shown
