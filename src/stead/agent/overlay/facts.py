"""What is stored of a command's effect: an event for each path with the contents of before and after, and what is shown of it to a
person who has to agree."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stead.agent.changing import COUNTED_BYTES, stored_path
from stead.agent.overlay.effect import MOVED, Effect, Piece, readable
from stead.core.errors import SteadError
from stead.domain import hunks
from stead.domain.changes import ChangeCaptured, ChangeFound, FileState
from stead.domain.patches import FileDiff, git_patch
from stead.store import safefile

if TYPE_CHECKING:
    from pathlib import Path

    from stead.store.blobs import Prepared
    from stead.store.safefile import State
    from stead.store.store import Store

_SHOWN_FILE, _SHOWN = 1 << 20, 256 << 10
WRITTEN = "The command's own processes were still writing to it."


@dataclass(slots=True)
class Ready:
    """A piece that can be stored. `why`: it is left alone, for this reason; `lost`: a content of it is too large to be kept."""

    piece: Piece
    fact: ChangeCaptured | ChangeFound
    blobs: list[Prepared]
    additions: int = 0
    deletions: int = 0
    why: str | None = None
    lost: bool = False

    @property
    def blob(self) -> str | None:
        """The hash of what the command made of it."""
        return self.fact.after.get("blob")


def renames(root: Path, pieces: Iterable[Piece]) -> dict[str, str]:
    """The files that came, with the paths of those that went which they are: the only ones with that content."""
    gone: dict[tuple[int, str | None], list[str]] = {}
    came: dict[tuple[int, str | None], list[str]] = {}
    listed = [one for one in pieces if "file" in one.kinds and "absent" in one.kinds and not one.moved]
    sizes = {one.before.size for one in listed if one.after.kind == "absent"} & {one.after.size for one in listed}
    for piece in listed:
        goes = piece.after.kind == "absent"
        state = piece.before if goes else piece.after
        if state.size in sizes - {0}:
            readable(piece.after)
            (gone if goes else came).setdefault((state.size, state.digest), []).append(piece.path)
    pairs = [(came[key], gone[key]) for key in came if key in gone]
    return {new[0]: old[0] for new, old in pairs if len(new) == len(old) == 1}


def ready(store: Store, root: Path, call: str, message: int, most: int, piece: Piece, origin: str | None) -> Ready:
    """The event of one piece. A file's content is said before it is changed, so that a restart can look what became of it. It
    cannot tell that of links, folders and permissions: those are said as done, and taken back in the log if they were not."""
    blobs: list[Prepared] = []
    why = MOVED if piece.moved else None
    try:
        before, old = _state(store, piece.before, blobs, most, None)
        after, new = _state(store, piece.after, blobs, most, before.get("blob"))
    except _Changed as changed:
        blobs, why = [], MOVED if changed.state is piece.before else WRITTEN
        before, after, old, new = _bare(piece.before), _bare(piece.after), None, None
    path, encoded = stored_path(root, piece.before.path)
    same: dict[str, Any] = {"call": call, "message": message, "path": path, "before": before, "after": after, "encoded": encoded}
    same["origin"] = None if origin is None else stored_path(root, root / origin)[0]
    lost = any(state["kind"] == "file" and "blob" not in state for state in (before, after)) and why is None
    fact: ChangeCaptured | ChangeFound
    if why is not None or (piece.kinds <= {"absent", "file"} and (before.get("blob") != after.get("blob") or lost)):
        fact = ChangeCaptured(**same, in_place=_in_place(piece))
        counted = max(len(old or b""), len(new or b"")) <= COUNTED_BYTES and why is None
        return Ready(piece, fact, blobs, *(hunks.count(old, new) if counted else (0, 0)), why, lost)
    counts = hunks.count(old, new) if max(len(old or b""), len(new or b"")) <= COUNTED_BYTES else (0, 0)
    return Ready(piece, ChangeFound(**same, additions=counts[0], deletions=counts[1]), blobs, *counts, why, lost)


class _Changed(Exception):
    """A file is not what it was when the effect was read."""

    def __init__(self, state: State) -> None:
        super().__init__()
        self.state = state


def _in_place(piece: Piece) -> bool:
    if not piece.before.kind == piece.after.kind == "file":
        return False
    try:
        return os.lstat(piece.before.path).st_nlink == 1 and safefile.in_place(piece.before.path)
    except (OSError, SteadError):
        return False


def _bare(state: State) -> FileState:
    found: FileState = {"kind": state.kind}
    if state.kind in ("file", "directory"):
        found["mode"] = state.mode
    return found


def _state(store: Store, state: State, blobs: list[Prepared], most: int, previous: str | None) -> tuple[FileState, bytes | None]:
    """What is stored of a path at one moment, and its content where its lines are counted; blobs go to `blobs`."""
    found = _bare(state)
    if state.kind == "symlink":
        target = os.fsencode(state.target or "")
        blobs.append(store.blobs.prepare(target))
        return {**found, "blob": blobs[-1].hash}, target
    if state.kind != "file":
        return found, None
    found["size"] = state.size
    if state.size > most:
        return found, None
    content = None
    readable(state)
    try:
        with os.fdopen(safefile.opened(state.path), "rb") as file:
            if state.size <= COUNTED_BYTES:
                content = file.read(COUNTED_BYTES + 1)
                kept = store.blobs.prepare(content, after=previous)
            else:
                kept = store.blobs.prepare_stream(file)
    except SteadError as error:
        if error.code not in ("not_found", "conflict"):
            raise
        raise _Changed(state) from None
    now = safefile.stamp(state.path)
    if (now.kind, now.size, now.mtime_ns) != (state.kind, state.size, state.stamp.mtime_ns):
        raise _Changed(state)
    blobs.append(kept)
    return {**found, "blob": kept.hash}, content


def about(root: Path, effect: Effect, origins: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    """What a person has to see before they agree: `[{path, status, from?, additions?, deletions?, why?}]`, and a
    patch. What is too large for that, in itself or with the others, is only listed; of git's own files it is said how many."""
    files: list[dict[str, Any]] = []
    patch: list[str] = []
    room = _SHOWN
    taken = set(origins.values())
    for piece in sorted(effect.pieces, key=lambda one: one.path):
        if piece.touched or (piece.after.kind == "absent" and piece.path in taken):
            continue
        origin = origins.get(piece.path)
        shown: dict[str, Any] = {"path": stored_path(root, piece.before.path)[0], "status": _status(piece, origin)}
        if origin is not None:
            shown["from"] = stored_path(root, root / origin)[0]
        if piece.moved:
            shown["why"] = MOVED
        text, counts = _patch(piece, origin)
        if counts is not None:
            shown["additions"], shown["deletions"] = counts
        if text is not None and len(text) <= room:
            room -= len(text)
            patch.append(text.decode("utf-8", "replace"))
        else:
            patch.append(f"{shown['status']}: {shown['path']}\n")
        files.append(shown)
    patch += [f"{len(pieces)} of git's own files in {at}\n" for at, pieces in sorted(effect.git.items())]
    patch += [f"left behind (a pipe, socket or device): {path}\n" for path in effect.special]
    return files, "".join(patch)


