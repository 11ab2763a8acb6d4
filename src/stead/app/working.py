"""Working on queued prompts that nobody in particular waits for: what a server does, and any number of workers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from stead.agent.closing import PASSING
from stead.app.watching import POLL_SECONDS
from stead.core.errors import SteadError
from stead.domain import queue, runs
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.app.house import Stead

_LOOK_FOR_DEAD_SECONDS = 1.0


async def work(house: Stead, most: int, idle: Callable[[], bool]) -> None:
    """See `Stead.work`."""
    mine: set[str] = set()
    looked = 0.0
    while True:
        mine &= {handle.id for handle in house.running()}
        try:
            if len(mine) < most and (run := await take_next(house)) is not None:
                mine.add(run)
                continue
            now = house.store.clock.monotonic()
            if now - looked >= _LOOK_FOR_DEAD_SECONDS:  # what a dead worker left is closed by those who live
                looked = now
                await asyncio.to_thread(house.recover)
        except SteadError as error:  # a store that is away for a moment is asked again
            if error.code not in PASSING:
                raise
            house.suspect()
        else:
            if not mine and idle():
                return
        await asyncio.sleep(POLL_SECONDS)


async def take_next(house: Stead, session: str | None = None) -> str | None:
    """Begin a prompt that nobody in particular waits to work on, and work on it here; of one session or of any. Gives its id, None
    where there is none. A cancellation does not leave a begun run without anybody at work on it."""
    from stead.agent.begin import begin_queued
    from stead.agent.changing import see_through

    with house.store.view() as view:
        if queue.free(view, session=session) is None:
            return None
    owner, lock = house.owner(), house.store.database.types["pass_over"]

    def job(tx: Tx) -> runs.Run | None:
        found = queue.free(tx, lock, session=session)
        return begin_queued(tx, found, owner) if found is not None else None

    async def begun() -> str | None:
        run = await house.store.commit(job)
        return house.take(run).id if run is not None else None

    return await see_through(begun())
