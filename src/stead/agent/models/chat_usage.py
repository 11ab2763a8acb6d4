"""What a Chat Completions server says of usage, in the many places and ways of counting that these servers have."""

from __future__ import annotations

from typing import Any

from stead.agent.models.count import counted
from stead.core.parts import Tokens


def stated(chunk: dict[str, Any]) -> dict[str, Any] | None:
    """The usage in a chunk: at its top, in its choice (Moonshot), or in an extension (Groq)."""
    choices = chunk.get("choices") or [None]
    for holder in (chunk, choices[0], chunk.get("x_groq")):
        if isinstance(holder, dict) and isinstance(usage := holder.get("usage"), dict):
            return usage
    return None


def usage_of(usage: dict[str, Any]) -> Tokens:
    """Chat Completions usage as five classes: the prompt count includes cached tokens, the completion count reasoning
    (xAI leaves reasoning out; some leave cached tokens out: a larger part or the total gives it away)."""
    prompt, completion = counted(usage.get("prompt_tokens")), counted(usage.get("completion_tokens"))
    inside = usage.get("prompt_tokens_details") or {}
    read = _first(inside.get("cached_tokens"), usage.get("prompt_cache_hit_tokens"), usage.get("cache_read_input_tokens"))
    write = _first(inside.get("cache_write_tokens"), inside.get("cache_creation_tokens"), usage.get("cache_creation_input_tokens"))
    reasoning = counted((usage.get("completion_tokens_details") or {}).get("reasoning_tokens"))
    more = counted(usage.get("total_tokens")) - prompt - completion
    cached = read + write
    beside = reasoning > completion or (reasoning > 0 and more in (reasoning, reasoning + cached))
    if cached > prompt or (cached > 0 and more == cached + (reasoning if beside else 0)):
        prompt += cached  # a server that counts what was cached beside the rest
    return {
        "input": prompt - read - write,
        "cache_read": read,
        "cache_write": write,
        "output": completion if beside else completion - reasoning,
        "reasoning": reasoning,
    }


def cost_of(usage: dict[str, Any] | None) -> float | None:
    """Dollars, where the provider itself states them (OpenRouter)."""
    cost = (usage or {}).get("cost")
    return round(float(cost), 9) if isinstance(cost, (int, float)) and not isinstance(cost, bool) else None


def _first(*values: Any) -> int:
    return next((number for value in values if (number := counted(value))), 0)
