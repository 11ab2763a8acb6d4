"""Following the log: every committed event once and in order, whichever process committed it, and the live frames of this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TYPE_CHECKING, Any

from stead.core.events import Event
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.frames import Frame

    OnFrame = Callable[[Callable[[Frame], None]], Callable[[], None]]

POLL_SECONDS = 0.1
"""How often it is looked what other processes committed."""
_PAGE = 1000


async def watch(store: Store, on_frame: OnFrame, after: int, stream: str | None) -> AsyncIterator[Event[Any] | Frame]:
    """See `Stead.watch`; `on_frame` is the house's."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[Event[Any] | Frame] = asyncio.Queue()

    def heard(events: Sequence[Event[Any]]) -> None:
        for event in events:
            loop.call_soon_threadsafe(queue.put_nowait, event)

    stop_events, stop_frames = store.listen(heard), on_frame(queue.put_nowait)  # first listen, then read
    try:
        upto: int | None = None
        while True:
            # What was not heard in its turn is read: everything at first, later what other processes committed.
            more = True
            while more:
                found, after, more = _missed(store, after, upto, stream)
                for event in found:
                    yield event
            while True:
                try:
                    async with asyncio.timeout(POLL_SECONDS):
                        item = await queue.get()
                except TimeoutError:
                    upto = None
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
