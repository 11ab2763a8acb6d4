"""Locks between processes. The operating system frees them when a process dies: a lock that can be had has a dead owner."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from stead.core.clock import SystemClock
from stead.core.errors import SteadError
from stead.core.jsontext import dumps, loads
from stead.store import faults, holders
from stead.store.alone import boot, try_lock

_MAINTENANCE = "maintenance"
WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.02
_PAGE = 4096


class ProcessLock:
    """A process's sign of life: `locks/<id>`, locked until it ends. `id` is the owner written into runs."""

    def __init__(self, folder: Path, owner: str, about: dict[str, Any]) -> None:
        from stead.store.safefile import private_folder, sync_folder

        private_folder(folder)
        self.id = owner
        self._path = folder / owner
        self._pid = os.getpid()
        self._about = {"pid": os.getpid(), "boot": boot(), **about}
        # The file gets its name when it is locked and written, so that nobody ever meets a living process's file unlocked.
        attempt = 0
        while True:
            attempt += 1
            hidden = folder / f".{owner}.{attempt}"
            self._fd = os.open(hidden, os.O_CREAT | os.O_RDWR | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            try:
                faults.point("lock.created")
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                os.fchmod(self._fd, 0o600)
                os.write(self._fd, dumps(self._about))
                hidden.rename(self._path)
            except FileNotFoundError:  # somebody took the unlocked file for a dead process's and removed it: make it anew
                os.close(self._fd)
                continue
            except BaseException:
                os.close(self._fd)
                raise
            break
        sync_folder(folder)  # a run's owner must not be unknown after a power cut
        faults.point("lock.held")

    def tell(self, more: dict[str, Any]) -> None:
        """Add to what the file says of this process, in the room that it has also on a full disk: one page."""
        data = dumps({**self._about, **more})
        if len(data) <= _PAGE:
            os.pwrite(self._fd, data, 0)
            os.ftruncate(self._fd, len(data))

    def touch(self) -> None:
        """Leave the time of now with the lock, for `last_seen`."""
        os.utime(self._fd)

    def release(self, *, forget: bool = True) -> None:
        """Give the lock back and remove its file. With `forget=False` the file stays, as a dead process's: whoever opens next
        closes what this one left open."""
        if os.getpid() != self._pid:
            return  # a forked child's copy: the lock is its parent's
        if forget:
            self._path.unlink(missing_ok=True)
        os.close(self._fd)


def dead_owners(folder: Path) -> list[str]:
    """The ids of processes that ended without releasing their lock. An unreadable or empty lock file counts by its lock alone;
    files of processes that died before they had a name are removed."""
    dead = []
    for path in _lock_files(folder):
        with _taken(path) as taken:
            if taken:
                dead.append(path.name)
    for path in folder.glob(".*"):  # of a process that died before it had a name
        _remove(path)
    return dead


def last_seen(folder: Path, owner: str) -> int | None:
    """When an owner last touched its lock (ms in UTC, by the file system's clock); None when there is none."""
    try:
        return os.stat(folder / owner).st_mtime_ns // 1_000_000
    except OSError:
        return None


def forget_owner(folder: Path, owner: str) -> None:
    """Remove the lock file of a dead process whose work has been closed; that of a living one stays."""
    _remove(folder / owner)


def _remove(path: Path) -> None:
    with _taken(path) as taken:
        if taken:
            with suppress(OSError):
                path.unlink(missing_ok=True)


@contextmanager
def _taken(path: Path) -> Iterator[bool]:
    """Whether the lock of the file that stands at `path` could be had; it is held meanwhile."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)  # also where nothing may be written
    except OSError:
        yield False
        return
    try:
        yield _lock(fd) and _still_there(fd, path)
    finally:
        os.close(fd)


def _lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _still_there(fd: int, path: Path) -> bool:
    """Whether the name still belongs to this file: another process may have removed it and a third made it anew."""
    try:
        now, mine = os.stat(path, follow_symlinks=False), os.fstat(fd)
    except OSError:
        return False
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)


def living(folder: Path) -> list[dict[str, Any]]:
    """What is known of the processes that hold the store now: `[{"id", "pid", "boot", "started", "version"}]`."""
    dead = set(dead_owners(folder))
    found = []
    for path in _lock_files(folder):
        if path.name in dead:
            continue
        found.append({"id": path.name, **read_lock(folder, path.name)})
    return found


def read_lock(folder: Path, owner: str) -> dict[str, Any]:
    """What the lock file of an owner says of it; nothing where that cannot be read."""
    try:
        about = loads((folder / owner).read_bytes().rstrip(b"\0"))  # a power cut may leave a tail of NUL bytes
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def alive(folder: Path, owner: str) -> bool:
    """Whether the process that works under this name still lives."""
    return owner in {about["id"] for about in living(folder)}


@contextmanager
def using(folder: Path, *, alone: bool = False) -> Iterator[None]:
    """Hold the store for use, or `alone` for maintenance (migration, restore). Raises `store_busy` naming the holder after 10 s."""
    fd = hold(folder, alone=alone)
    try:
        yield
    finally:
        os.close(fd)


def hold(folder: Path, *, alone: bool = False, enough: Callable[[], bool] = lambda: False) -> int:
    """Like `using`, as a file descriptor that holds until it is closed. While it waits, `enough` is asked whether the lock is
    still needed; when it is not, the descriptor holds nothing."""
    from stead.store.safefile import from_os, private_folder

    path = folder / _MAINTENANCE
    try:
        private_folder(folder)
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise from_os(error, path) from error
    clock = SystemClock()
    until = clock.monotonic() + WAIT_SECONDS
    try:
        while not (try_lock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH, path) or enough()):
            if clock.monotonic() >= until:
                who = holders.named(folder, holders.of_lock(path))
                raise SteadError("store_busy", f"The store is held by {who}.", hint="End that process, then try again.")
            _pause()
        return fd
    except BaseException:
        os.close(fd)
        raise


def _pause() -> None:
    import time

    time.sleep(_PAUSE_SECONDS)


def _lock_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name != _MAINTENANCE and not path.name.startswith("."))
    except FileNotFoundError:
        return []
