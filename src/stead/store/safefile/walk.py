"""Ways to a folder: step by step without following symbolic links, and what is made durable there."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stead.core.errors import SteadError
from stead.store.safefile.errors import from_os, reported

_PATH_ONLY = getattr(os, "O_PATH", os.O_RDONLY)  # a folder that may be searched but not listed can still be walked through


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
    with reported(path):
        missing = [one for one in (path, *path.parents) if not one.is_dir()]
        for one in reversed(missing):
            try:
                os.mkdir(one, 0o700)
            except FileExistsError:
                if not one.is_dir():  # else another process was faster
                    message = f"{one} is not a folder."
                    raise SteadError("conflict", message, hint="Move it away.", details={"path": str(one)}) from None
            os.chmod(one, 0o700)
            sync_folder(one.parent)
        found = os.stat(path)
        if stat.S_IMODE(found.st_mode) != 0o700 and found.st_uid == os.geteuid():
            os.chmod(path, 0o700)
    return path


def make_folders(path: Path) -> list[Path]:
    """Make the folder `path` and its missing parents durably, with the user's umask; gives those made, outermost first."""
    with reported(path):
        missing = [one for one in (path, *path.parents) if not os.path.lexists(one)]
        made = []
        for one in reversed(missing):
            with suppress(FileExistsError):
                os.mkdir(one)
                made.append(one)
            sync_folder(one.parent)
        return made


def sync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable, where its file system and our rights allow that: a file that was made, renamed
    or removed stays so after a power cut. Raises what the system says (`OSError`)."""
    with suppress(PermissionError), folder(path, follow=True) as fd:
        sync(fd)


@contextmanager
def folder(path: Path, *, follow: bool) -> Iterator[int]:
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


def sync(fd: int) -> None:
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
