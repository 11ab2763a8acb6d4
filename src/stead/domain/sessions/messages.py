"""Messages and their parts: added, and read page by page from the active branch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from stead.core.errors import SteadError
from stead.core.events import Event
from stead.core.jsontext import dumps, loads
from stead.core.parts import Part
from stead.domain.sessions.branches import head
from stead.domain.sessions.events import MessageAdded, PartAdded, Role
from stead.store.database import Reads
from stead.store.log import Tx


def add_message(
    tx: Tx, session: str, role: Role, *, run: str | None = None, author: str | None = None, model: str | None = None
) -> int:
    """Add an empty message and give its number."""
    last = tx.one("SELECT max(n) FROM messages WHERE session=?", session)
    n = int((last[0] if last else None) or 0) + 1
    tx.append(session, MessageAdded(n=n, role=role, author=author, model=model, parent=head(tx, session)), run=run)
    return n


def add_part(
    tx: Tx, session: str, message: int, n: int, part: Mapping[str, Any] | Part, *, run: str | None = None
) -> Event[PartAdded]:
    """Add part number `n` to a message. Long strings must have been moved into blobs (`Blobs.pack`, `Tx.unpack`)."""
    return tx.append(session, PartAdded(message=message, n=n, part=part), run=run)


def next_part(view: Reads, session: str, message: int) -> int:
    """The first free part number of a message."""
    row = view.one("SELECT max(n) FROM parts WHERE session=? AND message=?", session, message)
    return 0 if row is None or row[0] is None else int(row[0]) + 1


@dataclass(frozen=True, slots=True)
class Message:
    """A message with its parts as they are stored (long strings still in blobs), in order. `parts` pairs a number with a part."""

    session: str
    n: int
    role: Role
    author: str | None
    model: str | None
    run: str | None
    created: int
    stop_sequence: str | None
    parent: int
    left_by: int
    parts: list[tuple[int, dict[str, Any]]]
    """`parent`: the number of the message before it on its branch; `left_by`: 0 on the active branch."""

    @property
    def id(self) -> str:
        return f"{self.session}.{self.n}"


def messages(
    view: Reads, session: str, *, limit: int | None = None, before: int | None = None, all_branches: bool = False
) -> list[Message]:
    """The messages of the active branch, or of all, oldest first: all, or the newest `limit` of those numbered below `before`."""
    rows = _heads(view, session, limit, before, all_branches)
    bodies: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for first, last in _stretches(rows):
        for message, n, part in _parts(view, session, first, last):
            bodies.setdefault(message, []).append((n, part))
    return [Message(*(session, *row, bodies.get(row[0], []))) for row in rows]


def raw_messages(view: Reads, session: str, *, limit: int | None = None, before: int | None = None) -> list[bytes]:
    """The same messages of the active branch as JSON texts made of what is stored, without reading it: for copying and export,
    not for a screen.

    Each is `{"n", "role", "author"?, "model"?, "run"?, "created", "stop_sequence"?, "parts": [{"added", "started"?, "ended"?}]}`
    where `added` and `ended` are the data of the events that added a part and ended a tool call, byte for byte (long strings still
    in blobs, provider data as it came), and `started` is the `seq` at which the tool began. A damaged event spoils the text of its
    own message and no other.
    """
    rows = _heads(view, session, limit, before, False)
    pieces: dict[int, list[bytes]] = {row[0]: [_head_json(row)] for row in rows}  # joined once: the bodies are most of it
    for message_n, _, started, data, end in (row for ends in _stretches(rows) for row in view.q(_BODIES, session, *ends)):
        one = pieces[message_n]
        one += b',{"added":' if len(one) > 1 else b'{"added":', data
        if started is not None:
            one.append(b',"started":%d' % started)
        if end is not None:
            one += b',"ended":', end
        one.append(b"}")
    return [b"".join([*one, b"]}"]) for one in pieces.values()]


_HEAD = ("n", "role", "author", "model", "run", "created", "stop_sequence")
_COLUMNS = ", ".join((*_HEAD, "parent", "left_by"))
_BODIES = (
    "SELECT p.message, p.n, p.started, e.data, x.data FROM parts p JOIN events e ON e.seq=p.seq"
    " LEFT JOIN events x ON x.seq=p.ended WHERE p.session=? AND p.message>=? AND p.message<=? ORDER BY p.message, p.n"
)


def _head_json(row: tuple[Any, ...]) -> bytes:
    """The beginning of a message's JSON text, up to its first part."""
    head = dumps({name: value for name, value in zip(_HEAD, row, strict=False) if value is not None})
    return head[:-1] + b',"parts":['


