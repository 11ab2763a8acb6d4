"""The tables of sessions, and how events become their rows."""

from __future__ import annotations

from stead.core.events import Event
from stead.domain.sessions.events import (
    BranchLeft,
    BranchResumed,
    CallEnded,
    MessageAdded,
    PartAdded,
    SessionChanged,
    SessionCreated,
    SessionDeleted,
    SessionForked,
    StepEnded,
    StepRetracted,
    ToolEnded,
    ToolStarted,
)
from stead.store.feature import Feature
from stead.store.log import Tx

FEATURE = Feature(
    "sessions",
    version=2,
    tables={
        "sessions": """
            id TEXT PRIMARY KEY, project TEXT NOT NULL, title TEXT NOT NULL, agent TEXT NOT NULL, model TEXT,
            max_steps INTEGER, parent TEXT, parent_call TEXT, hidden INTEGER NOT NULL, pinned INTEGER NOT NULL,
            archived INTEGER NOT NULL, trashed INTEGER NOT NULL, created BIGINT NOT NULL,
            updated BIGINT NOT NULL, seq BIGINT NOT NULL, messages INTEGER NOT NULL, cost_nano BIGINT NOT NULL,
            unpriced INTEGER NOT NULL, forked_from TEXT, forked_at INTEGER
        """,
        "messages": """
            session TEXT NOT NULL, n INTEGER NOT NULL, role TEXT NOT NULL, author TEXT, model TEXT, run TEXT,
            created BIGINT NOT NULL, stop_sequence TEXT, parent INTEGER NOT NULL, left_by BIGINT NOT NULL,
            PRIMARY KEY(session, n)
        """,
        "parts": """
            session TEXT NOT NULL, message INTEGER NOT NULL, n INTEGER NOT NULL, seq BIGINT NOT NULL,
            started BIGINT, ended BIGINT, PRIMARY KEY(session, message, n)
        """,
    },
    indexes={
        "sessions_listed": "sessions(project, updated, seq)",
        "sessions_updated": "sessions(updated, seq)",
        "messages_branch": "messages(session, left_by, n)",
    },
)

CHANGEABLE = ("title", "agent", "model", "max_steps", "pinned", "archived", "trashed")


@FEATURE.projects(SessionCreated)
def _created(tx: Tx, e: Event[SessionCreated]) -> None:
    d = e.data
    row = (e.stream, d.project, d.title, d.agent, d.model, d.max_steps, d.parent, d.parent_call, int(d.hidden), e.ts, e.ts, e.seq)
    forked = (d.forked_from, d.forked_at)
    tx.q(
        "INSERT INTO sessions(id, project, title, agent, model, max_steps, parent, parent_call, hidden, created, updated, seq,"
        " forked_from, forked_at, pinned, archived, trashed, messages, cost_nano, unpriced)"
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,0,0,0,0,0,0)",
        *(*row, *forked),
    )


@FEATURE.projects(SessionChanged)
def _changed(tx: Tx, e: Event[SessionChanged]) -> None:
    for name, value in e.data.values.items():
        if name in CHANGEABLE:
            tx.q(f"UPDATE sessions SET {name}=? WHERE id=?", int(value) if isinstance(value, bool) else value, e.stream)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    for table, column in (("sessions", "id"), ("messages", "session"), ("parts", "session")):
        tx.q(f"DELETE FROM {table} WHERE {column}=?", e.data.session)


@FEATURE.projects(MessageAdded)
def _message(tx: Tx, e: Event[MessageAdded]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO messages(session, n, role, author, model, run, created, parent, left_by) VALUES(?,?,?,?,?,?,?,?,0)",
        *(e.stream, d.n, d.role, d.author, d.model, e.run, d.created or e.ts, d.n - 1 if d.parent is None else d.parent),
    )
    tx.q("UPDATE sessions SET updated=?, seq=?, messages=messages+1 WHERE id=?", e.ts, e.seq, e.stream)


@FEATURE.projects(BranchLeft)
def _left(tx: Tx, e: Event[BranchLeft]) -> None:
    _move(tx, e, 0, e.seq, e.data.first)


@FEATURE.projects(BranchResumed)
def _resumed(tx: Tx, e: Event[BranchResumed]) -> None:
    _move(tx, e, e.data.left, 0, 0)


def _move(tx: Tx, e: Event[BranchLeft] | Event[BranchResumed], old: int, new: int, first: int) -> None:
    moved = tx.q("UPDATE messages SET left_by=? WHERE session=? AND left_by=? AND n>=? RETURNING n", *(new, e.stream, old, first))
    count = len(moved) if new == 0 else -len(moved)
    tx.q("UPDATE sessions SET messages=messages+?, updated=?, seq=? WHERE id=?", count, e.ts, e.seq, e.stream)


@FEATURE.projects(SessionForked)
def _forked(tx: Tx, e: Event[SessionForked]) -> None:
    tx.q("UPDATE sessions SET hidden=0, updated=?, seq=? WHERE id=?", e.ts, e.seq, e.stream)


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


def nano(cost: float | None) -> int | None:
    """Dollars as whole nano-dollars, in which sums are exact."""
    return None if cost is None else round(cost * 1e9)
