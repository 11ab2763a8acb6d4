"""A run in the hands of who sent its prompt: waiting for its turn, at work here, or at work elsewhere."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stead.app.watching import POLL_SECONDS
from stead.core.errors import SteadError
from stead.domain import queue, runs

if TYPE_CHECKING:
    from stead.agent.calls import Asker
    from stead.agent.connect import Connection
    from stead.agent.frames import Frame
    from stead.agent.loop import Loop
    from stead.app.house import Stead

STOPPED = "Its program was stopped before its turn came."
_LOOK_FOR_DEAD = 10
"""Every so many looks a waiting prompt asks whether the process before it still lives."""


class RunHandle:
    """A run of a prompt that was sent here (or, given a known `key`, was found again). `run` is None while it waits for its
    turn."""

    def __init__(self, house: Stead, prompt: str, session: str, run: runs.Run | None, ask: Asker | None = None) -> None:
        self.id = prompt
        self.session = session
        self.run = run
        self._house = house
        self._ask = ask
        self._loop: Loop | None = None
        self._task: asyncio.Task[None] | None = None
        self._leaving = False

    def start(self, connection: Connection | None = None) -> None:
        """Begin the work, or the waiting for it; called once, by the house."""
        self._task = asyncio.create_task(self._work(connection), name=f"run-{self.id}")
        self._task.add_done_callback(lambda _: self._house.forget(self))

    async def result(self) -> dict[str, Any]:
        """Wait for the end and give the run as `Stead.run_json` does; where calls were refused because nobody could be asked, also
        `refused`: the options that would have let them through. Cancelling the wait does not abort the run."""
        await self.ended()
        found = await asyncio.to_thread(self._house.run_json, self.id)
        return {**found, "refused": self.flags} if self.flags else found

    async def ended(self) -> None:
        """Wait until the run ended or waits for a person, or its prompt was held or taken back."""
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
        while self._at_work_elsewhere():  # noqa: ASYNC110 another process works on it
            await asyncio.sleep(POLL_SECONDS)

    def abort(self) -> None:
        """End the run now; its open calls get their results and it is stored as aborted. A prompt that still waits for its turn is
        held in the queue. Returns at once."""
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def leave(self) -> None:
        """Like `abort`; but a prompt that still waits goes on waiting, for any process."""
        self._leaving = True
        self.abort()

    @property
    def flags(self) -> list[str]:
        """The `--allow` rules that would have let the refused calls through."""
        return list(dict.fromkeys(self._loop.flags)) if self._loop else []

    def frames(self) -> list[Frame]:
        """What is on the screen of this run and not yet stored: one frame for each open part, from its beginning."""
        return self._loop.live.frames() if self._loop else []

    # --- the work -------------------------------------------------------------------------------------------------------------

    async def _work(self, connection: Connection | None) -> None:
        if self.run is None:
            self.run = await self._turn()
        if self.run is None:
            return
        obeying = asyncio.create_task(self._obey(self.run))
        try:
            self._loop = await self._made(self.run, connection)
            if self._loop is not None:
                await self._loop.execute()
        finally:
            obeying.cancel()

    async def _made(self, run: runs.Run, connection: Connection | None) -> Loop | None:
        """The loop that works on the run. What can no longer be, a key that was removed while the prompt waited, ends the run."""
        from stead.app.starting import loop_of

        try:
            return loop_of(self._house, run, ask=self._ask, connection=connection)
        except SteadError as failure:
            error = failure.to_json()
            await self._house.store.commit(lambda tx: runs.held(tx, run) and runs.end(tx, run.id, "error", steps=0, error=error))
            return None

    async def _turn(self) -> runs.Run | None:
        """Wait until the prompt may begin, and begin it; None when it went another way: held, taken back, said in another run."""
        house, looks = self._house, 0
        try:
            while True:
                with house.store.view() as view:
                    found = queue.get(view, self.id)
                    before = runs.active(view, self.session)
                if found.state != "queued" or found.held is not None:
                    return None
                if before is None:
                    owner = house.owner()
                    begun: runs.Run | None = await house.store.commit(partial(queue.begin, prompt=found, owner=owner))
                    if begun is not None:
                        return begun
                elif before.status == "running" and looks % _LOOK_FOR_DEAD == 0 and not house.alive(before.owner):
                    await asyncio.to_thread(house.recover)
                looks += 1
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            if not self._leaving:
                await asyncio.shield(house.store.commit(lambda tx: queue.hold(tx, queue.get(tx, self.id), STOPPED)))
            raise

    def _at_work_elsewhere(self) -> bool:
        """Whether another process works on what became of the prompt."""
        with self._house.store.view() as view:
            try:
                run = runs.get(view, queue.became(view, self.id))
            except SteadError:
                return False
        return run.status == "running" and self._house.alive(run.owner)

    async def _obey(self, run: runs.Run) -> None:
        """End the run when somebody asks for it, from whatever process."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(SteadError), self._house.store.view() as view:  # a store that is busy now is looked into again
                if runs.abort_requested(view, run.id):
                    self.abort()
                    return
