"""Files written so that a crash leaves the old or the new content, never a part: the only place that writes files in place.

`write_private` is for stead's own files (0600), `replace` for the user's. Every step is made durable before the
next one (fsync of the file, rename, fsync of the folder). A file that has several hard links, or that could not be renamed
without changing whose it is, is written in place instead; `in_place` tells so beforehand, because only then a crash can leave
a torn file, and only the caller's journal (before-image and digest of what was wanted) can finish or take back such a write.

Folders are opened step by step without following symbolic links once the real path is known, and everything happens relative
to that descriptor: swapping a folder for a link after a permission check does not lead the write elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from stead.core.errors import SteadError
from stead.store import faults
from stead.store.safefile import walk
from stead.store.safefile.errors import reported
from stead.store.safefile.exchange import Unexpected, put
from stead.store.safefile.leftovers import draft
from stead.store.safefile.state import Stamp
from stead.store.safefile.tree import changed
from stead.store.safefile.walk import folder as opened_folder
from stead.store.safefile.walk import make_folders, real_path

_RESTORE_BYTES = 64 << 20  # larger files are not held in memory to be put back when writing in place fails

Data = bytes | Iterable[bytes]


def write_private(path: Path, data: bytes) -> None:
    """Write one of stead's own files, readable by its owner only. After a crash there is the old or the new one."""
    with reported(path), opened_folder(path.parent, follow=True) as folder:
        _swap(folder, path.name, data, mode=0o600, like=None)


def create_private(path: Path, data: bytes) -> bool:
    """Like `write_private` for a file that is made once: False, and nothing is written, where one stands there already. Of several
    processes at once one makes it."""
    with reported(path), opened_folder(path.parent, follow=True) as folder:
        try:
            _swap(folder, path.name, data, mode=0o600, like=None, once=True)
        except FileExistsError:
            return False
    return True


def in_place(path: Path) -> bool:
    """Whether `replace` would write into the existing file, so that a crash could leave a mixture and a journal is needed."""
    target = real_path(path)
    try:
        found = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return _needs_in_place(target.parent, found)


def replace(
    path: Path, data: Data, *, mode: int | None = None, follow: bool = True, expect: Stamp | None = None, apart: bool = False
) -> None:
    """Give the user's file at `path` the content `data`; missing folders are made, links are followed to their target.

    Mode bits, owner, group, extended attributes and ACL stay as they are; `mode` sets the permission bits instead. A new file
    gets what the umask and the folder say. With `follow=False` the path must be a real one (`conflict` if a link is in it).
    With `expect` the path must still have this stamp in the moment of the change, else it is left alone (`conflict`); a link
    may stand there then, and is replaced. `data` may come in pieces; when one of them fails, the old file stays. `apart`: other
    names of the file (hard links) keep what they hold; where that cannot be, `conflict`.
    Errors: `disk_full`, `read_only`, `conflict` (a folder, pipe or device stands there), `not_found` (a loop of links).
    """
    target = real_path(path) if follow else path
    make_folders(target.parent)
    with reported(target), opened_folder(target.parent, follow=False) as folder:
        try:
            found = os.stat(target.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            _swap(folder, target.name, data, mode=mode, like=None, expect=expect)
            return
        if expect is not None and Stamp.of(found) != expect:
            raise changed(target)
        if stat.S_ISLNK(found.st_mode) and expect is not None:
            _swap(folder, target.name, data, mode=mode, like=None, expect=expect)
            return
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, "a symbolic link")
        if not stat.S_ISREG(found.st_mode):
            raise SteadError("conflict", f"{target} is not a file and was left alone.", details={"path": str(target)})
        if apart and found.st_nlink > 1:
            if _needs_in_place(target.parent, found, links=False):
                raise SteadError(
                    "conflict", f"{target} has other names, which would change with it.", details={"path": str(target)}
                )
        elif _needs_in_place(target.parent, found):
            _overwrite(folder, target.name, whole(data), found, mode, expect)
            return
        try:
            _swap(folder, target.name, data, mode=mode, like=found, expect=expect)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EXDEV):  # a file that is a mount point of its own
                raise
            _overwrite(folder, target.name, whole(data), found, mode, expect)


