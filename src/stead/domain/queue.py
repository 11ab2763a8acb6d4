"""The queue: prompts that wait for the run before them to end. Each keeps its place over a restart and begins exactly once.

A prompt's id here is the id of the run that it becomes. In a session prompts begin in their order, one at a time; a *held* one
(its process died, or a person stopped it) waits until somebody lets it go on and keeps nobody else from beginning. A prompt that is
*sent now* while a run is at work is put into that run between two of its steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.core.jsontext import loads
from stead.domain import runs, sessions
from stead.domain.runs import Run, RunStarted, RunSteered
from stead.domain.sessions import SessionDeleted
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

State = Literal["queued", "begun", "retracted"]


@event("prompt.queued")
class PromptQueued(Fact):
    """`terms` are what was agreed for the run (agent, model, limits, rules); `owner` is the process that waits to work on it,
    None where any may."""

    prompt: str
    parts: list[Any]
    terms: dict[str, Any]
    owner: str | None = None
    author: str | None = None
    key: str | None = None


@event("prompt.changed")
class PromptChanged(Fact):
    prompt: str
    parts: list[Any]


@event("prompt.moved")
class PromptMoved(Fact):
    """The prompt stands at `place` of its session's queue; 1 is next."""

    prompt: str
    place: int


@event("prompt.held")
class PromptHeld(Fact):
    prompt: str
    reason: str


@event("prompt.released")
class PromptReleased(Fact):
    """A held prompt may begin again; or its process left in order. `owner` is who waits to work on it from now on."""

    prompt: str
    owner: str | None = None


@event("prompt.sent")
class PromptSent(Fact):
    """The prompt is to be said now, in the run at work or as the next to begin: it stands behind those already sent and before all
    others."""

    prompt: str


@event("prompt.retracted")
class PromptRetracted(Fact):
    prompt: str
    by: str


FEATURE = Feature(
    "queue",
    tables={
        "queue": """
            id TEXT PRIMARY KEY, session TEXT NOT NULL, seq BIGINT NOT NULL, body BIGINT NOT NULL, rank BIGINT NOT NULL,
            state TEXT NOT NULL, held TEXT, now INTEGER NOT NULL, owner TEXT, author TEXT, key TEXT, run TEXT,
            queued BIGINT NOT NULL
        """,
    },
    indexes={"queue_order": "queue(session, state, rank)", "queue_state": "queue(state, owner)"},
)

_WAITS_IN = "state='queued' AND session=?"
_NOT_IN_TRASH = "NOT EXISTS (SELECT 1 FROM sessions s WHERE s.id=q.session AND s.trashed=1)"
_BEHIND_ALL = 1 << 62


@FEATURE.projects(PromptQueued)
def _queued(tx: Tx, e: Event[PromptQueued]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO queue(id, session, seq, body, rank, state, now, owner, author, key, queued)"
        " VALUES(?,?,?,?,?,'queued',0,?,?,?,?)",
        *(d.prompt, e.stream, e.seq, e.seq, e.seq, d.owner, d.author, d.key, e.ts),
    )


@FEATURE.projects(PromptChanged)
def _changed(tx: Tx, e: Event[PromptChanged]) -> None:
    tx.q("UPDATE queue SET body=? WHERE id=?", e.seq, e.data.prompt)


@FEATURE.projects(PromptMoved)
def _moved(tx: Tx, e: Event[PromptMoved]) -> None:
    _put(tx, e.stream, e.data.prompt, e.data.place)


@FEATURE.projects(PromptHeld)
def _held(tx: Tx, e: Event[PromptHeld]) -> None:
    tx.q("UPDATE queue SET held=?, owner=NULL WHERE id=?", e.data.reason, e.data.prompt)


@FEATURE.projects(PromptReleased)
def _released(tx: Tx, e: Event[PromptReleased]) -> None:
    tx.q("UPDATE queue SET held=NULL, owner=? WHERE id=?", e.data.owner, e.data.prompt)


