"""What of a run is on the screen and not yet stored: its growing parts and the output of the tool at work.

It goes out as frames at once, and into the `partials` rows a moment later: when 2 KiB have come, or 100 ms after the first of them.
A model that talks faster than the disk writes waits here, so that a kill never costs more than 4 KiB or 250 ms.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from stead.agent.closing import Lost
from stead.agent.frames import Frame
from stead.core.parts import Part
from stead.core.text import cut_bytes, tail_bytes
from stead.domain import partials
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.agent.loop import Loop

SAVE_BYTES, SAVE_SECONDS = 2 << 10, 0.1
MOST_UNSAVED_BYTES = 4 << 10
TOOL_SECONDS, LOOK_SECONDS = 0.25, 1.0
TOOL_BYTES = 4 << 10
"""Bytes of a tool's output that are kept of its beginning, and again of its end, while it runs."""


@dataclass(slots=True)
class _Growing:
    """A part of the answer that is still growing."""

    part: Part
    part_id: str
    pieces: list[str] = field(default_factory=list)
    size: int = 0
    chunks: int = 0
    saved: int = 0
    """Code points that are in the rows."""
    first_unsaved: int = 0
    """The piece behind which nothing is in the rows."""

    @property
    def shown(self) -> bool:
        return self.part["type"] in ("text", "reasoning")

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def take(self, n: int) -> partials.Growth:
        """What is not in the rows yet, as their next chunk."""
        text = "".join(self.pieces[self.first_unsaved :])
        taken = partials.Growth(n, self.chunks, cast(partials.Kind, self.part["type"]), self.saved, text)
        self.first_unsaved, self.saved, self.chunks = len(self.pieces), self.size, self.chunks + 1
        return taken


@dataclass(slots=True)
class _Tool:
    """The tool at work: what it printed, beginning and end, and the process that it started."""

    n: int
    part_id: str
    size: int = 0
    head: str = ""
    tail: str = ""
    process: dict[str, Any] | None = None
    so_far: Callable[[], str] | None = None
    """What it printed, bounded, also where no more of it is shown."""
    kept: str = ""
    unsaved: bool = True

    @property
    def output(self) -> str:
        if self.so_far is not None:
            return self.so_far()
        left_out = self.size - len(self.head) - len(self.tail)
        return f"{self.head}\n[… {left_out} characters …]\n{self.tail}" if left_out else self.head + self.tail


