"""The restart: what dead processes left open is closed, exactly once, before anything new begins. Idempotent at every step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.app.life import Life
from stead.core.errors import SteadError
from stead.domain import asks, partials, projects, queue, rewinds, runs, sessions
from stead.store import safefile
from stead.store.database import Reads
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.closing import Fate

DIED = "Its program ended before its turn came."
OWNED = (runs.owners, queue.owners, rewinds.owners)
"""What a process may work on or wait for: who dies while it is named here leaves something to be closed."""


def recover(store: Store, life: Life) -> None:
    """Close what dead processes left open. Costs a look into a folder and a few small queries where there is nothing to do."""
    with store.view() as view:
        known = {owner for owners in OWNED for owner in owners(view)}
    dead = life.dead(known)
    if not dead:
        return
    try:
        _close(store, life, dead)
    except SteadError as error:
        if error.code not in ("disk_full", "read_only") or store.database.name != "sqlite":
            raise
        with store.view() as view:  # nothing can be written now: what is shown says it all the same
            waiting = [run.id for run in runs.left_by(view, dead) if asks.resumable(view, run.session, run.id)]
        store.see(runs.as_closed(dead, waiting))


def end_unowned(store: Store, run: runs.Run) -> None:
    """End a run on which no process works: one that waits for a person, or whose process died."""
    from stead.agent import closing

    left = closing.look(store, run, why=closing.ABORTED)
    store.write(lambda tx: closing.abort(tx, left))


def close_run(store: Store, life: Life, run: runs.Run, fate: Fate | None, *, found: Mapping[int, str] | None = None) -> bool:
    """Close one run that nobody works on. What cannot be stored of it is left out: one run must not keep a store from opening.
    False when nothing of it could be closed."""
    from stead.agent import closing

    def left() -> closing.Left:
        with store.view() as view:
            now = runs.get(view, run.id)  # it may have gone on since
        return closing.look(store, now, until=life.last_seen(run.owner), found=found)

    for known in (left, left, lambda: closing.Left(run)):
        try:
            gathered = known()
            store.write(lambda tx, gathered=gathered: closing.interrupt(tx, gathered, fate))  # type: ignore[misc]
            return True
        except Exception as error:
            if isinstance(error, SteadError) and error.code in closing.PASSING:
                raise
            import logging

            logging.getLogger("stead").exception("what run %s left open could not be closed as it was", run.id)
    return False


def _close(store: Store, life: Life, dead: set[str]) -> None:
    from stead.agent.changing import settle

    settled = settle(store, lambda session: _root_of(store, session), lambda run: _at_work(store, life, run))
    settled &= _finish_rewinds(store, dead)
    if store.folder is not None:
        safefile.sweep(store.folder, below=True)
    with store.view() as view:
        left = runs.left_by(view, dead)
        started = _started(view, left)
    found = _end_processes(started) if started else {}
    for run in left:
        settled &= close_run(store, life, run, life.word(run.owner, run.id), found=found.get(run.id))
    if queue_owners := dead & _waited_for(store):
        store.write(lambda tx: queue.hold_of(tx, queue_owners, DIED))
    for owner in dead if settled else ():
        life.forget(owner)


def _finish_rewinds(store: Store, dead: set[str]) -> bool:
    """Carry out what these processes were taking back. False when one of them cannot be finished now."""
    with store.view() as view:
        left = rewinds.left_by(view, dead)
    whole = True
    for rewind in left:
        from stead.app.undo import finish

        root = _root_of(store, rewind.session)
        if root is None or not root.is_dir():
            whole = False
            continue
        finish(store, rewind, root)
    return whole


def _started(view: Reads, left: Iterable[runs.Run]) -> dict[str, dict[str, Any] | None]:
    """The open calls of these runs that may have started processes: by their mark, what is known of the shell."""
    return {
        f"{run.id}.{call.n}": known.process if (known := kept.get(call.n)) else None
        for run in left
        for kept in [partials.tool_calls(view, run.session, run.message)]
        for call in runs.open_calls(view, run)
        if call.started is not None and call.tool == "bash"
    }


def _end_processes(started: dict[str, dict[str, Any] | None]) -> dict[str, dict[int, str]]:
    """End what still runs of these calls. Gives a sentence on it by run and part number."""
    from stead.agent import orphans

    told: dict[str, dict[int, str]] = {}
    for mark, sentence in orphans.end(started).items():
        run, _, n = mark.rpartition(".")
        told.setdefault(run, {})[int(n)] = sentence
    return told


def _waited_for(store: Store) -> set[str]:
    with store.view() as view:
        return queue.owners(view)


def _at_work(store: Store, life: Life, run: str) -> bool:
    with store.view() as view:
        try:
            found = runs.get(view, run)
        except SteadError:
            return False
    return found.status == "running" and life.alive(found.owner)


def _root_of(store: Store, session: str) -> Path | None:
    with store.view() as view:
        try:
            return Path(projects.get(view, sessions.get(view, session).project).folder)
        except SteadError:
            return None
