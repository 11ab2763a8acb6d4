"""One streaming call over HTTP: connect, read events, close at once when the reader leaves; failures get stable codes."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing, suppress
from functools import cache
from typing import Any, ClassVar, Protocol

import httpx2
import orjson

from stead.agent.models.address import host_of, is_loopback
from stead.agent.models.base import Item, ProviderError
from stead.agent.models.errors import clean, cut, in_stream, refused
from stead.agent.models.sse import Event, Reader
from stead.core.ids import Ids, RandomIds
from stead.core.jsontext import dump_foreign, parse_foreign, shown_deep
from stead.core.parts import Tokens

CONNECT = 10.0
IDLE = 600.0
"""Seconds without a single byte after which a call is given up: a local model may read a long prompt for minutes."""

MOST_BYTES = 128 << 20
"""Of one answer on the wire. No model says so much; a server that never stops must not fill the memory."""

_LINGER = 0.2  # seconds to wait for the end of a finished stream, so that the connection can be used again
_BODY = 1 << 20  # bytes of an error body that are read


class Decoder(Protocol):
    """One wire format's reader. `done`: the provider's finish mark was seen; `answered`: the answer itself is known to be
    complete, so that only formal ends are missing."""

    done: bool
    answered: bool

    def feed(self, event: Event) -> Iterable[Item]:
        """The items that `event` gives. Raises `ValueError` for data that is not JSON, `ProviderError` for an error in it."""
        ...

    def end(self) -> Iterable[Item]:
        """The stream is over: close parts, give `Finished`; raises `stream_cut` when the finish was not complete."""
        ...

    def tokens(self) -> Tokens | None:
        """What is known so far to have been processed."""
        ...


def new_client(url: str, *, idle: float = IDLE) -> httpx2.AsyncClient:
    """A client for one provider. Proxies of the environment are used, but never for this machine itself."""
    local = is_loopback(url)
    return httpx2.AsyncClient(
        timeout=httpx2.Timeout(idle, connect=CONNECT),
        verify=_tls() if url.lower().startswith("https:") else False,
        trust_env=not local,
        headers={"user-agent": "stead"},
    )


class HttpModel:
    """What the wire formats share: whose signatures they understand, the address, the key, and the connections to close."""

    own_family: ClassVar[str]

    def __init__(
        self, url: str, key: str | None = None, *, family: str | None = None, ids: Ids | None = None, idle: float = IDLE
    ) -> None:
        self.family = family or self.own_family
        self._url, self._key, self._ids = url.rstrip("/"), key, ids or RandomIds()
        self._client = new_client(url, idle=idle)

    async def aclose(self) -> None:
        """Close idle connections."""
        await self._client.aclose()


def encode(body: dict[str, Any]) -> bytes:
    """A request body as JSON: integers of any size exact, lone surrogates as U+FFFD."""
    try:
        return orjson.dumps(body)
    except TypeError:
        return dump_foreign(shown_deep(body)).encode()


def decode(text: str) -> Any:
    """A chunk of a stream, fast. Numbers over 64 bits lose digits: use `parse_foreign` for what must stay exact."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return parse_foreign(text)  # lone surrogates


async def exchange(
    client: httpx2.AsyncClient, url: str, headers: dict[str, str], body: dict[str, Any], decoder: Decoder, key: str | None
) -> AsyncGenerator[Item, None]:
    """Send `body` and give the items of the answer. Every failure is a `ProviderError` that carries no key."""
    headers = {"content-type": "application/json", "accept": "text/event-stream", **headers}
    try:
        async with client.stream("POST", url, content=encode(body), headers=headers) as response:
            if response.status_code >= 300 or _no_stream(response):
                raise await _refusal(response, key)
            reader, came = Reader(), 0
            async with aclosing(response.aiter_bytes()) as chunks:
                async for chunk in chunks:
                    came += len(chunk)
                    if came > MOST_BYTES:
                        message = f"The provider's answer has more than {MOST_BYTES >> 20} MiB and no end; it was broken off."
                        raise ProviderError("provider_error", message, tokens=decoder.tokens())
                    for event in reader.feed(chunk):
                        for item in _fed(decoder, event, key):
                            yield item
                    if decoder.done:
                        break
                if decoder.done:
                    with suppress(TimeoutError, httpx2.HTTPError):
                        async with asyncio.timeout(_LINGER):
                            async for _ in chunks:
                                pass
            if not decoder.done and (last := reader.rest()):
                # Without its blank line an event may be cut; one that cannot be read is the cut, not a fault of its own.
                with suppress(ValueError):
                    for item in decoder.feed(last):
                        yield item
    except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError, UnicodeError) as error:
        problem = failed(error, url, key, decoder.tokens())
        if not (decoder.done or (problem.code == "stream_cut" and decoder.answered)):
            raise problem from None
    for item in decoder.end():
        yield item


def _fed(decoder: Decoder, event: Event, key: str | None) -> Iterable[Item]:
    if event.name == "error":
        try:
            value = parse_foreign(event.data)
        except ValueError:
            value = {"message": event.data}
        raise in_stream(value, key=key, tokens=decoder.tokens())
    try:
        return list(decoder.feed(event))
    except ValueError:
        words, tokens = clean(event.data, key)[:80], decoder.tokens()
        # Garbage in the middle is a fault on the way; garbage from the start is the wrong server.
        raise ProviderError(
            "provider_error",
            f"The provider sent something that is not JSON: {words}",
            retryable=tokens is not None,
            tokens=tokens,
        ) from None


def _no_stream(response: httpx2.Response) -> bool:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower() in ("application/json", "text/html")


async def _refusal(response: httpx2.Response, key: str | None) -> ProviderError:
    body = b""
    with suppress(httpx2.HTTPError):
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _BODY:
                break
    if response.status_code >= 400:
        return refused(response.status_code, body, response.headers, key=key)
    with suppress(ValueError):
        value = parse_foreign(body)
        value = value[0] if isinstance(value, list) and value else value
        if isinstance(value, dict) and value.get("error"):
            return in_stream(value, key=key)
    where = response.headers.get("location")
    what = f"sends the call on to {clean(where, key)}" if where else "did not answer with a stream"
    return ProviderError("provider_error", f"The provider {what}.", status=response.status_code, hint="Check the provider's URL.")


def failed(error: Exception, url: str, key: str | None, tokens: Tokens | None = None) -> ProviderError:
    """The stable error for a failure of the connection itself."""
    host = host_of(url)
    if isinstance(error, (httpx2.InvalidURL, httpx2.UnsupportedProtocol, UnicodeError)):
        return ProviderError("provider_unreachable", f"{host} is not a usable address.", hint="Check the provider's URL.")
    if isinstance(error, (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)):
        why = clean(str(error), key) or "no answer in time"
        return ProviderError("provider_unreachable", f"No connection to {host}: {why}.", retryable=True)
    if isinstance(error, httpx2.TimeoutException):
        return cut(f"{host} sent nothing for too long", tokens)
    if isinstance(error, httpx2.DecodingError):
        return ProviderError("provider_error", f"The answer of {host} cannot be decoded.", tokens=tokens)
    return cut(f"{host} closed the connection", tokens)


@cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
