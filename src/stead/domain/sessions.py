"""Sessions and what is in them: messages as ordered parts.

A session is a stream. Its messages are numbered from 1 and never renumbered, the parts of a message from 0: the ids that the
outside sees (`<session>.<message>`, `<session>.<message>.<part>`) are these numbers, so order is in the key and no id needs an
index. A part's body stands once, in its event; the tables hold keys, and reading joins by `seq`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stead.core import parts as known_parts
from stead.core.clock import rfc3339
from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.core.jsontext import dumps, loads
from stead.core.parts import Part, Tokens
from stead.core.text import one_line
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

Role = Literal["user", "assistant", "system"]
TITLE_LENGTH = 80


@event("session.created")
class SessionCreated(Fact):
    project: str
    title: str
    agent: str
    model: str | None
    max_steps: int | None = None
    parent: str | None = None
    parent_call: str | None = None
    hidden: bool = False


@event("session.changed")
class SessionChanged(Fact):
    """Only the changed fields: title, agent, model, max_steps, pinned, archived, trashed."""

    values: dict[str, Any]


@event("session.deleted")
class SessionDeleted(Fact):
    """In the system stream: what remains of a session deleted for good. `usage` are the sums that the ledger keeps."""

    session: str
    usage: list[dict[str, Any]]


@event("message.added")
class MessageAdded(Fact):
    n: int
    role: Role
    author: str | None = None
    model: str | None = None


@event("part.added")
class PartAdded(Fact):
    message: int
    n: int
    part: Any


@event("tool.started")
class ToolStarted(Fact):
    message: int
    n: int
    call: str


@event("tool.ended")
class ToolEnded(Fact):
    """The one result of a call. `result` holds status and, where there are any, output, error, duration_ms, files, cut."""

    message: int
    n: int
    call: str
    result: dict[str, Any]


@event("step.ended")
class StepEnded(Fact):
    """A model call that answered: its step part, and what the usage ledger needs with it. `model` is the one that was asked for,
    where its own answer calls it differently."""

    message: int
    n: int
    part: Any
    project: str
    provider: str
    model: str | None = None


@event("call.ended")
class CallEnded(Fact):
    """A model call that gave no step: it failed, was aborted, or served another purpose (a title). `tokens` as far as known."""

    purpose: Literal["failed", "aborted", "title"]
    project: str
    provider: str
    model: str
    tokens: Tokens
    cost: float | None
    estimated: bool
    code: str | None = None


@event("step.retracted")
class StepRetracted(Fact):
    """The parts of a message from number `n` on belong to an attempt that failed: they are not shown and not sent."""

    message: int
    n: int
    reason: str


FEATURE = Feature(
    "sessions",
    tables={
        "sessions": """
            id TEXT PRIMARY KEY, project TEXT NOT NULL, title TEXT NOT NULL, agent TEXT NOT NULL, model TEXT,
            max_steps INTEGER, parent TEXT, parent_call TEXT, hidden INTEGER NOT NULL, pinned INTEGER NOT NULL,
            archived INTEGER NOT NULL, trashed INTEGER NOT NULL, created BIGINT NOT NULL,
            updated BIGINT NOT NULL, seq BIGINT NOT NULL, messages INTEGER NOT NULL, cost_nano BIGINT NOT NULL,
            unpriced INTEGER NOT NULL
        """,
        "messages": """
            session TEXT NOT NULL, n INTEGER NOT NULL, role TEXT NOT NULL, author TEXT, model TEXT, run TEXT,
            created BIGINT NOT NULL, stop_sequence TEXT, PRIMARY KEY(session, n)
        """,
        "parts": """
            session TEXT NOT NULL, message INTEGER NOT NULL, n INTEGER NOT NULL, seq BIGINT NOT NULL,
            started BIGINT, ended BIGINT, PRIMARY KEY(session, message, n)
        """,
    },
    indexes={"sessions_listed": "sessions(project, updated, seq)", "sessions_updated": "sessions(updated, seq)"},
)

_CHANGEABLE = ("title", "agent", "model", "max_steps", "pinned", "archived", "trashed")


# --- projectors ---------------------------------------------------------------------------------------------------------------


@FEATURE.projects(SessionCreated)
def _created(tx: Tx, e: Event[SessionCreated]) -> None:
    d = e.data
    row = (e.stream, d.project, d.title, d.agent, d.model, d.max_steps, d.parent, d.parent_call, int(d.hidden), e.ts, e.ts, e.seq)
    tx.q(
        "INSERT INTO sessions(id, project, title, agent, model, max_steps, parent, parent_call, hidden, created, updated, seq,"
        " pinned, archived, trashed, messages, cost_nano, unpriced) VALUES(?,?,?,?,?,?,?,?,?,?,?,?,0,0,0,0,0,0)",
        *row,
    )


@FEATURE.projects(SessionChanged)
def _changed(tx: Tx, e: Event[SessionChanged]) -> None:
    for name, value in e.data.values.items():
        if name in _CHANGEABLE:
            tx.q(f"UPDATE sessions SET {name}=? WHERE id=?", int(value) if isinstance(value, bool) else value, e.stream)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    for table, column in (("sessions", "id"), ("messages", "session"), ("parts", "session")):
        tx.q(f"DELETE FROM {table} WHERE {column}=?", e.data.session)


@FEATURE.projects(MessageAdded)
def _message(tx: Tx, e: Event[MessageAdded]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO messages(session, n, role, author, model, run, created) VALUES(?,?,?,?,?,?,?)",
        *(e.stream, d.n, d.role, d.author, d.model, e.run, e.ts),
    )
    tx.q("UPDATE sessions SET updated=?, seq=?, messages=messages+1 WHERE id=?", e.ts, e.seq, e.stream)


@FEATURE.projects(PartAdded)
def _part(tx: Tx, e: Event[PartAdded]) -> None:
    tx.q("INSERT INTO parts(session, message, n, seq) VALUES(?,?,?,?)", e.stream, e.data.message, e.data.n, e.seq)


@FEATURE.projects(ToolStarted)
def _tool_started(tx: Tx, e: Event[ToolStarted]) -> None:
    tx.q("UPDATE parts SET started=? WHERE session=? AND message=? AND n=?", e.seq, e.stream, e.data.message, e.data.n)


@FEATURE.projects(ToolEnded)
def _tool_ended(tx: Tx, e: Event[ToolEnded]) -> None:
    tx.q("UPDATE parts SET ended=? WHERE session=? AND message=? AND n=?", e.seq, e.stream, e.data.message, e.data.n)


@FEATURE.projects(StepEnded)
def _step(tx: Tx, e: Event[StepEnded]) -> None:
    d = e.data
    tx.q("INSERT INTO parts(session, message, n, seq) VALUES(?,?,?,?)", e.stream, d.message, d.n, e.seq)
    cost = nano(d.part["cost"])
    tx.q(
        "UPDATE sessions SET updated=?, seq=?, cost_nano=cost_nano+?, unpriced=unpriced+? WHERE id=?",
        *(e.ts, e.seq, cost or 0, int(cost is None), e.stream),
    )
    if d.part.get("stop_sequence") is not None:
        tx.q("UPDATE messages SET stop_sequence=? WHERE session=? AND n=?", d.part["stop_sequence"], e.stream, d.message)


@FEATURE.projects(CallEnded)
def _call(tx: Tx, e: Event[CallEnded]) -> None:
    cost = nano(e.data.cost)
    tx.q("UPDATE sessions SET cost_nano=cost_nano+?, unpriced=unpriced+? WHERE id=?", cost or 0, int(cost is None), e.stream)


@FEATURE.projects(StepRetracted)
def _retracted(tx: Tx, e: Event[StepRetracted]) -> None:
    tx.q("DELETE FROM parts WHERE session=? AND message=? AND n>=?", e.stream, e.data.message, e.data.n)


# --- commands -----------------------------------------------------------------------------------------------------------------


def create(
    tx: Tx,
    session: str,
    project: str,
    *,
    title: str,
    agent: str,
    model: str | None,
    max_steps: int | None = None,
    parent: str | None = None,
    parent_call: str | None = None,
) -> str:
    """Begin a session with this fresh id. `title` may be any text; its first line is kept."""
    title = one_line(title, TITLE_LENGTH) or "New session"
    tx.append(
        session,
        SessionCreated(
            project=project, title=title, agent=agent, model=model, max_steps=max_steps, parent=parent, parent_call=parent_call
        ),
    )
    return session


def change(tx: Tx, session: str, **values: Any) -> None:
    """Change title, agent, model, max_steps, pinned, archived or trashed. Values that already stand write nothing."""
    before = get(tx, session)
    unknown = set(values) - set(_CHANGEABLE)
    if unknown:
        raise SteadError("usage", f"A session has no field {sorted(unknown)[0]!r} that can be changed.")
    if "title" in values:
        values["title"] = one_line(values["title"], TITLE_LENGTH)
        if not values["title"]:
            raise SteadError("usage", "A title needs at least one visible character.")
    new = {name: value for name, value in values.items() if getattr(before, name) != value}
    if new:
        tx.append(session, SessionChanged(values=new))


def add_message(
    tx: Tx, session: str, role: Role, *, run: str | None = None, author: str | None = None, model: str | None = None
) -> int:
    """Add an empty message and give its number."""
    last = tx.one("SELECT max(n) FROM messages WHERE session=?", session)
    n = int((last[0] if last else None) or 0) + 1
    tx.append(session, MessageAdded(n=n, role=role, author=author, model=model), run=run)
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


# --- queries ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Session:
    """A session's record. `cost` is dollars, None when the price of any of its calls is unknown. Times are ms in UTC."""

    id: str
    project: str
    title: str
    agent: str
    model: str | None
    max_steps: int | None
    parent: str | None
    parent_call: str | None
    hidden: bool
    pinned: bool
    archived: bool
    trashed: bool
    created: int
    updated: int
    seq: int
    messages: int
    cost: float | None


