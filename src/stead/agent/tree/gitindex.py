"""git's index, read and never written: which files are tracked, and which of them are as git has them.

The format is gitformat-index(5), versions 2 to 4. Of a split index, and of anything unknown, nothing is said.
"""

from __future__ import annotations

import struct
from functools import cached_property

from stead.agent.tree.stamps import Stamp

_HEAD = struct.Struct(">4sII")
_STAT = struct.Struct(">10I")
_STAT_BYTES = 40
_EXTENDED, _STAGE = 0x4000, 0x3000
_32 = 0xFFFF_FFFF


class GitIndex:
    """One state of an index file. `written` is the file's mtime (ns), `hash_bytes` 20, or 32 with SHA-256. Thread-safe."""

    def __init__(self, raw: bytes, written: int, hash_bytes: int = 20) -> None:
        self._raw, self._written, self._hash = raw, written, hash_bytes

    @cached_property
    def _places(self) -> dict[bytes, int]:
        """Where the entry of each path begins. Read when first asked for: it takes about a microsecond a file."""
        try:
            return _places(self._raw, self._hash)
        except (struct.error, IndexError, ValueError):
            return {}

    def warm(self) -> None:
        """Read the entries now."""
        _ = self._places

    def paths(self) -> list[bytes]:
        """The tracked files and links, relative to the work tree."""
        return [path for path, at in self._places.items() if _STAT.unpack_from(self._raw, at)[6] >> 12 in (0o10, 0o12)]

    def clean(self, path: bytes, state: Stamp) -> bytes | None:
        """The object that holds the content of `path` when its state is `state`; None when it is not tracked, or may be changed."""
        at = self._places.get(path)
        if at is None:
            return None
        ctime, cnano, mtime, mnano, _, ino, mode, _, _, size = _STAT.unpack_from(self._raw, at)
        if mode >> 12 != 0o10 or size != state.size & _32 or ino != state.ino & _32:
            return None
        if not _equal(ctime, cnano, state.ctime) or not _equal(mtime, mnano, state.mtime):
            return None
        # As git does: a file not older than the index may have changed after git looked, without another mtime.
        written = self._written if mnano else self._written // 10**9 * 10**9
        if mtime * 10**9 + mnano >= written:
            return None
        return self.object(path)

    def object(self, path: bytes) -> bytes | None:
        """The object that the index names for `path`, whatever the file holds."""
        at = self._places.get(path)
        return None if at is None else self._raw[at + _STAT_BYTES : at + _STAT_BYTES + self._hash]


def _equal(seconds: int, nano: int, time: int) -> bool:
    """Some writers of an index leave the nanoseconds out."""
    whole, rest = divmod(time, 10**9)
    return seconds == whole & _32 and (nano in (0, rest))


def _places(raw: bytes, hash_bytes: int) -> dict[bytes, int]:
    signature, version, count = _HEAD.unpack_from(raw)
    if signature != b"DIRC" or version not in (2, 3, 4):
        return {}
    found: dict[bytes, int] = {}
    flags_at, at, path = _STAT_BYTES + hash_bytes, _HEAD.size, b""
    for _ in range(count):
        flags = raw[at + flags_at] << 8 | raw[at + flags_at + 1]
        begin = at + flags_at + (4 if flags & _EXTENDED else 2)
        if version == 4:
            dropped, begin = _number(raw, begin)
            end = raw.index(b"\0", begin)
            path = path[: len(path) - dropped] + raw[begin:end]
            after = end + 1
        else:
            length = flags & 0xFFF
            end = begin + length if length < 0xFFF else raw.index(b"\0", begin)
            path = raw[begin:end]
            after = at + (end - at) // 8 * 8 + 8
        if not flags & _STAGE:
            found[path] = at
        at = after
    return {} if _is_split(raw, at, hash_bytes) else found


def _number(raw: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    byte = raw[at]
    value = byte & 127
    while byte & 128:
        at += 1
        byte = raw[at]
        value = (value + 1) << 7 | byte & 127
    return value, at + 1


def _is_split(raw: bytes, at: int, hash_bytes: int) -> bool:
    """Whether an extension says that most of the entries stand in another file."""
    while at + 8 <= len(raw) - hash_bytes:
        if raw[at : at + 4] == b"link":
            return True
        at += 8 + int.from_bytes(raw[at + 4 : at + 8], "big")
    return False
