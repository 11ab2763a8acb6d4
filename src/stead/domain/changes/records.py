"""The changes that are stored, and what may be asked of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Literal, cast

from stead.domain.changes.events import ChangeKept, FileState, Why
from stead.store.database import Reads
from stead.store.log import Tx


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one path, by a tool call or by a rewind. `undone` is the `seq` of the change that took it back."""

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
    before_size: int | None
    after_size: int | None
    rewind: str | None
    undone: int | None
    partly: bool
    origin: str | None
    found: bool
    """It was found after a command; whether the command made it, or somebody else while it ran, is not known."""
    trimmed: bool
    """Its contents were given up to save room: it cannot be taken back, unless the trim is reverted."""

    @property
    def before(self) -> FileState:
        """What the path was."""
        return state_of(self.before_kind, self.before_mode, self.before_blob, self.before_size)

    @property
    def after(self) -> FileState:
        """What the path became."""
        return state_of(self.after_kind, self.after_mode, self.after_blob, self.after_size)


_COLUMNS = (
    "seq, session, run, message, call, path, state, before_kind, before_blob, before_mode, after_kind, after_blob, after_mode,"
    " in_place, encoded, additions, deletions, before_size, after_size, rewind, undone, partly, origin, found,"
    " trimmed"
)


def state_of(kind: Any, mode: int | None, blob: str | None, size: int | None = None) -> FileState:
    """A state from its pieces."""
    state: FileState = {"kind": kind}
    if mode is not None:
        state["mode"] = mode
    if blob is not None:
        state["blob"] = blob
    if size is not None:
        state["size"] = size
    return state


def listed(view: Reads, session: str, *, run: str | None = None, message: int | None = None, after: int = 0) -> list[Change]:
    """What the tools of a session changed, in order, whether or not it was taken back since; of one run, of one message, or
    behind a `seq`."""
    where, args = "session=? AND seq>? AND state='applied' AND rewind IS NULL", [session, after]
    for column, value in (("run", run), ("message", message)):
        if value is not None:
            where, args = f"{where} AND {column}=?", [*args, value]
    return _changes(view.q(f"SELECT {_COLUMNS} FROM changes WHERE {where} ORDER BY seq", *args))


def standing(view: Reads, session: str, *, since: int = 0) -> list[Change]:
    """The changes that were not taken back, in order, of messages numbered `since` or higher; among them what a rewind took
    back of a piece of them."""
    rows = view.q(
        f"SELECT {_COLUMNS} FROM changes WHERE session=? AND message>=? AND state='applied' AND undone IS NULL"
        " AND (rewind IS NULL OR partly=1) ORDER BY seq",
        *(session, since),
    )
    return _changes(rows)


def undone(view: Reads, session: str) -> list[Change]:
    """The changes of tools that are taken back, in order."""
    rows = view.q(
        f"SELECT {_COLUMNS} FROM changes WHERE session=? AND state='applied' AND undone IS NOT NULL AND rewind IS NULL"
        " ORDER BY seq",
        session,
    )
    return _changes(rows)


def of_rewind(view: Reads, session: str, rewind: str) -> list[Change]:
    """What a rewind did to files, in order, in whatever state it is."""
    return _changes(view.q(f"SELECT {_COLUMNS} FROM changes WHERE session=? AND rewind=? ORDER BY seq", session, rewind))


def unsettled(view: Reads) -> list[Change]:
    """Changes of tools of which nobody knows yet whether they happened. Those of a rewind are finished by it."""
    return _changes(view.q(f"SELECT {_COLUMNS} FROM changes WHERE state='captured' AND rewind IS NULL ORDER BY seq"))


def made_folders(view: Reads, changes: Collection[int]) -> dict[str, int]:
    """The folders that were made for these changes, outermost first, each with the first change that it was made for."""
    found: dict[str, int] = {}
    for seq in changes:
        for (path,) in view.q("SELECT path FROM made_folders WHERE change=? ORDER BY n", seq):
            found.setdefault(path, seq)
    return found


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A change that cannot be taken back."""

    seq: int
    run: str | None
    message: int
    call: str
    path: str
    why: Why
    encoded: bool

    def to_json(self) -> dict[str, Any]:
        """`{path, why}`, with `encoded` where the name is no UTF-8."""
        return {"path": self.path, "why": self.why, **({"encoded": True} if self.encoded else {})}


def uncovered(view: Reads, session: str, *, since: int = 0, run: str | None = None) -> list[Uncovered]:
    """What could not be covered in messages numbered `since` or higher, in order; of one run."""
    where, args = "session=? AND message>=?", [session, since]
    if run is not None:
        where, args = where + " AND run=?", [*args, run]
    rows = view.q(f"SELECT seq, run, message, call, path, why, encoded FROM uncovered WHERE {where} ORDER BY seq", *args)
    return [Uncovered(*(*row[:6], bool(row[6]))) for row in rows]


def unique(found: Iterable[Uncovered]) -> list[Uncovered]:
    """Each path and reason once."""
    seen: dict[tuple[str, str], Uncovered] = {}
    for one in found:
        seen.setdefault((one.path, one.why), one)
    return list(seen.values())


def kept(view: Reads, session: str) -> dict[str, FileState]:
    """By path: the state up to which the person agreed."""
    rows = view.q("SELECT path, kind, mode, blob FROM kept_states WHERE session=?", session)
    return {path: state_of(kind, mode, blob) for path, kind, mode, blob in rows}


def keep(tx: Tx, session: str, path: str, state: FileState) -> None:
    """Note that the person agrees with `path` up to this state. Nothing is written where that is known."""
    if kept(tx, session).get(path) != state:
        tx.append(session, ChangeKept(path=path, state=state))


def _changes(rows: Iterable[tuple[Any, ...]]) -> list[Change]:
    return [_change(row) for row in rows]


def _change(row: tuple[Any, ...]) -> Change:
    in_place, encoded, partly = (bool(row[at]) for at in (13, 14, 21))
    return Change(*cast(Any, (*row[:13], in_place, encoded, *row[15:21], partly, row[22], bool(row[23]), row[24] is not None)))