def _swap(
    folder: int,
    name: str,
    data: Data,
    *,
    mode: int | None,
    like: os.stat_result | None,
    once: bool = False,
    expect: Stamp | None = None,
) -> None:
    """Write a temporary file beside `name` and rename it over; `like` is the file whose attributes it takes. `once`: only where
    nothing has that name yet (`FileExistsError`)."""
    # A new file of the user's gets its bits from the umask and the folder's default ACL; all others start closed.
    temp, fd = draft(folder, name, 0o666 if mode is None and like is None else 0o600)
    try:
        faults.point("safefile.created")
        if like is not None:
            _take_attributes(folder, name, fd, like)
        if mode is not None or like is not None:
            os.fchmod(fd, mode if mode is not None else stat.S_IMODE(like.st_mode) if like else 0o600)
        for piece in (data,) if isinstance(data, bytes) else data:
            _write(fd, piece)
        faults.point("safefile.written")
        walk.sync(fd)
        faults.point("safefile.synced")
        if once:
            os.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            faults.point("safefile.linked")
            os.unlink(temp, dir_fd=folder)
        else:
            put(folder, temp, name, expect)
    except BaseException as error:
        with suppress(OSError):
            os.unlink(temp, dir_fd=folder)
        if isinstance(error, Unexpected):
            raise SteadError("conflict", f"{name} was changed in this moment and was left alone.") from None
        raise
    finally:
        os.close(fd)
    faults.point("safefile.renamed")
    walk.sync(folder)
    faults.point("safefile.done")


def whole(data: Data) -> bytes:
    """All of it in memory: what is written in place must be there before the first byte is."""
    return data if isinstance(data, bytes) else b"".join(data)


def _overwrite(folder: int, name: str, data: bytes, found: os.stat_result, mode: int | None, expect: Stamp | None) -> None:
    """Write `data` into the existing file. Space is taken first, so that a full disk shows before anything is overwritten."""
    fd = _open_to_write(folder, name, found)
    try:
        if expect is not None and Stamp.of(os.fstat(fd)) != expect:
            raise changed(Path(name))
        before = _read_all(fd) if found.st_size <= _RESTORE_BYTES else None
        try:
            _reserve(fd, found.st_size, len(data))
            faults.point("safefile.inplace.opened")
            half = len(data) // 2
            _write(fd, data[:half])
            faults.point("safefile.inplace.half")
            _write(fd, data[half:])
            faults.point("safefile.inplace.written")
            os.ftruncate(fd, len(data))
            walk.sync(fd)
        except OSError:
            if before is not None:
                with suppress(OSError):
                    os.lseek(fd, 0, os.SEEK_SET)
                    _write(fd, before)
                    os.ftruncate(fd, len(before))
                    walk.sync(fd)
            raise
        if mode is not None and mode != stat.S_IMODE(found.st_mode):
            os.fchmod(fd, mode)
        faults.point("safefile.inplace.done")
    finally:
        os.close(fd)


def _open_to_write(folder: int, name: str, found: os.stat_result) -> int:
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=folder)
    except PermissionError:
        if found.st_uid != os.geteuid():
            raise
    # Our own read-only file: the bits are opened for the moment of opening only; the descriptor stays writable.
    os.chmod(name, stat.S_IMODE(found.st_mode) | stat.S_IWUSR | stat.S_IRUSR, dir_fd=folder)
    try:
        return os.open(name, flags, dir_fd=folder)
    finally:
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=folder)


def _needs_in_place(parent: Path, found: os.stat_result, *, links: bool = True) -> bool:
    if not stat.S_ISREG(found.st_mode):
        return False
    if (links and found.st_nlink > 1) or not os.access(
        parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        return True
    if os.geteuid() == 0:
        return False  # may give files away
    return found.st_uid != os.geteuid() or found.st_gid not in {os.getegid(), *os.getgroups()}


def _take_attributes(folder: int, name: str, fd: int, like: os.stat_result) -> None:
    """Owner, group, extended attributes and ACL of the file `name`, as far as this process may set them."""
    now = os.fstat(fd)
    if (now.st_uid, now.st_gid) != (like.st_uid, like.st_gid):
        with suppress(OSError):
            os.fchown(fd, like.st_uid, like.st_gid)
    if not hasattr(os, "listxattr"):
        return
    try:
        source = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return  # not readable for us: its attributes are not either
    try:
        wanted = set(_attributes(source))
        for attribute in set(_attributes(fd)) - wanted:  # an ACL that the folder's default put on the new file
            with suppress(OSError):
                os.removexattr(fd, attribute)
        for attribute in wanted:
            with suppress(OSError):
                os.setxattr(fd, attribute, os.getxattr(source, attribute))
    finally:
        os.close(source)


def _attributes(fd: int) -> list[str]:
    try:
        return os.listxattr(fd)
    except OSError:
        return []


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read_all(fd: int) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        before = file.read()
    os.lseek(fd, 0, os.SEEK_SET)
    return before


def _reserve(fd: int, size: int, wanted: int) -> None:
    if wanted > size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, size, wanted - size)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                os.ftruncate(fd, size)
                raise
