"""Server-sent events, read tolerantly: any chunking and line ending, comments, a byte order mark, broken UTF-8."""

from __future__ import annotations

from dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class Event:
    """One event: the lines of its `data` joined by newlines, and its `name` (empty where the server gave none)."""

    data: str
    name: str = ""


class Reader:
    """Turns bytes, cut anywhere, into events. Feed what arrives; `rest` at the end of the stream."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []  # of the line that is not complete yet
        self._after_cr = False
        self._first = True
        self._data: list[str] = []
        self._name = ""

    def feed(self, chunk: bytes) -> list[Event]:
        """The events that `chunk` completes."""
        if not chunk:
            return []
        if self._after_cr and chunk[0] == 10:  # the second half of a CRLF whose CR has already ended its line
            chunk = chunk[1:]
        self._after_cr = chunk.endswith(b"\r")
        lines = chunk.splitlines(keepends=True)
        if not lines:
            return []
        unfinished = b"" if lines[-1].endswith((b"\n", b"\r")) else lines.pop()
        if lines and self._pieces:
            lines[0] = b"".join([*self._pieces, lines[0]])
            self._pieces.clear()
        if unfinished:
            self._pieces.append(unfinished)
        return [event for line in lines if (event := self._line(line.rstrip(b"\r\n")))]

    def rest(self) -> Event | None:
        """An event whose closing blank line never came. It may be cut in the middle: a reader must not trust it to be whole."""
        if self._pieces:
            line = b"".join(self._pieces)
            self._pieces.clear()
            if event := self._line(line):
                return event
        return self._flush()

    def _line(self, line: bytes) -> Event | None:
        if self._first:
            self._first = False
            line = line.removeprefix(_BOM)
        if not line:
            return self._flush()
        field, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if field == b"data":
            self._data.append(text)
        elif field == b"event":
            self._name = text
        elif field == b"error":  # not in the standard: llama.cpp reports a failure in mid-stream this way
            return Event(text, "error")
        return None

    def _flush(self) -> Event | None:
        data, name = self._data, self._name
        self._data, self._name = [], ""
        return Event("\n".join(data), name) if data else None