@FEATURE.projects(PromptSent)
def _sent(tx: Tx, e: Event[PromptSent]) -> None:
    others = f"FROM queue WHERE {_WAITS_IN} AND id<>?"
    first = tx.q(f"SELECT min(rank) {others} AND now=0", e.stream, e.data.prompt)[0][0]
    sent = tx.q(f"SELECT count(*) {others} AND rank<?", e.stream, e.data.prompt, _BEHIND_ALL if first is None else first)[0][0]
    _put(tx, e.stream, e.data.prompt, sent + 1)
    tx.q("UPDATE queue SET now=1, held=NULL WHERE id=?", e.data.prompt)


def _put(tx: Tx, session: str, prompt: str, place: int) -> None:
    """Give a waiting prompt its place: it takes the rank of the one that stands there, and those from there to where it stood move
    up or down by one. So no rank is above what a later prompt gets (its seq)."""
    row = tx.one(f"SELECT rank FROM queue WHERE {_WAITS_IN} ORDER BY rank LIMIT 1 OFFSET ?", session, place - 1)
    (was,), (to,) = tx.q("SELECT rank FROM queue WHERE id=?", prompt)[0], row or (None,)
    if to is None or was == to:
        return
    tx.q(
        f"UPDATE queue SET rank=CASE WHEN id=? THEN ? ELSE rank+? END WHERE {_WAITS_IN} AND rank>=? AND rank<=?",
        *(prompt, to, 1 if to < was else -1, session, min(was, to), max(was, to)),
    )


@FEATURE.projects(PromptRetracted)
def _retracted(tx: Tx, e: Event[PromptRetracted]) -> None:
    tx.q("UPDATE queue SET state='retracted' WHERE id=?", e.data.prompt)


@FEATURE.projects(RunStarted)
def _begun(tx: Tx, e: Event[RunStarted]) -> None:
    tx.q("UPDATE queue SET state='begun', run=? WHERE id=?", e.data.run, e.data.run)


@FEATURE.projects(RunSteered)
def _steered(tx: Tx, e: Event[RunSteered]) -> None:
    tx.q("UPDATE queue SET state='begun', run=? WHERE id=?", e.data.run, e.data.queued)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    tx.q("DELETE FROM queue WHERE session=?", e.data.session)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of the queue. `held` says why it does not begin; `run` is the run that it became or was put into; `queued` is ms."""

    id: str
    session: str
    seq: int
    body: int
    rank: int
    state: State
    held: str | None
    now: bool
    owner: str | None
    author: str | None
    key: str | None
    run: str | None
    queued: int


_COLUMNS = "id, session, seq, body, rank, state, held, now, owner, author, key, run, queued"


# --- commands -----------------------------------------------------------------------------------------------------------------


def add(
    tx: Tx,
    prompt: str,
    session: str,
    parts: Sequence[Any],
    terms: dict[str, Any],
    *,
    owner: str | None,
    author: str | None = None,
    key: str | None = None,
) -> Prompt:
    """Queue a prompt behind those of its session. `parts` are packed; `owner` None: whoever works for the store takes it."""
    fact = PromptQueued(prompt=prompt, parts=list(parts), terms=terms, owner=owner, author=author, key=key)
    tx.append(session, fact, run=prompt)
    return get(tx, prompt)


def edit(tx: Tx, prompt: str, parts: Sequence[Any]) -> None:
    """Replace what a waiting prompt says. Raises `conflict` when it has begun or was taken back."""
    found = _waiting(tx, prompt)
    tx.append(found.session, PromptChanged(prompt=prompt, parts=list(parts)), run=prompt)


def move(tx: Tx, prompt: str, place: int) -> None:
    """Put a waiting prompt at `place` (1 is next) in its session's queue. Raises `conflict` like `edit`."""
    found = _waiting(tx, prompt)
    last = tx.q(f"SELECT count(*) FROM queue WHERE {_WAITS_IN}", found.session)[0][0]
    tx.append(found.session, PromptMoved(prompt=prompt, place=min(max(place, 1), last)), run=prompt)


def hold(tx: Tx, prompt: Prompt, reason: str) -> None:
    """Keep a waiting prompt from beginning until a person lets it go on. Nothing happens when it is held or does not wait."""
    if prompt.state == "queued" and prompt.held is None:
        tx.append(prompt.session, PromptHeld(prompt=prompt.id, reason=reason), run=prompt.id)


