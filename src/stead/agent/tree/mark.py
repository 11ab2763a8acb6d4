"""What is noted while a command runs: of each path that changes, what it was."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from stead.agent.tree.reserve import Kept

if TYPE_CHECKING:
    from stead.domain.changes import Why


class Was(NamedTuple):
    """A path before its first change: its state (None: nothing was there), a link's target, where its content is kept, and
    why not if it is not (git may still have it)."""

    state: bytes | None
    target: str | None
    kept: Kept | None
    why: Why


@dataclass(slots=True, eq=False)
class Mark:
    """A moment just before a command; made by `Tree.before` and used up by `Tree.after`. `ready`: the tree was known as a whole."""

    ready: bool
    born: int
    old: dict[str, Was] = field(default_factory=dict, repr=False)
    masks: dict[str, int] = field(default_factory=dict, repr=False)
    unsure: dict[str, Why] = field(default_factory=dict, repr=False)
    overflowed: bool = False
