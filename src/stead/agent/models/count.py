"""Rough token counts for where no provider has counted: four characters a token."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stead.agent.models.base import Request, ToolSpec
from stead.agent.models.history import after_compaction
from stead.core.jsontext import dump_foreign
from stead.core.parts import Part, Tokens

_IMAGE = 4_000  # characters that an image is taken for


def part_chars(part: Part) -> int:
    """Characters of a part as a model would be sent it."""
    if part["type"] == "text" or part["type"] == "reasoning":
        return len(part["text"])
    if part["type"] == "tool":
        return len(part["tool"]) + len(part["arguments"]) + len(part.get("output", "")) + len(part.get("error", ""))
    if part["type"] == "file":
        return _IMAGE if part["kind"] == "image" else part["size"]
    return len(part["summary"]) if part["type"] == "compaction" else 0


def tools_chars(tools: Iterable[ToolSpec]) -> int:
    """Characters of the tools as a model would be told of them."""
    return sum(len(tool.name) + len(tool.description) + len(dump_foreign(tool.schema)) for tool in tools)


def request_chars(request: Request) -> int:
    """Characters of everything in `request` that a compaction has not replaced, tools included."""
    conversation = sum(part_chars(part) for turn in after_compaction(request.turns) for part in turn.parts)
    return len(request.system) + tools_chars(request.tools) + conversation


def estimate(request: Request, output: int, reasoning: int = 0) -> Tokens:
    """What a call is taken to have cost when the provider did not say: `output` and `reasoning` are characters that came."""
    return {
        "input": tokens(request_chars(request)),
        "cache_read": 0,
        "cache_write": 0,
        "output": tokens(output),
        "reasoning": tokens(reasoning),
    }


def counted(value: Any) -> int:
    """A count in a provider's usage; what is missing or no number above 0 is 0."""
    return int(value) if isinstance(value, (int, float)) and value > 0 else 0


def tokens(chars: int) -> int:
    """Tokens in `chars` characters, rounded up."""
    return -(-chars // 4)
