"""Locks between processes. The operating system frees them when a process dies: a lock that can be had has a dead owner."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stead.core.clock import Clock
from stead.core.errors import SteadError
from stead.core.jsontext import dumps, loads

_MAINTENANCE = "maintenance"
WAIT_SECONDS = 10.0


class ProcessLock:
    """A process's sign of life: `locks/<id>`, locked until it ends. `id` is the owner written into runs."""

    def __init__(self, folder: Path, owner: str, about: dict[str, Any]) -> None:
        from stead.store.safefile import private_folder

        private_folder(folder)
        self.id = owner
        self._path = folder / owner
        # Lock first, then write: a file that can be read but not locked belongs to a living process.
        while True:
            self._fd = os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._fd, fcntl.LOCK_EX)
            if os.fstat(self._fd).st_nlink:
                break
            os.close(self._fd)  # somebody took the unlocked file for a dead process's and removed it: make it anew
        os.write(self._fd, dumps({"pid": os.getpid(), "boot": _boot(), **about}))

    def release(self) -> None:
        """Give the lock back and remove its file."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)


def dead_owners(folder: Path) -> list[str]:
    """The ids of processes that ended without releasing their lock. An unreadable or empty lock file counts by its lock alone."""
    dead = []
    for path in _lock_files(folder):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            dead.append(path.name)
        except OSError:
            pass
        finally:
            os.close(fd)
    return dead


def forget_owner(folder: Path, owner: str) -> None:
    """Remove the lock file of a dead process whose work has been closed; that of a living one stays."""
    try:
        fd = os.open(folder / owner, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (folder / owner).unlink(missing_ok=True)
    except OSError:
        pass
    finally:
        os.close(fd)


def living(folder: Path) -> list[dict[str, Any]]:
    """What is known of the processes that hold the store now: `[{"id", "pid", "boot", "started", "version"}]`."""
    dead = set(dead_owners(folder))
    found = []
    for path in _lock_files(folder):
        if path.name in dead:
            continue
        try:
            about = loads(path.read_bytes())
        except (OSError, ValueError):
            about = {}
        found.append({"id": path.name, **(about if isinstance(about, dict) else {})})
    return found


@contextmanager
def using(folder: Path, clock: Clock, *, alone: bool = False) -> Iterator[None]:
    """Hold the store for use, or `alone` for maintenance (migration, restore). Raises `store_busy` naming the holder after 10 s."""
    fd = hold(folder, clock, alone=alone)
    try:
        yield
    finally:
        os.close(fd)


def hold(folder: Path, clock: Clock, *, alone: bool = False) -> int:
    """Like `using`, as a file descriptor that holds until it is closed."""
    from stead.store.safefile import private_folder

    private_folder(folder)
    fd = os.open(folder / _MAINTENANCE, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    kind = fcntl.LOCK_EX if alone else fcntl.LOCK_SH
    deadline = clock.monotonic() + WAIT_SECONDS
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return fd
        except OSError:
            if clock.monotonic() >= deadline:
                os.close(fd)
                raise SteadError(
                    "store_busy", f"The store is held by {_named(folder)}.", hint="End that process, then try again."
                ) from None
        _pause()


def _pause() -> None:
    import time

    time.sleep(0.02)


def _named(folder: Path) -> str:
    names = [
        f"process {about.get('pid', '?')} (stead {about.get('version', '?')}, since {about.get('started', '?')})"
        for about in living(folder)
    ]
    return ", ".join(names) or "another process"


def _lock_files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.name != _MAINTENANCE and not path.name.startswith("."))
    except FileNotFoundError:
        return []


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
