"""What changes of one path come to, forwards and backwards. Pure: contents come from `load`.

Changes of one path form a chain: each says what the path was before and after. Taking some of them back means walking from the
newest to the oldest: where the path is exactly what a change left, it becomes exactly what was before; where it is not, because
a person or a later change came in between, the lines are merged, and the caller decides whether a merge is wanted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from stead.core.errors import SteadError
from stead.domain.changes.events import FileState
from stead.domain.changes.records import Change
from stead.domain.merge import merge

Load = Callable[[str], bytes]
MERGED_BYTES = 32 << 20
"""Larger contents are not merged."""
Case = Literal["same", "clean", "merge", "conflict"]


@dataclass(frozen=True, slots=True)
class Side:
    """A path at one moment. `content` is there where no blob holds it (what was merged)."""

    state: FileState
    content: bytes | None = None

    def text(self, load: Load) -> bytes:
        """Its bytes; empty for what has none. Raises as `load` does."""
        if self.content is not None:
            return self.content
        return load(self.state["blob"]) if "blob" in self.state else b""

    @property
    def known(self) -> bool:
        """Whether what stood there can be had: content that was never kept cannot."""
        return "blob" in self.state or self.state["kind"] in ("absent", "directory")


ABSENT = Side({"kind": "absent"})


def same(one: FileState, other: FileState) -> bool:
    """Whether two states are the same thing: kind, content, and permission bits where both are known. What has no known content is
    never the same."""
    if one["kind"] != other["kind"]:
        return False
    if one["kind"] in ("file", "symlink") and (one.get("blob") is None or one.get("blob") != other.get("blob")):
        return False
    return one["kind"] in ("absent", "symlink") or _mode_fits(one, other)


def _mode_fits(one: FileState, other: FileState) -> bool:
    return one.get("mode") is None or other.get("mode") is None or one.get("mode") == other.get("mode")


@dataclass(frozen=True, slots=True)
class Back:
    """What taking changes of one path back comes to: the state wanted, and how it is had. `why` says what a conflict is."""

    case: Case
    want: Side
    why: str = ""


def take_back(rows: Sequence[Change], have: FileState, load: Load) -> Back:
    """What the path becomes when `rows` (of one path, oldest first) are taken back and it is `have` now. `conflict` also where the
    lines cannot be merged. Raises as `load` does when a content that a merge needs is missing, `not_found` when one of the changes
    was trimmed."""
    if any(row.trimmed for row in rows):
        raise SteadError("not_found", "Its undo data was trimmed.", hint="`stead storage` says whether that can be reverted.")
    if same(have, rows[0].before):
        return Back("same", Side(rows[0].before))
    at, merged = Side(have), False
    for row in reversed(rows):
        if same(at.state, row.after):
            at = Side(row.before)
        elif not same(at.state, row.before):
            step = _merged(at, Side(row.after), Side(row.before), load)
            if step is None:
                return Back("conflict", Side(rows[0].before), _why(have, rows[-1].after))
            at, merged = step, True
    if merged and same(at.state, have):
        return Back("same", at)
    modes = have.get("blob") is not None and have.get("blob") == rows[-1].after.get("blob")
    why = "Its permissions were changed since." if modes else "It was changed since, in other lines."
    return Back("merge" if merged else "clean", at, why if merged else "")


def replay(rows: Iterable[Change], load: Load) -> tuple[Side, Side]:
    """What `rows` (of one path, oldest first) come to by themselves: before the first, and after them all. What anybody else
    changed between two of them is left out where the lines allow that."""
    listed = list(rows)
    first = at = Side(listed[0].before)
    for row in listed:
        if same(at.state, row.before):
            at = Side(row.after)
        else:
            step = _merged(at, Side(row.before), Side(row.after), load)
            at = step if step is not None else Side(row.after)
    return first, at


def _merged(ours: Side, base: Side, theirs: Side, load: Load) -> Side | None:
    """What `ours` becomes when what leads from `base` to `theirs` is done to it; None where that cannot be said."""
    sides = (ours, base, theirs)
    if any(side.state["kind"] != "file" for side in sides) or not all(side.known for side in sides):
        return None
    if max(side.state.get("size", 0) for side in sides) > MERGED_BYTES:
        return None
    mode = _mode(ours.state.get("mode"), base.state.get("mode"), theirs.state.get("mode"))
    if mode is _CLASH:
        return None
    content = merge(base.text(load), ours.text(load), theirs.text(load))
    if content is None:
        return None
    state: FileState = {"kind": "file", "size": len(content), "blob": hashlib.sha256(content).hexdigest()}
    if isinstance(mode, int):
        state["mode"] = mode
    return Side(state, content)


_CLASH = object()


def _mode(ours: int | None, base: int | None, theirs: int | None) -> object:
    if ours == base or ours is None:
        return theirs
    return ours if base == theirs or theirs is None or theirs == ours else _CLASH


def _why(have: FileState, left: FileState) -> str:
    if have["kind"] != left["kind"]:
        return {
            "absent": "It was deleted since.",
            "file": "A file stands there now.",
            "directory": "A folder stands there now.",
            "symlink": "A symbolic link stands there now.",
        }.get(have["kind"], "Something else stands there now.")
    if have.get("blob") == left.get("blob") and have.get("mode") != left.get("mode"):
        return "Its permissions were changed since."
    return "It was changed since, in the same lines."


@dataclass(frozen=True, slots=True)
class Piece:
    """A single step from what changes came to, to what they come to without some of their lines."""

    before: Side
    after: Side

    def back(self, have: FileState, load: Load) -> Back:
        """What the path becomes when this is done to it and it is `have` now."""
        if same(have, self.after.state):
            return Back("same", self.after)
        if same(have, self.before.state):
            return Back("clean", self.after)
        step = _merged(Side(have), self.before, self.after, load)
        if step is None:
            return Back("conflict", self.after, _why(have, self.before.state))
        return Back("merge", step, "It was changed since, in other lines.")
