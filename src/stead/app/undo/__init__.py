"""Undo and redo: planned, shown, carried out. Files, the conversation, or both.

A plan writes nothing. Carrying it out stores what it overwrites, says what it is about to do, does it path by path, and notes
the end; so an undo is safe to kill, can itself be undone, and never overwrites what it did not see.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stead.app.undo.carry import Result, carry_out, finish, foreseen
from stead.app.undo.plan import Item, Plan, plan
from stead.app.undo.scope import Scope, Wish, redo_scope, undo_scope
from stead.core.errors import SteadError
from stead.domain import projects, rewinds, sessions

if TYPE_CHECKING:
    from stead.app.house import Stead
    from stead.store.database import Reads

__all__ = [
    "Item",
    "Plan",
    "Result",
    "Scope",
    "Wish",
    "carry_out",
    "finish",
    "foreseen",
    "plan_redo",
    "plan_undo",
    "root_of",
    "undo",
]


def plan_undo(house: Stead, session: str, wish: Wish) -> Plan:
    """What an undo of `wish` in this session would do. Raises `not_found`, `ambiguous`, `usage`, `project_missing`."""
    with house.store.view() as view:
        scope, root = undo_scope(view, session, wish), root_of(view, session)
    return plan(house.store, session, root, scope)


def plan_redo(house: Stead, session: str, wish: Wish) -> Plan:
    """What taking back the newest undo would do. Raises `conflict` when only the conversation is meant and something was said
    since."""
    with house.store.view() as view:
        scope, root = redo_scope(view, session, wish), root_of(view, session)
    if scope.closed and not wish.files:
        message = "Something was said since the undo, so the conversation goes on from there."
        raise SteadError("conflict", message, hint="`stead sessions show --all-branches` still shows the messages of before.")
    return plan(house.store, session, root, scope)


def undo(house: Stead, plan: Plan, *, by: str) -> Result:
    """Carry a plan out, an undo or a redo; durable when it returns. It waits for the disk: from a coroutine, call it in a thread.

    A path that is no longer what the plan saw is left alone and named. What was begun is finished by this process, or by
    whoever opens the store after it. Raises `conflict` when a run or another undo is under way, `disk_full`, `store_busy`.
    """
    rewind = house.store.ids.new()
    house.undoing.add(rewind)
    try:
        return carry_out(house.store, plan, rewind=rewind, owner=house.owner(), actor=by)
    except BaseException:
        house.suspect()
        raise
    finally:
        house.undoing.discard(rewind)


def root_of(view: Reads, session: str) -> Path:
    """The folder of the session's project. Raises `not_found`."""
    return Path(projects.get(view, sessions.get(view, session).project).folder)


def finish_own(house: Stead, owner: str) -> bool:
    """Finish what this process began to take back and could not note the end of. True when something is left."""
    with house.store.view() as view:
        left = [(one, root_of(view, one.session)) for one in rewinds.left_by(view, {owner}) if one.id not in house.undoing]
    for one, root in left:
        if root.is_dir():
            finish(house.store, one, root)
    return any(not root.is_dir() for _, root in left)