_COLUMNS = (
    "id, project, title, agent, model, max_steps, parent, parent_call, hidden, pinned, archived, trashed, created, updated, seq,"
    " messages, cost_nano, unpriced"
)


def get(view: Reads, session: str) -> Session:
    """The session with exactly this id. Raises `not_found`."""
    row = view.one(f"SELECT {_COLUMNS} FROM sessions WHERE id=?", session)
    if row is None:
        raise SteadError("not_found", f"There is no session {session!r}.")
    return _session(row)


def in_use(view: Reads, session: str) -> Session:
    """The session with exactly this id, where work may go on. Raises `not_found`; `usage` when it is in the trash."""
    found = get(view, session)
    if found.trashed:
        hint = f"`stead sessions restore {found.id}` takes it out again."
        raise SteadError("usage", f"Session {found.id} is in the trash.", hint=hint)
    return found


def resolve(view: Reads, text: str, *, project: str | None = None) -> Session:
    """The session that `text` names: its id, a prefix of at least 6 letters, or its exact title (the project's own first).

    Raises `not_found`, or `ambiguous` with the candidates.
    """
    if row := view.one(f"SELECT {_COLUMNS} FROM sessions WHERE id=?", text):
        return _session(row)
    rows = []
    if len(text) >= 6 and text.isalnum():
        rows = view.q(f"SELECT {_COLUMNS} FROM sessions WHERE id>=? AND id<? ORDER BY updated DESC LIMIT 9", text, text + "~")
    if not rows:
        rows = view.q(f"SELECT {_COLUMNS} FROM sessions WHERE title=? AND trashed=0 ORDER BY updated DESC LIMIT 99", text)
        rows = [row for row in rows if row[1] == project] or rows
    if not rows:
        raise SteadError("not_found", f"There is no session {text!r}.", hint="`stead sessions list --all` shows them all.")
    if len(rows) > 1:
        found = [{"id": row[0], "title": row[2]} for row in rows]
        raise SteadError("ambiguous", f"{text!r} fits {len(rows)} sessions.", details={"candidates": found})
    return _session(rows[0])


