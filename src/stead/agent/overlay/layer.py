"""One overlay of a project: where its upper layer lies, how a command is started in it, and that nothing of it stays."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from stead.core.errors import SteadError
from stead.store import safefile

FOLDER = "overlay"
"""The folder in the data folder that holds the upper layers of commands that run."""
_GONE = "gone-"
_SOURCE = "stead-"

# Relative names: whatever stands in a path, it cannot be taken for an option of the mount. The lower layer is bound to a name of
# ours first, and that name goes as soon as the overlay holds it.
_SETUP = """\
{ "$3" -o bind -- "$1" lower && "$3" -t overlay -o lowerdir=lower,upperdir=upper,workdir=work,userxattr -- "$2" "$1" &&
"$4" lower && : >ready && cd -- "$1"; } >error 2>&1 || exit 125
shift 4
exec "$@"
"""


@dataclass(frozen=True, slots=True)
class Way:
    """How a process gets mounts of its own here: `words` stand before the setup, `again` before the command (so that it sees the
    user it would see outside, and cannot take the overlay away). `mount`, `umount`: the programs."""

    words: tuple[str, ...]
    again: tuple[str, ...]
    mount: str
    umount: str


@dataclass(slots=True)
class Layer:
    """The overlay of one command. `since`: a file that the project held when the command began has a ctime (ns) up to this."""

    folder: Path
    root: Path
    way: Way
    since: int
    _lock: int

    @property
    def upper(self) -> Path:
        """What the command changed, as overlayfs keeps it."""
        return self.folder / "upper"

    @property
    def ready(self) -> bool:
        """Whether the overlay could be mounted; if not, nothing was run."""
        return (self.folder / "ready").exists()

    @property
    def fault(self) -> str:
        """What the system said where it could not."""
        try:
            return safefile.read_bytes(self.folder / "error", 2000).decode("utf-8", "replace").strip()
        except SteadError:
            return ""

    def command(self, words: Sequence[str]) -> tuple[list[str], Path]:
        """The words that run `words` in the overlay, and the folder in which to start them. The process that is started becomes
        the command: its pid, session and environment stay. It exits with 125 where the overlay cannot be mounted (`ready`)."""
        setup = ["/bin/sh", "-c", _SETUP, "sh", os.fspath(self.root), _SOURCE + self.folder.name, self.way.mount, self.way.umount]
        return [*self.way.words, *setup, *self.way.again, *words], self.folder

    def in_use(self) -> bool:
        """Whether a process still runs in it."""
        return self.folder.name in _mounted()

    def close(self) -> None:
        """Remove it, or leave it to `sweep` while a process runs in it. Idempotent."""
        if self._lock < 0:
            return
        used = self.in_use()
        lock, self._lock = self._lock, -1
        os.close(lock)
        if not used:
            _remove(self.folder)


_current: ContextVar[Layer | None] = ContextVar("layer", default=None)


def current() -> Layer | None:
    """The overlay in which a command that starts now has to run; None for the project itself."""
    return _current.get()


@contextmanager
def within(layer: Layer | None) -> Iterator[None]:
    """Have the commands that are started in here run in this overlay."""
    token = _current.set(layer)
    try:
        yield
    finally:
        _current.reset(token)


def make(root: Path, data: Path, way: Way, name: str) -> Layer:
    """An overlay of `root` for one command. `name`: a fresh id. Raises `SteadError` as files do."""
    home = safefile.private_folder(data / FOLDER)
    folder = home / name
    try:
        with _alone(home):
            os.mkdir(folder, 0o700)
            lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX)
        for one in ("lower", "upper", "work"):
            os.mkdir(folder / one, 0o700)
        seen = os.stat(root)
        with suppress(OSError):
            os.chown(folder / "upper", seen.st_uid, seen.st_gid)
        os.chmod(folder / "upper", stat.S_IMODE(seen.st_mode))
        return Layer(folder, root, way, _now(lock), lock)
    except OSError as error:
        raise safefile.from_os(error, folder) from None


def sweep(data: Path) -> int:
    """Remove the layers of processes that are dead, but not those in which a command still runs; gives how many. Costs one look
    where there are none. Idempotent, and safe beside other processes."""
    home = data / FOLDER
    if not home.is_dir():
        return 0
    try:
        with _alone(home):
            dead = _dead(home)
    except OSError as error:
        raise safefile.from_os(error, home) from None
    for one in dead:
        _remove(one)
    return len(dead)


def _dead(home: Path) -> list[Path]:
    """The layers that nobody holds, under a name by which they can be known again."""
    free = [one for one in home.iterdir() if one.is_dir() and (one.name.startswith(_GONE) or _free(one))]
    used = _mounted() if free else set()
    found = []
    for one in free:
        name = one.name.removeprefix(_GONE)
        if name in used:
            continue
        gone = home / (_GONE + name)
        if gone != one:
            os.rename(one, gone)
        found.append(gone)
    return found


def _free(folder: Path) -> bool:
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(lock)
    return True


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    lock = os.open(home / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _now(fd: int) -> int:
    """The time as file systems give it, and that time is over when this returns (it goes in steps of some milliseconds)."""
    os.utime(fd)
    now = os.fstat(fd).st_ctime_ns
    while os.fstat(fd).st_ctime_ns == now:
        os.utime(fd)
    return now


def _mounted() -> set[str]:
    """The names of the layers in which processes of ours run."""
    own, seen, found = _namespace("self"), set(), set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        space = _namespace(pid)
        if space in ("", own) or space in seen:
            continue
        try:
            with open(f"/proc/{pid}/mountinfo", "rb") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        seen.add(space)
        for line in lines:
            kind, _, rest = line.partition(b" - ")[2].partition(b" ")
            source = rest.partition(b" ")[0].decode("ascii", "replace")
            if kind == b"overlay" and source.startswith(_SOURCE):
                found.add(source.removeprefix(_SOURCE))
    return found


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _remove(folder: Path) -> None:
    """Remove a layer whatever permissions the command left in it. What cannot be removed now is left to the next sweep."""
    for top, folders, _ in os.walk(folder):
        for name in folders:
            path = os.path.join(top, name)
            if not os.path.islink(path):
                with suppress(OSError):
                    os.chmod(path, 0o700)
    shutil.rmtree(folder, ignore_errors=True)
