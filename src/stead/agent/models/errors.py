"""What a provider's refusal means: from status, headers and body to one of stead's stable codes, in the provider's own words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from stead.agent.models.base import ProviderError
from stead.core.clock import SystemClock
from stead.core.jsontext import dump_foreign, parse_foreign, shown
from stead.core.parts import Tokens
from stead.core.text import one_line

RETRYABLE = frozenset({408, 409, 425, 429, *range(500, 600)} - {501, 505, 511})
"""Statuses after which the same call may succeed; all of 5xx, as proxies have their own (520 to 526, 529)."""

# Errors inside a stream have no status of their own; the word stands for the one that the same failure has elsewhere.
_WORDS = {
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "overloaded_error": 529,
    "api_error": 500,
    "server_error": 500,
    "internal_server_error": 500,
    "timeout_error": 504,
    "billing_error": 402,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "RESOURCE_EXHAUSTED": 429,
    "INTERNAL": 500,
    "UNAVAILABLE": 503,
    "DEADLINE_EXCEEDED": 504,
    "INVALID_ARGUMENT": 400,
}
_FULL = re.compile(
    r"context_length_exceeded|context.{0,20}(length|window|size)|prompt is too long|(?<!string )too long"
    r"|content.{0,4} string too long|too many (input )?tokens|exceeds? the (maximum|max|limit).{0,40}token"
    r"|maximum number of tokens|token (count|limit).{0,40}exceed|request_too_large",
    re.I | re.S,
)
_NO_MODEL = re.compile(
    r"model_not_found|model.{0,80}(not found|does not exist|doesn't exist|not exist|is unknown|not available|no longer)"
    r"|(unknown|no such|invalid|not a valid|unrecognized) model|model.{0,3}not.{0,3}found|not_found_error.{0,40}model",
    re.I | re.S,
)
_FILTER = re.compile(r"content_filter|content.?policy|content management policy|moderation|flagged|safety (system|reasons)", re.I)
_KEY = re.compile(r"api[ _-]?key.{0,20}(not valid|invalid|incorrect|expired|missing)|(invalid|incorrect).{0,12}api[ _-]?key", re.I)
_SPENT = re.compile(r"insufficient_quota|exceeded your current quota|insufficient (credits|balance|funds)|billing", re.I)
_LOOKS_LIKE_A_KEY = re.compile(r"\b(?:sk|pk|rk|gsk|xai)-[\w*.\-]{6,}|\bAIza[\w*\-]{6,}|\bBearer\s+\S+", re.I)


def refused(
    status: int,
    body: bytes | str,
    headers: Mapping[str, str] | None = None,
    *,
    key: str | None = None,
    tokens: Tokens | None = None,
) -> ProviderError:
    """The error for an answer with `status` (of 400 and over) and `body`. `key` is taken out of every message."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else body
    value = _json(text)
    code = _code(status, text, keyed=bool(key))
    wait = wait_asked(headers or {}, value)
    words = clean(_message(value) or _plain(text), key)
    return ProviderError(
        code,
        f"{_lead(code, status)}{': ' + words if words else '.'}",
        retryable=status in RETRYABLE and not (status == 429 and _SPENT.search(text)),
        retry_after=wait,
        status=status,
        tokens=tokens,
        hint=_hint(status, value is not None, wait),
    )


def in_stream(value: Any, *, key: str | None = None, tokens: Tokens | None = None) -> ProviderError:
    """The error for an error object that came inside a stream (`value` as parsed, the object itself or its wrapper)."""
    error = value.get("error", value) if isinstance(value, dict) else value
    status = 500
    if isinstance(error, dict):
        for word in (error.get("code"), error.get("status"), error.get("type")):
            found = word if isinstance(word, int) else _WORDS.get(word, 0) if isinstance(word, str) else 0
            if isinstance(word, str) and word.isdigit():
                found = int(word)
            if 400 <= found < 600:
                status = found
                break
    return refused(status, dump_foreign({"error": error}), key=key, tokens=tokens)


