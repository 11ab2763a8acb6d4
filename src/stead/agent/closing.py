"""Closing a run, whoever does it: what was on the screen, each open call, what the model call cost, the end itself.

Two steps, because a job may not wait: what is known is gathered (`Left`) outside of any transaction, by the loop that worked on the
run or, where its process died, by `look`; then one job writes it and decides again by the state it finds. So a recovery may run any
number of times, in any number of processes, and be killed anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from stead.core.errors import SteadError
from stead.core.events import decode
from stead.core.parts import PatchFile, PatchPart
from stead.domain import asks, changes, partials, queue, runs, sessions
from stead.domain.runs import INTERRUPTED, Outcome, Run
from stead.domain.sessions import CallEnded
from stead.store.blobs import Packed
from stead.store.database import Reads
from stead.store.log import Tx
from stead.store.store import Store


class Lost(BaseException):
    """The run is not this process's to work on any more: it ended, or another process took it over. No fault, so no Exception."""


Fate = tuple[Outcome, dict[str, Any] | None]
"""How a run ended, with the error."""
PASSING = ("store_busy", "disk_full", "read_only")
"""What keeps a store from being written now and may pass."""
HELD = "The run before it was interrupted."
DIED, ABORTED, ENDED = "The program ended", "The run was aborted", "The run ended"


@dataclass(frozen=True, slots=True)
class Left:
    """What a run leaves open at its end: the parts that were growing and the results of its open calls, by part number, the
    ledger's row for the model call under way, what its last step changed, the first part number that was never on a screen."""

    run: Run
    parts: dict[int, Packed] = field(default_factory=dict)
    results: dict[int, Packed] = field(default_factory=dict)
    cost: CallEnded | None = None
    patch: Packed | None = None
    free: int = 0
    unseen: tuple[changes.ChangeUncovered, ...] = ()
    """The commands whose process died before anybody could look what they changed."""


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
        patch = missing_patch(view, run)
    parts = {n: store.blobs.pack({**part, "cut": True}) for n, part in open_parts if part["text"]}
    results: dict[int, Any] = {}
    for call in open_calls:
        if call.tool == "ask":
            results[call.n] = runs.unanswered(why)
        elif call.started is None:
            results[call.n] = runs.not_started(why)
        else:
            known = kept.get(call.n)
            seen = [at for at in (until, known.seen if known else None) if at is not None and at >= call.started]
            ran = max(seen) - call.started if seen else None
            output, more = known.output if known else "", (found or {}).get(call.n, "")
            results[call.n] = runs.unknown_result(ran, why=why, output=output, more=more)
    cost = None if fact is None else cast(CallEnded, decode(CallEnded.kind, CallEnded.v, fact))
    packed = {n: store.blobs.pack(result) for n, result in results.items()}
    unseen = tuple(
        changes.ChangeUncovered(call=call.call, message=run.message, path=".", why="index_not_ready")
        for call in open_calls
        if call.tool == "bash" and call.started is not None
    )
    return Left(run, parts, packed, cost, store.blobs.pack(patch) if patch else None, unseen=unseen)


def interrupt(tx: Tx, left: Left, fate: Fate | None = None) -> bool:
    """End a run that nobody works on any more: as interrupted, or, where it had only been waiting for a person, as one that waits
    on. `fate` is how it had ended already, where only that could not be stored.

    True when the run was ended. The prompts queued behind it are held: what they say was said before anybody knew of this.
    """
    run = left.run
    if not runs.held(tx, run):
        return False
    if runs.get(tx, run.id).message != run.message:  # it was steered since somebody looked at it
        raise SteadError("conflict", f"Run {run.id} went on meanwhile.")
    if fate is not None:
        queue.hold_session(tx, run.session, HELD)
        end(tx, left, fate[0], why=ABORTED if fate[0] == "aborted" else ENDED, error=fate[1])
        return True
    ask = asks.resumable(tx, run.session, run.id)
    if ask is not None:
        partials.close_run(tx, run)
        runs.wait(tx, run, ask.id)
        return False
    queue.hold_session(tx, run.session, HELD)
    error = {"code": "run_interrupted", "message": INTERRUPTED}
    end(tx, left, "interrupted", why=DIED, error=error, notice={"type": "notice", "code": "run_interrupted", "text": INTERRUPTED})
    return True


def abort(tx: Tx, left: Left) -> bool:
    """End a run that waits for a person, or whose process died, because somebody wanted it to end. True when this ended it."""
    now = runs.get(tx, left.run.id)
    if now.status == "ended" or (now.owner, now.epoch) != (left.run.owner, left.run.epoch):
        return False
    end(tx, left, "aborted", why=ABORTED)
    return True


def end(
    tx: Tx,
    left: Left,
    outcome: Outcome,
    *,
    why: str,
    error: dict[str, Any] | None = None,
    notice: dict[str, Any] | None = None,
) -> None:
    """Close everything that is open and end the run. `why` is told in the results of its open calls. The caller has made sure that
    the run has not ended."""
    run = left.run
    stored = {n for n, _ in sessions.message(tx, run.session, run.message).parts}
    for n, packed in left.parts.items():
        if n not in stored:  # it may have closed in the very moment of the end
            sessions.add_part(tx, run.session, run.message, n, tx.unpack(packed), run=run.id)
    runs.close_calls(tx, run, why=why, results={n: tx.unpack(packed) for n, packed in left.results.items()})
    for part in (left.patch and tx.unpack(left.patch), notice):
        if part:
            n = max(left.free, sessions.next_part(tx, run.session, run.message))
            sessions.add_part(tx, run.session, run.message, n, part, run=run.id)
    for gap in left.unseen:
        tx.append(run.session, gap, run=run.id)
    if left.cost is not None:
        tx.append(run.session, left.cost, run=run.id)
    asks.close_open(tx, run.session, run.id, why)
    partials.close_run(tx, run)
    runs.end(tx, run.id, outcome, steps=runs.count_steps(tx, run), error=error)


def missing_patch(view: Reads, run: Run) -> PatchPart | None:
    """What the last step changed in files, where that is no part yet. Calls run only behind a stored step, so a message without one
    (the run was steered, and died in its next answer) has changed nothing."""
    parts = sessions.message(view, run.session, run.message).parts
    kinds = [part.get("type") if isinstance(part, dict) else None for _, part in parts]
    if "step" not in kinds or "patch" in kinds[len(kinds) - kinds[::-1].index("step") :]:
        return None
    return _patch_of(view, run, runs.last_step(view, run))


def _patch_of(view: Reads, run: runs.Run, after: int) -> PatchPart | None:
    """What the run's calls behind `after` changed, file by file; None when that is nothing."""
    sums: dict[str, PatchFile] = {}
    for change in changes.listed(view, run.session, run=run.id, after=after):
        if {change.before_kind, change.after_kind} <= {"absent", "directory"}:
            continue  # folders are there for what is in them
        file = sums.setdefault(change.path, {"path": change.path, "additions": 0, "deletions": 0})
        file["additions"] += change.additions
        file["deletions"] += change.deletions
    return {"type": "patch", "files": list(sums.values())} if sums else None
