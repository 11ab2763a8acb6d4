"""The loop: prompt -> context -> model stream -> parts -> tools -> next step, until done, a limit, an abort or an error.

Its state is what is stored: a part is an event when it closes, a call has its result before the next call of the model, the run
ends exactly once. What is only on the screen goes out as frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from stead.agent import context
from stead.agent.calls import Asker, Calls
from stead.agent.frames import Frame, Publish
from stead.agent.gate import Rule
from stead.agent.models import retry
from stead.agent.models.base import Closed, Delta, Finished, Model, Opened, ProviderError, Request, Turn
from stead.agent.models.count import estimate
from stead.core.errors import SteadError
from stead.core.parts import NO_TOKENS, Part, StepPart, Tokens, ToolPart
from stead.domain import asks, runs, sessions, usage
from stead.domain.runs import Outcome, Run
from stead.store.log import Tx
from stead.store.store import Store

BROKEN_STEPS = 3
"""A model whose calls are cut off this many times in a row is not asked again."""


class Waiting(BaseException):
    """The run waits for a person and this process need not stay."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use: model calls, dollars (None: no limit)."""

    steps: int
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class Connection:
    """A model with what the ledger needs to know of it. `price` gives dollars for tokens, None where unknown."""

    model: Model
    provider: str
    name: str
    window: int | None
    price: Callable[[Tokens], float | None]


