"""Where stead's own faults are written down: `logs/stead.log` in the data folder, made when there is something to say, never the
terminal.

The log says where and when something went wrong, and which kind of fault it was. The words of a prompt, an answer or a tool's
output are not in it, at any level: of an exception it has the trace and the type, and the message only where Python or the system
made it. Any number of processes may write: each record is one write to the end of the file, and whoever finds the file full renames
it while holding the folder's lock. What there is at most: `FILES` files of `BYTES`, set aside after a week, removed after `DAYS`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

BYTES = 2 << 20
"""A log file that has this many bytes is set aside."""
FILES = 5
"""How many log files there are, the current one and those that were set aside."""
DAYS = 30
"""Days after its last record at which a log file that was set aside is removed. The current one is set aside after a week."""
_WEEK = 7 * 86400
_RECORD = 16 << 10  # bytes of one record
_TRIES = 100  # 5 ms apart
_NAME = "stead.log"
_LEVELS = {"error": logging.ERROR, "warning": logging.WARNING, "info": logging.INFO, "debug": logging.DEBUG}
_SPEAKING = (OSError, AttributeError, ImportError, NameError, RecursionError, MemoryError)
"""Exceptions whose message tells of names and of the system, not of what somebody wrote."""

_Fault = tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None]


def to_file(data: Path) -> None:
    """Send what stead logs to the data folder's log, from the level that STEAD_LOG names (default: warning). Calling it again does
    nothing."""
    logger = logging.getLogger("stead")
    folder = (data / "logs").absolute()
    logger.setLevel(_LEVELS.get(os.environ.get("STEAD_LOG", "").lower(), logging.WARNING))
    if any(isinstance(one, _Log) and one.folder == folder for one in logger.handlers):
        return
    for one in [one for one in logger.handlers if isinstance(one, _Log)]:
        logger.removeHandler(one)
        one.close()
    handler = _Log(folder)
    handler.setFormatter(_Format("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False


class _Format(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The line, with the trace in our own words: another handler's are kept with the record, and tell more."""
        kept, record.exc_text = record.exc_text, None
        try:
            return super().format(record)
        finally:
            record.exc_text = kept

    def formatException(self, ei: _Fault) -> str:
        """The trace with the type of each exception in the chain; see the module for what is said of its message."""
        import traceback

        lines: list[str] = []
        fault, seen = ei[1], set[int]()
        while fault is not None and id(fault) not in seen and len(seen) < 10:
            seen.add(id(fault))
            code = getattr(fault, "code", "")
            said = str(fault) if isinstance(fault, _SPEAKING) else code if isinstance(code, str) else ""
            frames = traceback.format_list(traceback.extract_tb(fault.__traceback__))
            lines.append(f"{type(fault).__qualname__}{': ' + said if said else ''}\n{''.join(frames)}".rstrip())
            fault = fault.__cause__ or (None if fault.__suppress_context__ else fault.__context__)
        return "\nafter ".join(lines)


class _Log(logging.Handler):
    """The file, 0600 in a folder that is 0700."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self._path = folder / _NAME
        self._fd = -1
        self._began = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = self.format(record).encode("utf-8", "replace")
            if len(line) > _RECORD:
                line = line[:_RECORD].decode("utf-8", "ignore").encode() + b" [cut]"
            if self._ready(record.created, len(line)):
                os.write(self._fd, line + b"\n")
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written (a full disk) is no reason to disturb anybody, and the terminal is not ours."""
        if os.environ.get("STEAD_DEBUG"):
            print(f"stead: the log cannot be written: {sys.exc_info()[1]}", file=sys.stderr)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1
        super().close()

    def _ready(self, now: float, more: int) -> bool:
        """See to it that the file is open and is the one that has the name. False when it is full and stays so."""
        if self._fd < 0 or not self._named():
            self._open()
        size = os.fstat(self._fd).st_size + more
        if size <= BYTES and now - self._began < _WEEK:
            return True
        folder = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if not _locked(folder):  # somebody is at it, or was stopped in it
                return size <= 2 * BYTES
            if self._named():  # nobody was faster
                self._set_aside(now)
        finally:
            os.close(folder)
        self._open()
        return True

    def _named(self) -> bool:
        """Whether the open file is still the one of this name."""
        try:
            found, mine = os.stat(self._path), os.fstat(self._fd)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == (mine.st_dev, mine.st_ino)

    def _open(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._fd = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._began = _first_time(self._fd)

    def _set_aside(self, now: float) -> None:
        """stead.log becomes stead.log.1, that one stead.log.2 and so on; what is too much or too old goes."""
        for number in range(FILES - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(self._aside(number - 1), self._aside(number))
        for path in self.folder.glob(f"{_NAME}.*"):
            with suppress(OSError):
                which = path.name.removeprefix(f"{_NAME}.")
                if not which.isdecimal() or int(which) >= FILES or now - path.stat().st_mtime > DAYS * 86400:
                    path.unlink()

    def _aside(self, number: int) -> Path:
        return self.folder / f"{_NAME}.{number}" if number else self._path


def _locked(fd: int) -> bool:
    """Take the lock; waits a moment for it, for who holds it does a few renames."""
    import time

    for _ in range(_TRIES):
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(0.005)
    return False


def _first_time(fd: int) -> float:
    """When the first record of the file was written, in seconds; the time of its last change where it does not say."""
    import time

    try:
        return time.mktime(time.strptime(os.pread(fd, 19, 0).decode(), "%Y-%m-%d %H:%M:%S"))
    except (ValueError, OverflowError, OSError):
        return os.fstat(fd).st_mtime
