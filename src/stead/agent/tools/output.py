"""What a command prints, taken in with bounded memory and turned into plain text."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from tempfile import SpooledTemporaryFile

QUOTA = 16 << 20  # bytes of output kept in full
_IN_MEMORY = 256 << 10  # bytes from which the full output goes to a file that has no name
_TAIL = 96 << 10  # bytes of the end kept beside a full quota
_LINE = 64 << 10  # bytes of one unfinished line held back in case a carriage return replaces it
_LIVE = 256 << 10  # bytes shown while the command runs

_ESCAPES = re.compile(
    "\x1b(?:"
    "\\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    "|\\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\\\)"  # titles, links; bounded, so that a stray one cannot hide the rest
    "|[PX^_][^\x1b]{0,65536}\x1b\\\\"  # device strings
    "|[ -/]*[0-~]?"
    ")|\x9b[0-?]*[ -/]*[@-~]|[^\n]\x08"  # and what a backspace takes back
)
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {7: None, 13: "\n", 127: "\u2421"}


def plain(raw: bytes) -> str:
    """Output as valid text: escape sequences gone, bytes that are not UTF-8 as U+FFFD, other control characters as their signs
    (NUL as ␀)."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text or "\x08" in text or "\x9b" in text:
        text = _ESCAPES.sub("", text)
    return text.translate(_CONTROLS) if not text.isprintable() else text


class Output:
    """Takes bytes as they come. Of a line that is rewritten by carriage returns (a progress bar) only the last state is kept.

    The first `quota` bytes of that are kept in full, in a file when there are many, beyond that the end; `text` joins them.
    """

    def __init__(self, live: Callable[[str], None], quota: int = QUOTA) -> None:
        self._live = live
        self._quota = quota
        self._spool: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115
        self._kept = 0
        self._tail = bytearray()
        self._line = b""
        self._lock = threading.Lock()  # around the file: `text` of much output is called in a thread
        self._shown = 0
        self.lost = 0
        """Bytes between the kept beginning and the kept end."""

    @property
    def size(self) -> int:
        """Bytes kept so far."""
        return self._kept + len(self._tail)

    def feed(self, data: bytes) -> None:
        """More output."""
        data = self._line + data
        if b"\r" in data:
            data = _settled(data)
        end = data.rfind(b"\n") + 1
        if len(data) - end > _LINE:  # too long to hold back: it stays, and what rewrites it comes on a line of its own
            end = len(data)
        self._line = data[end:]
        if end:
            self._keep(data[:end])

    def text(self) -> str:
        """Everything so far as plain text, with a line about what was lost in the middle."""
        with self._lock:
            head = self._beginning()
        end = bytes(self._tail[-_TAIL:]) + _last_state(self._line)
        lost = self._lost()
        if not lost:
            return plain(head + end)
        return f"{plain(head)}\n[… {lost:,} bytes were not kept …]\n{plain(end)}"

    def close(self) -> None:
        """Give up the file."""
        with self._lock:
            self._spool.close()

    def _beginning(self) -> bytes:
        try:
            self._spool.seek(0)
            head = self._spool.read()
            self._spool.seek(0, 2)
        except OSError:  # the disk was full: what was written of the file cannot be trusted
            self.lost, self._kept, self._quota = self.lost + self._kept, 0, 0
            return b""
        return head

    def _lost(self) -> int:
        self.lost += max(len(self._tail) - _TAIL, 0)
        del self._tail[: max(len(self._tail) - _TAIL, 0)]
        return self.lost

    def _keep(self, data: bytes) -> None:
        if self._shown < _LIVE:
            self._show(data)
        room = self._quota - self._kept
        if room > 0:
            try:
                self._spool.write(data[:room])
                self._kept += min(room, len(data))
                data = data[room:]
            except OSError:  # no space for the file: keep the end only
                self._quota = self._kept
        self._tail += data
        if len(self._tail) > 4 * _TAIL:
            self._lost()

    def _show(self, data: bytes) -> None:
        data = data[: _LIVE - self._shown]
        self._shown += len(data)
        self._live(plain(data) + ("\n[… more output, not shown while it runs …]\n" if self._shown >= _LIVE else ""))


def _settled(data: bytes) -> bytes:
    """`data` with every finished line as a terminal would leave it; the last, unfinished line keeps what may still change."""
    lines = data.split(b"\n")
    last = lines.pop()
    lines = [_last_state(line) for line in lines]
    # A carriage return at the very end may be half of a CRLF, so it stays; before it one state is enough.
    ending = b"\r" if last.endswith(b"\r") else b""
    return b"\n".join([*lines, _last_state(last) + ending])


def _last_state(line: bytes) -> bytes:
    """What stands on a line after its carriage returns."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]
