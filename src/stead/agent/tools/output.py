"""What a command prints, taken in with bounded memory and turned into plain text.

Beginning and end stay in memory. The whole goes to a file without a name in the data folder, up to a quota, so that nothing of it
outlives the process; it is read once, when it becomes a blob. Beyond the quota the end is kept and the bytes between are counted.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import SpooledTemporaryFile

from stead.agent.tools.cap import BYTES, cap, cap_ends

QUOTA = 16 << 20  # bytes of output kept in full
SO_FAR = 16 << 10  # bytes of what is told of a command that still runs
_IN_MEMORY = 256 << 10  # bytes from which the full output goes to the file
_HEAD = BYTES  # bytes of the beginning kept in memory: what may be shown
_TAIL = 96 << 10  # bytes of the end kept in memory, and up to four times that
_LINE = 64 << 10  # bytes of one unfinished line held back in case a carriage return replaces it
_LIVE = 256 << 10  # bytes shown while the command runs
_ESCAPE = 4 << 10  # bytes of an escape sequence that are not cut in two

_ESCAPES = re.compile(
    "\x1b(?:"
    "\\[[0-?]*[ -/]*[@-~]"  # colours, cursor
    "|\\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\\\)"  # titles, links; bounded, so that a stray one cannot hide the rest
    "|[PX^_][^\x1b]{0,65536}\x1b\\\\"  # device strings
    "|[ -/]*[0-~]?"
    ")|\x9b[0-?]*[ -/]*[@-~]|[^\n]\x08"  # and what a backspace takes back
)
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"} | {7: None, 13: "\n", 127: "\u2421"}

_HARMLESS = bytes(code for code in range(256) if code in b"\t\n" or 32 <= code < 127 or (code > 127 and code != 0x9B))


def plain(raw: bytes) -> str:
    """Output as valid text: escape sequences gone, bytes that are not UTF-8 as U+FFFD, other control characters as their signs
    (NUL as ␀)."""
    text = raw.decode("utf-8", "replace")
    if "\x1b" in text or "\x08" in text or "\x9b" in text:
        text = _ESCAPES.sub("", text)
    return text.translate(_CONTROLS) if not text.isprintable() else text


class Output:
    """Takes bytes as they come. Of a line that is rewritten by carriage returns (a progress bar) only the last state is kept.

    `live` is called with what is to be shown while the command runs, 256 KiB at most. The whole is kept up to `quota` bytes in a
    file of `folder` (None: the system's folder for such). Feed it and ask it from one thread; `whole` may be called in another.
    """

    def __init__(self, live: Callable[[str], None], quota: int = QUOTA, folder: Path | None = None) -> None:
        self._live = live
        self._quota = quota
        self._spool: SpooledTemporaryFile[bytes] = SpooledTemporaryFile(  # noqa: SIM115
            max_size=_IN_MEMORY, dir=None if folder is None else str(folder)
        )
        self._kept = 0
        self._head = bytearray()
        self._tail = bytearray()
        self._line = b""
        self._lock = threading.Lock()  # around the file
        self._shown = 0
        self._lines = 0
        self.size = 0
        """Bytes of plain text so far, without the unfinished line."""

    def feed(self, data: bytes) -> None:
        """More output."""
        data = self._line + data
        if b"\r" in data:
            data = _settled(data)
        end = data.rfind(b"\n") + 1
        if len(data) - end > _LINE:  # too long to hold back: it stays, and what rewrites it comes on a line of its own
            end = _seam(data)
        self._line = data[end:]
        if end:
            self._keep(_plain_bytes(data[:end]))

    def capped(self, rest: str, limit: int = BYTES) -> tuple[str, bool]:
        """What a model reads of it, as `cap` gives it, and whether something was left out. Costs the same however much there is,
        and may be asked at any moment."""
        last = plain(_last_state(self._line))
        size = self.size + len(last.encode())
        whole = size <= limit
        tail = self._tail if whole else self._tail[-limit:]
        end = _from_character(tail, self.size > len(tail)).decode("utf-8", "replace") + last
        if whole:
            shown, cut = cap(end, rest, limit=limit)
            return shown, cut is not None
        first = bytes(self._head[:limit]).decode("utf-8", "ignore")
        return cap_ends(first, end, size, self._lines, rest, limit=limit), True

    def so_far(self) -> str:
        """Beginning and end of what there is at this moment, in 16 KiB at most, with a line about what is missing between them:
        for who has to know it should the process die now."""
        return self.capped("", SO_FAR)[0]

    def whole(self) -> bytes:
        """Everything so far as plain text in UTF-8, with a line about what was lost in the middle. Up to the quota and 512 KiB."""
        with self._lock:
            head = self._beginning()
        begin = self.size - len(self._tail)  # where the kept end begins
        last = plain(_last_state(self._line)).encode()
        if len(head) >= begin:
            return b"".join((head, self._tail[len(head) - begin :], last))
        lost = f"\n[… {begin - len(head):,} bytes were not kept …]\n"
        return b"".join((head, lost.encode(), _from_character(self._tail, True), last))

    def close(self) -> None:
        """Give up the file. What a full disk did not take of it is not asked for again."""
        with self._lock, suppress(OSError):
            self._spool.close()

    def _beginning(self) -> bytes:
        with suppress(OSError):
            self._spool.seek(0)
            kept = self._spool.read(self._kept)
            if self._kept and len(kept) == self._kept:
                return kept
        return _to_character(self._head)  # the disk was full, and what was written of the file cannot be trusted

    def _keep(self, data: bytes) -> None:
        if self._shown < _LIVE:
            self._show(data)
        if self._kept == self.size:  # nothing is missing in the file so far
            self._write(data if len(data) <= self._quota - self._kept else _to_character(data[: self._quota - self._kept]))
        if len(self._head) < _HEAD:
            self._head += data[: _HEAD - len(self._head)]
        self._tail += data[-4 * _TAIL :]
        if len(self._tail) > 4 * _TAIL:
            del self._tail[:-_TAIL]
        self.size += len(data)
        self._lines += data.count(b"\n")

    def _write(self, data: bytes) -> None:
        try:
            with self._lock:
                self._spool.write(data)
            self._kept += len(data)
        except OSError:  # no space for the file: beginning and end have to do
            self._kept = 0

    def _show(self, data: bytes) -> None:
        room = _LIVE - self._shown
        self._shown += len(data)
        more = "\n[… more output, not shown while it runs …]\n" if self._shown >= _LIVE else ""
        self._live(_to_character(data[:room]).decode("utf-8", "replace") + more)


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


def _plain_bytes(raw: bytes) -> bytes:
    """`plain` as UTF-8; fast where there is nothing to do."""
    if not raw.translate(None, _HARMLESS):
        try:
            raw.decode()
        except UnicodeDecodeError:
            pass
        else:
            return raw
    return plain(raw).encode()


def _seam(data: bytes) -> int:
    """Where a line that is too long may be cut: in no character, and in no escape sequence."""
    at = len(_to_character(data))
    escape = data.rfind(b"\x1b", max(at - _ESCAPE, 0), at)
    if escape > 0 and data[escape : escape + 2] == b"\x1b\\":  # the end of a longer one
        escape = data.rfind(b"\x1b", max(at - _ESCAPE, 0), escape)
    return escape if escape > 0 else at


def _to_character(data: bytes | bytearray) -> bytes:
    """`data` without the beginning of a UTF-8 character at its end."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte >= 0xC0:
            whole = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return bytes(data[:-back] if back < whole else data)
        if byte < 0x80:
            break
    return bytes(data)


def _from_character(data: bytes | bytearray, torn: bool) -> bytes:
    """`data` without the end of a UTF-8 character at its beginning, if it was `torn` off from what is before it."""
    at = 0
    while torn and at < min(3, len(data)) and data[at] & 0xC0 == 0x80:
        at += 1
    return bytes(data[at:])
