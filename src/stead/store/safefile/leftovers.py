"""Temporary files: their names, their locks, and those that dead writers left."""

from __future__ import annotations

import errno
import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path

from stead.store.safefile.errors import reported
from stead.store.safefile.walk import folder as opened_folder

_TEMP = re.compile(r"\..*\.stead-[0-9a-z]{16}\.tmp", re.DOTALL)
_NAME_BYTES = 100  # of the original name in a temporary one: file systems allow 255 bytes, encrypting ones only 143


def leftovers(folder: Path, name: str | None = None) -> list[Path]:
    """The temporary files in `folder`, sorted; those made for writing the file `name`, or all. Living writers' are among them."""
    begin = "." if name is None else _temp_begin(name)
    with reported(folder):
        return sorted(folder / found for found in os.listdir(folder) if found.startswith(begin) and _TEMP.fullmatch(found))


def sweep(folder: Path, name: str | None = None, *, below: bool = False) -> int:
    """Remove the `leftovers` of writers that are dead, in `folder` or also in all below it, and give how many; a living writer's
    file is locked and stays. Quiet where nothing may be removed, and where the file system knows no locks."""
    gone = 0
    for one in [folder, *(Path(top) for top, _, _ in os.walk(folder) if below and top != str(folder))]:
        with reported(one), opened_folder(one, follow=True) as fd:
            gone += sum(_swept(path.name, fd) for path in leftovers(one, name))
    return gone


def draft(folder: int, name: str, mode: int) -> tuple[str, int]:
    """A new temporary file for `name`, by name and open. It is locked while it is open, so that one that can be locked is a dead
    writer's and gives its place up: many deaths in the same file leave one behind, not many."""
    n = 0
    while True:
        temp = temp_name(name, n)
        try:
            fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)
        except FileExistsError:
            n += not _swept(temp, folder)
            continue
        with suppress(OSError):  # a file system without locks: then nobody sweeps there either
            fcntl.flock(fd, fcntl.LOCK_EX)
        if os.fstat(fd).st_nlink:  # else it was swept away before it was locked
            return temp, fd
        os.close(fd)


def _swept(temp: str, folder: int) -> bool:
    """Remove a dead writer's temporary file. False when its writer lives, or that cannot be told."""
    try:
        fd = os.open(temp, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    except OSError as error:
        if error.errno != errno.ELOOP:
            return False
        with suppress(OSError):  # a link cannot be locked; who still writes it is told that it is gone
            os.unlink(temp, dir_fd=folder)
            return True
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(temp, dir_fd=folder)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def temp_name(name: str, n: int) -> str:
    return f"{_temp_begin(name)}{n:016}.tmp"


def _temp_begin(name: str) -> str:
    kept = os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")
    return f".{kept}.stead-"
