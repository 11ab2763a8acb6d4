"""One prompt from sending to its end: signals, events and frames in order, and what came of it."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from stead.core.events import Event
from stead.domain.runs import RunEnded
from stead.interfaces.cli import codes, out

if TYPE_CHECKING:
    from stead.agent.calls import Asker
    from stead.agent.frames import Frame
    from stead.agent.gate import Rule
    from stead.app import RunHandle, Stead


class Sink(Protocol):
    """What hears of a run: its events and frames in the order in which they came about."""

    def event(self, event: Event[Any]) -> None: ...
    def frame(self, frame: Frame) -> None: ...


@dataclass(slots=True)
class Wanted:
    """What to send, and how."""

    session: str | None
    parts: Sequence[Any]
    project: str
    model: str | None = None
    agent: str | None = None
    max_steps: int | None = None
    max_cost: float | None = None
    rules: list[Rule] = field(default_factory=list)
    on_ask: Asker = "deny"

    async def send(self, house: Stead) -> RunHandle:
        """Send it."""
        return await house.prompt(
            self.session,
            self.parts,
            project=self.project,
            model=self.model,
            agent=self.agent,
            max_steps=self.max_steps,
            max_cost=self.max_cost,
            rules=self.rules,
            on_ask=self.on_ask,
        )


@dataclass(slots=True)
class Played:
    """What came of it. `hint` is the error's next step, `flags` what would have allowed the refused calls."""

    result: dict[str, Any]
    flags: list[str]
    hint: str | None
    terminated: int | None
    """The signal that ended it; None for Ctrl-C, whose exit code is that of every abort."""

    @property
    def exit_code(self) -> int:
        if self.result["outcome"] == "aborted" and self.terminated is not None:
            return 128 + self.terminated
        return codes.of_run(self.result["outcome"], (self.result["error"] or {}).get("code"))


async def play(house: Stead, begin: Callable[[Stead], Awaitable[RunHandle]], sink: Sink, *, last: bool = True) -> Played:
    """Have `begin` start a run, or take one up, and see it through to the end. Ctrl-C and SIGTERM abort the run, and it is stored
    all the same.

    `last`: the program ends behind this run, and no signal takes away what is still to be said of it.
    """
    from stead.interfaces.cli import logs

    logs.to_file(house.data)
    with house.store.view() as view:
        after = view.newest()
    interrupt = _Interrupt(asyncio.get_running_loop(), last)
    handle: RunHandle | None = None
    hint = None
    try:
        handle = await begin(house)
        interrupt.take(handle)
        handle.patient = False  # behind a run that waits for a person nobody stays
        if handle.run is None:
            _tell_of_queue(house, handle)
        async with aclosing(house.follow(handle, after)) as items:
            async for item in items:
                if not isinstance(item, Event):
                    sink.frame(item)
                    continue
                if isinstance(item.data, RunEnded) and item.data.error:
                    hint = (item.data.error.get("details") or {}).get("hint")
                sink.event(item)
        return Played(await handle.result(), handle.flags, hint, interrupt.terminated)
    finally:
        if handle is not None:
            handle.abort()
            await handle.ended()
        interrupt.release()


def _tell_of_queue(house: Stead, handle: RunHandle) -> None:
    """Say what the prompt waits for."""
    from stead.domain import queue, runs

    with house.store.view() as view:
        before = runs.active(view, handle.session)
        waiting = queue.waiting(view, handle.session)
    place = [one.id for one in waiting]
    if before is not None and before.status == "waiting":
        out.note(f"The run before this prompt waits for a person; `stead run -r {handle.session}` goes on with that one.")
    elif before is not None and any(one.id == handle.id and one.now for one in waiting):
        out.note("The run at work takes it up behind its present step.")
    elif handle.id in place:
        if ahead := place.index(handle.id) + (before is not None):
            out.note(f"queued: {ahead} before this one in the session. Ctrl-C keeps it for later.")


class _Interrupt:
    """Ctrl-C, SIGTERM and a terminal that is closed (SIGHUP, unless nohup has it ignored): the first aborts the run and what it
    started; later ones change nothing, for the run is being stored."""

    def __init__(self, loop: asyncio.AbstractEventLoop, last: bool) -> None:
        self.terminated: int | None = None
        self._loop = loop
        self._last = last
        self._handle: RunHandle | None = None
        self._wanted = self._over = False
        # Not the loop's own handlers: with the loop they would give way to KeyboardInterrupt before the end is told.
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
            numbers.append(signal.SIGHUP)
        self._before = {number: signal.signal(number, self._came) for number in numbers}

    def take(self, handle: RunHandle) -> None:
        """The run is there; end it at once where that was wanted before."""
        self._handle = handle
        if self._wanted:
            handle.abort()

    def release(self) -> None:
        self._over = True
        for number, handler in self._before.items():
            # The interpreter would give our handler up before its end, and a late Ctrl-C would take the exit code away.
            signal.signal(number, signal.SIG_IGN if self._last else handler)

    def _came(self, number: int, _: object) -> None:
        if not self._over:
            self._loop.call_soon_threadsafe(self._abort, number)

    def _abort(self, number: int) -> None:
        if self.terminated is None and number != signal.SIGINT:
            self.terminated = number
        if self._wanted:
            return
        self._wanted = True
        if sys.stderr.isatty():
            out.err()  # behind the ^C
        waits = self._handle is not None and self._handle.run is None
        out.note("leaving; the prompt is kept, held …" if waits else "aborting; what was done so far is being stored …")
        if self._handle is not None:
            self._handle.abort()


class Both:
    """Two sinks as one; each hears everything."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = sinks

    def event(self, event: Event[Any]) -> None:
        for sink in self.sinks:
            sink.event(event)

    def frame(self, frame: Frame) -> None:
        for sink in self.sinks:
            sink.frame(frame)
