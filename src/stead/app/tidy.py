"""What this process began and nobody in it works on: an end that a full disk did not take, a beginning of which only the answer was
lost with the connection. A process that lives is not recovered by others, so it looks after itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stead.core.errors import SteadError
from stead.domain import queue, runs

if TYPE_CHECKING:
    from stead.agent.closing import Fate
    from stead.app.house import Stead


class Tidy:
    """Looks, once a second and only where there is reason to. Thread-safe: it is called by the thread that gives signs of life."""

    def __init__(self, house: Stead) -> None:
        self._house = house
        self._fates: dict[str, Fate] = {}
        self._reason = False
        self._seen: set[str] = set()
        house.life.each_second = self._look

    def suspect(self) -> None:
        """There may be something."""
        self._reason = True

    def unended(self, run: runs.Run, fate: Fate | None) -> None:
        """There is: this run, which ended as `fate` says (None: nobody knows). Left as a word with the lock as well, for whoever
        comes after this process."""
        if fate is not None:
            self._fates[run.id] = fate
            self._house.life.leave_word(self._fates)
        self._reason = True

    def _look(self) -> None:
        """Close what was there already at the last look: what has just begun may not have found its handle yet."""
        house, owner = self._house, self._house.life.id
        if not self._reason or owner is None:
            return
        try:
            with house.store.view() as view:
                left = {run.id: run for run in runs.left_by(view, [owner])}
                waiting = [one for one in queue.waiting(view) if one.owner == owner]
            held = {handle.id for handle in house.running()}
            unheld = (set(left) | {one.id for one in waiting}) - held
            again, self._seen = unheld & self._seen, unheld
            for run in [run for run in left.values() if run.id in again]:
                from stead.app.recovery import close_run

                close_run(house.store, house.life, run, self._fates.get(run.id))
            for one in [one for one in waiting if one.id in again]:  # whoever works for the store may begin it
                house.store.write(lambda tx, one=one: queue.release(tx, one.id))  # type: ignore[misc]
            from stead.app.undo import finish_own

            self._reason = finish_own(house, owner) or bool(unheld)
        except SteadError:
            return  # tried again
