"""What a model is to the loop: a request in neutral parts goes in, opened, growing and closed parts come out."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from stead.core.errors import SteadError
from stead.core.parts import FilePart, Part, Tokens

Finish = Literal["stop", "tool_calls", "length", "content_filter"]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model sees it: `schema` is the JSON schema of its input object."""

    name: str
    description: str
    schema: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One stored message. An assistant turn may hold several steps: each `step` part ends a model call, and the tool parts
    before it carry both the call and its result."""

    role: Literal["user", "assistant", "system"]
    parts: list[Part]


@dataclass(frozen=True, slots=True)
class Request:
    """One model call. `load` gives the bytes of a file part; `step` counts the model calls of this run from 0; `prompt` is the
    text of the run's own prompt (both for the scripted model). `max_output` is in tokens, None for the provider's default."""

    model: str
    turns: list[Turn]
    system: str = ""
    tools: list[ToolSpec] = field(default_factory=list)
    max_output: int | None = None
    load: Callable[[FilePart], bytes] | None = None
    step: int = 0
    prompt: str = ""
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Opened:
    """Part number `n` of this step begins. Its text or arguments are still empty; a tool part has its call id and name."""

    n: int
    part: Part


@dataclass(frozen=True, slots=True)
class Delta:
    """More text of part `n` (for a tool part: of its arguments)."""

    n: int
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """Part `n` is complete, its `meta` included; nothing more comes for it."""

    n: int
    part: Part


@dataclass(frozen=True, slots=True)
class Finished:
    """The provider said that the answer is complete. Always the last item; a stream without it has raised."""

    finish: Finish
    tokens: Tokens
    estimated: bool = False
    stop_sequence: str | None = None
    model: str | None = None
    cost: float | None = None  # dollars, only where the provider itself states the price of the call
    warnings: tuple[str, ...] = ()


Item = Opened | Delta | Closed | Finished


class ProviderError(SteadError):
    """A model call failed. `retryable`: the same call may succeed later; `retry_after`: seconds the provider asked for;
    `tokens`: what is known to have been processed before it failed."""

    def __init__(
        self,
        code: str,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        tokens: Tokens | None = None,
        hint: str | None = None,
    ) -> None:
        details = {"status": status} if status is not None else None
        super().__init__(code, message, hint=hint, details=details)
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.tokens = tokens


class Model(Protocol):
    """One provider connection. `family` names whose signatures and reasoning it understands."""

    family: str

    def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        """Call the model. Closing the iterator (use `contextlib.aclosing`) closes the connection at once."""
        ...

    async def aclose(self) -> None:
        """Close idle connections."""
        ...
