"""The net effect of changes, path by path, and the shapes in which it is shown."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stead.domain.changes.chain import Load, Side, replay
from stead.domain.changes.events import FileState
from stead.domain.changes.records import Change

SHOWN_BYTES = 16 << 20
"""The lines of larger contents are not shown and not counted."""
Status = Literal["added", "modified", "deleted", "renamed", "mode", "none"]


@dataclass(frozen=True, slots=True)
class Net:
    """What several changes of one path come to. `origin`: the path that it was renamed from; `rows` are the changes."""

    path: str
    encoded: bool
    before: Side
    after: Side
    rows: tuple[Change, ...]
    origin: str | None = None

    @property
    def status(self) -> Status:
        """What became of the path."""
        before, after = self.before.state, self.after.state
        if self.origin is not None:
            return "renamed"
        if before["kind"] == "absent":
            return "none" if after["kind"] == "absent" else "added"
        if after["kind"] == "absent":
            return "deleted"
        if before["kind"] != after["kind"] or before.get("blob") != after.get("blob"):
            return "modified"
        if before["kind"] != "directory" and not (self.before.known and self.after.known):
            return "modified"
        return "mode" if before.get("mode") != after.get("mode") else "none"


def net(changes: Sequence[Change], load: Load) -> list[Net]:
    """The net effect of changes path by path, in the order of each path's first change; paths that ended as they began are left
    out, and so are folders, which are there for what is in them. A file that was renamed is one entry, under its new name."""
    paths: dict[str, list[Change]] = {}
    came: dict[str, str] = {}
    for change in changes:
        paths.setdefault(change.path, []).append(change)
        if change.origin is not None:
            came[change.path] = came.pop(change.origin, change.origin)
    found = {path: Net(path, rows[0].encoded, *replay(rows, load), tuple(rows)) for path, rows in paths.items()}
    for path, origin in came.items():
        old, new = found.get(origin), found.get(path)
        if old is not None and new is not None and old.status == "deleted" and new.status == "added":
            rows = tuple(sorted((*old.rows, *new.rows), key=lambda row: row.seq))
            found[path] = Net(path, new.encoded, old.before, new.after, rows, origin)
            del found[origin]
    return [one for one in found.values() if one.status != "none" and not _only_folder(one)]


def _only_folder(one: Net) -> bool:
    return {one.before.state["kind"], one.after.state["kind"]} <= {"absent", "directory"}


def change_json(one: Net, load: Load) -> dict[str, Any]:
    """A net change in the shape of every surface: path, status, additions, deletions, for a renamed one `from`."""
    from stead.domain.hunks import count

    shown: dict[str, Any] = {"path": one.path, **({"encoded": True} if one.encoded else {}), "status": one.status}
    if one.origin is not None:
        shown["from"] = one.origin
    before, after = (_text(side, load) for side in (one.before, one.after))
    additions, deletions = count(before, after)
    return {**shown, "additions": additions, "deletions": deletions}


def file_json(one: Net, load: Load, kept: FileState | None = None) -> dict[str, Any]:
    """A net change with its hunks, each pending or kept, and `binary` where its lines cannot be shown. `kept` is the state up to
    which the person agreed."""
    from stead.domain.hunks import hunks, reviewed

    before, after = (_text(side, load) for side in (one.before, one.after))
    base = None if kept is None else _text(Side(kept), load)
    found = hunks(before, after) if base is None else reviewed(before, base, after)
    shown = change_json(one, load)
    agreed = kept is not None and kept["kind"] == one.after.state["kind"] and base == after
    shown["review"] = "kept" if agreed else "pending"
    if found is None or _unseen(one):
        return {**shown, "binary": True, "hunks": []}
    return {**shown, "hunks": found}


def patch_of(one: Net, load: Load) -> bytes:
    """A net change as a patch for `git apply`; empty for what no patch can hold, and for content that was not kept."""
    from stead.domain.patches import FileDiff, git_patch
    from stead.domain.projects.folders import decode_path

    sides = (one.before, one.after)
    if _unseen(one) or any(side.state["kind"] not in ("absent", "file", "symlink") for side in sides):
        return b""
    before, after = (None if side.state["kind"] == "absent" else side.text(load) for side in sides)
    name = os.fsencode(decode_path(one.path, one.encoded))
    origin = None if one.origin is None else os.fsencode(decode_path(one.origin, one.encoded))
    diff = FileDiff(name, before, after, _git_mode(one.before.state), _git_mode(one.after.state), origin)
    return git_patch(diff)


def _git_mode(state: FileState) -> int:
    if state["kind"] == "symlink":
        return 0o120000
    return 0o100755 if state.get("mode", 0o644) & 0o100 else 0o100644


def _unseen(one: Net) -> bool:
    return not all(_seen(side) for side in (one.before, one.after))


def _seen(side: Side) -> bool:
    return side.known and side.state.get("size", 0) <= SHOWN_BYTES


def _text(side: Side, load: Load) -> bytes:
    return side.text(load) if _seen(side) or side.content is not None else b""
