"""Working on queued prompts that nobody in particular waits for: what a server does, and any number of workers beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from stead.app.watching import POLL_SECONDS
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
        if len(mine) < most and (run := await house.store.commit(_next(house))) is not None:
            mine.add(house.take(run).id)
            continue
        now = house.store.clock.monotonic()
        if now - looked >= _LOOK_FOR_DEAD_SECONDS:  # what a dead worker left is closed by those who live
            looked = now
            await asyncio.to_thread(house.recover)
        if not mine and idle():
            return
        await asyncio.sleep(POLL_SECONDS)


def _next(house: Stead) -> Callable[[Tx], runs.Run | None]:
    owner, lock = house.owner(), house.store.database.types["pass_over"]

    def job(tx: Tx) -> runs.Run | None:
        found = queue.free(tx, lock)
        return queue.begin(tx, found, owner) if found is not None else None

    return job
