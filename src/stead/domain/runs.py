"""Runs: one prompt's life. A run begins with its user message, owns one assistant message, and ends exactly once (I6).

A session has at most one run that has not ended. A process works on it under a lease: `owner` is that process's lock, `epoch`
counts how often the work changed hands. Who lost the lease writes nothing more (`held`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.core.jsontext import loads
from stead.domain import sessions
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

Outcome = Literal["done", "error", "denied", "waiting", "limit", "interrupted", "aborted"]
Status = Literal["running", "waiting", "ended"]


@event("run.started")
class RunStarted(Fact):
    run: str
    prompt: int
    message: int
    agent: str
    model: str
    owner: str
    project: str
    max_steps: int
    key: str | None = None
    terms: dict[str, Any] | None = None


@event("run.waiting")
class RunWaiting(Fact):
    """The run waits for a person; its process may end here."""

    run: str
    ask: str


@event("run.resumed")
class RunResumed(Fact):
    """A process goes on with a run that waited. `terms` are those that it changes."""

    run: str
    owner: str
    terms: dict[str, Any] | None = None


@event("run.steered")
class RunSteered(Fact):
    """Between two steps the person said more: `prompt` is that message, `message` the assistant message that goes on behind it,
    `queued` the prompt it was in the queue."""

    run: str
    prompt: int
    message: int
    queued: str


@event("run.abort_requested")
class AbortRequested(Fact):
    """Somebody wants the run to end; the process that owns it will see to it."""

    run: str
    by: str


@event("run.ended")
class RunEnded(Fact):
    """`error` is `{code, message}` where there is one to show."""

    run: str
    outcome: Outcome
    steps: int
    error: dict[str, Any] | None = None


FEATURE = Feature(
    "runs",
    version=2,
    tables={
        "runs": """
            id TEXT PRIMARY KEY, session TEXT NOT NULL, seq BIGINT NOT NULL, prompt INTEGER NOT NULL,
            message INTEGER NOT NULL, agent TEXT NOT NULL, model TEXT NOT NULL, owner TEXT NOT NULL,
            project TEXT NOT NULL, max_steps INTEGER NOT NULL, key TEXT, status TEXT NOT NULL,
            epoch INTEGER NOT NULL, abort INTEGER NOT NULL DEFAULT 0, outcome TEXT, code TEXT, error TEXT, steps INTEGER,
            started BIGINT NOT NULL, ended BIGINT
        """,
    },
    indexes={"runs_session": "runs(session, seq)", "runs_open": "runs(status)"},
)


@FEATURE.projects(RunStarted)
def _started(tx: Tx, e: Event[RunStarted]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO runs(id, session, seq, prompt, message, agent, model, owner, project, max_steps, key, status,"
        " epoch, started) VALUES(?,?,?,?,?,?,?,?,?,?,?,'running',1,?)",
        *(d.run, e.stream, e.seq, d.prompt, d.message, d.agent, d.model, d.owner, d.project, d.max_steps, d.key, e.ts),
    )


@FEATURE.projects(RunWaiting)
def _waiting(tx: Tx, e: Event[RunWaiting]) -> None:
    tx.q("UPDATE runs SET status='waiting' WHERE id=?", e.data.run)


@FEATURE.projects(RunResumed)
def _resumed(tx: Tx, e: Event[RunResumed]) -> None:
    tx.q("UPDATE runs SET status='running', owner=?, epoch=epoch+1 WHERE id=?", e.data.owner, e.data.run)


@FEATURE.projects(RunSteered)
def _steered(tx: Tx, e: Event[RunSteered]) -> None:
    tx.q("UPDATE runs SET message=? WHERE id=?", e.data.message, e.data.run)


@FEATURE.projects(AbortRequested)
def _abort_requested(tx: Tx, e: Event[AbortRequested]) -> None:
    tx.q("UPDATE runs SET abort=1 WHERE id=?", e.data.run)


@FEATURE.projects(RunEnded)
def _ended(tx: Tx, e: Event[RunEnded]) -> None:
    error = e.data.error or {}
    tx.q(
        "UPDATE runs SET status='ended', outcome=?, code=?, error=?, steps=?, ended=? WHERE id=?",
        *(e.data.outcome, error.get("code"), error.get("message"), e.data.steps, e.ts, e.data.run),
    )


@FEATURE.projects(sessions.SessionDeleted)
def _deleted(tx: Tx, e: Event[sessions.SessionDeleted]) -> None:
    tx.q("DELETE FROM runs WHERE session=?", e.data.session)


@dataclass(frozen=True, slots=True)
class Run:
    """A run's record. Times are ms in UTC; `error` is what was shown, `code` its stable code."""

    id: str
    session: str
    seq: int
    prompt: int
    message: int
    agent: str
    model: str
    owner: str
    project: str
    max_steps: int
    key: str | None
    status: Status
    epoch: int
    outcome: Outcome | None
    code: str | None
    error: str | None
    steps: int | None
    started: int
    ended: int | None


