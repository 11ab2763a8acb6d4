"""A prepared file takes its place, and nothing that was not expected there is lost by it."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from functools import cache
from typing import Any

from stead.store import faults
from stead.store.safefile.state import Stamp

_NOREPLACE, _EXCHANGE = 1, 2
_UNABLE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM)


class Unexpected(Exception):
    """What stands at the path is not what was expected, and was left."""


def put(folder: int, temp: str, name: str, expect: Stamp | None) -> None:
    """Rename `temp` over `name`. With `expect`, only where `name` still has that stamp: it is looked at before, and, where the
    system can exchange two files, once more when it has been taken out. Raises `Unexpected`; `name` is then what it was."""
    if expect is None:
        os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
        return
    if found(folder, name) != expect:
        raise Unexpected
    faults.point("safefile.looked")
    if expect.kind == "absent":
        _put_new(folder, temp, name)
    elif _renameat2(folder, temp, name, _EXCHANGE):
        faults.point("safefile.exchanged")
        if found(folder, temp) != expect:
            _renameat2(folder, temp, name, _EXCHANGE)
            raise Unexpected
        os.unlink(temp, dir_fd=folder)
    else:
        os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)


def move(old_folder: int, old: str, new_folder: int, new: str) -> None:
    """Rename without overwriting. Raises `Unexpected` where something stands at `new`, unless it is the same file in another
    spelling."""
    here, there = found(old_folder, old), found(new_folder, new)
    if there.kind != "absent":
        if (here.ino, here.dev) != (there.ino, there.dev):
            raise Unexpected
        os.rename(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder)
        return
    try:
        if not _renameat2(old_folder, old, new, _NOREPLACE, to=new_folder):
            os.rename(old, new, src_dir_fd=old_folder, dst_dir_fd=new_folder)
    except FileExistsError:
        raise Unexpected from None


def found(folder: int, name: str) -> Stamp:
    """The stamp of what has this name in an open folder."""
    try:
        return Stamp.of(os.stat(name, dir_fd=folder, follow_symlinks=False))
    except FileNotFoundError:
        return Stamp("absent")


def _put_new(folder: int, temp: str, name: str) -> None:
    try:
        if _renameat2(folder, temp, name, _NOREPLACE):
            return
        with suppress(OSError):  # a symbolic link cannot be linked everywhere
            os.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            os.unlink(temp, dir_fd=folder)
            return
        if found(folder, name).kind != "absent":
            raise Unexpected
        os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        raise Unexpected from None


def _renameat2(folder: int, old: str, new: str, flag: int, *, to: int | None = None) -> bool:
    """False where this system or file system cannot do it."""
    call = _libc()
    if call is None:
        return False
    import ctypes

    if call(folder, os.fsencode(old), folder if to is None else to, os.fsencode(new), flag) == 0:
        return True
    number = ctypes.get_errno()
    if number in _UNABLE:
        return False
    raise OSError(number, os.strerror(number), new)


@cache
def _libc() -> Any:
    """`renameat2` (Linux 3.15, glibc 2.28)."""
    if sys.platform != "linux":
        return None
    import ctypes

    call = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if call is not None:
        call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    return call
