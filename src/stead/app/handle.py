"""A run in the hands of who started it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stead.app.watching import POLL_SECONDS
from stead.core.errors import SteadError
from stead.domain import runs

if TYPE_CHECKING:
    from stead.agent.loop import Loop
    from stead.app.house import Stead


class RunHandle:
    """A run that was started here (or, given a known `key`, was found again)."""

    def __init__(self, house: Stead, run: runs.Run, loop: Loop | None) -> None:
        self.id = run.id
        self.session = run.session
        self.message = f"{run.session}.{run.message}"
        self._house = house
        self._loop = loop
        self._task: asyncio.Task[Any] | None = None

    def start(self) -> None:
        """Begin the work; called once, by the house."""
        assert self._loop is not None
        self._task = asyncio.create_task(self._loop.execute(), name=f"run-{self.id}")
        poller = asyncio.create_task(self._obey())

        def done(_: object) -> None:
            poller.cancel()
            self._house.forget(self)

        self._task.add_done_callback(done)

    async def result(self) -> dict[str, Any]:
        """Wait for the end and give the run as `Stead.run_json` does; where calls were refused because nobody could be asked, also
        `refused`: the options that would have let them through. Cancelling the wait does not abort the run."""
        await self.ended()
        found = await asyncio.to_thread(self._house.run_json, self.id)
        return {**found, "refused": self.flags} if self.flags else found

    async def ended(self) -> None:
        """Wait until the run ended or waits for a person."""
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
        while self._task is None and self._at_work():  # noqa: ASYNC110 another process works on it
            await asyncio.sleep(POLL_SECONDS)

    def abort(self) -> None:
        """End the run now; its open calls get their results and it is stored as aborted. Returns at once."""
        if self._task is not None and not self._task.done():
            self._task.cancel()

    @property
    def flags(self) -> list[str]:
        """The `--allow` rules that would have let the refused calls through."""
        return list(dict.fromkeys(self._loop.flags)) if self._loop else []

    def _at_work(self) -> bool:
        with self._house.store.view() as view:
            run = runs.get(view, self.id)
        return run.status == "running" and self._house.alive(run.owner)

    async def _obey(self) -> None:
        """End the run when another process asks for it."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(SteadError), self._house.store.view() as view:  # a store that is busy now is looked into again
                if runs.abort_requested(view, self.id):
                    self.abort()
                    return