def _heads(view: Reads, session: str, limit: int | None, before: int | None, all_branches: bool) -> list[tuple[Any, ...]]:
    """The rows of a page of messages, oldest first, with the columns of `_COLUMNS`."""
    active = "" if all_branches else " AND left_by=0"
    rows = view.q(
        f"SELECT {_COLUMNS} FROM messages WHERE session=?{active} AND n<? ORDER BY n DESC LIMIT ?",
        *(session, before if before is not None else 1 << 60, limit if limit is not None else 1 << 31),
    )
    rows.reverse()
    return rows


def number(session: str, text: str | int) -> int:
    """The number of a message, from its number or its id. Raises `not_found`."""
    if isinstance(text, int):
        return text
    whose, dot, n = text.rpartition(".")
    if n.isascii() and n.isdigit() and (not dot or whose == session):
        return int(n)
    raise SteadError("not_found", f"There is no message {text!r} in session {session}.")


@dataclass(frozen=True, slots=True)
class StoredPart:
    """A part as its events hold it. `call`: of a tool call, its name; `result` how it ended; `size` in bytes."""

    n: int
    part: Any
    call: str | None
    started: bool
    result: Any
    size: int


@dataclass(frozen=True, slots=True)
class Stored:
    """A message as the log holds it: for copying."""

    n: int
    role: Role
    author: str | None
    model: str | None
    created: int
    parts: list[StoredPart]


def stored(view: Reads, session: str, n: int) -> Stored:
    """One message, of whatever branch, as its events hold it. Raises `not_found`."""
    row = view.one("SELECT n, role, author, model, created FROM messages WHERE session=? AND n=?", session, n)
    if row is None:
        raise SteadError("not_found", f"Session {session} has no message {n}.")
    parts = []
    for _, part_n, started, data, end in view.q(_BODIES, session, n, n):
        part = _field(data, "part", None)
        call = part.get("call") if isinstance(part, dict) and part.get("type") == "tool" else None
        result = None if end is None else _field(end, "result", None)
        parts.append(StoredPart(part_n, part, call, started is not None, result, len(data) + len(end or b"")))
    return Stored(*(*row, parts))


def _stretches(rows: list[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """The numbers of these messages as stretches without a gap: what lies between is of a branch that was left, and is not read."""
    found: list[tuple[int, int]] = []
    for row in rows:
        if found and found[-1][1] == row[0] - 1:
            found[-1] = (found[-1][0], row[0])
        else:
            found.append((row[0], row[0]))
    return found


def message(view: Reads, session: str, n: int) -> Message:
    """One message, of whatever branch. Raises `not_found`."""
    found = messages(view, session, limit=1, before=n + 1, all_branches=True)
    if not found or found[0].n != n:
        raise SteadError("not_found", f"Session {session} has no message {n}.")
    return found[0]


@dataclass(frozen=True, slots=True)
class PartState:
    """Where a part stands: `seq` of the events that added it, and that started and ended it if it is a tool call."""

    seq: int
    started: int | None
    ended: int | None


def part_state(view: Reads, session: str, message: int, n: int) -> PartState | None:
    """Where a part stands in the log; None when it is not there (any more)."""
    row = view.one("SELECT seq, started, ended FROM parts WHERE session=? AND message=? AND n=?", session, message, n)
    return PartState(*row) if row else None


def _parts(view: Reads, session: str, first: int, last: int) -> Iterable[tuple[int, int, dict[str, Any]]]:
    for message_n, n, started, data, end in view.q(_BODIES, session, first, last):
        if (part := _field(data, "part", _NOTHING)) is _NOTHING:
            part = {"type": "unreadable", "data": data if isinstance(data, str) else bytes(data).decode("utf-8", "replace")}
        if isinstance(part, dict) and part.get("type") == "tool":
            result = None if end is None else _field(end, "result", None)
            if isinstance(result, dict):
                part = {**part, **result}
            elif started is not None or end is not None:
                part = {**part, "status": "running"}
        yield message_n, n, part


_NOTHING = object()


def _field(data: bytes, name: str, without: Any) -> Any:
    """A field of a stored event; `without` where the event is damaged: one such row must not take the conversation with it."""
    try:
        value = loads(data)
    except ValueError:
        return without
    return value.get(name, without) if isinstance(value, dict) else without
