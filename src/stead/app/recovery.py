"""The restart: what dead processes left open is closed, exactly once, before anything new begins. Idempotent at every step."""

from __future__ import annotations

from pathlib import Path

from stead.core.errors import SteadError
from stead.domain import asks, projects, runs, sessions
from stead.store.lock import alive, dead_owners, forget_owner, living
from stead.store.log import Tx
from stead.store.store import Store


def recover(store: Store, locks: Path) -> None:
    """Close what dead processes left open. Costs a look into a folder and one small query where there is nothing to do."""
    dead = set(dead_owners(locks)) if locks.is_dir() else set()
    if store.database.name == "sqlite":  # all its processes are on this machine: an owner without a lock file is dead as well
        with store.view() as view:
            owners = runs.owners(view)
        dead |= owners - {about["id"] for about in living(locks)} if owners else set()
    if not dead:
        return
    try:
        _close(store, locks, dead)
    except SteadError as error:
        if error.code not in ("disk_full", "read_only") or store.database.name != "sqlite":
            raise
        store.see(runs.as_closed(sorted(dead)))  # nothing can be written now: what is shown says it all the same


def _close(store: Store, locks: Path, dead: set[str]) -> None:
    from stead.agent.workspace import settle

    settled = settle(store, lambda session: _root_of(store, session), lambda run: _at_work(store, locks, run))
    store.write(lambda tx: runs.recover(tx, sorted(dead)))
    for owner in dead if settled else ():
        forget_owner(locks, owner)


def end_unowned(tx: Tx, run: runs.Run) -> None:
    """End a run on which no process works."""
    asks.close_open(tx, run.session, run.id, "The run was aborted")
    runs.close_calls(tx, run, tx.now, why="The run was aborted")
    runs.end(tx, run.id, "aborted", steps=runs.count_steps(tx, run))


def _at_work(store: Store, locks: Path, run: str) -> bool:
    with store.view() as view:
        try:
            found = runs.get(view, run)
        except SteadError:
            return False
    return found.status != "ended" and alive(locks, found.owner)


def _root_of(store: Store, session: str) -> Path | None:
    with store.view() as view:
        try:
            return Path(projects.get(view, sessions.get(view, session).project).folder)
        except SteadError:
            return None