def _status(piece: Piece, origin: str | None) -> str:
    if origin is not None:
        return "renamed"
    if piece.after.kind == "absent":
        return "deleted"
    return "added" if piece.before.kind == "absent" else "modified"


def _patch(piece: Piece, origin: str | None) -> tuple[bytes | None, tuple[int, int] | None]:
    """None where it is too large to be shown, or no patch can hold it."""
    sides: Sequence[State] = (piece.before, piece.after)
    if any(state.kind not in ("absent", "file", "symlink") or state.size > _SHOWN_FILE for state in sides):
        return None, None
    if origin is not None:
        before: bytes | None = _bytes(piece.after)
        after = before
    else:
        before, after = (_bytes(state) for state in sides)
    name, old = os.fsencode(piece.path), None if origin is None else os.fsencode(origin)
    mode = _git_mode(piece.after)
    was = mode if piece.before.kind == "absent" else _git_mode(piece.before)
    return git_patch(FileDiff(name, before, after, was, mode, old)), hunks.count(before, after)


def _bytes(state: State) -> bytes | None:
    if state.kind == "symlink":
        return os.fsencode(state.target or "")
    if state.kind != "file":
        return None
    readable(state)
    try:
        return safefile.read_bytes(state.path, _SHOWN_FILE, follow=False)
    except SteadError:
        return None


def _git_mode(state: State) -> int:
    if state.kind == "symlink":
        return 0o120000
    return 0o100755 if state.kind == "file" and state.mode & 0o100 else 0o100644
