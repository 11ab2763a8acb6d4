"""What an undo would do: every path that it would touch, whether it can be done, and what stands in the way. Nothing is written."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stead.agent.changing import stored_path
from stead.app.undo.disk import NOTHING, blocked, place, seen
from stead.app.undo.scope import Scope
from stead.core.errors import SteadError
from stead.core.jsontext import dumps
from stead.domain import changes, hunks
from stead.domain.changes import ABSENT, Change, FileState, Side
from stead.store import safefile

if TYPE_CHECKING:
    from stead.store.store import Store

Case = Literal["same", "clean", "merge", "conflict", "missing", "uncovered", "forced"]
MISSING = "The content that it had is missing in the store, so it was left as it is."


@dataclass(frozen=True, slots=True)
class Item:
    """One path of a plan. `have` is what stands there, `want` what is to stand there; `undoes` are the changes that are taken
    back by it. `origin`: the path it comes from by a rename."""

    path: str
    encoded: bool
    have: FileState
    stamp: safefile.Stamp | None
    want: Side
    case: Case
    why: str = ""
    undoes: tuple[int, ...] = ()
    message: int = 0
    call: str = ""
    partly: bool = False
    origin: str | None = None
    before: FileState | None = None
    """What the path was before the changes, by the letter."""
    in_place: bool = False
    """Each change of it was written into the file as it stood, with all its names: only then so is what takes them back."""
    block: str | None = None
    """A path above it that is no folder by now."""
    found: bool = False
    """A change of it was found after a command: somebody else may have made it while that ran."""

    @property
    def doable(self) -> bool:
        """Whether it will be done, if only to note that it is done."""
        return self.case in ("clean", "forced") or (self.case == "same" and bool(self.undoes))

    @property
    def visible(self) -> bool:
        """Whether a person sees a difference."""
        return self.doable and self.case != "same" and not self.folder

    @property
    def folder(self) -> bool:
        """Whether it is only about a folder."""
        return {self.have["kind"], self.want.state["kind"]} <= {"absent", "directory"}


@dataclass(frozen=True, slots=True)
class Plan:
    """What an undo or redo would do. `first`: the message from which on the conversation is left or comes back; None when it stays.
    `messages` are those messages. `token` stands for everything it saw."""

    session: str
    root: Path
    scope: Scope
    items: list[Item]
    messages: list[int]
    not_covered: list[changes.Uncovered] = field(default_factory=list)

    @property
    def what(self) -> Literal["undo", "redo"]:
        """Undo or redo."""
        return "redo" if self.scope.redo else "undo"

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not self.messages and not any(item.doable for item in self.items)

    @property
    def silent(self) -> bool:
        """Whether nobody would see a difference: all of it is as it would be."""
        return not self.messages and not any(item.doable and item.case != "same" for item in self.items)

    @property
    def conflicts(self) -> list[Item]:
        """The paths that will be left alone."""
        return [item for item in self.items if item.case in ("conflict", "merge", "missing")]

    @property
    def token(self) -> str:
        """Stands for what each file was, and for where the conversation stood, when this was planned."""
        told = [[item.path, item.have, item.want.state, item.case] for item in self.items]
        return hashlib.sha256(dumps([self.session, told, self.messages])).hexdigest()


def plan(store: Store, session: str, root: Path, scope: Scope) -> Plan:
    """Plan to take back what `scope` names. Reads each file that is concerned, and no other. Raises `project_missing`."""
    if scope.rows and not root.is_dir():
        raise SteadError("project_missing", f"The project folder {root} does not exist.", details={"path": str(root)})
    paths: dict[str, list[Change]] = {}
    for row in scope.rows:
        paths.setdefault(row.path, []).append(row)
    items = [_without_folder(_item(store, root, rows, scope), rows, scope) for rows in paths.values()]
    items += _folders(store, root, scope, {item.path for item in items})
    items = _unblocked(items)
    return Plan(session, root, scope, _ordered(_renames(items, scope)), scope.messages, _uncovered(scope, items))


def _unblocked(items: list[Item]) -> list[Item]:
    """What lies below something that is no folder by now can only be done where that becomes one again in the same go."""
    folders = {item.path for item in items if item.doable and item.want.state["kind"] == "directory"}
    why = "A folder of it has become something else: a file or a symbolic link."
    return [item if item.block is None or item.block in folders else replace(item, case="conflict", why=why) for item in items]


def _item(store: Store, root: Path, rows: list[Change], scope: Scope) -> Item:
    last = rows[-1]
    about: dict[str, Any] = {"path": last.path, "encoded": last.encoded, "message": last.message, "call": last.call}
    about |= {"undoes": tuple(row.seq for row in rows), "before": rows[0].before, "found": any(row.found for row in rows)}
    about["in_place"] = all(row.in_place for row in rows)
    at = place(root, last.path, last.encoded)
    if (block := blocked(at)) is not None:
        about["block"] = stored_path(root, block)[0]
    try:
        have, stamp = seen(at) if block is None else (NOTHING, safefile.ABSENT)
    except SteadError as error:
        nothing: FileState = {"kind": "other"}
        return Item(have=nothing, stamp=None, want=Side(rows[0].before), case="conflict", why=error.message, **about)
    try:
        if scope.hunks is not None:
            back = _pieces(rows, have, scope.hunks, _load(store, at, have))
            about |= {"partly": True, "undoes": ()}  # the changes stand, with this one behind them
        else:
            back = changes.take_back(rows, have, _load(store, at, have))
        case, want = _decide(store, back, rows, scope)
    except SteadError as error:
        if error.code not in ("not_found", "store_damaged") or "hunk" in (error.details or {}):
            raise
        return Item(have=have, stamp=stamp, want=Side(rows[0].before), case="missing", why=MISSING, **about)
    return Item(have=have, stamp=stamp, want=want, case=case, why=back.why, **about)


def _decide(store: Store, back: changes.Back, rows: list[Change], scope: Scope) -> tuple[Case, Side]:
    """What is to be done with a path, after what the person agreed to. Raises when the content wanted is missing."""
    case: Case = back.case
    want = back.want
    if case in ("merge", "conflict") and rows[-1].path in scope.force:
        case, want = "forced", want if scope.hunks is not None else Side(rows[0].before)
    elif case == "merge" and scope.merge:
        case = "clean"
    if case == "same" or want.known:
        if case != "same" and want.content is None and "blob" in want.state and not store.blobs.has(want.state["blob"]):
            raise SteadError("not_found", MISSING)
        return case, want
    return "uncovered", want


def _load(store: Store, at: Path, have: FileState) -> Callable[[str], bytes]:
    """Contents by hash: what the store has, and what stands on the disk."""

    def load(digest: str) -> bytes:
        if have["kind"] == "file" and digest == have.get("blob") and not store.blobs.has(digest):
            return safefile.read_bytes(at, follow=False)
        return store.blobs.get(digest)

    return load


def _pieces(
    rows: list[Change], have: FileState, wanted: Callable[[str], Sequence[str] | None], load: Callable[[str], bytes]
) -> changes.Back:
    """Taking back single hunks of what the changes of a path come to."""
    before, after = changes.replay(rows, load)
    chosen = wanted(rows[-1].path) or ()
    content = hunks.without(before.text(load), after.text(load), chosen)
    state: FileState = {**after.state, "size": len(content), "blob": hashlib.sha256(content).hexdigest()}
    piece = changes.Piece(after, Side(state, content))
    return piece.back(have, load)


def _folders(store: Store, root: Path, scope: Scope, known: set[str]) -> Iterable[Item]:
    """The folders that were made for files and may go with them, if nothing else is in them by then."""
    if scope.of is not None or scope.hunks is not None:
        return
    for path in scope.folders:
        if path in known:
            continue
        try:
            have, stamp = seen(place(root, path, False))
        except SteadError:
            continue
        if have["kind"] == "directory":
            yield Item(path, False, have, stamp, ABSENT, "clean")


def _without_folder(item: Item, rows: list[Change], scope: Scope) -> Item:
    """A folder that was made for a file of the same scope was not there before, whatever became of it since."""
    made = scope.folders.get(item.path)
    if made is None or made > rows[0].seq or item.want.state["kind"] != "directory":
        return item
    return replace(item, want=ABSENT, case="same" if item.have["kind"] == "absent" else item.case)


def _renames(items: list[Item], scope: Scope) -> list[Item]:
    """A file that goes and one that comes, of which the log knows that they are one, are renamed back."""
    at = {item.path: n for n, item in enumerate(items)}
    for row in scope.rows:
        if row.origin is None or row.origin not in at or row.path not in at:
            continue
        new, old = items[at[row.path]], items[at[row.origin]]
        came, gone = (new, old) if scope.of is not None and old.have["kind"] != "absent" else (old, new)
        if (
            came.case == gone.case == "clean"
            and came.have["kind"] == gone.want.state["kind"] == "absent"
            and came.want.content is None
            and changes.same(came.want.state, gone.have)
        ):
            items[at[came.path]] = replace(came, origin=gone.path)
    return items


def _ordered(items: list[Item]) -> list[Item]:
    """Files go before what comes, folders are made from the outside, and go from the inside at the very end: a file that is
    renamed may lie in one until then."""
    away = {item.origin for item in items if item.origin is not None}

    def key(item: Item) -> tuple[int, int, str]:
        depth, had, comes = item.path.count("/"), item.have["kind"], item.want.state["kind"]
        if comes == "absent":
            return (5, -depth, item.path) if had == "directory" else (4 if item.path in away else 0, -depth, item.path)
        if comes == "directory":
            return 1, depth, item.path
        if item.origin is not None:
            return 2, depth, item.path
        return (6, -depth, item.path) if had == "directory" else (4, depth, item.path)

    return sorted(items, key=key)


def _uncovered(scope: Scope, items: list[Item]) -> list[changes.Uncovered]:
    told = changes.unique(scope.uncovered)
    named = {one.path for one in told}
    for item in items:
        if item.case == "uncovered" and item.path not in named:
            told.append(changes.Uncovered(0, None, item.message, item.call, item.path, "budget", item.encoded))
    restored = {item.path for item in items if item.doable}
    return [one for one in told if one.path not in restored]
