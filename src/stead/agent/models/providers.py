"""Providers as servers: connecting to one, listing its models, finding those on this machine."""

from __future__ import annotations

import asyncio
from typing import Any

from stead.agent.models.base import Model, ProviderError
from stead.core.ids import Ids
from stead.domain.providers.addresses import proper_url

LOCAL: tuple[tuple[str, str, str], ...] = (
    ("Ollama", "ollama", "http://127.0.0.1:11434/v1"),
    ("LM Studio", "openai", "http://127.0.0.1:1234/v1"),
    ("llama.cpp", "openai", "http://127.0.0.1:8080/v1"),
)
"""Local servers that `find_local` looks for: name, kind, address."""

_PROBE = 0.5  # seconds: a server on this machine answers at once or is not there


def connect(
    kind: str,
    url: str | None = None,
    key: str | None = None,
    *,
    family: str | None = None,
    ids: Ids | None = None,
    idle: float | None = None,
) -> Model:
    """A model connection of `kind`. Nothing is sent yet. `url` None is the kind's own address; `family` (default: the kind)
    names whose signatures it understands; `idle` is the number of seconds of silence after which a call is given up."""
    from stead.agent.models.anthropic import AnthropicModel
    from stead.agent.models.chat import ChatModel
    from stead.agent.models.gemini import GeminiModel
    from stead.agent.models.http import IDLE

    where = proper_url(kind, url)
    wait = IDLE if idle is None else idle
    if kind == "anthropic":
        return AnthropicModel(where, key, family=family or kind, idle=wait)
    if kind == "gemini":
        return GeminiModel(where, key, family=family or kind, ids=ids, idle=wait)
    return ChatModel(where, key, family=family or kind, ids=ids, idle=wait)


async def list_models(kind: str, url: str | None = None, key: str | None = None) -> list[dict[str, Any]]:
    """The provider's models, each `{id, context, tools, reasoning, free, size}`: context in tokens, size in bytes, null where
    the provider does not say. Raises `ProviderError` as a call does."""
    from stead.agent.models import listing

    return await listing.fetch(kind, proper_url(kind, url), key)


async def find_local() -> list[dict[str, Any]]:
    """The model servers found on this machine, each `{name, kind, url, models}` (`models`: ids). Takes half a second at most."""
    from stead.agent.models import listing

    async def probe(name: str, kind: str, url: str) -> dict[str, Any] | None:
        try:
            ids = await listing.names(url, timeout=_PROBE)
        except (ProviderError, TimeoutError):
            return None
        return {"name": name, "kind": kind, "url": url, "models": ids}

    found = await asyncio.gather(*(probe(*server) for server in LOCAL))
    return [server for server in found if server]
