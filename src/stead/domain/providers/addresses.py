"""Names, addresses and model references of providers: pure text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from stead.core.errors import SteadError

Kind = Literal["openai", "ollama", "openrouter", "anthropic", "gemini"]

KINDS: dict[str, str] = {
    "openai": "https://api.openai.com/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
"""The kinds with the address of each one's own service."""

VARIABLES: dict[str, str] = {
    "anthropic": "ANTHROPIC_API_KEY",
    "openai": "OPENAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
}
"""The environment variables that make a provider by themselves, by its name (which is also its kind)."""

SCRIPT = "script"
"""The built-in provider `script/FILE`; no stored provider may have its name."""

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_KEY_HINT = "Give the key by --key-stdin, or name its variable by --key-env."


@dataclass(frozen=True, slots=True)
class ModelRef:
    """`provider/model`, taken apart at the first slash: a model's own name may hold more of them."""

    provider: str
    model: str

    def __str__(self) -> str:
        return f"{self.provider}/{self.model}"


def parse_ref(text: str) -> ModelRef:
    """The parts of a model reference, `script/FILE` included. Raises `usage`; whether the provider is known is not asked."""
    provider, slash, model = text.strip().partition("/")
    if not slash or not model or not _NAME.fullmatch(provider):
        raise SteadError("usage", f"{text!r} is no model reference.", hint="It is `provider/model`, such as `ollama/qwen3`.")
    return ModelRef(provider, model)


def check_name(name: str) -> str:
    """`name` if a provider may be called that; raises `usage`."""
    if not _NAME.fullmatch(name) or name == SCRIPT:
        why = "is the built-in scripted model" if name == SCRIPT else "is no name for a provider"
        raise SteadError(
            "usage", f"{name!r} {why}.", hint="Lower-case letters, digits, `.`, `_` and `-`, beginning with a letter or digit."
        )
    return name


def proper_url(kind: str, url: str | None = None) -> str:
    """The address in the form its kind needs: OpenAI-compatible ends in `/v1`, Anthropic and Gemini are the bare origin.

    None gives the address of the kind's own service. Raises `usage` for what is no http address, and for one with a secret in it.
    """
    from urllib.parse import urlsplit

    if kind not in KINDS:
        raise SteadError("usage", f"There is no kind of provider {kind!r}.", hint=f"The kinds are: {', '.join(KINDS)}.")
    if not url or not url.strip():
        return KINDS[kind]
    if re.search("[?#]|^([a-z]+://)?[^/]*@", url.strip(), re.IGNORECASE):  # not repeated: what is in it may be a key
        raise SteadError("usage", "The address must not hold a user, password, query or fragment.", hint=_KEY_HINT)
    if "://" not in url:
        url = f"{'http' if _near(url) else 'https'}://{url}"
    try:
        parts = urlsplit(url.strip())
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("http", "https") or not host or re.search(r"[\s\\]", parts.netloc + parts.path):
        said = "This" if "@" in url else repr(url)  # what stands before an @ may be a password
        raise SteadError("usage", f"{said} is no address of a provider.", hint="It is such as `http://127.0.0.1:11434/v1`.")
    authority = (f"[{host}]" if ":" in host else host) + (f":{port}" if port is not None else "")
    return f"{parts.scheme}://{authority}{_proper_path(kind, host, re.sub('//+', '/', parts.path).rstrip('/'))}"


def _proper_path(kind: str, host: str, path: str) -> str:
    if kind in ("anthropic", "gemini"):
        return re.sub(r"/v\d+[a-z0-9]*(/(messages|models).*)?$", "", path)
    path = re.sub(r"/(chat/completions|responses|models|completions)$", "", path)
    if kind == "ollama":
        path = re.sub(r"/api(/(tags|chat|generate))?$", "", path)
    if host == "openrouter.ai" and path in ("", "/api", "/v1"):
        path = "/api"
    return path if re.search(r"/v\d+[a-z0-9]*$|/openai$", path) else f"{path}/v1"


def _near(url: str) -> bool:
    """Whether an address without a scheme is on this machine or its network, where servers of models speak plain http."""
    host = url.strip().partition("/")[0].lower()
    return re.match(r"(localhost|127\.|10\.|192\.168\.|\[|[^.]+(:\d+)?$|[^:]+\.(local|lan|internal)(:|$))", host) is not None
