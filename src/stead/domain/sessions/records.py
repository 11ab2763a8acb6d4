"""Sessions as records: begun, changed, found, listed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stead.core.errors import SteadError
from stead.core.text import one_line
from stead.domain.sessions.events import SessionChanged, SessionCreated
from stead.domain.sessions.tables import CHANGEABLE
from stead.store.database import Reads
from stead.store.log import Tx

TITLE_LENGTH = 80


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
    forked_from: str | None = None,
    forked_at: int | None = None,
) -> str:
    """Begin a session with this fresh id. `title` may be any text; its first line is kept. A fork is hidden until `forked`."""
    fact = SessionCreated(
        project=project,
        title=one_line(title, TITLE_LENGTH) or "New session",
        agent=agent,
        model=model,
        max_steps=max_steps,
        parent=parent,
        parent_call=parent_call,
        hidden=forked_from is not None,
        forked_from=forked_from,
        forked_at=forked_at,
    )
    tx.append(session, fact)
    return session


def change(tx: Tx, session: str, **values: Any) -> None:
    """Change title, agent, model, max_steps, pinned, archived or trashed. Values that already stand write nothing."""
    before = get(tx, session)
    unknown = set(values) - set(CHANGEABLE)
    if unknown:
        raise SteadError("usage", f"A session has no field {sorted(unknown)[0]!r} that can be changed.")
    if "title" in values:
        values["title"] = one_line(values["title"], TITLE_LENGTH)
        if not values["title"]:
            raise SteadError("usage", "A title needs at least one visible character.")
    new = {name: value for name, value in values.items() if getattr(before, name) != value}
    if new:
        tx.append(session, SessionChanged(values=new))


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
    forked_from: str | None
    forked_at: int | None
    cost: float | None


_COLUMNS = (
    "id, project, title, agent, model, max_steps, parent, parent_call, hidden, pinned, archived, trashed, created, updated, seq,"
    " messages, forked_from, forked_at, cost_nano, unpriced"
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


def children(view: Reads, session: str) -> list[Session]:
    """The sessions that were begun by calls of this one, oldest first."""
    return [_session(row) for row in view.q(f"SELECT {_COLUMNS} FROM sessions WHERE parent=? ORDER BY created, seq", session)]


def forks(view: Reads, session: str) -> list[Session]:
    """The sessions that begin with messages of this one, oldest first."""
    rows = view.q(f"SELECT {_COLUMNS} FROM sessions WHERE forked_from=? AND hidden=0 ORDER BY created, seq", session)
    return [_session(row) for row in rows]


def unfinished(view: Reads, *, before: int) -> list[str]:
    """The forks that are not whole and were begun before this time (ms)."""
    rows = view.q("SELECT id FROM sessions WHERE hidden=1 AND forked_from IS NOT NULL AND parent IS NULL AND updated<?", before)
    return [one for (one,) in rows]


def with_children(view: Reads, session: str) -> list[str]:
    """The session and all below it, children before their parents. Raises `not_found`."""
    get(view, session)
    below = [one for (child,) in view.q("SELECT id FROM sessions WHERE parent=?", session) for one in with_children(view, child)]
    return [*below, session]


def _session(row: tuple[Any, ...]) -> Session:
    *rest, cost_nano, unpriced = row
    flags = [bool(value) for value in rest[8:12]]
    return Session(*(*rest[:8], *flags, *rest[12:], None if unpriced else cost_nano / 1e9))
