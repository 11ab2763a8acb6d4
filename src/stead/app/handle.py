"""A run in the hands of who sent its prompt: waiting for its turn, at work here, or at work elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from stead.agent.begin import begin_queued
from stead.agent.closing import PASSING
from stead.app.watching import POLL_SECONDS
from stead.core.errors import SteadError
from stead.domain import queue, runs

if TYPE_CHECKING:
    from stead.agent.calls import Asker
    from stead.agent.connect import Connection
    from stead.agent.frames import Frame
    from stead.agent.gate import Rule
    from stead.agent.loop import Loop
    from stead.app.house import Stead
    from stead.store.log import Tx

STOPPED = "Its program was stopped before its turn came."
WAITS = "The run before it waits for a person."
_LOOK_FOR_DEAD = 10
"""Every so many looks a waiting prompt asks whether the process before it still lives."""


class RunHandle:
    """A run of a prompt that was sent here (or, given a known `key`, was found again). `run` is None while it waits for its
    turn."""

    def __init__(
        self,
        house: Stead,
        prompt: str,
        session: str,
        run: runs.Run | None,
        ask: Asker | None = None,
        grants: Sequence[Rule] = (),
    ) -> None:
        self.id = prompt
        self.session = session
        self.run = run
        self._house = house
        self._ask = ask
        self._grants = grants
        self._loop: Loop | None = None
        self._flags: list[str] = []
        self._task: asyncio.Task[None] | None = None
        self._leaving = False
        self.patient = True
        """Whether the prompt also waits behind a run that waits for a person. Else it is held then, and the waiting is over."""

    def start(self, connection: Connection | None = None) -> None:
        """Begin the work, or the waiting for it; called once, by the house."""
        self._task = asyncio.create_task(self._work(connection), name=f"run-{self.id}")
        self._task.add_done_callback(lambda _: self._house.forget(self))

    def wait_for(self, ask: Asker | None) -> bool:
        """Somebody else here waits for the same prompt: they share this handle while it waits. `ask` is how they are asked."""
        if self.run is not None or self._task is None or self._task.done():
            return False
        self._ask = ask or self._ask
        return True

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
        """End the run now, if it is at work here; its open calls get their results and it is stored as aborted. A prompt that still
        waits for its turn is held in the queue. Returns at once. A run at work elsewhere is ended by `Stead.stop`."""
        if self._task is not None and not self._task.done():
            self._task.cancel()

    def leave(self) -> None:
        """Like `abort`; but a prompt that still waits goes on waiting, for any process."""
        self._leaving = True
        self.abort()

    @property
    def flags(self) -> list[str]:
        """The `--allow` rules that would have let the refused calls through."""
        return list(dict.fromkeys(self._flags))

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
                self._flags = self._loop.flags
                await self._loop.execute()
        except Exception:
            self._house.unended(self.run, self._loop.fate if self._loop is not None else None)
            raise
        finally:
            obeying.cancel()
            self._loop = None  # with all it had read; who holds the handle of a run that ended holds nothing of it

    async def _made(self, run: runs.Run, connection: Connection | None) -> Loop | None:
        """The loop that works on the run. What can no longer be, a key that was removed while the prompt waited, ends the run."""
        from stead.app.starting import loop_of

        try:
            return loop_of(self._house, run, ask=self._ask, grants=self._grants, connection=connection)
        except SteadError as failure:
            error = failure.to_json()
            await self._house.store.commit(lambda tx: runs.held(tx, run) and runs.end(tx, run.id, "error", steps=0, error=error))
            return None

    async def _turn(self) -> runs.Run | None:
        """Wait until the prompt may begin, and begin it; None when it went another way: held, taken back, said in another run."""
        house, looks = self._house, 0
        try:
            while True:
                try:
                    over, begun = await self._look(dead=looks % _LOOK_FOR_DEAD == 0)
                except SteadError as error:
                    if error.code not in PASSING:
                        raise
                    house.suspect()  # it may have begun all the same
                else:
                    if over:
                        return begun
                looks += 1
                await asyncio.sleep(POLL_SECONDS)
        except asyncio.CancelledError:
            begun = await self._give_up()
            if begun is None:
                raise
            if (task := asyncio.current_task()) is not None:
                task.cancel()  # it began in that very moment, and ends as one that is aborted
            return begun

    async def _look(self, *, dead: bool) -> tuple[bool, runs.Run | None]:
        """Look once whether it is this prompt's turn. Whether the waiting is over, and the run if it has begun here."""
        house = self._house
        with house.store.view() as view:
            found = queue.get(view, self.id)
            before, first = runs.active(view, self.session), queue.head(view, self.session)
            mine = found.state == "begun" and found.run == self.id and runs.get(view, self.id)
        if mine and mine.status == "running" and mine.owner == house.life.id:
            return True, mine  # begun by a commit of which only the answer was lost
        if found.state != "queued" or found.held is not None:
            return True, None
        if before is not None and before.status == "waiting" and not self.patient:
            await house.store.commit(lambda tx: queue.hold(tx, queue.get(tx, self.id), WAITS))
        elif before is None and first is not None and first.id == self.id:
            begin = partial(begin_queued, prompt=found, owner=house.owner())
            begun: runs.Run | None = await house.store.commit(begin)
            return begun is not None, begun
        elif before is not None or first is not None:
            await self._look_ahead(before, first, dead=dead)
        return False, None

    async def _look_ahead(self, before: runs.Run | None, first: queue.Prompt | None, *, dead: bool) -> None:
        """See to it that what is before this prompt moves: one that nobody in particular works on is worked on here, and what a
        dead process left is closed."""
        if before is None and first is not None and first.owner is None:
            from stead.app.working import take_next

            await take_next(self._house, self.session)
            return
        owner = before.owner if before is not None else first.owner if first is not None else None
        at_work = before is None or before.status == "running"
        if dead and at_work and owner is not None and not self._house.alive(owner):
            await asyncio.to_thread(self._house.recover)

    async def _give_up(self) -> runs.Run | None:
        """Hold the prompt in the queue, unless this process leaves in order. Gives its run where it has just begun here."""
        from stead.agent.changing import see_through

        house = self._house

        def job(tx: Tx) -> runs.Run | None:
            found = queue.get(tx, self.id)
            if found.state == "begun" and found.run == self.id:
                run = runs.get(tx, self.id)
                return run if run.status == "running" and run.owner == house.life.id else None
            if not self._leaving and found.owner == house.life.id:  # else somebody else waits for it by now
                queue.hold(tx, found, STOPPED)
            return None

        giving_up = asyncio.ensure_future(house.store.commit(job))
        with suppress(asyncio.CancelledError):
            await see_through(giving_up)
        return giving_up.result()

    def _at_work_elsewhere(self) -> bool:
        """Whether another process works on what became of the prompt, or waits to."""
        house = self._house
        with house.store.view() as view:
            try:
                run = runs.get(view, queue.became(view, self.id))
            except SteadError:
                with suppress(SteadError):  # deleted in the meantime
                    waits = queue.get(view, self.id)
                    owner = waits.owner if waits.state == "queued" and waits.held is None else None
                    return owner not in (None, house.life.id) and house.alive(str(owner))
                return False
        return run.status == "running" and house.alive(run.owner)

    async def _obey(self, run: runs.Run) -> None:
        """End the run when somebody asks for it, from whatever process."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(SteadError), self._house.store.view() as view:  # a store that is busy now is looked into again
                now = runs.get(view, run.id)
                # Somebody asked for the end; or the run is another's by now, and nothing of it may go on here.
                if runs.abort_requested(view, run.id) or (now.owner, now.epoch) != (run.owner, run.epoch) or now.status == "ended":
                    self.abort()
                    return