_COLUMNS = (
    "id, session, seq, prompt, message, agent, model, owner, project, max_steps, key, status, epoch, outcome, code, error, steps,"
    " started, ended"
)


def start(
    tx: Tx,
    run: str,
    session: str,
    parts: Sequence[Any],
    *,
    agent: str,
    model: str,
    owner: str,
    project: str,
    max_steps: int,
    author: str | None = None,
    key: str | None = None,
    terms: dict[str, Any] | None = None,
) -> Run:
    """Store a prompt and begin its run, in one job: the user message with its parts, the empty assistant message, `run.started`.

    `terms` are what else was agreed for it, as JSON (`terms` gives them back).

    The same `key` again in the same session gives the run it gave before and stores nothing. Raises `conflict` while another
    run of the session has not ended.
    """
    if key is not None and (known := with_key(tx, session, key)):
        return known
    if (open_run := active(tx, session)) is not None:
        hint = f"`stead sessions stop {session}` ends it."
        raise SteadError("conflict", f"Session {session} has a run that has not ended ({open_run.status}).", hint=hint)
    prompt = sessions.add_message(tx, session, "user", run=run, author=author)
    for n, part in enumerate(parts):
        sessions.add_part(tx, session, prompt, n, part, run=run)
    message = sessions.add_message(tx, session, "assistant", run=run, model=model)
    fact = RunStarted(
        run=run,
        prompt=prompt,
        message=message,
        agent=agent,
        model=model,
        owner=owner,
        project=project,
        max_steps=max_steps,
        key=key,
        terms=terms,
    )
    tx.append(session, fact, run=run)
    return get(tx, run)


def resume(tx: Tx, run: str, owner: str, terms: dict[str, Any] | None = None) -> Run:
    """Take up a run that waits for a person, under a new lease. Raises `conflict` when it is not waiting (any more)."""
    found = get(tx, run)
    if found.status != "waiting":
        raise SteadError("conflict", f"Run {run} is {found.status}, not waiting.")
    tx.append(found.session, RunResumed(run=run, owner=owner, terms=terms), run=run)
    return get(tx, run)


def wait(tx: Tx, run: Run, ask: str) -> None:
    """The run waits for the answer to `ask`; no process needs to stay for it."""
    tx.append(run.session, RunWaiting(run=run.id, ask=ask), run=run.id)


def steer(tx: Tx, run: Run, parts: Sequence[Any], *, queued: str, author: str | None) -> Run:
    """Put a prompt into a run at work, between two of its steps; what the model says next stands behind it."""
    prompt = sessions.add_message(tx, run.session, "user", run=run.id, author=author)
    for n, part in enumerate(parts):
        sessions.add_part(tx, run.session, prompt, n, part, run=run.id)
    message = sessions.add_message(tx, run.session, "assistant", run=run.id, model=run.model)
    tx.append(run.session, RunSteered(run=run.id, prompt=prompt, message=message, queued=queued), run=run.id)
    return get(tx, run.id)


def held(tx: Tx, run: Run) -> bool:
    """Whether `run`, as its process knows it, is still that process's to work on: it is running under the same owner and epoch."""
    row = tx.one("SELECT 1 FROM runs WHERE id=? AND status='running' AND owner=? AND epoch=?", run.id, run.owner, run.epoch)
    return row is not None


