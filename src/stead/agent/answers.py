"""One answer of the model: streamed with retries, its parts stored as they close, its usage in the ledger however it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from stead.agent.frames import Frame, Publish
from stead.agent.models import retry
from stead.agent.models.base import Closed, Delta, Finished, Opened, ProviderError, Request
from stead.agent.models.count import estimate, part_chars
from stead.core.errors import SteadError
from stead.core.parts import NO_TOKENS, Part, StepPart
from stead.domain import sessions
from stead.domain.runs import Run
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.agent.loop import Loop

_UNWORKED = ("provider_unreachable", "no_key", "bad_key", "model_unknown", "rate_limited", "context_full")
"""Refusals before any work: such a call cost nothing, and that is known."""


@dataclass(slots=True)
class Answers:
    """The model calls of a run, one after the other."""

    loop: Loop
    open: _Call | None = None
    """The call that is not yet in the ledger."""
    live: dict[int, _Live] = field(default_factory=dict)

    async def next(self, request: Request) -> None:
        """Make one call, with retries; its parts, usage and step part are stored when this returns."""
        loop, attempt = self.loop, 1
        while True:
            self.open = _Call(request, loop.next_n)
            try:
                finished = await self._stream(request)
                break
            except ProviderError as error:
                wait = retry.delay(error, attempt, jitter=loop.jitter)
                await self._failed(error, again=wait is not None)
                if wait is None:
                    raise
                loop.notice(f"{error.message} Trying again in {wait:.0f} s.")
                loop.check_limits()
                await asyncio.sleep(wait)
                attempt += 1
        await self._finished(finished)

    async def _stream(self, request: Request) -> Finished:
        loop, base = self.loop, self.loop.next_n
        async with aclosing(cast(Any, loop.connection.model.stream(request))) as items:
            async for item in items:
                if isinstance(item, Delta):
                    self.live[base + item.n].grow(item.text, loop.publish)
                elif isinstance(item, Opened):
                    part_id = f"{loop.run.session}.{loop.run.message}.{base + item.n}"
                    self.live[base + item.n] = _Live(item.part, loop.run, part_id)
                    loop.next_n = max(loop.next_n, base + item.n + 1)
                elif isinstance(item, Closed):
                    await loop.add(base + item.n, item.part)
                    self.live.pop(base + item.n, None)
                elif isinstance(item, Finished):
                    return item
        raise ProviderError("stream_cut", "The answer ended without saying that it was finished.", retryable=True)

    async def _finished(self, finished: Finished) -> None:
        """Store the end of a model call: the step part and its usage, in one commit."""
        loop, run = self.loop, self.loop.run
        cost = finished.cost if finished.cost is not None else loop.connection.price(finished.tokens)
        part: StepPart = {
            "type": "step",
            "model": finished.model or loop.connection.name,
            "tokens": finished.tokens,
            "cost": None if cost is None else round(cost, 9),
            "finish": finished.finish,
        }
        if finished.estimated:
            part["estimated"] = True
        if finished.stop_sequence is not None:
            part["stop_sequence"] = finished.stop_sequence
        n = loop.take_number()
        asked = loop.connection
        fact = sessions.StepEnded(
            message=run.message, n=n, part=part, project=run.project, provider=asked.provider, model=asked.name
        )
        self.open = None  # accounted for by this commit, which a cancellation does not take back
        await loop.commit(lambda tx: tx.append(run.session, fact, run=run.id))
        loop.parts.append((n, part))
        loop.steps += 1
        loop.spend(cost)
        for warning in finished.warnings:
            await loop.add_notice("provider_warning", warning)
        if finished.finish == "content_filter":
            raise SteadError("content_filter", "The provider withheld the answer.")

    async def _failed(self, error: ProviderError, *, again: bool) -> None:
        """Store what a failed model call cost. Before another attempt its parts are taken back; at the last one they are kept."""
        loop, run, call = self.loop, self.loop.run, self.open
        assert call is not None
        fact = self._unfinished(call, "failed", error)
        retract = sessions.StepRetracted(message=run.message, n=call.first, reason=error.code)
        seen = loop.next_n > call.first  # stored, or on somebody's screen

        def job(tx: Tx) -> None:
            tx.append(run.session, fact, run=run.id)
            if again and seen:
                tx.append(run.session, retract, run=run.id)

        self.open = None
        await loop.commit(job)
        loop.spend(fact.cost)
        if again:
            # The numbers stay used: a part that was seen and taken back never shares its id with another.
            loop.parts = [(n, part) for n, part in loop.parts if n < call.first]
            self.live.clear()

    def _unfinished(
        self, call: _Call, purpose: Literal["failed", "aborted"], error: ProviderError | None = None
    ) -> sessions.CallEnded:
        """The ledger's row for a call without an end: what the provider said so far, else an estimate of what was sent and came."""
        loop = self.loop
        tokens = error.tokens if error else None
        if tokens is None:
            came = sum(part_chars(part) for n, part in loop.parts if n >= call.first)
            came += sum(live.size for live in self.live.values())
            refused = error is not None and error.code != "stream_cut" and not came
            tokens = NO_TOKENS if refused else estimate(call.request, came)
        nothing = error is not None and error.code in _UNWORKED and tokens == NO_TOKENS
        return sessions.CallEnded(
            purpose=purpose,
            project=loop.run.project,
            provider=loop.connection.provider,
            model=loop.connection.name,
            tokens=tokens,
            cost=0.0 if nothing else loop.connection.price(tokens),
            estimated=not nothing,
            code=error.code if error else None,
        )

    def broken_off(self, purpose: Literal["failed", "aborted"]) -> sessions.CallEnded | None:
        """The ledger's row for the call that the end of the run finds open."""
        return self._unfinished(self.open, purpose) if self.open else None

    def cut(self) -> Iterator[tuple[int, Part]]:
        """Texts and thoughts that had begun and will not be ended, by number."""
        for n, live in sorted(self.live.items()):
            if live.part["type"] in ("text", "reasoning") and live.size:
                yield n, cast(Part, {**live.part, "text": live.text, "cut": True})


@dataclass(frozen=True, slots=True)
class _Call:
    """What was sent, and the number of the answer's first part."""

    request: Request
    first: int


@dataclass(slots=True)
class _Live:
    """A part that is still growing."""

    part: Part
    run: Run
    part_id: str
    pieces: list[str] = field(default_factory=list)
    size: int = 0

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def grow(self, text: str, publish: Publish) -> None:
        kind = self.part["type"]
        if kind == "text" or kind == "reasoning":
            publish(Frame(kind, self.run.session, self.run.id, self.part_id, self.size, text))
        self.pieces.append(text)
        self.size += len(text)
