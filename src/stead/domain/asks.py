"""Asks: what a run wants to know from a person, an answer or an approval. Each is answered once, from any surface."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.core.jsontext import dumps, loads
from stead.domain.runs import Run, RunEnded
from stead.domain.sessions import SessionDeleted, part_state
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

Kind = Literal["question", "approval"]


@event("ask.opened")
class AskOpened(Fact):
    """`about` is what the person sees: question and options, or tool, input, why and the suggested rules."""

    ask: str
    ask_kind: Kind
    message: int
    n: int
    about: dict[str, Any]


@event("ask.answered")
class AskAnswered(Fact):
    ask: str
    answer: dict[str, Any]
    by: str


@event("ask.closed")
class AskClosed(Fact):
    """Nobody needs the answer any more: the run ended."""

    ask: str
    reason: str


FEATURE = Feature(
    "asks",
    tables={
        "asks": """
            id TEXT PRIMARY KEY, session TEXT NOT NULL, run TEXT NOT NULL, seq BIGINT NOT NULL,
            kind TEXT NOT NULL, message INTEGER NOT NULL, n INTEGER NOT NULL, status TEXT NOT NULL,
            about {blob} NOT NULL, answer {blob}, answered_by TEXT
        """,
    },
    indexes={"asks_open": "asks(status, session)"},
)


@FEATURE.projects(AskOpened)
def _opened(tx: Tx, e: Event[AskOpened]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO asks(id, session, run, seq, kind, message, n, status, about) VALUES(?,?,?,?,?,?,?,'open',?)",
        *(d.ask, e.stream, e.run, e.seq, d.ask_kind, d.message, d.n, dumps(d.about)),
    )


@FEATURE.projects(AskAnswered)
def _answered(tx: Tx, e: Event[AskAnswered]) -> None:
    tx.q("UPDATE asks SET status='answered', answer=?, answered_by=? WHERE id=?", dumps(e.data.answer), e.data.by, e.data.ask)


@FEATURE.projects(AskClosed)
def _closed(tx: Tx, e: Event[AskClosed]) -> None:
    tx.q("UPDATE asks SET status='closed' WHERE id=?", e.data.ask)


@FEATURE.projects(RunEnded)
def _run_ended(tx: Tx, e: Event[RunEnded]) -> None:
    """However a run ended, nobody waits for its answers any more."""
    tx.q("UPDATE asks SET status='closed' WHERE status='open' AND session=? AND run=?", e.stream, e.data.run)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    tx.q("DELETE FROM asks WHERE session=?", e.data.session)


@dataclass(frozen=True, slots=True)
class Ask:
    """An ask. `about` and `answer` are as stored: long strings in them still in blobs (`Blobs.resolve`)."""

    id: str
    session: str
    run: str
    seq: int
    kind: Kind
    message: int
    n: int
    status: Literal["open", "answered", "closed"]
    about: dict[str, Any]
    answer: dict[str, Any] | None
    answered_by: str | None


_COLUMNS = "id, session, run, seq, kind, message, n, status, about, answer, answered_by"


def open_ask(tx: Tx, ask: str, session: str, run: str, *, kind: Kind, message: int, n: int, about: dict[str, Any]) -> None:
    """Ask, durably. `message` and `n` name the tool part that waits."""
    tx.append(session, AskOpened(ask=ask, ask_kind=kind, message=message, n=n, about=about), run=run)


def answer(tx: Tx, ask: str, value: dict[str, Any], *, by: str) -> Ask:
    """Answer an open ask: `{"text": str}`, or `{"allow": bool, "reason"?: str, "rules"?: [str]}`. Long strings must have been moved
    into blobs (`Blobs.pack`, `Tx.unpack`). Raises `not_found`, `ask_closed` when it was answered or withdrawn before, `usage` for
    an answer of another shape."""
    found = get(tx, ask)
    if found.status != "open":
        raise SteadError(
            "ask_closed", f"This {found.kind} is {found.status} and takes no answer.", details={"status": found.status}
        )
    check(found.kind, value)
    tx.append(found.session, AskAnswered(ask=ask, answer=value, by=by), run=found.run)
    return get(tx, ask)


_NEEDED: dict[str, dict[str, type]] = {"question": {"text": str}, "approval": {"allow": bool}}
_ALLOWED: dict[str, dict[str, type]] = {"question": {"text": str}, "approval": {"allow": bool, "reason": str, "rules": list}}


def check(kind: Kind, value: Any) -> None:
    """Raises `usage` for what is no answer to an ask of this kind. Strings may have been moved into blobs."""
    what = "a question" if kind == "question" else "an approval"
    if not isinstance(value, dict):
        raise SteadError("usage", f"The answer to {what} is an object, not {type(value).__name__}.")
    for name, wanted in _NEEDED[kind].items():
        if not _fits(value.get(name), wanted):
            options = "--text TEXT" if kind == "question" else "--allow or --deny"
            raise SteadError("usage", f"The answer to {what} needs {name!r}.", hint=f"On the command line: {options}.")
    for name, given in value.items():
        known = _ALLOWED[kind].get(name)
        if known is None or not _fits(given, known):
            raise SteadError("usage", f"{name!r} does not belong into the answer to {what}, or is of the wrong kind.")


def _fits(given: Any, wanted: type) -> bool:
    if isinstance(given, list) and not all(_fits(one, str) for one in given):
        return False
    return isinstance(given, wanted) or (wanted is str and isinstance(given, dict) and "$blob" in given)


def close(tx: Tx, ask: str, reason: str) -> None:
    """Withdraw an open ask; nothing happens when it is not open any more."""
    found = get(tx, ask)
    if found.status == "open":
        tx.append(found.session, AskClosed(ask=ask, reason=reason), run=found.run)


def close_open(tx: Tx, session: str, run: str, reason: str) -> None:
    """Withdraw every open ask of a run."""
    for (ask,) in tx.q("SELECT id FROM asks WHERE session=? AND run=? AND status='open' ORDER BY seq", session, run):
        tx.append(session, AskClosed(ask=ask, reason=reason), run=run)


def of_part(view: Reads, run: Run, n: int, kind: Kind) -> Ask | None:
    """The newest ask of this kind about a part of the run's message, in whatever state."""
    row = view.one(
        f"SELECT {_COLUMNS} FROM asks WHERE session=? AND run=? AND message=? AND n=? AND kind=? ORDER BY seq DESC LIMIT 1",
        *(run.session, run.id, run.message, n, kind),
    )
    return _ask(row) if row else None