def cut(why: str, tokens: Tokens | None = None) -> ProviderError:
    """The answer broke off. `why` ends the sentence."""
    return ProviderError("stream_cut", f"The answer broke off: {why}.", retryable=True, tokens=tokens)


def clean(text: str, key: str | None) -> str:
    """A provider's words fit for a message: one line, short, without the key or anything that looks like one."""
    if key and len(key) > 3:  # a shorter one is a placeholder for a server without keys, and in every other word
        text = text.replace(key, "***")
    return one_line(_LOOKS_LIKE_A_KEY.sub("***", shown(text)), 300).rstrip()


def wait_asked(headers: Mapping[str, str], value: Any = None) -> float | None:
    """Seconds that the provider asked to wait: Retry-After as seconds or date, its millisecond form, or Google's RetryInfo."""
    low = {name.lower(): text.strip() for name, text in headers.items()}
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        if re.fullmatch(r"\d+(\.\d+)?", low.get(name, "")):
            return float(low[name]) / scale
    if when := _date(low.get("retry-after")):
        # The server's own Date makes the difference right even where our clock is wrong.
        now = _date(low.get("date")) or SystemClock().now() / 1000
        return max(0.0, when - now)
    details = value.get("error") if isinstance(value, dict) else None
    for detail in (details.get("details") if isinstance(details, dict) else None) or ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and re.fullmatch(r"\d+(\.\d+)?s", delay):
            return float(delay[:-1])
    return None


def _date(text: str | None) -> float | None:
    try:
        return parsedate_to_datetime(text).timestamp() if text else None
    except ValueError:
        return None


def _code(status: int, text: str, *, keyed: bool) -> str:
    if status in (429, 529):
        return "rate_limited"
    if status == 413:
        return "context_full"
    if status in (401, 403) or (status == 400 and _KEY.search(text)):
        if status == 403 and _FILTER.search(text):
            return "content_filter"
        return "bad_key" if keyed else "no_key"
    if status == 404:
        return "model_unknown"
    if status < 500 and (found := _by_words(text)):
        return found
    # A proxy may wrap the refusal of the provider behind it in a 500.
    return "context_full" if status == 500 and _FULL.search(text) and "context" in text else "provider_error"


def _by_words(text: str) -> str | None:
    for code, pattern in (("context_full", _FULL), ("content_filter", _FILTER), ("model_unknown", _NO_MODEL)):
        if pattern.search(text):
            return code
    return None


def _lead(code: str, status: int) -> str:
    return {
        "no_key": "The provider needs a key",
        "bad_key": "The provider refused the key",
        "model_unknown": "The provider does not have this model",
        "rate_limited": "The provider is busy or asked to slow down",
        "context_full": "The conversation does not fit into the model's window",
        "content_filter": "The provider withheld the answer",
    }.get(code, f"The provider answered with error {status}")


def _hint(status: int, is_json: bool, wait: float | None) -> str | None:
    if status == 404 and not is_json:
        return "The answer did not come from a model server: check the provider's URL."
    return f"The provider asks to wait {wait:.0f} s." if wait and wait >= 1 else None


def _json(text: str) -> Any:
    try:
        value = parse_foreign(text)
    except (ValueError, RecursionError):
        return None
    return value[0] if isinstance(value, list) and value else value  # Gemini wraps some errors in a list


def _message(value: Any) -> str:
    """The sentence in an error body, wherever this provider puts it."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict):
        return ""
    for name in ("error", "message", "detail", "error_description"):
        if found := _message(value.get(name)):
            metadata = value.get("metadata")  # OpenRouter: the words of the provider behind it
            raw = metadata.get("raw") if isinstance(metadata, dict) else None
            return f"{found} ({_message(_json(raw)) or raw})" if isinstance(raw, str) and raw else found
    return ""


def _plain(text: str) -> str:
    """A body that is not JSON: its words without markup."""
    return re.sub(r"<(script|style).*?</\1>|<[^>]*>", " ", text[:5000], flags=re.S | re.I).strip()