def latest(view: Reads, *projects: str) -> Session | None:
    """The session last updated in these projects (one, with those joined into it) that is not archived, hidden, deleted or a
    child."""
    row = view.one(
        f"SELECT {_COLUMNS} FROM sessions WHERE {_within(projects)} AND archived=0 AND hidden=0 AND trashed=0 AND parent IS NULL"
        " ORDER BY updated DESC, seq DESC LIMIT 1",
        *projects,
    )
    return _session(row) if row else None


def page(
    view: Reads, *projects: str, limit: int = 50, before: tuple[int, int] | None = None, trashed: bool = False
) -> list[Session]:
    """A page of the sessions of these projects (none: of all), last updated first; `before` is the (updated, seq) of the last one
    seen. Children and hidden ones are left out."""
    where, args = "hidden=0 AND parent IS NULL AND trashed=?", [int(trashed)]
    if projects:
        where, args = f"{where} AND {_within(projects)}", [*args, *projects]  # type: ignore[list-item]
    if before is not None:
        where, args = where + " AND (updated, seq)<(?,?)", [*args, *before]
    rows = view.q(f"SELECT {_COLUMNS} FROM sessions WHERE {where} ORDER BY updated DESC, seq DESC LIMIT ?", *args, limit)
    return [_session(row) for row in rows]


def _within(projects: Sequence[str]) -> str:
    return "project=?" if len(projects) == 1 else f"project IN ({', '.join('?' * len(projects))})"


def with_children(view: Reads, session: str) -> list[str]:
    """The session and all below it, children before their parents. Raises `not_found`."""
    get(view, session)
    below = [one for (child,) in view.q("SELECT id FROM sessions WHERE parent=?", session) for one in with_children(view, child)]
    return [*below, session]


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
    parts: list[tuple[int, dict[str, Any]]]

    @property
    def id(self) -> str:
        return f"{self.session}.{self.n}"


