"""The kinds of provider: default addresses, keys in the environment, connecting, listing models, finding local servers."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from typing import Any, Literal, get_args
from urllib.parse import SplitResult, urlsplit, urlunsplit

from stead.agent.models.base import Model, ProviderError
from stead.core.errors import SteadError
from stead.core.ids import Ids

Kind = Literal["openai", "ollama", "openrouter", "anthropic", "gemini"]
KINDS: tuple[str, ...] = get_args(Kind)

URLS: dict[str, str] = {
    "openai": "https://api.openai.com/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
KEYS: dict[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}
"""The environment variable whose key is used for a kind without `provider add`."""

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

    where = normal_url(kind, url)
    wait = IDLE if idle is None else idle
    if kind == "anthropic":
        return AnthropicModel(where, key, family=family or kind, idle=wait)
    if kind == "gemini":
        return GeminiModel(where, key, family=family or kind, ids=ids, idle=wait)
    return ChatModel(where, key, family=family or kind, ids=ids, idle=wait)


def normal_url(kind: str, url: str | None = None) -> str:
    """`url` in the form that `kind` needs, without a slash at the end: with `/v1` where Chat Completions is spoken, the bare
    origin (or the prefix of a proxy) for Anthropic and Gemini. Raises `usage` for an unknown kind, `provider_unreachable` for
    what is no address."""
    if kind not in URLS:
        raise SteadError("usage", f"{kind!r} is not a kind of provider; there are {', '.join(KINDS)}.")
    if not url or not url.strip():
        return URLS[kind]
    parts = _split(url.strip())
    path = re.sub(r"/{2,}", "/", parts.path).rstrip("/")
    if kind in ("anthropic", "gemini"):
        path = re.sub(r"/v\d+[a-z0-9]*(/(messages|models).*)?$", "", path)
    else:
        path = re.sub(r"/(chat/completions|completions|models|responses)$", "", path)
        if kind == "ollama":
            path = re.sub(r"/api(/.*)?$", "", path)
        if kind == "openrouter" and not path and (parts.hostname or "").endswith("openrouter.ai"):
            path = "/api"
        if not re.search(r"/v\d+[a-z0-9]*$|/openai$", path):
            path += "/v1"
    return urlunsplit((parts.scheme, parts.netloc, path, "", ""))


def _split(url: str) -> SplitResult:
    try:
        if "://" not in url:
            host = urlsplit(f"//{url}").hostname or ""
            url = f"{'http' if _near(host) else 'https'}://{url}"
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        parts = SplitResult("", "", "", "", "")
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", url):
        raise ProviderError("provider_unreachable", "The provider's URL is not a usable address.", hint="Give it as https://HOST.")
    return parts


def _near(host: str) -> bool:
    """Whether a host without a scheme is more likely on this machine or network than on the internet."""
    try:
        return ipaddress.ip_address(host).is_private
    except ValueError:
        return "." not in host or host.endswith((".local", ".localhost", ".lan", ".internal"))


async def list_models(kind: str, url: str | None = None, key: str | None = None) -> list[dict[str, Any]]:
    """The provider's models, each `{id, context, tools, reasoning, free, size}`: context in tokens, size in bytes, null where
    the provider does not say. Raises `ProviderError` as a call does."""
    from stead.agent.models import listing

    return await listing.fetch(kind, normal_url(kind, url), key)


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
