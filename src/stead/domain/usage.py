"""Usage: a row for every model call, and day ledgers that outlive the sessions, in the same commit as the call's end.

Money is kept in whole nano-dollars, in which sums are exact. Days are UTC.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stead.core.clock import day
from stead.core.events import Event
from stead.core.parts import Tokens
from stead.domain.runs import RunStarted
from stead.domain.sessions import CallEnded, MessageAdded, SessionDeleted, StepEnded, nano
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

_CLASSES = ("input", "cache_read", "cache_write", "output", "reasoning")
_SUMS = ("calls", *_CLASSES, "cost_nano", "unpriced")
_COUNTS = ", ".join(f"{name} BIGINT NOT NULL" for name in _SUMS)
_KEYS = ("day", "model", "project")

FEATURE = Feature(
    "usage",
    tables={
        "usage_calls": "seq {key}, session TEXT NOT NULL, run TEXT, day TEXT NOT NULL, model TEXT NOT NULL, project TEXT NOT NULL,"
        f" purpose TEXT NOT NULL, estimated INTEGER NOT NULL, {_COUNTS}",
        "usage_days": f"day TEXT NOT NULL, model TEXT NOT NULL, project TEXT NOT NULL, {_COUNTS}, PRIMARY KEY(day, model, project)",
        # of sessions deleted for good under the session ''
        "usage_messages": "session TEXT NOT NULL, day TEXT NOT NULL, role TEXT NOT NULL, messages INTEGER NOT NULL,"
        " PRIMARY KEY(session, day, role)",
        "usage_sessions": "session TEXT NOT NULL, day TEXT NOT NULL, PRIMARY KEY(session, day)",
    },
    indexes={"usage_calls_session": "usage_calls(session)"},
)


@FEATURE.projects(StepEnded)
def _step(tx: Tx, e: Event[StepEnded]) -> None:
    part = e.data.part
    model = f"{e.data.provider}/{e.data.model or part['model']}"
    _record(tx, e, model, e.data.project, "step", part["tokens"], part["cost"], bool(part.get("estimated")))


@FEATURE.projects(CallEnded)
def _call(tx: Tx, e: Event[CallEnded]) -> None:
    d = e.data
    _record(tx, e, f"{d.provider}/{d.model}", d.project, d.purpose, d.tokens, d.cost, d.estimated)


def _record(
    tx: Tx, e: Event[Any], model: str, project: str, purpose: str, tokens: Tokens, cost: float | None, estimated: bool
) -> None:
    money = nano(cost)
    counts = (1, *(tokens[name] for name in _CLASSES), money or 0, int(money is None))  # type: ignore[literal-required]
    today = day(e.ts)
    head = (e.seq, e.stream, e.run, today, model, project, purpose, int(estimated))
    tx.q(
        f"INSERT INTO usage_calls(seq, session, run, day, model, project, purpose, estimated, {', '.join(_SUMS)})"
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        *head,
        *counts,
    )
    _add(tx, (today, model, project), counts)


def _add(tx: Tx, key: tuple[str, str, str], counts: Iterable[int]) -> None:
    sums = ", ".join(f"{name}=usage_days.{name}+excluded.{name}" for name in _SUMS)
    tx.q(
        f"INSERT INTO usage_days(day, model, project, {', '.join(_SUMS)}) VALUES(?,?,?,?,?,?,?,?,?,?,?)"
        f" ON CONFLICT(day, model, project) DO UPDATE SET {sums}",
        *key,
        *counts,
    )


@FEATURE.projects(MessageAdded)
def _message(tx: Tx, e: Event[MessageAdded]) -> None:
    if e.data.created is None:  # a fork's message was said once, where it was copied from
        _add_messages(tx, e.stream, day(e.ts), e.data.role, 1)


def _add_messages(tx: Tx, session: str, today: str, role: str, messages: int) -> None:
    tx.q(
        "INSERT INTO usage_messages(session, day, role, messages) VALUES(?,?,?,?)"
        " ON CONFLICT(session, day, role) DO UPDATE SET messages=usage_messages.messages+excluded.messages",
        *(session, today, role, messages),
    )


@FEATURE.projects(RunStarted)
def _active_day(tx: Tx, e: Event[RunStarted]) -> None:
    _add_active(tx, day(e.ts), e.stream)


def _add_active(tx: Tx, today: str, session: str) -> None:
    tx.q("INSERT INTO usage_sessions(day, session) VALUES(?,?) ON CONFLICT(day, session) DO NOTHING", today, session)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    """The details go, the ledger stays: what the details had put into it is taken out and the event's sums are put in. Live that
    changes nothing; in a rebuild, where the session's own events are gone, it gives the same ledger."""
    for key, counts in _sums_of(tx, e.data.session):
        _add(tx, key, [-value for value in counts])
    for table in ("usage_calls", "usage_messages"):
        tx.q(f"DELETE FROM {table} WHERE session=?", e.data.session)
    for kept in e.data.usage:
        if "role" in kept:
            _add_messages(tx, "", kept["day"], kept["role"], kept["messages"])
        elif "active" in kept:
            _add_active(tx, kept["day"], e.data.session)
        else:
            _add(tx, (kept["day"], kept["model"], kept["project"]), [kept[name] for name in _SUMS])


