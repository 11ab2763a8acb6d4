"""One answer of the model: streamed with retries, its parts stored as they close, its usage in the ledger however it ended."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from stead.agent.models import retry
from stead.agent.models.base import Closed, Delta, Finished, Opened, ProviderError, Request
from stead.agent.models.count import estimate, part_chars, tokens
from stead.core.errors import SteadError
from stead.core.parts import NO_TOKENS, StepPart, Tokens
from stead.domain import partials, sessions
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

    async def next(self, request: Request) -> None:
        """Make one call, with retries; its parts, usage and step part are stored when this returns."""
        loop, attempt = self.loop, 1
        while True:
            self.open = _Call(request, loop.next_n)
            loop.live.count()
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
                if loop.tree is not None:  # nothing of the project is read before the model was asked
                    loop.tree.start()
                if isinstance(item, Delta):
                    await loop.live.grow(base + item.n, item.text)
                elif isinstance(item, Opened):
                    loop.live.open(base + item.n, item.part)
                    loop.next_n = max(loop.next_n, base + item.n + 1)
                elif isinstance(item, Closed):
                    loop.live.whole(base + item.n)
                    await loop.add(base + item.n, item.part)
                    loop.live.close(base + item.n)
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

        def job(tx: Tx) -> None:
            tx.append(run.session, fact, run=run.id)
            partials.close_answer(tx, run)

        loop.live.clear()
        await loop.commit(job)
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
            if not again:  # what came stays, as cut
                partials.close_model_call(tx, run)
            else:
                partials.close_answer(tx, run)
                if seen:
                    tx.append(run.session, retract, run=run.id)

        self.open = None
        if again:
            loop.live.clear()
        await loop.commit(job)
        loop.spend(fact.cost)
        if again:
            # The numbers stay used: a part that was seen and taken back never shares its id with another.
            loop.parts = [(n, part) for n, part in loop.parts if n < call.first]

    def _unfinished(
        self, call: _Call, purpose: Literal["failed", "aborted"], error: ProviderError | None = None
    ) -> sessions.CallEnded:
        """The ledger's row for a call without an end: what the provider said so far, else an estimate of what was sent and came."""
        loop = self.loop
        used = error.tokens if error else None
        if used is None:
            came = sum(part_chars(part) for n, part in loop.parts if n >= call.first)
            came += loop.live.chars
            refused = error is not None and error.code != "stream_cut" and not came
            used = NO_TOKENS if refused else call.estimate(came)
        nothing = error is not None and error.code in _UNWORKED and used == NO_TOKENS
        return sessions.CallEnded(
            purpose=purpose,
            project=loop.run.project,
            provider=loop.connection.provider,
            model=loop.connection.name,
            tokens=used,
            cost=0.0 if nothing else loop.connection.price(used),
            estimated=not nothing,
            code=error.code if error else None,
        )

    def broken_off(self, purpose: Literal["failed", "aborted"]) -> sessions.CallEnded | None:
        """The ledger's row for the call that the end of the run finds open."""
        return self._unfinished(self.open, purpose) if self.open else None

    def unfinished(self) -> dict[str, Any] | None:
        """The same as it stands now, to be kept in case nobody sees the end."""
        return self._unfinished(self.open, "aborted").to_data() if self.open else None


@dataclass(slots=True)
class _Call:
    """What was sent, and the number of the answer's first part."""

    request: Request
    first: int
    _sent: Tokens | None = None

    def estimate(self, came: int) -> Tokens:
        """The tokens of the call when so many characters came back; what was sent is counted once."""
        if self._sent is None:
            self._sent = estimate(self.request, 0)
        return {**self._sent, "output": tokens(came)}
