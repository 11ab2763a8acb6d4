"""The scripted model: a real model whose answers stand in a file, with its delays and faults. No network, no key.

A script is YAML 1.2. `turns:` has one entry for each model call of a run; `prompts: [{match: REGEX, turns: […]}]` gives other
turns to prompts in which `re.search` finds the pattern (the first that fits). A turn may have, in this order of appearance,
`reasoning`, `text`, `tools: [{tool, input}]`; and `usage` (the token classes; default: characters / 4; `null`: the provider says
nothing), `chunk` (characters a delta), `delay_ms` (before each delta), `finish`, and `fault: {kind, after, retry_after, times}`.
`input` is a mapping, or a text that is sent as raw arguments, however broken. Turn and call numbers in call ids begin with 1.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from pathlib import Path

from stead.agent.models.answer import Answer, Growing, broken_off, reasoning_part, text_part, tool_part
from stead.agent.models.base import Delta, Finished, Item, ProviderError, Request
from stead.agent.models.count import estimate
from stead.agent.models.errors import cut
from stead.agent.models.script_file import Fault, Script, ScriptTurn, read
from stead.core.errors import SteadError
from stead.core.parts import Part, Tokens


class ScriptModel:
    """Plays a script. Faults are counted in the object, so make a new one for each run; all else depends on the request alone."""

    def __init__(self, script: Script) -> None:
        self.family = "script"
        self._script = script
        self._struck: dict[tuple[int, int], int] = {}

    def turn(self, request: Request) -> tuple[ScriptTurn, tuple[int, int]]:
        """The turn for a request, and which one it is: (0 for the general turns or the number of the prompt, turn from 0)."""
        which, turns = 0, self._script.turns
        for n, (pattern, own) in enumerate(self._script.prompts, start=1):
            if re.search(pattern, request.prompt):
                which, turns = n, own
                break
        if not turns:
            raise SteadError("script_invalid", f"{self._script.path} has no turns for this prompt.")
        if request.step < len(turns):
            return turns[request.step], (which, request.step)
        return ScriptTurn(text=turns[-1].text, chunk=turns[-1].chunk, delay_ms=turns[-1].delay_ms), (which, request.step)

    async def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        """Play the turn of `request.step`."""
        turn, place = self.turn(request)
        fault = self._fault(turn, place)
        if fault and fault.kind.startswith("http_") and fault.after == 0:
            raise _failure(fault, None)
        answer = Answer()
        if turn.reasoning:
            for items in _spell(answer, turn, reasoning_part(), turn.reasoning):
                async for item in _after(turn, items):
                    yield item
        if turn.text or fault:
            text = turn.text if fault is None else turn.text[: fault.after]
            batches = _spell(answer, turn, text_part(), text)
            for items in batches if fault is None else batches[:-1]:  # a fault strikes before the part closes
                async for item in _after(turn, items):
                    yield item
        if fault:
            if fault.kind == "hang":
                await asyncio.Event().wait()
            raise _failure(fault, self._tokens(turn, request, answer))
        for n, (tool, arguments) in enumerate(turn.tools, start=1):
            for items in _spell(answer, turn, tool_part(f"call_{place[1] + 1}_{n}", tool), arguments):
                async for item in _after(turn, items):
                    yield item
        finish = turn.finish or ("tool_calls" if turn.tools else "stop")
        yield Finished(finish, self._tokens(turn, request, answer), estimated=turn.silent, model=request.model)

    async def aclose(self) -> None:
        """Nothing is open."""

    def _fault(self, turn: ScriptTurn, place: tuple[int, int]) -> Fault | None:
        fault = turn.fault
        if fault is None or self._struck.get(place, 0) >= fault.times:
            return None
        self._struck[place] = self._struck.get(place, 0) + 1
        return fault

    @staticmethod
    def _tokens(turn: ScriptTurn, request: Request, answer: Answer) -> Tokens:
        if turn.usage is not None:
            return turn.usage
        thought = sum(len(part.text) for part in answer.parts if part.kind == "reasoning")
        return estimate(request, answer.size - thought, thought)


def load(path: str | Path) -> ScriptModel:
    """The scripted model of a file. Raises `script_invalid` with file and line, `not_found` when there is no such file."""
    return ScriptModel(read(Path(path)))


def _spell(answer: Answer, turn: ScriptTurn, part: Part, text: str) -> list[list[Item]]:
    """A part as batches of items: opened, one batch for each delta, closed."""
    grown: Growing
    grown, opened = answer.begin(part)
    batches: list[list[Item]] = [[opened]]
    batches += [answer.grow(grown, text[at : at + turn.chunk]) for at in range(0, len(text), turn.chunk)]
    broken = part["type"] == "tool" and broken_off(text, turn.finish)
    return [*batches, answer.close(grown, cut=broken)]


async def _after(turn: ScriptTurn, items: list[Item]) -> AsyncGenerator[Item, None]:
    for item in items:
        if turn.delay_ms and isinstance(item, Delta):
            await asyncio.sleep(turn.delay_ms / 1000)
        yield item


def _failure(fault: Fault, tokens: Tokens | None) -> ProviderError:
    if fault.kind == "http_429":
        return ProviderError(
            "rate_limited",
            "The provider is busy or asked to slow down: a fault of the script.",
            retryable=True,
            retry_after=fault.retry_after,
            status=429,
            tokens=tokens,
        )
    if fault.kind == "http_500":
        return ProviderError(
            "provider_error",
            "The provider answered with error 500: a fault of the script.",
            retryable=True,
            retry_after=fault.retry_after,
            status=500,
            tokens=tokens,
        )
    return cut("the stream ended without a finish" if fault.kind == "truncate" else "the script closed the connection", tokens)
