"""Following the log: every committed event once and in order, whichever process committed it, with the live text between them.

The frames of this process's runs come as they are made, those of others from what they keep of their open parts. Who joins in the
middle of a part first gets one frame with all of its text so far.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from stead.core.events import Event
from stead.domain import partials
from stead.domain.runs import RunSteered
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.frames import Frame
    from stead.app.handle import RunHandle
    from stead.app.house import Stead

POLL_SECONDS = 0.1
"""How often it is looked what other processes committed."""
_PAGE = 1000


async def follow(house: Stead, handle: RunHandle, after: int) -> AsyncGenerator[Event[Any] | Frame]:
    """See `Stead.follow`."""
    done = asyncio.ensure_future(handle.ended())
    ours = {handle.id}
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

    def heard(events: Sequence[Event[Any]]) -> None:
        for event in events:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    store, others = house.store, _Others(house)
    stop_events, stop_frames = store.listen(heard), house.on_frame(queue.put_nowait)  # first listen, then read
    for handle in house.running():
        for frame in handle.frames():
            queue.put_nowait(frame)
    if done is not None:
        done.add_done_callback(lambda _: queue.put_nowait(None))
    try:
        upto: int | None = None
        over = False
        while True:
            # What was not heard in its turn is read: everything at first, later what other processes committed.
            more = True
            while more:
                found, after, more = _missed(store, after, upto, stream)
                for event in found:
                    yield event
            if upto is None:
                for frame in others.grown():
                    if stream in (None, frame.session):
                        yield frame
            if over:
                return
            while True:
                try:
                    async with asyncio.timeout(POLL_SECONDS):
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


class _Others:
    """The open parts of other processes' runs."""

    def __init__(self, house: Stead) -> None:
        self._house = house
        self._seen: dict[tuple[str, int, int], int] = {}

    def grown(self) -> list[Frame]:
        """Frames with what has been kept since the last look."""
        from stead.agent.frames import Frame

        with self._house.store.view() as view:
            found = partials.growth(view, self._seen)
        mine = {handle.run.id for handle in self._house.running() if handle.run is not None}
        return [
            Frame(piece.kind, session, run, f"{session}.{message}.{piece.n}", piece.start, piece.text)
            for session, message, run, piece in found
            if run not in mine
        ]


def _missed(store: Store, after: int, upto: int | None, stream: str | None) -> tuple[list[Event[Any]], int, bool]:
    """A page of the events behind `after`, up to and with `upto` (None: all there are), the `seq` up to which all were looked at,
    and whether there are more."""
    with store.view() as view:
        newest = upto if upto is not None else view.newest()
        page = view.events(after=after, stream=stream, limit=_PAGE) if after < newest else []
    found = [event for event in page if event.seq <= newest]
    if len(found) == _PAGE:
        return found, found[-1].seq, True
    return found, max(after, newest), False
