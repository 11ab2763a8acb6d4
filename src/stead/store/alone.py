"""One process at a time: how a store is held on a network file system, where several cannot share a database."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stead.core.clock import SystemClock
from stead.core.errors import SteadError
from stead.core.jsontext import dumps, loads

WAIT_SECONDS = 3.0
_PAUSE_SECONDS = 0.02
ELSEWHERE = "Use a data folder on a disk of this machine (STEAD_DATA); docs/data-folder.md says more."

_mine: dict[Path, list[int]] = {}  # path -> process, descriptor, how many stores of this process hold it
_door = threading.Lock()


def take(path: Path, about: dict[str, Any]) -> Callable[[], None]:
    """Hold the lock file `path` for this process and give the way to let it go; the stores of one process share it.

    The file says who holds it, and is empty when nobody does. Raises `store_busy` naming the holder after three seconds, and
    at once for one that a process on another machine left: from here nobody can tell whether that one still lives.
    """
    path = path.resolve()
    with _door:
        held = _mine.get(path)
        if held is None or held[0] != os.getpid():
            held = _mine[path] = [os.getpid(), _locked(path, about), 0]
        held[2] += 1
    return lambda: _let_go(path)


def _let_go(path: Path) -> None:
    with _door:
        held = _mine.get(path)
        if held is None or held[0] != os.getpid():
            return  # a forked child's copy: the lock is its parent's
        held[2] -= 1
        if held[2] == 0:
            del _mine[path]
            os.ftruncate(held[1], 0)
            os.close(held[1])


def _locked(path: Path, about: dict[str, Any]) -> int:
    from stead.store.safefile import from_os

    try:
        fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise from_os(error, path) from error
    try:
        _wait(fd, path)
        left = _read(fd)
        if left and not _is_of_this_machine(left):
            raise SteadError(
                "store_busy",
                f"{path.parent} was last held by {_named(left)}, which did not give it back.",
                hint=f"If that process has ended, remove {path}. {ELSEWHERE}",
            )
        os.ftruncate(fd, 0)
        os.pwrite(fd, dumps({"pid": os.getpid(), "host": os.uname().nodename, "boot": boot(), **about}), 0)
        os.fsync(fd)
    except BaseException as error:
        os.close(fd)
        if isinstance(error, OSError):
            raise from_os(error, path) from error
        raise
    return fd


def _wait(fd: int, path: Path) -> None:
    import time

    clock = SystemClock()
    until = clock.monotonic() + WAIT_SECONDS
    while not try_lock(fd, fcntl.LOCK_EX, path):
        if clock.monotonic() >= until:
            raise SteadError(
                "store_busy",
                f"{path.parent} lies on a network file system, where one process at a time may have it open, and is held by"
                f" {_named(_read(fd))}.",
                hint=f"Wait for it or end it. {ELSEWHERE}",
            )
        time.sleep(_PAUSE_SECONDS)


def try_lock(fd: int, kind: int, path: Path) -> bool:
    """Lock a file unless somebody else has. Raises `read_only` where the file system knows no locks."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError, InterruptedError):
        return False
    except OSError as error:
        raise SteadError("read_only", f"{path} cannot be locked: {error.strerror}.", hint=ELSEWHERE) from error
    return True


def _read(fd: int) -> dict[str, Any]:
    """What the lock file says; `{}` for an empty one. What cannot be read says nothing, and its lock decides alone."""
    try:
        about = loads(os.pread(fd, 4096, 0).rstrip(b"\0"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) else {}


def _is_of_this_machine(about: dict[str, Any]) -> bool:
    return about.get("host") == os.uname().nodename or (bool(boot()) and about.get("boot") == boot())


def _named(about: dict[str, Any]) -> str:
    if not about:
        return "another process"
    where = f" on {about.get('host')}" if about.get("host") else ""
    return f"process {about.get('pid')}{where} (stead {about.get('version', '?')}, since {about.get('started', '?')})"


def boot() -> str:
    """What tells one run of this machine from the next, where the system says."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
