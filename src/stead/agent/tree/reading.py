"""Contents of the person's files, read so that a torn one is not taken for a whole one."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stead.agent.tree.stamps import packed
from stead.core.errors import SteadError
from stead.store import safefile

if TYPE_CHECKING:
    from hashlib import _Hash

_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Read:
    """What a file held. `content` is None when it is larger than what was to be kept; `git`: its name as an object of git."""

    state: bytes
    bits: int
    size: int
    digest: str
    git: bytes | None
    content: bytes | None


def read(path: Path, keep: int, git: str | None = None) -> Read | None:
    """Read the regular file at `path` (no link is followed) whole, and keep its content up to `keep` bytes.

    `git` names the hash by which git names objects, to have that name as well. None when the file cannot be read, or changed
    twice while it was read.
    """
    for _ in range(2):
        try:
            fd = safefile.opened(path)
        except SteadError:
            return None
        try:
            before = os.fstat(fd)
            found = _whole(fd, before, keep, git)
            after = os.fstat(fd)
        except OSError:
            return None
        finally:
            os.close(fd)
        if found is not None and found.state == packed(after):
            return found
    return None


def _whole(fd: int, about: os.stat_result, keep: int, git: str | None) -> Read | None:
    digest = hashlib.sha256()
    name: _Hash | None = None
    if git is not None:
        name = hashlib.new(git, b"blob %d\0" % about.st_size, usedforsecurity=False)
    kept: list[bytes] | None = [] if about.st_size <= keep else None
    size = 0
    while piece := os.read(fd, min(_CHUNK, about.st_size - size + 1)):
        size += len(piece)
        if size > about.st_size:
            return None
        digest.update(piece)
        if name is not None:
            name.update(piece)
        if kept is not None:
            kept.append(piece)
    if size != about.st_size:
        return None
    content = None if kept is None else b"".join(kept)
    return Read(packed(about), about.st_mode & 0o7777, size, digest.hexdigest(), name.digest() if name else None, content)


def reread(path: Path, digest: str, most: int) -> bytes:
    """The content that had this SHA-256 a moment ago. Raises `conflict` when it is not there any more."""
    found = read(path, most)
    if found is None or found.content is None or found.digest != digest:
        raise SteadError("conflict", f"{path} holds something else by now.", details={"path": str(path)})
    return found.content
