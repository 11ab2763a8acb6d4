"""Linux's inotify, as far as the tree needs it. One watch a directory; the kernel keeps a bounded queue of what happened."""

from __future__ import annotations

import ctypes
import os
import struct
from functools import cache
from pathlib import Path

MODIFY, ATTRIB, CLOSE_WRITE = 0x2, 0x4, 0x8
MOVED_FROM, MOVED_TO, CREATE, DELETE = 0x40, 0x80, 0x100, 0x200
OVERFLOW, IGNORED, FOLDER = 0x4000, 0x8000, 0x4000_0000

_WANTED = MODIFY | ATTRIB | CLOSE_WRITE | MOVED_FROM | MOVED_TO | CREATE | DELETE
_ONLYDIR, _DONT_FOLLOW, _EXCL_UNLINK = 0x0100_0000, 0x0200_0000, 0x0400_0000
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


class Inotify:
    """A queue of events. `add` and `remove` may be called from any thread; `read` by one at a time."""

    def __init__(self) -> None:
        """Raises `OSError` where there is none, or no more of them for this user."""
        self._library = _library()
        self.fd = self._library.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1")

    def add(self, path: str) -> int:
        """Watch the directory at `path` (a link is not followed); gives its number, the same for the same inode. Raises
        `OSError`."""
        flags = _WANTED | _ONLYDIR | _DONT_FOLLOW | _EXCL_UNLINK
        watch: int = self._library.inotify_add_watch(self.fd, os.fsencode(path), flags)
        if watch < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
        return watch

    def remove(self, watch: int) -> None:
        """Watch it no more; quiet when the directory is gone already."""
        self._library.inotify_rm_watch(self.fd, watch)

    def read(self) -> list[tuple[int, int, str]]:
        """All that happened until now, oldest first: watch, mask and name. Does not wait."""
        events: list[tuple[int, int, str]] = []
        while True:
            try:
                raw = os.read(self.fd, _BUFFER)
            except BlockingIOError:
                return events
            at = 0
            while at < len(raw):
                watch, mask, _, length = _EVENT.unpack_from(raw, at)
                at += 16 + length
                events.append((watch, mask, os.fsdecode(raw[at - length : at].rstrip(b"\0"))))

    def close(self) -> None:
        """Give the queue and all its watches back."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(None, use_errno=True)
    library.inotify_add_watch.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_uint32)
    library.inotify_rm_watch.argtypes = (ctypes.c_int, ctypes.c_int)
    return library


def most_watches() -> int:
    """How many directories all programs of a user may watch together."""
    try:
        return int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    except (OSError, ValueError):
        return 8192