@dataclass(slots=True)
class Loop:
    """One run at work. Make it, `await execute()` once."""

    store: Store
    run: Run
    root: Path
    data_dir: Path
    connection: Connection
    rules: list[Rule]
    on_ask: Asker
    publish: Publish
    limits: Limits
    environ: dict[str, str]
    jitter: Callable[[], float]
    home: Path
    history: list[Turn] = field(default_factory=list)
    parts: list[tuple[int, Part]] = field(default_factory=list)
    next_n: int = 0
    steps: int = 0
    spent: float | None = 0.0
    refused: bool = False
    prompt: str = ""
    flags: list[str] = field(default_factory=list)
    """What `--allow` would need to say for the calls that were refused because nobody could be asked."""
    early: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    """Results of calls that an abort ended: (part number, call, result)."""
    _live: dict[int, _Live] = field(default_factory=dict)

    async def execute(self) -> Outcome:
        """Run to the end and give the outcome. The end is stored whatever happens, a cancellation included."""
        error: dict[str, Any] | None = None
        outcome: Outcome
        try:
            self._load()
            outcome = await self._work()
        except Waiting:
            return "waiting"
        except asyncio.CancelledError:
            outcome = "aborted"
        except SteadError as failure:
            outcome, error = ("limit" if failure.code.startswith("limit_") else "error"), failure.to_json()
        except Exception as failure:
            import logging

            logging.getLogger("stead.agent").exception("the run failed")
            outcome, error = "error", {"code": "internal", "message": f"{type(failure).__name__}: {failure}"}
        await self._end(outcome, error)
        return outcome

    # --- the steps ------------------------------------------------------------------------------------------------------------

    async def _work(self) -> Outcome:
        if self.limits.cost is not None and self.connection.price(NO_TOKENS) is None:
            raise SteadError(
                "price_unknown",
                f"The price of {self.connection.name} is unknown, so the cost limit cannot be kept.",
                hint="Leave out --max-cost, or choose a model with a known price.",
            )
        broken = 0
        while True:
            if pending := self._pending():
                await self._calls(pending)
                broken = broken + 1 if all(part.get("cut") for _, part in pending) else 0
                if broken >= BROKEN_STEPS:
                    message = f"The model's tool calls were cut off {broken} times in a row; they were not executed."
                    raise SteadError("provider_error", message, hint="Allow longer answers, or ask for smaller steps.")
            elif self.steps and not self._called_in_last_step():
                await self._note_empty()
                return "denied" if self.refused else "done"
            self._check_limits()
            await self._step()

    def _check_limits(self) -> None:
        if self.steps >= self.limits.steps:
            hint = "`stead run -c` goes on; --max-steps allows more."
            raise SteadError("limit_steps", f"The run used its {self.limits.steps} steps.", hint=hint)
        if self.limits.cost is not None and self.spent is not None and self.spent >= self.limits.cost:
            raise SteadError("limit_cost", f"The run cost ${self.spent:.4f}; the limit was ${self.limits.cost:.4f}.")

    async def _step(self) -> None:
        """One model call, with retries; its parts, usage and step part are stored when it returns."""
        request = self._request()
        context.refuse_overfull(request, self.connection.window)
        attempt = 1
        while True:
            first = self.next_n
            try:
                finished = await self._stream(request)
                break
            except ProviderError as error:
                wait = retry.delay(error, attempt, jitter=self.jitter)
                await self._failed(error, request, first, again=wait is not None)
                if wait is None:
                    raise
                self._notice(f"{error.message} Trying again in {wait:.0f} s.")
                await asyncio.sleep(wait)
                attempt += 1
        await self._finished(finished)

    async def _stream(self, request: Request) -> Finished:
        base = self.next_n
        async with aclosing(cast(Any, self.connection.model.stream(request))) as items:
            async for item in items:
                if isinstance(item, Delta):
                    self._live[base + item.n].grow(item.text, self.publish)
                elif isinstance(item, Opened):
                    part_id = f"{self.run.session}.{self.run.message}.{base + item.n}"
                    self._live[base + item.n] = _Live(item.part, self.run, part_id)
                    self.next_n = max(self.next_n, base + item.n + 1)
                elif isinstance(item, Closed):
                    await self._add(base + item.n, item.part)
                    self._live.pop(base + item.n, None)
                elif isinstance(item, Finished):
                    return item
        raise ProviderError("stream_cut", "The answer ended without saying that it was finished.", retryable=True)

    async def _finished(self, finished: Finished) -> None:
        """Store the end of a model call: the step part and its usage, in one commit."""
        cost = finished.cost if finished.cost is not None else self.connection.price(finished.tokens)
        part: StepPart = {
            "type": "step",
            "model": finished.model or self.connection.name,
            "tokens": finished.tokens,
            "cost": None if cost is None else round(cost, 9),
            "finish": finished.finish,
        }
        if finished.estimated:
            part["estimated"] = True
        if finished.stop_sequence is not None:
            part["stop_sequence"] = finished.stop_sequence
        n = self._take_number()
        fact = sessions.StepEnded(
            message=self.run.message, n=n, part=part, project=self.run.project, provider=self.connection.provider
        )
        await self._commit(lambda tx: tx.append(self.run.session, fact, run=self.run.id))
        self.parts.append((n, part))
        self.steps += 1
        self.spent = None if cost is None or self.spent is None else self.spent + cost
        for warning in finished.warnings:
            await self._add_notice("provider_warning", warning)
        if finished.finish == "content_filter":
            raise SteadError("content_filter", "The provider withheld the answer.")

    async def _failed(self, error: ProviderError, request: Request, first: int, *, again: bool) -> None:
        """Store what a failed model call cost. Before another attempt its parts are taken back; at the last one they are kept."""
        written = sum(len(text) for text in self._texts(first))
        known = error.tokens
        tokens = known or (estimate(request, written) if error.code == "stream_cut" else dict(NO_TOKENS))
        fact = usage.CallEnded(
            purpose="failed",
            project=self.run.project,
            provider=self.connection.provider,
            model=self.connection.name,
            tokens=cast(Tokens, tokens),
            cost=self.connection.price(cast(Tokens, tokens)),
            estimated=known is None,
            code=error.code,
        )
        retract = sessions.StepRetracted(message=self.run.message, n=first, reason=error.code)
        stored = any(n >= first for n, _ in self.parts)

        def job(tx: Tx) -> None:
            tx.append(self.run.session, fact, run=self.run.id)
            if again and stored:
                tx.append(self.run.session, retract, run=self.run.id)

        await self._commit(job)
        if again:
            # The numbers stay used: a part that was seen and taken back never shares its id with another.
            self.parts = [(n, part) for n, part in self.parts if n < first]
            self._live.clear()

    # --- tool calls -----------------------------------------------------------------------------------------------------------

    async def _calls(self, pending: list[tuple[int, ToolPart]]) -> None:
        calls = Calls(self)
        first = min(n for n, _ in pending)
        after = await asyncio.to_thread(self._last_seq)
        for n, part in pending:
            done = await calls.one(n, part)
            self.parts = [(at, done if at == n else old) for at, old in self.parts]
        await calls.patch(first, after)

    def _last_seq(self) -> int:
        with self.store.view() as view:
            row = view.one("SELECT max(seq) FROM events WHERE stream=?", self.run.session)
        return int(row[0]) if row and row[0] else 0

    def _pending(self) -> list[tuple[int, ToolPart]]:
        return [(n, part) for n, part in self.parts if part["type"] == "tool" and part["status"] == "pending"]

    def _called_in_last_step(self) -> bool:
        """Whether the last model call asked for tools: then the model has to see their results."""
        ends = [at for at, (_, part) in enumerate(self.parts) if part["type"] == "step"]
        begin = ends[-2] + 1 if len(ends) > 1 else 0
        return any(part["type"] == "tool" for _, part in self.parts[begin : ends[-1]])

    # --- storing --------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        with self.store.view() as view:
            self.history = context.history(view, self.run.session, self.store.blobs, before=self.run.message)
            stored = sessions.message(view, self.run.session, self.run.message)
            self.parts = [(n, cast(Part, self.store.blobs.resolve(part))) for n, part in stored.parts]
            self.next_n = sessions.next_part(view, self.run.session, self.run.message)
        self.steps = sum(part["type"] == "step" for _, part in self.parts)
        self.prompt = "\n".join(
            part["text"] for turn in self.history[-1:] for part in turn.parts if turn.role == "user" and part["type"] == "text"
        )

    def _request(self) -> Request:
        turns = [*self.history]
        if self.parts:
            turns.append(Turn("assistant", [part for _, part in self.parts]))
        return Request(
            model=self.connection.name,
            turns=turns,
            system=context.system_text(self.root, self.store.clock.now()),
            tools=context.tool_specs(),
            load=context.loader(self.store.blobs, self.data_dir / "attachments"),
            step=self.steps,
            prompt=self.prompt,
        )

    async def _commit(self, job: Callable[[Tx], Any]) -> Any:
        return await self.store.commit(job, actor=f"run:{self.run.id}")

    async def _add(self, n: int, part: Part) -> None:
        """Store a closed part; durable when this returns."""
        packed = self.store.blobs.pack(part)
        await self._commit(
            lambda tx: sessions.add_part(tx, self.run.session, self.run.message, n, tx.unpack(packed), run=self.run.id)
        )
        self.parts.append((n, part))
        self.parts.sort(key=lambda pair: pair[0])

    async def _add_notice(self, code: str, text: str) -> None:
        await self._add(self._take_number(), {"type": "notice", "code": code, "text": text})
        self._notice(text)

    async def _note_empty(self) -> None:
        ends = [at for at, (_, part) in enumerate(self.parts) if part["type"] == "step"]
        begin = ends[-2] + 1 if len(ends) > 1 else 0
        if not any(part["type"] == "text" and part["text"].strip() for _, part in self.parts[begin:]):
            await self._add_notice("empty_answer", "The model ended its turn without an answer.")

    def _take_number(self) -> int:
        self.next_n += 1
        return self.next_n - 1

    def _texts(self, first: int) -> list[str]:
        closed = [part["text"] for n, part in self.parts if n >= first and part["type"] in ("text", "reasoning")]
        return closed + [live.text for live in self._live.values()]

    def _notice(self, text: str) -> None:
        self.publish(Frame("notice", self.run.session, self.run.id, "", 0, text))

    async def _end(self, outcome: Outcome, error: dict[str, Any] | None) -> None:
        """Close everything that is open and end the run, in one job that no second cancellation can take back."""
        cuts = [
            (n, self.store.blobs.pack({**live.part, "text": live.text, "cut": True}))
            for n, live in sorted(self._live.items())
            if live.part["type"] in ("text", "reasoning") and live.text
        ]
        aborted_call = outcome == "aborted" and bool(self._live)
        why = {"aborted": "The run was aborted"}.get(outcome, "The run ended")

        def job(tx: Tx) -> None:
            for n, packed in cuts:
                sessions.add_part(tx, self.run.session, self.run.message, n, tx.unpack(packed), run=self.run.id)
            for n, call, result in self.early:
                fact = sessions.ToolEnded(message=self.run.message, n=n, call=call, result=result)
                tx.append(self.run.session, fact, run=self.run.id)
            runs.close_calls(tx, self.run, tx.now, why=why)
            asks.close_open(tx, self.run.session, self.run.id, why)
            if aborted_call:
                tx.append(self.run.session, self._aborted_usage(), run=self.run.id)
            runs.end(tx, self.run.id, outcome, steps=self.steps, error=error)

        future = self.store.submit(job, actor=f"run:{self.run.id}")
        await asyncio.shield(asyncio.wrap_future(future))

    def _aborted_usage(self) -> usage.CallEnded:
        tokens = estimate(self._request(), sum(len(live.text) for live in self._live.values()))
        return usage.CallEnded(
            purpose="aborted",
            project=self.run.project,
            provider=self.connection.provider,
            model=self.connection.name,
            tokens=tokens,
            cost=self.connection.price(tokens),
            estimated=True,
        )


@dataclass(slots=True)
class _Live:
    """A part that is still growing."""

    part: Part
    run: Run
    part_id: str
    text: str = ""

    def grow(self, text: str, publish: Publish) -> None:
        kind = self.part["type"]
        if kind == "text" or kind == "reasoning":
            publish(Frame(kind, self.run.session, self.run.id, self.part_id, len(self.text), text))
        self.text += text