def hold_session(tx: Tx, session: str, reason: str) -> list[str]:
    """Hold all waiting prompts of a session. Gives the ids of those that were not held before."""
    found = [one for one in waiting(tx, session) if one.held is None]
    for one in found:
        hold(tx, one, reason)
    return [one.id for one in found]


def let_go(tx: Tx, prompts: Iterable[str], reason: str) -> None:
    """Take a hold back: those of these prompts that are still held for `reason` may be begun by any process."""
    for one in [get(tx, prompt) for prompt in prompts]:
        if one.state == "queued" and one.held == reason:
            release(tx, one.id)


def hold_of(tx: Tx, dead: Iterable[str], reason: str) -> list[str]:
    """Hold the waiting prompts of processes that died. Gives their ids."""
    found = [one for owner in sorted(dead) for one in _owned(tx, owner)]
    for one in found:
        hold(tx, one, reason)
    return [one.id for one in found]


def leave(tx: Tx, owner: str) -> None:
    """A process ends in order: the prompts that waited for it may be begun by another."""
    for one in _owned(tx, owner):
        tx.append(one.session, PromptReleased(prompt=one.id), run=one.id)


def release(tx: Tx, prompt: str, owner: str | None = None) -> Prompt:
    """Let a held prompt go on; `owner` is the process that waits to work on it, which is refused with `usage` while the session is
    in the trash. Raises `conflict` like `edit`."""
    found = _waiting(tx, prompt)
    if owner is not None:
        sessions.in_use(tx, found.session)
    if found.held is not None or found.owner != owner:
        tx.append(found.session, PromptReleased(prompt=prompt, owner=owner), run=prompt)
    return get(tx, prompt)


def resume(tx: Tx, prompts: Iterable[str], owner: str) -> None:
    """Let these prompts go on, as far as they still wait, with `owner` to work on them one after the other."""
    for prompt in prompts:
        if get(tx, prompt).state == "queued":
            release(tx, prompt, owner)


def send(tx: Tx, prompt: str) -> Prompt:
    """Have a waiting prompt said now: in the run that is at work, between two of its steps, else as the next to begin. Raises
    `conflict` like `edit`, `usage` while the session is in the trash."""
    found = _waiting(tx, prompt)
    sessions.in_use(tx, found.session)
    if not found.now or found.held is not None:
        tx.append(found.session, PromptSent(prompt=prompt), run=prompt)
    return get(tx, prompt)


def retract(tx: Tx, prompt: str, *, by: str) -> None:
    """Take a waiting prompt back. Raises `conflict` when it has begun, and again when it was taken back before."""
    found = _waiting(tx, prompt)
    tx.append(found.session, PromptRetracted(prompt=prompt, by=by), run=prompt)


def _waiting(tx: Tx, prompt: str) -> Prompt:
    found = get(tx, prompt)
    if found.state != "queued":
        said = "has begun" if found.state == "begun" else "was taken back"
        raise SteadError("conflict", f"Prompt {prompt} {said}; it is not in the queue any more.", details={"state": found.state})
    return found


# --- queries ------------------------------------------------------------------------------------------------------------------


def get(view: Reads, prompt: str) -> Prompt:
    """The prompt with this id, whatever became of it. Raises `not_found`."""
    row = view.one(f"SELECT {_COLUMNS} FROM queue WHERE id=?", prompt)
    if row is None:
        raise SteadError("not_found", f"There is no queued prompt {prompt!r}.", hint="`stead queue list` shows them.")
    return _prompt(row)


def with_key(view: Reads, session: str, key: str) -> Prompt | None:
    """The session's prompt that was queued with this key and not taken back."""
    row = view.one(f"SELECT {_COLUMNS} FROM queue WHERE session=? AND key=? AND state<>'retracted'", session, key)
    return _prompt(row) if row else None


def waiting(view: Reads, session: str | None = None) -> list[Prompt]:
    """The prompts that have not begun, in their order; of one session or of all."""
    if session is None:
        rows = view.q(f"SELECT {_COLUMNS} FROM queue WHERE state='queued' ORDER BY session, rank")
    else:
        rows = view.q(f"SELECT {_COLUMNS} FROM queue WHERE state='queued' AND session=? ORDER BY rank", session)
    return [_prompt(row) for row in rows]


