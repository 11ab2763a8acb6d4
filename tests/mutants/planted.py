"""Faults planted on purpose, each a small change to the program as it runs in a child. Every one must be caught, or the harness
that should catch it proves nothing.

A mutant wraps what it spoils where it can, so that it stays that one fault whatever else is rewritten. `tells` is what the harness
must say of it: to fail for any reason at all would not do.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stead.agent import changing, closing
from stead.domain import attachments, partials, queue, runs, usage
from stead.domain.sessions import StepEnded
from stead.store import lock, safefile
from stead.store.blobs import Blobs
from stead.store.log import HEAD
from stead.store.sqlite import SQLiteConn
from stead.store.store import Store
from stead.store.writer import Writer
from tests.mutants import harness

Plant = Callable[[], None]


@dataclass(frozen=True)
class Mutant:
    """A fault: its name, in one line why it is one, the harness that has to see it, what that says, how it is planted, and at
    which of the crash points it shows, to kill there first and be done sooner."""

    name: str
    why: str
    catcher: harness.Harness
    tells: str
    plant: Plant
    first: str


MUTANTS: list[Mutant] = []


def mutant(catcher: harness.Harness, tells: str, why: str, first: str = "writer.after_commit") -> Callable[[Plant], Plant]:
    def add(plant: Plant) -> Plant:
        MUTANTS.append(Mutant(plant.__name__, why, catcher, tells, plant, first))
        return plant

    return add


def patch(owner: Any, name: str, made: Callable[[Any], Any]) -> None:
    """Put `made(original)` in the place of what is there."""
    setattr(owner, name, made(getattr(owner, name)))


def after_commit(late: list[Callable[[Store], None]]) -> None:
    """Do what is in `late` when the next commit is durable."""

    def spoiled(original: Any) -> Any:
        def publish(self: Store, events: Any) -> None:
            while late:
                late.pop()(self)
            original(self, events)

        return publish

    patch(Store, "_publish", spoiled)


# --- files and the log --------------------------------------------------------------------------------------------------------


@mutant(
    harness.crash,
    "holds what the log does not know",
    "The file is written before its old content is in the log (I5).",
    "safefile.done",
)
def file_before_log() -> None:
    look, write = changing.Writer._look, changing._apply
    seen: dict[Path, Any] = {}

    def early(self: Any, path: Path) -> Any:
        return seen.pop(path, None) or look(self, path)

    def spoiled(original: Any) -> Any:
        async def change(self: Any, target: Path, content: bytes | None, mode: int | None) -> Any:
            seen[target] = look(self, target)
            write(target, content, mode)
            return await original(self, target, content, mode)

        return change

    changing.Writer._look = early  # type: ignore[method-assign]
    patch(changing.Writer, "change", spoiled)


@mutant(
    harness.crash,
    "holds what the log does not know",
    "The change is noted as applied, and then made.",
    "writer.after_commit change.applied",
)
def change_applied_before_it_is_made() -> None:
    write = changing._apply

    def spoiled(original: Any) -> Any:
        async def change(self: Any, target: Path, content: bytes | None, mode: int | None) -> Any:
            stored = await original(self, target, content, mode)
            await asyncio.to_thread(write, target, content, mode)
            return stored

        return change

    changing._apply = lambda path, content, mode: mode or 0o644
    patch(changing.Writer, "change", spoiled)


@mutant(
    harness.crash,
    "holds what the log does not know",
    "A file that was torn while written in place is left as it is.",
    "safefile.inplace.half",
)
def torn_file_is_left() -> None:
    changing.torn = lambda now, old, new: False


@mutant(harness.power, "cannot be read|not stored|acknowledged event is gone", "The folder's names are not synced.")
def missing_fsync_of_the_folder() -> None:
    patch(safefile.walk, "sync", lambda real: lambda fd: None if stat.S_ISDIR(os.fstat(fd).st_mode) else real(fd))


@mutant(
    harness.power, "cannot be read|is not what was stored|holds what the log does not know", "The file's content is not synced."
)
def missing_fsync_of_the_file() -> None:
    patch(safefile.walk, "sync", lambda real: lambda fd: real(fd) if stat.S_ISDIR(os.fstat(fd).st_mode) else None)


@mutant(harness.power, "acknowledged event is gone", "A commit returns before the log is synced.")
def commit_without_sync() -> None:
    from stead.store import sqlite

    sqlite._EACH = tuple(line.replace("synchronous=FULL", "synchronous=NORMAL") for line in sqlite._EACH)


@mutant(
    harness.crash,
    "cannot be read|nobody knows whether",
    "The blob's row is committed, then its file is written (I4).",
    "writer.after_commit change.captured deep",
)
def blob_row_before_blob_file() -> None:
    late: list[Callable[[Store], None]] = []
    real = safefile.write_private

    def keep(self: Blobs, digest: str, codec: str, stored: bytes) -> Any:
        path = self._path(digest)
        safefile.private_folder(path.parent)
        late.append(lambda store: real(path, stored))
        return codec, None

    Blobs._keep = keep  # type: ignore[method-assign]
    after_commit(late)


@mutant(
    harness.crash,
    "no such attachment",
    "The message that names an attachment is stored before it.",
    "writer.after_commit part.added file",
)
def attachment_after_its_message() -> None:
    late: list[Callable[[Store], None]] = []
    real = attachments.add

    def add(folder: Path, attachment: str, name: str, content: bytes) -> Any:
        late.append(lambda store: real(folder, attachment, name, content) and None)
        kind, mime = attachments.sniff(content)
        return {"type": "file", "id": attachment, "name": name, "mime": mime, "kind": kind, "size": len(content)}

    attachments.add = add
    after_commit(late)


# --- the log and its projections ----------------------------------------------------------------------------------------------


@mutant(harness.contract, "was told of what no other connection sees", "Listeners hear of an event before it is durable (I2).")
def publish_before_commit() -> None:
    def early(original: Any) -> Any:
        def one(self: Writer, item: Any, tx: Any, **more: Any) -> None:
            original(self, item, tx, **more)
            self._publish(list(tx.events))
            tx.events.clear()

        return one

    patch(Writer, "_one", early)


@mutant(
    harness.crash,
    "ledger does not hold what the log holds",
    "A projector runs in a transaction of its own (I1).",
    "writer.after_commit step.ended",
)
def projector_not_in_the_transaction() -> None:
    late: list[Callable[[Store], None]] = []
    (real,) = usage.FEATURE.projectors[StepEnded]

    def project(tx: Any, event: Any) -> None:
        late.append(lambda store: store.submit(lambda tx: real(tx, event)) and None)

    usage.FEATURE.projectors[StepEnded] = [project]
    after_commit(late)


@mutant(harness.contract, "did not all get in", "The next seq is remembered instead of read in the transaction (I3).")
def seq_from_a_cached_counter() -> None:
    known: dict[int, list[Any]] = {}
    wrote: dict[int, int] = {}

    def remembered(original: Any) -> Any:
        def q(self: SQLiteConn, sql: str, args: Any = ()) -> Any:
            if sql == HEAD and id(self) in wrote:
                version, gone, _, *more = known[id(self)]
                return [(version, gone, wrote[id(self)], *more)]
            rows = original(self, sql, args)
            if sql == HEAD:
                known[id(self)] = list(rows[0])
            elif sql.startswith("INSERT INTO events("):
                wrote[id(self)] = args[0]  # and a rollback does not take it back
            return rows

        return q

    patch(SQLiteConn, "q", remembered)


@mutant(harness.contract, "of the failing job is left", "Jobs that share a commit have no savepoints: half a job stays.")
def savepoint_left_out() -> None:
    patch(SQLiteConn, "q", lambda real: lambda self, sql, args=(): [] if "SAVEPOINT" in sql else real(self, sql, args))


@mutant(harness.contract, "takes writes again", "A deleted stream takes writes again (I10).")
def tombstone_not_checked() -> None:
    from stead.store.log import Tx

    patch(Tx, "one", lambda real: lambda self, sql, *args: None if "tombstones" in sql else real(self, sql, *args))


# --- runs and recovery --------------------------------------------------------------------------------------------------------


@mutant(harness.contract, "ended 2 times", "The end of a run does not look whether it has ended (I6).")
def run_ended_without_the_state_guard() -> None:
    def end(tx: Any, run: str, outcome: Any, *, steps: int, error: Any = None) -> bool:
        tx.append(runs.get(tx, run).session, runs.RunEnded(run=run, outcome=outcome, steps=steps, error=error), run=run)
        return True

    runs.end = end


@mutant(harness.beside, "of a living process was closed", "Recovery closes runs without asking whether their process lives.")
def recovery_not_guarded_by_the_owners_death() -> None:
    lock._lock = lambda fd: True


@mutant(harness.beside, "of a living process was closed", "A process gives its lock back while its run is at work.")
def lock_file_released_before_the_run_is_closed() -> None:
    def spoiled(original: Any) -> Any:
        def init(self: lock.ProcessLock, *args: Any, **more: Any) -> None:
            original(self, *args, **more)
            os.close(self._fd)
            self._fd = os.open(os.devnull, os.O_RDONLY)

        return init

    patch(lock.ProcessLock, "__init__", spoiled)


@mutant(harness.contract, "wrote under a lease that it had lost", "A lease is told by its owner alone, without the epoch.")
def lease_without_epoch() -> None:
    def held(tx: Any, run: Any) -> bool:
        return tx.one("SELECT 1 FROM runs WHERE id=? AND status='running' AND owner=?", run.id, run.owner) is not None

    runs.held = held


@mutant(harness.crash, "'status': 'running'|'status': 'pending'", "A restart ends the run and leaves its calls open (I13).")
def calls_left_open() -> None:
    runs.close_calls = lambda tx, run, **more: None


@mutant(harness.crash, "characters that were kept", "What was on the screen is thrown away by the restart.", "writer.begun")
def partial_text_thrown_away() -> None:
    patch(closing, "look", lambda real: lambda *args, **more: _without_parts(real(*args, **more)))


def _without_parts(left: Any) -> Any:
    left.parts.clear()
    return left


@mutant(harness.crash, "holds something of a run that is over", "The rows of text on the screen stay when the run is over.")
def partial_rows_left() -> None:
    partials.close_run = lambda tx, run: None


@mutant(
    harness.crash,
    "goes on by itself",
    "Prompts behind an interrupted run begin although nobody has seen yet what happened.",
    "writer.after_commit prompt.",
)
def queue_goes_on_after_a_crash() -> None:
    queue.hold_session = lambda tx, session, reason: None
