"""Closing a run that nobody works on any more: what was on the screen, each open call, what the model call cost, the end itself.

Two steps, because a job may not wait: `look` gathers what is known outside of any transaction, `close` writes it in one job and
decides again by the state it finds. So it may run any number of times, in any number of processes, and be killed anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from stead.core.events import decode
from stead.core.parts import PatchFile, PatchPart
from stead.domain import asks, changes, partials, queue, runs, sessions
from stead.domain.runs import INTERRUPTED, Run
from stead.domain.sessions import CallEnded
from stead.store.blobs import Packed
from stead.store.database import Reads
from stead.store.log import Tx
from stead.store.store import Store


class Lost(Exception):
    """The run is not this process's to work on any more: it ended, or another process took it over."""


HELD = "The run before it was interrupted."
DIED = "The program ended"


@dataclass(frozen=True, slots=True)
class Left:
    """What a run without a process left behind: the parts that were growing and the results of its open calls, by part number, and
    the ledger's row for the model call under way."""

    run: Run
    parts: dict[int, Packed]
    results: dict[int, Packed]
    cost: CallEnded | None


def look(store: Store, run: Run, *, why: str = DIED, until: int | None = None, found: Mapping[int, str] | None = None) -> Left:
    """Gather what is known of a run on which nobody works. `found` has by part number what was found of a call's processes.

    `until` is when its process last gave a sign of life (ms in UTC): so long an open call ran, as far as anybody knows. The time of
    the next start says nothing about it.
    """
    with store.view() as view:
        open_parts = partials.open_parts(view, run.session, run.message)
        open_calls = runs.open_calls(view, run)
        kept = partials.tool_calls(view, run.session, run.message)
        fact = partials.model_call(view, run.id)
    parts = {n: store.blobs.pack({**part, "cut": True}) for n, part in open_parts if part["text"]}
    results: dict[int, Any] = {}
    for call in open_calls:
        if call.started is None:
            results[call.n] = runs.not_started(why)
        else:
            known = kept.get(call.n)
            seen = [at for at in (until, known.seen if known else None) if at is not None and at >= call.started]
            ran = max(seen) - call.started if seen else None
            output, more = known.output if known else "", (found or {}).get(call.n, "")
            results[call.n] = runs.unknown_result(ran, why=why, output=output, more=more)
    cost = None if fact is None else cast(CallEnded, decode(CallEnded.kind, CallEnded.v, fact))
    return Left(run, parts, {n: store.blobs.pack(result) for n, result in results.items()}, cost)


def interrupt(tx: Tx, left: Left) -> bool:
    """End a run whose process died: as interrupted, or, where it had only been waiting for a person, as one that waits on.

    True when the run was ended. The prompts queued behind it are held: what they say was said before anybody knew of this.
    """
    run = left.run
    if not runs.held(tx, run):
        return False
    ask = asks.resumable(tx, run.session, run.id)
    if ask is not None:
        partials.close_run(tx, run)
        runs.wait(tx, run, ask.id)
        return False
    _close(tx, left, DIED)
    notice = {"type": "notice", "code": "run_interrupted", "text": INTERRUPTED}
    sessions.add_part(tx, run.session, run.message, sessions.next_part(tx, run.session, run.message), notice, run=run.id)
    queue.hold_session(tx, run.session, HELD)
    error = {"code": "run_interrupted", "message": INTERRUPTED}
    runs.end(tx, run.id, "interrupted", steps=runs.count_steps(tx, run), error=error)
    return True


def abort(tx: Tx, left: Left, why: str) -> bool:
    """End a run that waits for a person, or whose process died, because somebody wanted it to end. True when this ended it."""
    now = runs.get(tx, left.run.id)
    if now.status == "ended" or (now.owner, now.epoch) != (left.run.owner, left.run.epoch):
        return False
    _close(tx, left, why)
    return runs.end(tx, now.id, "aborted", steps=runs.count_steps(tx, now))


def patch_of(view: Reads, run: runs.Run, after: int) -> PatchPart | None:
    """What the run's calls behind `after` changed, file by file; None when that is nothing."""
    sums: dict[str, PatchFile] = {}
    for change in changes.listed(view, run.session, run=run.id, after=after):
        file = sums.setdefault(change.path, {"path": change.path, "additions": 0, "deletions": 0})
        file["additions"] += change.additions
        file["deletions"] += change.deletions
    return {"type": "patch", "files": list(sums.values())} if sums else None


def _close(tx: Tx, left: Left, why: str) -> None:
    run = left.run
    stored = {n for n, _ in sessions.message(tx, run.session, run.message).parts}
    for n, packed in left.parts.items():
        if n not in stored:
            sessions.add_part(tx, run.session, run.message, n, tx.unpack(packed), run=run.id)
    runs.close_calls(tx, run, why=why, results={n: tx.unpack(packed) for n, packed in left.results.items()})
    _add_patch(tx, run)
    if left.cost is not None:
        tx.append(run.session, left.cost, run=run.id)
    asks.close_open(tx, run.session, run.id, why)
    partials.close_run(tx, run)


def _add_patch(tx: Tx, run: Run) -> None:
    """What the last step changed in files is a part of its own, however the run ended."""
    parts = sessions.message(tx, run.session, run.message).parts
    kinds = [part.get("type") if isinstance(part, dict) else None for _, part in parts]
    newest = kinds[::-1].index("step") if "step" in kinds else len(kinds)
    if "patch" not in kinds[len(kinds) - newest :] and (patch := patch_of(tx, run, runs.last_step(tx, run))):
        sessions.add_part(tx, run.session, run.message, sessions.next_part(tx, run.session, run.message), patch, run=run.id)
