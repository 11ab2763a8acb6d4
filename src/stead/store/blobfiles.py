"""The files in which large blobs lie: two digits of the hash are the folder, the rest is the name. The name of a delta goes on with
`-` and the beginning of the hash of what it is a delta on: a content may lie there in both forms, and its row says which is meant.

A file is made and removed while its folder is locked, and whoever made a blob ready holds its file until its row is committed.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stead.store.safefile import from_os, private_folder, sync_folder

_NAME = re.compile(r"[0-9a-f]{64}(-[0-9a-f]{16})?")


class Hold:
    """A share in the file of a blob, until the value goes: `Files.discard` removes no file of which somebody has one."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        """Raises `OSError` when there is no such file."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with suppress(OSError):  # where nothing can be locked nothing is collected either
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def stands(self, path: Path) -> bool:
        """Whether the file still has its name: it may have been removed just before it was held."""
        mine = os.fstat(self._fd)
        return _inode(path) == (mine.st_dev, mine.st_ino)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._fd)


class Files:
    """The folder of blobs. Thread-safe, and so among processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        """Where a file of this name (`name_of`) lies."""
        return self.folder / name[:2] / name[2:]

    def listed(self) -> Iterator[tuple[str, int]]:
        """The files that are there, by name, with their sizes."""
        if not self.folder.is_dir():
            return
        for folder in sorted(self.folder.iterdir()):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                name = folder.name + path.name
                if _NAME.fullmatch(name):
                    with suppress(FileNotFoundError):
                        yield name, path.stat().st_size

    def size(self, name: str) -> int:
        """The bytes of a file, 0 when it is not there."""
        try:
            return self.path(name).stat().st_size
        except FileNotFoundError:
            return 0

    def found(self, name: str, form: Callable[[Path], str | None]) -> tuple[str, Hold] | None:
        """A file that is there, held and durable, if `form` knows how it is stored; else None. Gives what `form` does."""
        path = self.path(name)
        hold = _held(path)
        known = form(path) if hold is not None else None
        if hold is None or known is None or not hold.stands(path):
            return None
        sync_folder(path.parent)  # whoever wrote it may not have come that far
        return known, hold

    def keep(self, name: str, form: Callable[[Path], str | None], write: Callable[[Path], None], codec: str) -> tuple[str, Hold]:
        """Have a content durable in its file, held. What lies there already is kept where `form` knows how it is stored, else
        `write` puts it there, durably and in one step, as `codec`. Gives how it lies there. Raises as `safefile.from_os` says."""
        path = self.path(name)
        try:
            private_folder(path.parent)
            while True:
                seen = _inode(path)
                if (found := self.found(name, form)) is not None:
                    return found
                with _alone(path.parent):
                    if _inode(path) == seen:  # else somebody was faster, and it is looked at again
                        write(path)
                        hold = _held(path)
                        if hold is not None and hold.stands(path):
                            return codec, hold
        except OSError as error:
            raise from_os(error, path) from error

    def discard(self, name: str, needed: Callable[[], bool]) -> bool:
        """Remove a file that is not `needed`. False when there is none, it is, or somebody holds it: is about to store it."""
        path = self.path(name)
        if needed():
            return False
        try:
            with _alone(path.parent), _opened(path) as fd:
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    return False
                # Again, now that nobody can be between its file and its row: whoever prepared it holds it until its commit.
                if needed():
                    return False
                path.unlink()
                return True
        except FileNotFoundError:
            return False
        except OSError as error:
            if path.is_symlink():  # it is none of ours
                return False
            raise from_os(error, path) from error


def name_of(digest: str, base: str | None) -> str:
    """The name of the file of a blob, whole or as a delta on `base`."""
    return digest if base is None else f"{digest}-{base[:16]}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _held(path: Path) -> Hold | None:
    try:
        return Hold(path)
    except FileNotFoundError:
        return None


def _inode(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
