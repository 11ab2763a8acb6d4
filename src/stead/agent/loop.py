"""The loop: prompt -> context -> model stream -> parts -> tools -> next step, until done, a limit, an abort or an error.

Its state is what is stored: a part is an event when it closes, a call has its result before the next call of the model, the run
ends exactly once. What is only on the screen goes out as frames.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from stead.agent import closing, context
from stead.agent.answers import Answers
from stead.agent.calls import Asker, Calls, Waiting
from stead.agent.changing import see_through
from stead.agent.closing import Lost
from stead.agent.connect import Connection
from stead.agent.frames import Frame, Publish
from stead.agent.gate import Rule
from stead.agent.live import Live
from stead.agent.models.base import Request, Turn
from stead.agent.models.count import part_chars
from stead.agent.workspace import MOST_BYTES
from stead.core.errors import SteadError
from stead.core.jsontext import dumps
from stead.core.parts import NO_TOKENS, Part, ToolPart
from stead.core.text import cut_bytes
from stead.domain import partials, queue, runs, sessions, usage
from stead.domain.runs import Outcome, Run
from stead.store.log import Tx
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.tree import Tree

END_PAUSES = (0.1, 0.4, 1.0)
"""Seconds between attempts to store the end of a run."""
ERROR_BYTES = 16 << 10
BROKEN_STEPS = 3
"""A model whose calls are cut off this many times in a row is not asked again."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run may use: model calls, dollars (None: no limit)."""

    steps: int
    cost: float | None = None


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
    mode: str = "manual"
    language: str | None = None
    tree: Tree | None = None
    """Finds what commands change in files; None where nobody wants that."""
    most_bytes: int = MOST_BYTES
    history: list[Turn] = field(default_factory=list)
    parts: list[tuple[int, Part]] = field(default_factory=list)
    next_n: int = 0
    steps: int = 0
    spent: float | None = 0.0
    refused: bool = False
    prompt: str = ""
    flags: list[str] = field(default_factory=list)
    """What `--allow` would need to say for the calls that were refused because nobody could be asked."""
    fate: closing.Fate | None = None
    """How it ended, from that moment on, whether or not that could be stored."""
    early: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Results of calls that an abort ended, by part number."""
    answers: Answers = field(init=False)
    live: Live = field(init=False)
    _chars: int = 0

    def __post_init__(self) -> None:
        self.answers = Answers(self)
        self.live = Live(self, self.answers.unfinished)

    async def execute(self) -> Outcome:
        """Run to the end and give the outcome. The end is stored whatever happens, a cancellation included."""
        try:
            return await self._run()
        finally:
            if self.connection.own:
                with suppress(Exception):
                    await self.connection.model.aclose()

    async def _run(self) -> Outcome:
        error: dict[str, Any] | None = None
        outcome: Outcome
        try:
            self._load()
            outcome = await self._work()
        except Waiting:
            return "waiting"
        except Lost:
            return "interrupted"  # somebody else ended it, or goes on with it: nothing is stored here any more
        except asyncio.CancelledError:
            outcome = "aborted"
        except SteadError as failure:
            outcome, error = ("limit" if failure.code.startswith("limit_") else "error"), failure.to_json()
        except Exception as failure:
            import logging

            logging.getLogger("stead.agent").exception("the run failed")
            outcome, error = "error", {"code": "internal", "message": f"{type(failure).__name__}: {failure}"[:1000]}
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
                await self._steered()
            elif self.steps and not any(part["type"] == "tool" for part in self._last_step()):
                if not await self._steered():
                    await self._note_short()
                    return "denied" if self.refused else "done"
            elif self.steps:
                await self._steered()
            self.check_limits()
            request = self._request()
            if self.connection.window is not None:
                chars = self._chars + sum(part_chars(part) for _, part in self.parts)
                context.refuse_overfull(request, self.connection.window, chars)
            await self.answers.next(request)

    def check_limits(self) -> None:
        """Raise when the run has used what it may."""
        if (reached := self._limit()) is not None:
            raise reached

    def _limit(self) -> SteadError | None:
        if self.steps >= self.limits.steps:
            hint = "`stead run -c` goes on; --max-steps allows more."
            steps = "one step" if self.limits.steps == 1 else f"{self.limits.steps} steps"
            return SteadError("limit_steps", f"The run used its {steps}.", hint=hint)
        if self.limits.cost is not None and self.spent is not None and self.spent >= self.limits.cost:
            return SteadError("limit_cost", f"The run cost ${self.spent:.4f}; the limit was ${self.limits.cost:.4f}.")
        return None

    def spend(self, cost: float | None) -> None:
        """Count the dollars of a call; None where its price is unknown."""
        self.spent = None if cost is None or self.spent is None else self.spent + cost

    async def _steered(self) -> bool:
        """Take up what the person wants to be said now: it is put behind the step that has just ended. What no model call could
        answer any more is left to be a run of its own."""
        if self._limit() is not None:
            return False
        with self.store.view() as view:
            if queue.sent(view, self.run.session) is None:
                return False
        going_on = await self.commit(lambda tx: queue.steer(tx, self.run))
        if going_on is None:  # taken back in the meantime
            return False
        self.run = going_on
        self._load()
        return True

    # --- tool calls -----------------------------------------------------------------------------------------------------------

    async def _calls(self, pending: list[tuple[int, ToolPart]]) -> None:
        calls = Calls(self)
        for n, part in pending:
            done = await calls.one(n, part)
            self.parts = [(at, done if at == n else old) for at, old in self.parts]
        with self.store.view() as view:
            patch = closing.missing_patch(view, self.run)
        if patch:
            await self.add(self.take_number(), patch)

    def _pending(self) -> list[tuple[int, ToolPart]]:
        return [(n, part) for n, part in self.parts if part["type"] == "tool" and part["status"] in ("pending", "running")]

    def _last_step(self) -> list[Part]:
        """The parts of the newest model call, its step part last."""
        ends = [at for at, (_, part) in enumerate(self.parts) if part["type"] == "step"]
        begin = ends[-2] + 1 if len(ends) > 1 else 0
        return [part for _, part in self.parts[begin : ends[-1] + 1]]

    # --- storing --------------------------------------------------------------------------------------------------------------

    def _load(self) -> None:
        with self.store.view() as view:
            self.history = context.history(view, self.run.session, self.store.blobs, before=self.run.message)
            stored = sessions.message(view, self.run.session, self.run.message)
            self.parts = [(n, cast(Part, self.store.blobs.resolve(part))) for n, part in stored.parts]
            self.next_n = sessions.next_part(view, self.run.session, self.run.message)
            self.spent = usage.of_run(view, self.run.id)["cost"]
            self.steps = runs.count_steps(view, self.run)
            asked = sessions.message(view, self.run.session, self.run.prompt)
        self._chars = context.fixed_chars(self.root) + sum(part_chars(part) for turn in self.history for part in turn.parts)
        said = [self.store.blobs.resolve(part) for _, part in asked.parts]
        self.prompt = "\n".join(part["text"] for part in said if part["type"] == "text")

    def _request(self) -> Request:
        turns = [*self.history]
        if self.parts:
            turns.append(Turn("assistant", [part for _, part in self.parts]))
        return Request(
            model=self.connection.name,
            turns=turns,
            system=context.system_text(self.root, self.store.clock.now(), self.language),
            tools=context.tool_specs(self.mode),
            load=context.loader(self.store.blobs, self.data_dir / "attachments"),
            step=self.steps,
            prompt=self.prompt,
        )

    async def commit(self, job: Callable[[Tx], Any]) -> Any:
        """Run a job of this run's in the store; durable when it returns. Raises `Lost` when the run is not ours any more."""
        return await self.store.commit(self._ours(job), actor=f"run:{self.run.id}")

    def submit(self, job: Callable[[Tx], Any]) -> Future[Any]:
        """Like `commit`, as a future at once: the job is behind all that were handed over before it."""
        return self.store.submit(self._ours(job), actor=f"run:{self.run.id}")

    def _ours(self, job: Callable[[Tx], Any]) -> Callable[[Tx], Any]:
        run = self.run

        def guarded(tx: Tx) -> Any:
            if not runs.held(tx, run):
                raise Lost
            return job(tx)

        return guarded

    async def add(self, n: int, part: Part) -> None:
        """Store a closed part; durable when this returns."""
        packed, run = self.store.blobs.pack(part), self.run

        def job(tx: Tx) -> None:
            sessions.add_part(tx, run.session, run.message, n, tx.unpack(packed), run=run.id)
            partials.close_part(tx, run, n)

        await self.commit(job)
        self.parts.append((n, part))
        if len(self.parts) > 1 and self.parts[-2][0] > n:
            self.parts.sort(key=lambda pair: pair[0])

    async def add_notice(self, code: str, text: str) -> None:
        """Store a notice and show it."""
        await self.add(self.take_number(), {"type": "notice", "code": code, "text": text})
        self.notice(text)

    async def _note_short(self) -> None:
        """Tell of an answer that is none, or less than the model wanted to say."""
        step = self._last_step()
        if not any(part["type"] == "text" and part["text"].strip() for part in step):
            await self.add_notice("empty_answer", "The model ended its turn without an answer.")
        elif any(part["type"] == "step" and part["finish"] == "length" for part in step):
            await self.add_notice("answer_cut", "The answer reached the limit of its length and breaks off.")

    def take_number(self) -> int:
        """The next free part number."""
        self.next_n += 1
        return self.next_n - 1

    def notice(self, text: str) -> None:
        """Show something that is not stored."""
        self.publish(Frame("notice", self.run.session, self.run.id, "", 0, text))

    async def _end(self, outcome: Outcome, error: dict[str, Any] | None) -> None:
        """Close everything that is open and end the run, in one job that no cancellation can take back. A store that cannot take it
        just now is asked again for a moment. Raises when it does not; `fate` then says what is to be stored."""
        self.fate = (outcome, _bounded(error))
        self.live.stop()
        with suppress(asyncio.CancelledError):
            await see_through(self._store_end(*self.fate))

    async def _store_end(self, outcome: Outcome, error: dict[str, Any] | None) -> None:
        why = closing.ABORTED if outcome == "aborted" else closing.ENDED
        cost = self.answers.broken_off("aborted" if outcome == "aborted" else "failed")
        for pause in (*END_PAUSES, None):
            try:
                job = partial(closing.end, left=self._left(cost), outcome=outcome, why=why, error=error)
                await asyncio.wrap_future(self.submit(job))
                return
            except Lost:
                return
            except SteadError as failure:
                if pause is None or failure.code not in closing.PASSING:
                    raise
            await asyncio.sleep(pause)

    def _left(self, cost: sessions.CallEnded | None) -> closing.Left:
        pack = self.store.blobs.pack
        with self.store.view() as view:
            patch = closing.missing_patch(view, self.run)
        return closing.Left(
            run=self.run,
            parts={n: pack(part) for n, part in self.live.cut()},
            results={n: pack(result) for n, result in self.early.items()},
            cost=cost,
            patch=pack(patch) if patch else None,
            free=self.next_n,
        )


def _bounded(error: dict[str, Any] | None) -> dict[str, Any] | None:
    """An error that fits into an event, whatever a provider put into it."""
    if error is None or len(dumps(error)) <= ERROR_BYTES:
        return error
    short: dict[str, Any] = {name: cut_bytes(str(error[name]), ERROR_BYTES // 8) for name in ("code", "message") if name in error}
    hint = (error.get("details") or {}).get("hint")
    return {**short, "details": {"hint": cut_bytes(str(hint), ERROR_BYTES // 8)}} if hint else short