def resumable(view: Reads, session: str, run: str) -> Ask | None:
    """The ask that a run without a process may go on from: it is open, or it was answered and nothing came of the answer yet."""
    row = view.one(f"SELECT {_COLUMNS} FROM asks WHERE session=? AND run=? ORDER BY seq DESC LIMIT 1", session, run)
    found = _ask(row) if row else None
    if found is None or found.status == "open":
        return found
    if found.status == "answered" and (part := part_state(view, session, found.message, found.n)) is not None:
        acted = part.ended if found.kind == "question" else part.started or part.ended
        return None if acted else found
    return None


def waiting(view: Reads, of: Sequence[str]) -> set[str]:
    """Those of these sessions that have an open ask."""
    if not of:
        return set()
    rows = view.q(f"SELECT DISTINCT session FROM asks WHERE status='open' AND session IN ({','.join('?' * len(of))})", *of)
    return {session for (session,) in rows}


def get(view: Reads, ask: str) -> Ask:
    """The ask with this id. Raises `not_found`."""
    row = view.one(f"SELECT {_COLUMNS} FROM asks WHERE id=?", ask)
    if row is None:
        raise SteadError("not_found", f"There is no question {ask!r}.")
    return _ask(row)


def open_asks(view: Reads, session: str | None = None, *, trashed: bool = False) -> list[Ask]:
    """All open asks, oldest first; of one session or of all. With `trashed` also those of sessions in the trash."""
    where, args = "status='open'", [] if session is None else [session]
    if session is not None:
        where += " AND session=?"
    if not trashed:
        where += " AND NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id=session AND s.trashed=1)"
    return [_ask(row) for row in view.q(f"SELECT {_COLUMNS} FROM asks WHERE {where} ORDER BY seq", *args)]


def _ask(row: tuple[Any, ...]) -> Ask:
    *rest, about, value, by = row
    return Ask(*(*rest, loads(about), None if value is None else loads(value), by))
