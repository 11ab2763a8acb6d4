"""Where a folder may be watched as a whole, and where not."""

from __future__ import annotations

import os
from pathlib import Path

from stead.store import filesystem

_MUTE = frozenset(("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "debugfs", "tracefs", "securityfs"))
"""Not a network's, and yet silent."""


class Limited(Exception):
    """The tree cannot be watched as a whole; says why, in a sentence."""


def refusal(root: Path, home: Path) -> str | None:
    """Why the folder at the real path `root` must not be walked; None when it may be. Reads no directory."""
    home = Path(os.path.realpath(home))
    if root == Path(root.anchor):
        return "It is the root of the file system."
    if home == root:
        return "It is the home folder."
    if home.is_relative_to(root):
        return "The home folder is in it."
    return None if tells(root) else f"Its file system ({filesystem.below(root).name or 'unknown'}) does not tell of changes."


def tells(folder: Path) -> bool:
    """Whether the file system below tells of every change: a network's does not tell of others', `/proc` of nothing."""
    below = filesystem.below(folder)
    return not below.network and below.name not in _MUTE


def inside(root: Path, other: Path | None) -> str | None:
    """The path of `other` relative to `root`, with `/`; None when it is not in it."""
    if other is None:
        return None
    real = Path(os.path.realpath(other))
    return real.relative_to(root).as_posix() if real != root and real.is_relative_to(root) else None