def head(view: Reads, session: str) -> Prompt | None:
    """The next prompt to begin in a session: the first that is not held. None in the trash, where nothing begins."""
    row = view.one(
        f"SELECT {_COLUMNS} FROM queue q WHERE {_WAITS_IN} AND held IS NULL AND {_NOT_IN_TRASH} ORDER BY rank LIMIT 1", session
    )
    return _prompt(row) if row else None


def sent(view: Reads, session: str) -> Prompt | None:
    """The next prompt that is to be put into the run at work."""
    row = view.one(
        f"SELECT {_COLUMNS} FROM queue WHERE state='queued' AND session=? AND now=1 AND held IS NULL ORDER BY rank LIMIT 1", session
    )
    return _prompt(row) if row else None


def free(view: Reads, lock: str = "", *, session: str | None = None) -> Prompt | None:
    """A prompt that nobody in particular waits to work on and that may begin now: the longest waiting head of a session that has no
    open run and is not in the trash, of one session or of any. `lock` is the database's way to pass over rows that another process
    is taking just now."""
    row = view.one(
        f"SELECT {_COLUMNS} FROM queue q WHERE state='queued' AND owner IS NULL AND held IS NULL"
        f"{'' if session is None else ' AND session=?'}"
        " AND NOT EXISTS (SELECT 1 FROM runs r WHERE r.session=q.session AND r.status<>'ended')"
        f" AND {_NOT_IN_TRASH}"
        " AND NOT EXISTS (SELECT 1 FROM queue o WHERE o.session=q.session AND o.state='queued' AND o.held IS NULL"
        "   AND o.rank<q.rank)"
        f" ORDER BY seq LIMIT 1{lock}",
        *(() if session is None else (session,)),
    )
    return _prompt(row) if row else None


def content(view: Reads, prompt: Prompt) -> tuple[list[Any], dict[str, Any]]:
    """What the prompt says (its parts as they are stored) and what was agreed for its run."""
    first = view.one("SELECT data FROM events WHERE seq=?", prompt.seq)
    last = first if prompt.body == prompt.seq else view.one("SELECT data FROM events WHERE seq=?", prompt.body)
    if first is None or last is None:
        raise SteadError("store_damaged", f"The text of the queued prompt {prompt.id} is not there.")
    return loads(last[0])["parts"], loads(first[0])["terms"]


def _owned(view: Reads, owner: str) -> list[Prompt]:
    return [_prompt(row) for row in view.q(f"SELECT {_COLUMNS} FROM queue WHERE state='queued' AND owner=? ORDER BY rank", owner)]


def became(view: Reads, prompt: str) -> str:
    """The run that a prompt's words went into: the run of its own id, or the one at work that it was said in."""
    row = view.one("SELECT run FROM queue WHERE id=?", prompt)
    return str(row[0]) if row and row[0] else prompt


def owners(view: Reads) -> set[str]:
    """The processes that prompts wait for."""
    return {owner for (owner,) in view.q("SELECT DISTINCT owner FROM queue WHERE state='queued' AND owner IS NOT NULL")}


def begin(tx: Tx, prompt: Prompt, owner: str) -> Run | None:
    """Begin a prompt's run under `owner`; None when it is not its turn: a run is open, another is before it, it is held or gone,
    its session is in the trash."""
    if runs.active(tx, prompt.session) is not None:
        return None
    first = head(tx, prompt.session)
    if first is None or first.id != prompt.id:
        return None
    parts, terms = content(tx, first)
    about = {name: terms[name] for name in ("agent", "model", "project", "max_steps")}
    sessions.change(tx, first.session, model=about["model"], agent=about["agent"])
    rest = {name: value for name, value in terms.items() if name not in about}
    return runs.start(tx, first.id, first.session, parts, owner=owner, author=first.author, key=first.key, terms=rest, **about)


def steer(tx: Tx, run: Run) -> Run | None:
    """Put the next prompt that is to be said now into a run at work; the run as it goes on, None when there is no such prompt."""
    found = sent(tx, run.session)
    if found is None:
        return None
    parts, _ = content(tx, found)
    return runs.steer(tx, run, parts, queued=found.id, author=found.author)


def _prompt(row: tuple[Any, ...]) -> Prompt:
    return Prompt(*(*row[:7], bool(row[7]), *row[8:]))