def messages(view: Reads, session: str, *, limit: int | None = None, before: int | None = None) -> list[Message]:
    """The session's messages, oldest first: all, or the newest `limit` of those numbered below `before`."""
    rows = _heads(view, session, limit, before)
    if not rows:
        return []
    bodies: dict[int, list[tuple[int, dict[str, Any]]]] = {}
    for message, n, part in _parts(view, session, rows[0][0], rows[-1][0]):
        bodies.setdefault(message, []).append((n, part))
    return [Message(*(session, *row, bodies.get(row[0], []))) for row in rows]


def raw_messages(view: Reads, session: str, *, limit: int | None = None, before: int | None = None) -> list[bytes]:
    """The same messages as JSON texts made of what is stored, without reading it: for copying and export, not for a screen.

    Each is `{"n", "role", "author"?, "model"?, "run"?, "created", "stop_sequence"?, "parts": [{"added", "started"?, "ended"?}]}`
    where `added` and `ended` are the data of the events that added a part and ended a tool call, byte for byte (long strings still
    in blobs, provider data as it came), and `started` is the `seq` at which the tool began. A damaged event spoils the text of its
    own message and no other.
    """
    rows = _heads(view, session, limit, before)
    if not rows:
        return []
    pieces: dict[int, list[bytes]] = {row[0]: [_head_json(row)] for row in rows}  # joined once: the bodies are most of it
    for message_n, _, started, data, end in view.q(_BODIES, session, rows[0][0], rows[-1][0]):
        one = pieces[message_n]
        one += b',{"added":' if len(one) > 1 else b'{"added":', data
        if started is not None:
            one.append(b',"started":%d' % started)
        if end is not None:
            one += b',"ended":', end
        one.append(b"}")
    return [b"".join([*one, b"]}"]) for one in pieces.values()]


_HEAD = ("n", "role", "author", "model", "run", "created", "stop_sequence")
_BODIES = (
    "SELECT p.message, p.n, p.started, e.data, x.data FROM parts p JOIN events e ON e.seq=p.seq"
    " LEFT JOIN events x ON x.seq=p.ended WHERE p.session=? AND p.message>=? AND p.message<=? ORDER BY p.message, p.n"
)


def _head_json(row: tuple[Any, ...]) -> bytes:
    """The beginning of a message's JSON text, up to its first part."""
    head = dumps({name: value for name, value in zip(_HEAD, row, strict=True) if value is not None})
    return head[:-1] + b',"parts":['


def _heads(view: Reads, session: str, limit: int | None, before: int | None) -> list[tuple[Any, ...]]:
    """The rows of a page of messages, oldest first, with the columns of `_HEAD`."""
    rows = view.q(
        f"SELECT {', '.join(_HEAD)} FROM messages WHERE session=? AND n<? ORDER BY n DESC LIMIT ?",
        *(session, before if before is not None else 1 << 60, limit if limit is not None else 1 << 31),
    )
    rows.reverse()
    return rows


def message(view: Reads, session: str, n: int) -> Message:
    """One message. Raises `not_found`."""
    found = messages(view, session, limit=1, before=n + 1)
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


def _session(row: tuple[Any, ...]) -> Session:
    *rest, cost_nano, unpriced = row
    flags = [bool(value) for value in rest[8:12]]
    return Session(*(*rest[:8], *flags, *rest[12:], None if unpriced else cost_nano / 1e9))


def nano(cost: float | None) -> int | None:
    """Dollars as whole nano-dollars, in which sums are exact."""
    return None if cost is None else round(cost * 1e9)


# --- what the outside sees ----------------------------------------------------------------------------------------------------


def part_json(session: str, message_n: int, n: int, part: Any) -> dict[str, Any]:
    """A part as every surface shows it: with its id, without provider data, tool arguments as the JSON they are; an unknown type
    as `unknown`, a part whose stored shape is wrong with the `issue` that says where. Nothing is written."""
    where = {"id": f"{session}.{message_n}.{n}"}
    if not known_parts.known(part):
        return {**where, "type": "unknown", "original": part}
    body = {name: value for name, value in part.items() if name != "meta"}
    if found := known_parts.issue(part):
        return {**where, **body, "issue": found}
    if body["type"] == "tool":
        arguments = body.pop("arguments")
        body.update(_input(arguments))
    return {**where, **body}


def _input(arguments: str) -> dict[str, Any]:
    from stead.core.jsontext import parse_foreign

    try:
        return {"input": parse_foreign(arguments) if arguments.strip() else {}}
    except ValueError:
        return {"input": None, "arguments": arguments}


def message_json(found: Message) -> dict[str, Any]:
    """A message in the shape of `sessions show --json`."""
    shown = {"id": found.id, "role": found.role, "model": found.model, "created": rfc3339(found.created)}
    if found.author is not None:
        shown["author"] = found.author
    if found.stop_sequence is not None:
        shown["stop_sequence"] = found.stop_sequence
    return {**shown, "parts": [part_json(found.session, found.n, n, part) for n, part in found.parts]}
