"""Following the log: every committed event once and in order, whichever process committed it, with the live text between them.

The frames of this process's runs come as they are made, those of others from what they keep of their open parts. Who joins in the
middle of a part first gets one frame with all of its text so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from stead.core.events import Event
from stead.domain import partials
from stead.domain import queue as prompts
from stead.domain.runs import RunSteered
from stead.domain.sessions import PartAdded
from stead.store.database import Reads
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.frames import Frame
    from stead.app.handle import RunHandle
    from stead.app.house import Stead

POLL_SECONDS = 0.1
"""How often it is looked what other processes committed."""
_PAGE = 1000
_MOST_WAITING = 10_000
"""Events and frames that wait for a slow reader before they are thrown away; it reads them again from where they are kept."""


async def follow(house: Stead, handle: RunHandle, after: int) -> AsyncGenerator[Event[Any] | Frame]:
    """See `Stead.follow`."""
    done = asyncio.ensure_future(handle.ended())
    with house.store.view() as view:
        ours = {handle.id, prompts.became(view, handle.id)}
    try:
        async with aclosing(watch(house, after, handle.session, done)) as items:
            async for item in items:
                if isinstance(item, Event) and isinstance(item.data, RunSteered) and item.data.queued == handle.id:
                    ours.add(item.data.run)
                if item.run in ours:
                    yield item
        await done
    finally:
        done.cancel()


async def watch(
    house: Stead, after: int, stream: str | None, done: asyncio.Future[None] | None = None
) -> AsyncGenerator[Event[Any] | Frame]:
    """See `Stead.watch`. Where there is `done`, it ends behind what was committed and shown when that was."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event[Any] | Frame | None] = asyncio.Queue()
    late = False

    def put(items: Sequence[Event[Any] | Frame]) -> None:
        """Who reads too slowly is not waited for, and nothing piles up: it will read again, from the log and from the screen."""
        nonlocal late
        if queue.qsize() >= _MOST_WAITING:
            late = True
            while not queue.empty():
                queue.get_nowait()
        for item in items if not late else ():
            queue.put_nowait(item)

    store, others = house.store, _Others(house)
    stop_events = store.listen(lambda events: _soon(loop, put, events))  # first listen, then read
    stop_frames = house.on_frame(lambda frame: put([frame]))
    if done is not None:
        done.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        upto: int | None = None
        joined = over = False
        while True:
            # What was not heard in its turn is read: everything at first, later what other processes committed.
            more = True
            while more:
                found, frames, after, more = _missed(store, others, after, upto, stream)
                if not joined and not more:
                    joined = True
                    frames += _on_screen(house, found, queue)
                for event in found:
                    yield event
                for frame in frames:
                    if stream in (None, frame.session):
                        yield frame
            if over:
                return
            due = loop.time() + POLL_SECONDS
            while True:
                if late:
                    late, upto, joined, over = False, None, False, done is not None and done.done()
                    break
                try:
                    if queue.empty() and loop.time() >= due:  # what is queued was shown before what would be read now
                        raise TimeoutError
                    async with asyncio.timeout_at(due):
                        item = await queue.get()
                except TimeoutError:
                    upto = None
                    break
                if item is None:
                    upto, over = None, True
                    break
                if not isinstance(item, Event):
                    if stream in (None, item.session):
                        yield item
                elif item.seq == after + 1:
                    after = item.seq
                    if stream in (None, item.stream):
                        yield item
                elif item.seq > after:
                    upto = item.seq
                    break
    finally:
        stop_events()
        stop_frames()


def _soon(loop: asyncio.AbstractEventLoop, put: Callable[[Sequence[Event[Any]]], None], events: Sequence[Event[Any]]) -> None:
    loop.call_soon_threadsafe(put, events)


class _Others:
    """The open parts of other processes' runs, and what their tools print, until that is more than is kept."""

    def __init__(self, house: Stead) -> None:
        self._house = house
        self._seen: dict[tuple[str, int, int], int] = {}
        self._printed: dict[tuple[str, int, int], str] = {}

    def grown(self, view: Reads) -> list[Frame]:
        """Frames with what has been kept since the last look, one for each part."""
        from stead.agent.frames import Frame
        from stead.agent.live import TOOL_BYTES

        found = partials.growth(view, self._seen)
        mine = {handle.run.id for handle in self._house.running() if handle.run is not None}
        frames = [
            Frame(piece.kind, session, run, f"{session}.{message}.{piece.n}", piece.start, piece.text)
            for session, message, run, piece in found
            if run not in mine
        ]
        before, self._printed = self._printed, {}
        for session, message, n, run, output in partials.outputs(view):
            shown = before.get((session, message, n), "")
            whole = len(output.encode("utf-8", "surrogatepass")) <= 2 * TOOL_BYTES  # of more, the middle is left out
            if whole and len(output) > len(shown) and run not in mine:
                frames.append(Frame("tool_output", session, run, f"{session}.{message}.{n}", len(shown), output[len(shown) :]))
            self._printed[session, message, n] = output
        return frames


def _on_screen(house: Stead, found: Sequence[Event[Any]], queue: asyncio.Queue[Event[Any] | Frame | None]) -> list[Frame]:
    """What is on the screen of this process's runs behind the events `found`, which were read this very moment. It holds what was
    put into `queue` until now."""
    waiting = [queue.get_nowait() for _ in range(queue.qsize())]
    for item in waiting:
        if item is None or isinstance(item, Event):
            queue.put_nowait(item)
    # A part may be stored and the loop not know of it yet.
    closed = {f"{event.stream}.{event.data.message}.{event.data.n}" for event in found if isinstance(event.data, PartAdded)}
    frames = [frame for handle in house.running() for frame in handle.frames()]
    return [frame for frame in frames if frame.frame == "tool_output" or frame.part not in closed]


def _missed(
    store: Store, others: _Others, after: int, upto: int | None, stream: str | None
) -> tuple[list[Event[Any]], list[Frame], int, bool]:
    """A page of the events behind `after`, up to and with `upto`, the `seq` up to which all were looked at, and whether there are
    more. Where `upto` is None, all there are; behind the last page the open parts of other processes, as they were then."""
    with store.view() as view:
        newest = upto if upto is not None else view.newest()
        page = view.events(after=after, stream=stream, limit=_PAGE) if after < newest else []
        found = [event for event in page if event.seq <= newest]
        if len(found) == _PAGE:
            return found, [], found[-1].seq, True
        frames = others.grown(view) if upto is None else []
    return found, frames, max(after, newest), False
