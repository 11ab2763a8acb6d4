"""Files written so that a crash leaves the old or the new content, never a part: the only place that writes files in place.

`write_private` is for stead's own files (0600), `replace` and `remove` for the user's. Every step is made durable before the
next one (fsync of the file, rename, fsync of the folder). A file that has several hard links, or that could not be renamed
without changing whose it is, is written in place instead; `in_place` tells so beforehand, because only then a crash can leave
a torn file, and only the caller's journal (before-image and digest of what was wanted) can finish or take back such a write.

Folders are opened step by step without following symbolic links once the real path is known, and everything happens relative
to that descriptor: swapping a folder for a link after a permission check does not lead the write elsewhere.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from stead.core.errors import SteadError
from stead.store import faults

Kind = Literal["absent", "file", "symlink", "directory", "other"]

_TEMP = re.compile(r"\..*\.stead-[0-9a-z]{16}\.tmp", re.DOTALL)
_NAME_BYTES = 100  # of the original name in a temporary one: file systems allow 255 bytes, encrypting ones only 143
_RESTORE_BYTES = 64 << 20  # larger files are not held in memory to be put back when writing in place fails
_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)  # a folder that may be searched but not listed can still be walked through


@dataclass(frozen=True)
class State:
    """What stands at a path; nothing is followed. `mode`: permission bits, `size`: bytes of a file, `target`: text of a link."""

    path: Path
    kind: Kind
    mode: int = 0
    size: int = 0
    target: str | None = None

    @cached_property
    def digest(self) -> str | None:
        """SHA-256 of a file's content, read when first asked for; None for everything that is not a file."""
        if self.kind != "file":
            return None
        with _reported(self.path), os.fdopen(_open_to_read(self.path, follow=False), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def state(path: Path) -> State:
    """The state of `path` itself (a link is not followed). Never fails for a missing path; raises for an unreadable folder."""
    with _reported(path):
        try:
            found = os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return State(path, "absent")
        mode = stat.S_IMODE(found.st_mode)
        if stat.S_ISREG(found.st_mode):
            return State(path, "file", mode, found.st_size)
        if stat.S_ISLNK(found.st_mode):
            return State(path, "symlink", mode, target=os.readlink(path))
        return State(path, "directory" if stat.S_ISDIR(found.st_mode) else "other", mode)


def read_bytes(path: Path, limit: int | None = None, *, follow: bool = True) -> bytes:
    """The first `limit` bytes (None: all) of a regular file. Anything else (a pipe, a device) is refused, without hanging.

    With `follow=False` no part of the path may be a symbolic link (`conflict` if one is): for real paths checked before.
    """
    with _reported(path), os.fdopen(_open_to_read(path, follow=follow), "rb") as file:
        return file.read() if limit is None else file.read(limit)


def opened(path: Path) -> int:
    """A descriptor to read the regular file at the real path `path`, under the rules of `read_bytes(follow=False)`; close it."""
    with _reported(path):
        return _open_to_read(path, follow=False)


def real_path(path: Path) -> Path:
    """Where `path` leads when every link is followed, also when nothing is there yet. A loop of links is `not_found`."""
    try:
        return Path(os.path.realpath(path, strict=True))
    except FileNotFoundError:
        return Path(os.path.realpath(path))
    except OSError as error:
        raise from_os(error, path) from None


def private_folder(path: Path) -> Path:
    """Make `path` (and missing parents) as folders that only their owner may enter, whatever the umask; returns it."""
    with _reported(path):
        missing = [folder for folder in (path, *path.parents) if not folder.is_dir()]
        for folder in reversed(missing):
            try:
                os.mkdir(folder, 0o700)
            except FileExistsError:
                if not folder.is_dir():  # else another process was faster
                    message = f"{folder} is not a folder."
                    raise SteadError("conflict", message, hint="Move it away.", details={"path": str(folder)}) from None
            os.chmod(folder, 0o700)
            sync_folder(folder.parent)
        found = os.stat(path)
        if stat.S_IMODE(found.st_mode) != 0o700 and found.st_uid == os.geteuid():
            os.chmod(path, 0o700)
    return path


def write_private(path: Path, data: bytes) -> None:
    """Write one of stead's own files, readable by its owner only. After a crash there is the old or the new one."""
    with _reported(path), _folder(path.parent, follow=True) as folder:
        _swap(folder, path.name, data, mode=0o600, like=None)


def create_private(path: Path, data: bytes) -> bool:
    """Like `write_private` for a file that is made once: False, and nothing is written, where one stands there already. Of several
    processes at once one makes it."""
    with _reported(path), _folder(path.parent, follow=True) as folder:
        try:
            _swap(folder, path.name, data, mode=0o600, like=None, once=True)
        except FileExistsError:
            return False
    return True


def make_folders(path: Path) -> list[Path]:
    """Make the folder `path` and its missing parents durably, with the user's umask; gives those made, outermost first."""
    with _reported(path):
        missing = [folder for folder in (path, *path.parents) if not os.path.lexists(folder)]
        made = []
        for folder in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(folder)
                made.append(folder)
            sync_folder(folder.parent)
        return made


def in_place(path: Path) -> bool:
    """Whether `replace` would write into the existing file, so that a crash could leave a mixture and a journal is needed."""
    target = real_path(path)
    try:
        found = os.lstat(target)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return _needs_in_place(target.parent, found)


def replace(path: Path, data: bytes, *, mode: int | None = None, follow: bool = True) -> None:
    """Give the user's file at `path` the content `data`; missing folders are made, links are followed to their target.

    Mode bits, owner, group, extended attributes and ACL stay as they are; `mode` sets the permission bits instead. A new file
    gets what the umask and the folder say. With `follow=False` the path must be a real one (`conflict` if a link is in it).
    Errors: `disk_full`, `read_only`, `conflict` (a folder, pipe or device stands there), `not_found` (a loop of links).
    """
    target = real_path(path) if follow else path
    make_folders(target.parent)
    with _reported(target), _folder(target.parent, follow=False) as folder:
        try:
            found = os.stat(target.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            _swap(folder, target.name, data, mode=mode, like=None)
            return
        if stat.S_ISLNK(found.st_mode):
            raise OSError(errno.ELOOP, "a symbolic link")
        if not stat.S_ISREG(found.st_mode):
            raise SteadError("conflict", f"{target} is not a file and was left alone.", details={"path": str(target)})
        if _needs_in_place(target.parent, found):
            _overwrite(folder, target.name, data, found, mode)
            return
        try:
            _swap(folder, target.name, data, mode=mode, like=found)
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.EXDEV):  # a file that is a mount point of its own
                raise
            _overwrite(folder, target.name, data, found, mode)


def remove(path: Path, *, follow: bool = True) -> bool:
    """Remove the file or link at `path` durably (a link itself, not its target); False when nothing was there."""
    parent = real_path(path.parent) if follow else path.parent
    with _reported(path):
        try:
            with _folder(parent, follow=False) as folder:
                if stat.S_ISDIR(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise SteadError("conflict", f"{path} is a folder and was left alone.", details={"path": str(path)})
                os.unlink(path.name, dir_fd=folder)
                faults.point("safefile.removed")
                _sync(folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def sync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable, where its file system and our rights allow that: a file that was made, renamed
    or removed stays so after a power cut. Raises what the system says (`OSError`)."""
    with suppress(PermissionError), _folder(path, follow=True) as fd:
        _sync(fd)


def leftovers(folder: Path, name: str | None = None) -> list[Path]:
    """The temporary files in `folder`, sorted; those made for writing the file `name`, or all. Living writers' are among them."""
    begin = "." if name is None else _temp_begin(name)
    with _reported(folder):
        return sorted(folder / found for found in os.listdir(folder) if found.startswith(begin) and _TEMP.fullmatch(found))


def sweep(folder: Path, name: str | None = None, *, below: bool = False) -> int:
    """Remove the `leftovers` of writers that are dead, in `folder` or also in all below it, and give how many; a living writer's
    file is locked and stays. Quiet where nothing may be removed, and where the file system knows no locks."""
    gone = 0
    for one in [folder, *(Path(top) for top, _, _ in os.walk(folder) if below and top != str(folder))]:
        with _reported(one), _folder(one, follow=True) as fd:
            gone += sum(_swept(path.name, fd) for path in leftovers(one, name))
    return gone


def from_os(error: OSError, path: Path) -> SteadError:
    """Our error for what the operating system said about `path`: `disk_full`, `read_only`, `not_found`, `conflict`, `bad_value`."""
    details = {"path": str(path)}
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SteadError("disk_full", f"There is no space to write {path}.", details=details)
    if number == errno.ELOOP:
        if os.path.islink(path) or not os.path.lexists(path):
            return SteadError("not_found", f"{path} is a loop of symbolic links.", details=details)
        return SteadError("conflict", f"A folder of {path} has become a symbolic link.", details=details)
    if number in (errno.ENOENT, errno.ENOTDIR):
        return SteadError("not_found", f"{path} does not exist.", details=details)
    if number in (errno.EISDIR, errno.EEXIST):
        return SteadError("conflict", f"{path} is not a file.", details=details)
    if number == errno.ENAMETOOLONG:
        return SteadError("bad_value", f"{path} is too long a name for this file system.", details=details)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return SteadError("read_only", f"{path} cannot be accessed: {error.strerror}.", details=details)
    return SteadError("read_only", f"{path} cannot be read or written: {error.strerror or error}.", details=details)


def _swap(folder: int, name: str, data: bytes, *, mode: int | None, like: os.stat_result | None, once: bool = False) -> None:
    """Write a temporary file beside `name` and rename it over; `like` is the file whose attributes it takes. `once`: only where
    nothing has that name yet (`FileExistsError`)."""
    # A new file of the user's gets its bits from the umask and the folder's default ACL; all others start closed.
    temp, fd = _draft(folder, name, 0o666 if mode is None and like is None else 0o600)
    try:
        faults.point("safefile.created")
        if like is not None:
            _take_attributes(folder, name, fd, like)
        if mode is not None or like is not None:
            os.fchmod(fd, mode if mode is not None else stat.S_IMODE(like.st_mode) if like else 0o600)
        _write(fd, data)
        faults.point("safefile.written")
        _sync(fd)
        faults.point("safefile.synced")
        if once:
            os.link(temp, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
            faults.point("safefile.linked")
            os.unlink(temp, dir_fd=folder)
        else:
            os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            os.unlink(temp, dir_fd=folder)
        raise
    finally:
        os.close(fd)
    faults.point("safefile.renamed")
    _sync(folder)
    faults.point("safefile.done")


def _draft(folder: int, name: str, mode: int) -> tuple[str, int]:
    """A new temporary file for `name`, by name and open. It is locked while it is open, so that one that can be locked is a dead
    writer's and gives its place up: many deaths in the same file leave one behind, not many."""
    n = 0
    while True:
        temp = _temp_name(name, n)
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
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(temp, dir_fd=folder)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)


def _overwrite(folder: int, name: str, data: bytes, found: os.stat_result, mode: int | None) -> None:
    """Write `data` into the existing file. Space is taken first, so that a full disk shows before anything is overwritten."""
    fd = _open_to_write(folder, name, found)
    try:
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
            _sync(fd)
        except OSError:
            if before is not None:
                with suppress(OSError):
                    os.lseek(fd, 0, os.SEEK_SET)
                    _write(fd, before)
                    os.ftruncate(fd, len(before))
                    _sync(fd)
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


def _needs_in_place(parent: Path, found: os.stat_result) -> bool:
    if not stat.S_ISREG(found.st_mode):
        return False
    if found.st_nlink > 1 or not os.access(parent, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
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


@contextmanager
def _folder(path: Path, *, follow: bool) -> Iterator[int]:
    """A descriptor of the folder `path`; with `follow=False` no step to it may be a symbolic link."""
    flags = os.O_DIRECTORY | os.O_CLOEXEC
    if follow:
        fd = os.open(path, os.O_RDONLY | flags)
    else:
        fd = _walk(path, flags | os.O_NOFOLLOW)
    try:
        yield fd
    finally:
        os.close(fd)


def _walk(path: Path, flags: int) -> int:
    parts = path.absolute().parts
    fd = os.open(parts[0], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for number, part in enumerate(parts[1:], 2):
        last = number == len(parts)
        try:
            try:
                step = os.open(part, (os.O_RDONLY if last else _PATH_ONLY) | flags, dir_fd=fd)
            except PermissionError:  # may be entered and written but not listed
                step = os.open(part, _PATH_ONLY | flags, dir_fd=fd)
        except NotADirectoryError:
            if stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode):
                raise OSError(errno.ELOOP, "a symbolic link") from None
            raise
        finally:
            os.close(fd)
        fd = step
    return fd


def _open_to_read(path: Path, *, follow: bool) -> int:
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC  # non-blocking: opening a pipe must not wait for a writer
    if follow:
        fd = os.open(path, flags)
    else:
        with _folder(path.parent, follow=False) as folder:
            fd = os.open(path.name, flags | os.O_NOFOLLOW, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise SteadError("conflict", f"{path} is not a file.", details={"path": str(path)})
    return fd


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


def _sync(fd: int) -> None:
    if sys.platform == "darwin":
        with suppress(OSError):  # plain fsync does not reach the platter on macOS; not every file system knows the better one
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)
            return
    try:
        os.fsync(fd)
    except OSError as error:
        # Folders of some network file systems, and folders we may not list, cannot be synced; there is nothing better to do.
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise


def _temp_name(name: str, n: int) -> str:
    return f"{_temp_begin(name)}{n:016}.tmp"


def _temp_begin(name: str) -> str:
    kept = os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")
    return f".{kept}.stead-"


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    """Turn the system's errors into ours, each with the path it is about."""
    try:
        yield
    except OSError as error:
        raise from_os(error, path) from error