def terms(view: Reads, run: Run) -> dict[str, Any]:
    """What was agreed for the run when it began, with what was changed when it was taken up again."""
    found: dict[str, Any] = {}
    rows = view.q(
        "SELECT data FROM events WHERE stream=? AND seq>=? AND run=? AND kind IN ('run.started', 'run.resumed') ORDER BY seq",
        *(run.session, run.seq, run.id),
    )
    for (data,) in rows:
        found.update(loads(data).get("terms") or {})
    return found


def end(tx: Tx, run: str, outcome: Outcome, *, steps: int, error: dict[str, Any] | None = None) -> bool:
    """End a run. True if this call ended it, False if it had ended before: whoever is first decides (I6)."""
    found = get(tx, run)
    if found.status == "ended":
        return False
    tx.append(found.session, RunEnded(run=run, outcome=outcome, steps=steps, error=error), run=run)
    return True


def request_abort(tx: Tx, run: str, *, by: str) -> bool:
    """Ask for a run to end. False when it had ended before."""
    found = get(tx, run)
    if found.status == "ended":
        return False
    tx.append(found.session, AbortRequested(run=run, by=by), run=run)
    return True


def abort_requested(view: Reads, run: str) -> bool:
    """Whether somebody asked for this run to end."""
    row = view.one("SELECT abort FROM runs WHERE id=?", run)
    return bool(row and row[0])


def get(view: Reads, run: str) -> Run:
    """The run with this id. Raises `not_found`."""
    row = view.one(f"SELECT {_COLUMNS} FROM runs WHERE id=?", run)
    if row is None:
        raise SteadError("not_found", f"There is no run {run!r}.")
    return Run(*row)


def with_key(view: Reads, session: str, key: str) -> Run | None:
    """The session's run that was begun with this key."""
    row = view.one(f"SELECT {_COLUMNS} FROM runs WHERE session=? AND key=?", session, key)
    return Run(*row) if row else None


def owned(view: Reads, owner: str) -> bool:
    """Whether the process of this name still has a run at work."""
    return view.one("SELECT 1 FROM runs WHERE status='running' AND owner=?", owner) is not None


def active(view: Reads, session: str) -> Run | None:
    """The session's run that has not ended, if there is one."""
    newest_run = last(view, session)  # no run begins before the one before it has ended
    return newest_run if newest_run is not None and newest_run.status != "ended" else None


def last(view: Reads, session: str) -> Run | None:
    """The session's newest run."""
    row = view.one(f"SELECT {_COLUMNS} FROM runs WHERE session=? ORDER BY seq DESC LIMIT 1", session)
    return Run(*row) if row else None


def newest(view: Reads, of: Sequence[str]) -> dict[str, Run]:
    """The newest run of each of these sessions, by session; those without one are left out."""
    if not of:
        return {}
    marks = ",".join("?" * len(of))
    rows = view.q(
        f"SELECT {_COLUMNS} FROM runs r WHERE session IN ({marks}) AND seq=(SELECT max(seq) FROM runs WHERE session=r.session)", *of
    )
    return {row[1]: Run(*row) for row in rows}


def owners(view: Reads) -> set[str]:
    """The owners of the runs that are being worked on, or were when their process died."""
    return {owner for (owner,) in view.q("SELECT owner FROM runs WHERE status='running'")}


def session_status(run: Run | None) -> str:
    """A session's status from its newest run: idle, running, waiting, aborted or error."""
    if run is None:
        return "idle"
    if run.status != "ended":
        return run.status
    return run.outcome if run.outcome in ("aborted", "error") else "idle"


# --- the end that nobody saw --------------------------------------------------------------------------------------------------

INTERRUPTED = "This turn was interrupted: the program ended before it was finished."


def left_by(view: Reads, dead: Iterable[str]) -> list[Run]:
    """The runs that these processes were working on."""
    return [
        Run(*row)
        for owner in sorted(dead)
        for row in view.q(f"SELECT {_COLUMNS} FROM runs WHERE owner=? AND status='running' ORDER BY seq", owner)
    ]