@dataclass(slots=True)
class Live:
    """The live side of one run, used on its event loop. `unfinished` gives the ledger's row for the model call under way."""

    loop: Loop
    unfinished: Callable[[], dict[str, Any] | None]
    parts: dict[int, _Growing] = field(default_factory=dict)
    tool: _Tool | None = None
    _cost: bool = False
    """What the model call under way cost so far is not in its row."""
    _unsaved: int = 0
    """Bytes that are not in the rows: handed to nobody yet, and (`_writing`) being written."""
    _writing: int = 0
    _saving: Future[Any] | None = None
    _timer: asyncio.TimerHandle | None = None
    _error: BaseException | None = None
    _kept: asyncio.Event = field(default_factory=asyncio.Event)

    # --- the answer -----------------------------------------------------------------------------------------------------------

    def count(self) -> None:
        """A model call began, or cost more. Unless it ends at once, that is kept, so that a kill does not make it free."""
        self._cost = True
        self._later(SAVE_SECONDS)

    def open(self, n: int, part: Part) -> None:
        """Part `n` begins to grow."""
        self.parts[n] = _Growing(part, self._id(n))

    async def grow(self, n: int, text: str) -> None:
        """More of part `n` came: show it, and see to it that it is kept. Raises what keeps it from being kept (`disk_full`)."""
        part, run = self.parts[n], self.loop.run
        if part.shown:
            self.loop.publish(Frame(cast(Any, part.part["type"]), run.session, run.id, part.part_id, part.size, text))
        part.pieces.append(text)
        part.size += len(text)
        if not part.shown:
            self.count()
            return
        self._unsaved += len(text.encode("utf-8", "surrogatepass"))
        if self._unsaved >= SAVE_BYTES:
            self._save()
        else:
            self._later(SAVE_SECONDS)
        while self._saving is not None and self._unsaved + self._writing >= MOST_UNSAVED_BYTES:
            self._kept.clear()
            await self._kept.wait()
        if self._error is not None:
            raise self._error

    def whole(self, n: int) -> None:
        """All of part `n` came and it is about to be stored: no more rows of it. Until `close` it counts as open."""
        self.parts[n].first_unsaved = len(self.parts[n].pieces)

    def close(self, n: int) -> None:
        """Part `n` is stored."""
        self.parts.pop(n)

    def clear(self) -> None:
        """The answer is over, whatever it was."""
        self.parts.clear()
        self._unsaved, self._cost = 0, False

    def cut(self) -> Iterator[tuple[int, Part]]:
        """Texts and thoughts that had begun and will not be ended, by number."""
        for n, part in sorted(self.parts.items()):
            if part.shown and part.size:
                yield n, cast(Part, {**part.part, "text": part.text, "cut": True})

    @property
    def chars(self) -> int:
        """Characters of all open parts."""
        return sum(part.size for part in self.parts.values())

    def frames(self) -> list[Frame]:
        """One frame for each open part with all of its text so far: for who joins in the middle."""
        run = self.loop.run
        found = [
            Frame(cast(Any, part.part["type"]), run.session, run.id, part.part_id, 0, part.text)
            for _, part in sorted(self.parts.items())
            if part.shown and part.size
        ]
        if (tool := self.tool) is not None and tool.size:
            found.append(Frame("tool_output", run.session, run.id, tool.part_id, 0, tool.head))
            if tool.tail:
                found.append(Frame("tool_output", run.session, run.id, tool.part_id, tool.size - len(tool.tail), tool.tail))
        return found

    # --- the tool -------------------------------------------------------------------------------------------------------------

    def begin_tool(self, n: int) -> None:
        """Call `n` is at work."""
        self.tool = _Tool(n, self._id(n))

    def spawned(self, process: dict[str, Any], so_far: Callable[[], str]) -> None:
        """The tool started a process; what is needed to find it again is kept at once. `so_far` gives what it printed, bounded."""
        if self.tool is not None:
            self.tool.process, self.tool.so_far, self.tool.unsaved = process, so_far, True
            self._save()
            self._look_again(self.tool)

    def _look_again(self, tool: _Tool) -> None:
        """Keep the newest output of a tool also where it is not shown any more: a tool may print more than a screen takes."""
        if self.tool is not tool:
            return
        if tool.output != tool.kept:
            tool.unsaved = True
            self._later(TOOL_SECONDS)
        asyncio.get_running_loop().call_later(LOOK_SECONDS, self._look_again, tool)

    def printed(self, text: str) -> None:
        """The tool printed more."""
        tool, run = self.tool, self.loop.run
        if tool is None:
            return
        self.loop.publish(Frame("tool_output", run.session, run.id, tool.part_id, tool.size, text))
        room = TOOL_BYTES - len(tool.head.encode("utf-8", "surrogatepass"))
        more = cut_bytes(text, room) if room > 0 and not tool.tail else ""
        tool.head += more
        tool.tail = tail_bytes(tool.tail + text[len(more) :], TOOL_BYTES)
        tool.size += len(text)
        tool.unsaved = True
        self._later(TOOL_SECONDS)

    def end_tool(self) -> None:
        """The call has its result."""
        self.tool = None

    # --- keeping --------------------------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """Nothing is kept any more: the run is about to end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _id(self, n: int) -> str:
        return f"{self.loop.run.session}.{self.loop.run.message}.{n}"

    def _later(self, seconds: float) -> None:
        if self._timer is None and self._saving is None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._save)

    def _save(self) -> None:
        """Hand everything that is new to the writer, unless it still works on what it was handed before."""
        self.stop()
        if self._saving is not None:
            return
        run = self.loop.run
        pieces = [part.take(n) for n, part in self.parts.items() if part.shown and part.first_unsaved < len(part.pieces)]
        tool = self.tool if self.tool is not None and self.tool.unsaved else None
        fact = self.unfinished() if pieces or self._cost else None
        self._unsaved, self._writing, self._cost = 0, self._unsaved, False
        if not pieces and tool is None and fact is None:
            return
        call = None
        if tool is not None:
            tool.unsaved, tool.kept = False, tool.output
            call = partials.ToolCall(tool.n, tool.kept, tool.process, self.loop.store.clock.now())

        def job(tx: Tx) -> None:
            partials.grow(tx, run, pieces)
            if fact is not None:
                partials.open_model_call(tx, run, fact)
            if call is not None:
                partials.open_tool_call(tx, run, call)

        self._saving = self.loop.submit(job)
        loop = asyncio.get_running_loop()
        self._saving.add_done_callback(lambda _: _call(loop, self._saved))

    def _saved(self) -> None:
        """The writer is done with what it was handed: hand it what came meanwhile."""
        done = self._saving
        assert done is not None
        self._saving, self._writing = None, 0
        self._kept.set()
        error = done.exception()
        if isinstance(error, Lost):
            self._error = error
        elif error is not None:
            logging.getLogger("stead.agent").warning("what is on the screen could not be kept: %s", error)
            self._error = error
        elif self._unsaved >= SAVE_BYTES:
            self._save()
        elif self._unsaved or self._cost:
            self._later(SAVE_SECONDS)
        elif self.tool is not None and self.tool.unsaved:
            self._later(TOOL_SECONDS)


def _call(loop: asyncio.AbstractEventLoop, what: Callable[[], None]) -> None:
    try:
        loop.call_soon_threadsafe(what)
    except RuntimeError:  # the loop is closed: nobody waits for it
        logging.getLogger("stead.agent").debug("a loop closed before its last words were kept")
