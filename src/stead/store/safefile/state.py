"""What stands at a path, and its content, read without following links where that matters."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Literal

from stead.core.errors import SteadError
from stead.store.safefile.errors import reported
from stead.store.safefile.walk import folder

Kind = Literal["absent", "file", "symlink", "directory", "other"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a path was at one moment, cheap to compare: as long as it has this stamp nobody wrote to it, replaced or moved it."""

    kind: Kind
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    ino: int = 0
    dev: int = 0

    @classmethod
    def of(cls, found: os.stat_result) -> Stamp:
        """The stamp of what `lstat` found. A folder's time is left out: it changes with what is in it."""
        kind = _kind(found)
        time, size = (0, 0) if kind == "directory" else (found.st_mtime_ns, found.st_size)
        return cls(kind, stat.S_IMODE(found.st_mode), size, time, found.st_ino, found.st_dev)


ABSENT = Stamp("absent")


@dataclass(frozen=True)
class State:
    """What stands at a path; nothing is followed. `mode`: permission bits, `size`: bytes of a file, `target`: text of a link."""

    path: Path
    kind: Kind
    mode: int = 0
    size: int = 0
    target: str | None = None
    stamp: Stamp = field(default=ABSENT, compare=False)

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 of a file's content, read when first asked for; None for everything that is not a file."""
        if self.kind != "file":
            return None
        with reported(self.path), os.fdopen(_open_to_read(self.path, follow=False), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def state(path: Path) -> State:
    """The state of `path` itself (a link is not followed). Never fails for a missing path; raises for an unreadable folder."""
    with reported(path):
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return State(path, "absent")
        mode = stat.S_IMODE(found.st_mode)
        mode, kind, stamp = stat.S_IMODE(found.st_mode), _kind(found), Stamp.of(found)
        if kind == "symlink":
            return State(path, kind, mode, target=os.readlink(path), stamp=stamp)
        return State(path, kind, mode, found.st_size if kind == "file" else 0, stamp=stamp)


def stamp(path: Path) -> Stamp:
    """The stamp of `path` itself, by which it is known again (`replace(expect=...)`)."""
    return state(path).stamp


def _kind(found: os.stat_result) -> Kind:
    if stat.S_ISREG(found.st_mode):
        return "file"
    if stat.S_ISLNK(found.st_mode):
        return "symlink"
    return "directory" if stat.S_ISDIR(found.st_mode) else "other"


def read_bytes(path: Path, limit: int | None = None, *, follow: bool = True) -> bytes:
    """The first `limit` bytes (None: all) of a regular file. Anything else (a pipe, a device) is refused, without hanging.

    With `follow=False` no part of the path may be a symbolic link (`conflict` if one is): for real paths checked before.
    """
    with reported(path), os.fdopen(_open_to_read(path, follow=follow), "rb") as file:
        return file.read() if limit is None else file.read(limit)


def opened(path: Path) -> int:
    """A descriptor to read the regular file at the real path `path`, under the rules of `read_bytes(follow=False)`; close it."""
    with reported(path):
        return _open_to_read(path, follow=False)


def _open_to_read(path: Path, *, follow: bool) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: opening a pipe must not wait for a writer
    if follow:
        fd = os.open(path, flags)
    else:
        with folder(path.parent, follow=False) as above:
            fd = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=above)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SteadError("conflict", f"{path} is not a file.", details={"path": str(path)})
    return fd