def as_closed(dead: Iterable[str], waiting: Sequence[str] = ()) -> str:
    """What makes a reading connection see the runs as a restart would leave them, where nothing can be written: a view of its own
    in the place of the table. `waiting` are those that wait for a person."""
    waits = f"id IN ({_quoted(waiting)})"
    lost = f"owner IN ({_quoted(dead)}) AND status='running' AND NOT {waits}"
    told = {"outcome": "'interrupted'", "code": "'run_interrupted'", "error": _quoted([INTERRUPTED])}
    told["status"] = f"'ended' WHEN {waits} THEN 'waiting'"
    columns = (
        f"CASE WHEN {lost} THEN {told[name]} ELSE {name} END AS {name}" if name in told else name
        for name in (*_COLUMNS.split(", "), "abort")
    )
    return f"CREATE TEMP VIEW runs AS SELECT {', '.join(columns)} FROM main.runs"


def _quoted(texts: Iterable[str]) -> str:
    return ",".join("'" + text.replace("'", "''") + "'" for text in sorted(texts))


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call without a result: its part number, the provider's id, the tool, when it was started (ms in UTC; None: it was not)."""

    n: int
    call: str
    tool: str
    started: int | None


def open_calls(view: Reads, run: Run) -> list[OpenCall]:
    """The run's calls that have no result yet, in order."""
    rows = view.q(
        "SELECT p.n, s.ts FROM parts p LEFT JOIN events s ON s.seq=p.started WHERE p.session=? AND p.message=? AND p.ended IS NULL",
        *(run.session, run.message),
    )
    started: dict[int, int | None] = dict(rows)
    return [
        OpenCall(n, part["call"], part["tool"], started[n])
        for n, part in sessions.message(view, run.session, run.message).parts
        if n in started and isinstance(part, dict) and part.get("type") == "tool" and part.get("status") in ("pending", "running")
    ]


def close_calls(tx: Tx, run: Run, *, why: str, results: Mapping[int, dict[str, Any]] | None = None) -> None:
    """Give every call of the run that has no result its one: from `results` by part number, else what is known of it now."""
    for one in open_calls(tx, run):
        known = (results or {}).get(one.n)
        if known is None and one.tool == "ask":
            known = unanswered(why)
        elif known is None:
            known = not_started(why) if one.started is None else unknown_result(max(tx.now - one.started, 0), why=why)
        tx.append(run.session, sessions.ToolEnded(message=run.message, n=one.n, call=one.call, result=known), run=run.id)


def not_started(why: str) -> dict[str, Any]:
    """The result of a call that was asked for and never begun."""
    return {"status": "error", "error": f"Not started: {why[0].lower()}{why[1:]} before this call was run. Nothing was executed."}


def unanswered(why: str) -> dict[str, Any]:
    """The result of a question that nobody answered: asking had no effect on anything."""
    return {"status": "error", "error": f"{why} before the question was answered."}


def unknown_result(ran_ms: int | None, *, why: str, output: str = "", more: str = "") -> dict[str, Any]:
    """The honest result of a call that was started and that nobody saw the end of. `ran_ms` is None where that is not known;
    `more` is a sentence on what was found of it."""
    when = "while this call was running" if ran_ms is None else f"after this call had run for {ran_ms / 1000:.1f} s"
    error = f"{why} {when}. Its outcome is unknown: it may have had side effects, in whole or in part. Check before doing it again."
    if more:
        error += f" {more}"
    result: dict[str, Any] = {"status": "error", "error": error, "cut": True}
    if ran_ms is not None:
        result["duration_ms"] = ran_ms
    if output:
        result["output"] = output
    return result


def count_steps(view: Reads, run: Run) -> int:
    """The model calls of a run that answered."""
    row = view.one(
        "SELECT count(*) FROM events WHERE stream=? AND seq>? AND run=? AND kind='step.ended'", run.session, run.seq, run.id
    )
    return int(row[0]) if row else 0


def last_step(view: Reads, run: Run) -> int:
    """The `seq` of the run's newest model call that answered; what its tool calls do stands behind it."""
    row = view.one(
        "SELECT max(seq) FROM events WHERE stream=? AND seq>? AND run=? AND kind='step.ended'", run.session, run.seq, run.id
    )
    return int(row[0]) if row and row[0] is not None else run.seq
