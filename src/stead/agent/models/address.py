"""What a provider's address tells; light, so that asking for a price does not load an HTTP client."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_loopback(url: str) -> bool:
    """Whether `url` names this machine."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        return False
    return host in ("localhost", "::1", "0.0.0.0") or host.startswith("127.") or host.endswith(".localhost")


def host_of(url: str) -> str:
    """Host and port of `url` for a message, never its user or password."""
    try:
        parts = urlsplit(url)
        return f"{parts.hostname}:{parts.port}" if parts.port else parts.hostname or "the provider's URL"
    except ValueError:
        return "the provider's URL"
