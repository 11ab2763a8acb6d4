"""What the tree tells its caller, and the limits that the caller may set."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from stead.domain.changes import Why
    from stead.store.safefile import Kind

HEAVY = ("node_modules", ".venv", "venv", "target", "build", "dist", "__pycache__", ".tox")
"""Folders that can be made again: their files are the last to be copied."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the tree may spend. The first six speak of the background copies of files that git does not hold."""

    off: bool = False
    """No background copies at all."""
    skip: tuple[str, ...] = ()
    """Patterns as in .gitignore, of files that are never copied."""
    heavy: tuple[str, ...] = HEAVY
    file_bytes: int = 1 << 20
    all_bytes: int = 64 << 20
    files: int = 5_000
    folders: int = 20_000
    """A tree with more folders is not watched."""
    tracked: int = 50_000
    """So many files of git's index are looked at where a tree is not watched."""
    most_bytes: int = 1 << 30
    """What a larger file held before counts as not covered."""
    fresh_files: int = 200
    fresh_seconds: float = 0.02
    """`Tree.before` catches up with so many changed files, for so long."""


@dataclass(frozen=True, slots=True)
class Shot:
    """A path at one moment. `mode`: permission bits; `size`: bytes of a file or of a link's target.

    `load` gives the content (of a symlink: its target's bytes), until the tree is closed; it raises `SteadError` when the content
    cannot be had any more. It is None for what has no content, and where the content is not known: `why` then says why.
    `digest` is the SHA-256 where it is known; `stored` says that stead's store has the blob of this digest already.
    """

    kind: Kind
    mode: int = 0
    size: int = 0
    digest: str | None = None
    load: Callable[[], bytes] | None = field(default=None, compare=False, repr=False)
    why: Why | None = None
    stored: bool = False
    state: bytes | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Seen:
    """A path that changed, relative to the project with `/` (as `os.fsdecode` spells it). `renamed_from`: the path that what is
    there now had before; that path has a `Seen` of its own."""

    path: str
    before: Shot
    after: Shot
    renamed_from: str | None = None


@dataclass(frozen=True, slots=True)
class NotCovered:
    """A path whose change cannot be taken back, or a folder (`""`: the project) below which something may have been missed."""

    path: str
    why: Why


@dataclass(frozen=True, slots=True)
class Found:
    """What changed since a mark, sorted by path. `overflowed`: events were lost, and the whole tree was compared instead."""

    seen: list[Seen] = field(default_factory=list)
    not_covered: list[NotCovered] = field(default_factory=list)
    overflowed: bool = False


@dataclass(frozen=True, slots=True)
class Coverage:
    """What of a command's changes will be known: everything, or only files that git tracks or that were noted (`limited`).

    `why` says in a sentence why it is limited. `ready`: every state is known. `copied`: the background copies are made as well.
    """

    kind: Literal["full", "limited"]
    why: str | None = None
    ready: bool = False
    copied: bool = False


@dataclass(slots=True)
class Counts:
    """What was done so far, for tests and for whoever wonders."""

    directories_read: int = 0
    files_read: int = 0
    lstats: int = 0
    overflows: int = 0