def _sums_of(view: Reads, session: str) -> list[tuple[tuple[str, str, str], list[int]]]:
    sums = ", ".join(f"sum({name})" for name in _SUMS)
    rows = view.q(f"SELECT day, model, project, {sums} FROM usage_calls WHERE session=? GROUP BY day, model, project", session)
    return [((row[0], row[1], row[2]), [int(value) for value in row[3:]]) for row in rows]


def sums_of(view: Reads, session: str) -> list[dict[str, Any]]:
    """What `session.deleted` keeps of a session: its usage by day, model and project, its messages by day and role, its days."""
    kept = [dict(zip((*_KEYS, *_SUMS), (*key, *counts), strict=True)) for key, counts in _sums_of(view, session)]
    for today, role, messages in view.q(
        "SELECT day, role, messages FROM usage_messages WHERE session=? ORDER BY day, role", session
    ):
        kept.append({"day": today, "role": role, "messages": messages})
    days = view.q("SELECT day FROM usage_sessions WHERE session=? ORDER BY day", session)
    return kept + [{"day": today, "active": True} for (today,) in days]


def of_run(view: Reads, run: str) -> dict[str, Any]:
    """A run's `{calls, tokens, cost, estimated}`: how many model calls, and their sums. `cost` is dollars, None when the price
    of any of them is unknown; `estimated`: for some of them no usage was sent."""
    sums = ", ".join(f"coalesce(sum({name}), 0)" for name in (*_SUMS, "estimated"))
    row = view.one(f"SELECT {sums} FROM usage_calls WHERE run=?", run)
    assert row is not None
    calls, *tokens, cost_nano, unpriced, estimated = (int(value) for value in row)
    cost = None if unpriced else cost_nano / 1e9
    return {"calls": calls, "tokens": dict(zip(_CLASSES, tokens, strict=True)), "cost": cost, "estimated": estimated > 0}


def report(
    view: Reads,
    by: Iterable[str] = ("day", "model"),
    *,
    since: str | None = None,
    until: str | None = None,
    project: str | None = None,
) -> dict[str, Any]:
    """`{"rows": [{day?, model?, project?, session?, calls, five classes, cost, unknown_cost_calls}], "total": {…}}`.

    `by` is any of day, model, project, session. `since` and `until` are days, both included. Sessions deleted for good are in
    the sums except where `session` is asked for.
    """
    keys = list(dict.fromkeys(by))
    table = "usage_calls" if "session" in keys else "usage_days"
    where, args = ["1=1"], []
    for clause, value in (("day>=?", since), ("day<=?", until), ("project=?", project)):
        if value is not None:
            where.append(clause)
            args.append(value)
    sums = ", ".join(f"coalesce(sum({name}), 0)" for name in _SUMS)
    group = f" GROUP BY {', '.join(keys)} ORDER BY {', '.join(keys)}" if keys else ""
    rows = view.q(f"SELECT {', '.join([*keys, sums])} FROM {table} WHERE {' AND '.join(where)}{group}", *args)
    total = view.one(f"SELECT {sums} FROM {table} WHERE {' AND '.join(where)}", *args)
    assert total is not None
    shown = [{**dict(zip(keys, row, strict=False)), **_counts(row[len(keys) :])} for row in rows]
    return {"rows": shown, "total": _counts(total)}


def _counts(values: tuple[Any, ...]) -> dict[str, Any]:
    calls, *tokens, cost_nano, unpriced = (int(value) for value in values)
    cost = None if unpriced else cost_nano / 1e9
    return {"calls": calls, **dict(zip(_CLASSES, tokens, strict=True)), "cost": cost, "unknown_cost_calls": unpriced}
