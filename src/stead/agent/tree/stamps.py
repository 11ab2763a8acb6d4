"""The state of a path as `lstat` tells it, packed into 36 bytes: a tree of 100,000 files has as many of them."""

from __future__ import annotations

import os
import stat
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from stead.store.safefile import Kind

_FORM = struct.Struct("<IqqqQ")
_MODE = struct.Struct("<I")
_MASK = (1 << 64) - 1

RACY_NS = 20_000_000
"""Time stamps of file systems move in steps of up to 10 ms: a file that changed so shortly before it was looked at may change
again without another stamp."""


class Stamp(NamedTuple):
    """What a packed state says. Times are nanoseconds; those and the size of a folder are always 0."""

    mode: int
    size: int
    mtime: int
    ctime: int
    ino: int

    @property
    def bits(self) -> int:
        """Permission bits."""
        return stat.S_IMODE(self.mode)

    @property
    def kind(self) -> Kind:
        """What it is."""
        form = stat.S_IFMT(self.mode)
        return _KINDS.get(form, "other")


_KINDS: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFLNK: "symlink", stat.S_IFDIR: "directory"}


def packed(found: os.stat_result) -> bytes:
    """A state to keep and to compare."""
    if stat.S_ISDIR(found.st_mode):  # its size and times follow from what is in it
        return _FORM.pack(found.st_mode, 0, 0, 0, found.st_ino & _MASK)
    return _FORM.pack(found.st_mode, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino & _MASK)


def unpacked(state: bytes) -> Stamp:
    """What `packed` was given."""
    return Stamp._make(_FORM.unpack(state))


def is_folder(state: bytes | None) -> bool:
    """Whether it is a directory."""
    return state is not None and stat.S_ISDIR(_MODE.unpack_from(state)[0])


def same_content(one: bytes, other: bytes) -> bool:
    """Whether all but the mode is the same."""
    return one[4:] == other[4:]


def inode(state: bytes) -> bytes:
    """The number of the inode, as packed."""
    return state[28:]


def is_file(state: bytes) -> bool:
    """Whether it is a regular file."""
    return stat.S_ISREG(_MODE.unpack_from(state)[0])
