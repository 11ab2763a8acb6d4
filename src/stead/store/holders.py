"""Who has a store open, so that whoever has to wait in vain can be told for whom. For messages: no decision rests on it."""

from __future__ import annotations

import fcntl
import itertools
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from stead.core.jsontext import dumps, loads

_SIGN = ".open-"
# Where SQLite locks a byte to write (unix): in `-shm` to append to the log and to recover it, in the file itself all others.
_SHM_BYTES = (120, 122)
_READ_BYTES = (123, 127)
_DATABASE_BYTE = 0x40000000


class Sign:
    """A process's name on a store that it has open: a locked hidden file in `locks/`. One that its process left behind is not
    locked, and `lock.dead_owners` removes it."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self._pid = os.getpid()
        self._path = folder / f"{_SIGN}{self._pid}"
        self._fd = -1
        with suppress(OSError):  # who cannot leave its name is still let in
            for n in itertools.count(1):
                self._path = folder / f"{_SIGN}{self._pid}-{n}"
                try:
                    self._fd = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
                    break
                except FileExistsError:  # another store of this process, or a process of the same number in another container
                    continue
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(self._fd, dumps({"pid": self._pid, **about}))

    def leave(self) -> None:
        """Take the name away again. In a forked child it does nothing."""
        if self._fd >= 0 and os.getpid() == self._pid:
            fd, self._fd = self._fd, -1
            with suppress(OSError):
                self._path.unlink()
            os.close(fd)


def present(folder: Path) -> list[dict[str, Any]]:
    """What is known of the processes that have the store open: `[{"pid", "started", "version"}]`."""
    found = []
    for path in sorted(folder.glob(f"{_SIGN}*")):
        with suppress(OSError, ValueError):
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if _is_locked(fd):
                    about = loads(os.read(fd, 4096))
                    found += [about] if isinstance(about, dict) else []
            finally:
                os.close(fd)
    return found


def others(folder: Path) -> list[int]:
    """The other processes that have the store open."""
    pids = (about.get("pid") for about in present(folder))
    return [pid for pid in pids if isinstance(pid, int) and pid != os.getpid()]


def named(folder: Path, pids: Iterable[int]) -> str:
    """`process 12 (stead 0.1.0, since …)`, of each of `pids`; without any, of all that have the store open."""
    known = {about.get("pid"): about for about in present(folder)}
    names = []
    for pid in list(pids) or others(folder):
        about = known.get(pid)
        facts = [f"stead {about.get('version', '?')}", f"since {about.get('started', '?')}"] if about else []
        facts += ["stopped"] if _stopped(pid) else []
        names.append(f"process {pid}" + (f" ({', '.join(facts)})" if facts else ""))
    return ", ".join(dict.fromkeys(names)) or "another process"


def of_lock(path: Path) -> list[int]:
    """The processes that hold the lock of a file, where the system tells."""
    return [pid for kind, _, pid, _, _ in _locks(path) if kind == "FLOCK"]


def of_writing(database: Path) -> list[int]:
    """The processes that keep others from writing a SQLite database, where the system tells."""
    shared = [
        pid
        for kind, mode, pid, first, last in _locks(database.with_name(f"{database.name}-shm"))
        if kind == "POSIX" and mode == "WRITE" and any(first <= byte <= last for byte in _SHM_BYTES)
    ]
    return shared or [
        pid for kind, mode, pid, first, _ in _locks(database) if (kind, mode) == ("POSIX", "WRITE") and first >= _DATABASE_BYTE
    ]


def of_reading(database: Path) -> list[int]:
    """The processes that are in the middle of reading a SQLite database, and so keep its write-ahead log from being begun anew,
    where the system tells."""
    return [
        pid
        for kind, mode, pid, first, last in _locks(database.with_name(f"{database.name}-shm"))
        if (kind, mode) == ("POSIX", "READ") and first <= _READ_BYTES[1] and last >= _READ_BYTES[0]
    ]


def _locks(path: Path) -> list[tuple[str, str, int, int, int]]:
    """The kernel's locks of a file: (kind, READ or WRITE, process, first byte, last byte)."""
    try:
        inode = f":{os.stat(path).st_ino}"
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    except OSError:
        return []
    return [
        (line[1], line[3], int(line[4]), int(line[6]), 1 << 62 if line[7] == "EOF" else int(line[7]))
        for line in lines
        if line[1] in ("FLOCK", "POSIX") and line[5].endswith(inode) and int(line[4]) > 0
    ]


def _is_locked(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    return False


def _stopped(pid: int) -> bool:
    """Whether a process stands still (SIGSTOP, Ctrl-Z), where the system tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] in (b"T", b"t")
    except (OSError, IndexError):
        return False
