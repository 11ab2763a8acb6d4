"""What holds for all three formats: any chunking gives the same parts, an abort closes the connection, stable codes."""

from __future__ import annotations

import asyncio
import email.utils
import time
from contextlib import aclosing
from typing import Any

import pytest

from stead.agent.models.anthropic_stream import AnthropicDecoder
from stead.agent.models.base import Delta, Finished, ProviderError
from stead.agent.models.chat_stream import ChatDecoder
from stead.agent.models.gemini_stream import GeminiDecoder
from stead.agent.models.history import Names
from stead.agent.models.providers import connect
from stead.core.errors import SteadError
from stead.core.ids import CountingIds
from tests.agent.models import streams
from tests.agent.models.mock import Mock, Reply, ask, collect, decode_all, parts_of, serving, sse

pytestmark = pytest.mark.asyncio

KEY = "sk-very-secret-key-123456"
FULL = {"openai": streams.CHAT, "anthropic": streams.ANTHROPIC, "gemini": streams.GEMINI}
PLAIN = {"openai": streams.CHAT_TEXT, "anthropic": streams.ANTHROPIC_TEXT, "gemini": streams.GEMINI_TEXT}
DECODERS: dict[str, Any] = {"openai": ChatDecoder, "anthropic": AnthropicDecoder, "gemini": GeminiDecoder}
KINDS = list(FULL)


def decoder(kind: str, request: Any = None) -> Any:
    request = request or ask()
    return DECODERS[kind](request, kind, Names(request.tools), CountingIds())


def model(kind: str, mock: Mock, **more: Any) -> Any:
    return connect(kind, mock.url, KEY, ids=CountingIds(), **more)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_byte_boundary_gives_the_same_items(kind: str) -> None:
    stream = FULL[kind]
    whole = decode_all(decoder(kind), stream)
    texts = [part.get("text") or part.get("arguments") for part in parts_of(whole)]
    assert "Grübeln über 🦊." in texts and "Höre 🎈👍🏽!" in texts
    assert [part["tool"] for part in parts_of(whole) if part["type"] == "tool"] == ["read", "list"]
    for cut in range(len(stream) + 1):
        assert decode_all(decoder(kind), stream, cut) == whole, f"cut at byte {cut}"
    assert decode_all(decoder(kind), stream, *range(len(stream))) == whole


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["\r\n\r\n", "\r\r", "\n\n"])
async def test_line_endings_bom_and_comments(kind: str, end: str) -> None:
    stream = FULL[kind].replace(b"\n\n", b"\n: comment\n\n").replace(b"\n", end[: len(end) // 2].encode())
    whole = decode_all(decoder(kind), FULL[kind])
    assert decode_all(decoder(kind), b"\xef\xbb\xbf" + stream) == whole
    assert decode_all(decoder(kind), b"\xef\xbb\xbf" + stream, *range(len(stream))) == whole


@pytest.mark.parametrize("kind", KINDS)
async def test_every_cut_is_a_cut_or_the_whole(kind: str) -> None:
    stream = FULL[kind]
    whole = parts_of(decode_all(decoder(kind), stream))
    for cut in range(0, len(stream), 3):
        try:
            items = decode_all(decoder(kind), stream[:cut])
        except ProviderError as error:
            assert error.code == "stream_cut" and error.retryable
        except ValueError:
            pass  # a torn last event; `exchange` passes over it
        else:
            assert parts_of(items) == whole and isinstance(items[-1], Finished)


@pytest.mark.parametrize("kind", KINDS)
async def test_usage_and_names_over_the_network(kind: str) -> None:
    with serving(Reply(FULL[kind], chunk=7)) as mock:
        client = model(kind, mock)
        items = await collect(client, ask(max_output=1000))
        await client.aclose()
    finished = items[-1]
    assert finished.finish == "tool_calls" and finished.model == "m-1" and not finished.estimated
    expected = {
        "openai": {"input": 36, "cache_read": 64, "cache_write": 0, "output": 13, "reasoning": 7},
        "anthropic": {"input": 36, "cache_read": 64, "cache_write": 10, "output": 20, "reasoning": 0},
        "gemini": {"input": 36, "cache_read": 64, "cache_write": 0, "output": 13, "reasoning": 7},
    }
    assert finished.tokens == expected[kind]
    asked = mock.asked[0]
    where, header = {
        "openai": ("/v1/chat/completions", "authorization"),
        "anthropic": ("/v1/messages", "x-api-key"),
        "gemini": ("/v1beta/models/m:streamGenerateContent?alt=sse", "x-goog-api-key"),
    }[kind]
    assert asked.path == where and KEY in asked.headers[header]
    if kind == "anthropic":
        assert asked.headers["anthropic-version"] == "2023-06-01"


@pytest.mark.parametrize("kind", KINDS)
async def test_the_connection_is_used_again(kind: str) -> None:
    with serving(Reply(PLAIN[kind])) as mock:
        client = model(kind, mock)
        for _ in range(3):
            await collect(client, ask())
        await client.aclose()
    assert len(mock.asked) == 3 and mock.connections == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_abort_closes_the_connection_at_once(kind: str) -> None:
    with serving(Reply(FULL[kind], chunk=150, delay=0.02, hang=True)) as mock:
        client = model(kind, mock)
        async with aclosing(client.stream(ask())) as stream:
            async for item in stream:
                if isinstance(item, Delta):
                    break
        left = time.monotonic()
        while mock.asked[0].gone is None and time.monotonic() - left < 2:
            await asyncio.sleep(0.01)
        assert mock.asked[0].gone is not None and mock.asked[0].gone - left < 1
        await client.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelling_the_task_closes_the_connection(kind: str) -> None:
    with serving(Reply(PLAIN[kind][:40], hang=True)) as mock:
        client = model(kind, mock)
        task = asyncio.create_task(collect(client, ask()))
        while not mock.asked:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        left = time.monotonic()
        while mock.asked[0].gone is None and time.monotonic() - left < 2:
            await asyncio.sleep(0.01)
        assert mock.asked[0].gone is not None
        await client.aclose()


async def failure(kind: str, *replies: Reply, **more: Any) -> ProviderError:
    with serving(*replies) as mock:
        client = model(kind, mock, **more)
        with pytest.raises(ProviderError) as caught:
            await collect(client, ask())
        await client.aclose()
    assert KEY not in str(caught.value) and KEY not in str(caught.value.to_json())
    return caught.value


@pytest.mark.parametrize("kind", KINDS)
async def test_drop_in_mid_stream(kind: str) -> None:
    error = await failure(kind, Reply(FULL[kind], cut=len(FULL[kind]) // 2))
    assert (error.code, error.retryable) == ("stream_cut", True)
    assert error.tokens and error.tokens["input"] > 0  # what is known, or an estimate


@pytest.mark.parametrize("kind", KINDS)
async def test_end_without_the_finish_mark(kind: str) -> None:
    first = FULL[kind].split(b"\n\n")[:4]
    error = await failure(kind, Reply(b"\n\n".join(first) + b"\n\n"))
    assert (error.code, error.retryable) == ("stream_cut", True)
    error = await failure(kind, Reply(b"\n\n".join(first) + b"\n\n" + b'data: {"torn": '))
    assert error.code == "stream_cut"
    assert (await failure(kind, Reply(b""))).code == "stream_cut"


@pytest.mark.parametrize("kind", KINDS)
async def test_b194_hang_after_headers_ends_by_itself(kind: str) -> None:
    error = await failure(kind, Reply(b"", hang=True), idle=0.2)
    assert (error.code, error.retryable) == ("stream_cut", True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("status", "body", "code", "retryable"),
    [
        (401, {"error": {"message": "bad key " + KEY}}, "bad_key", False),
        (403, {"error": {"message": "no"}}, "bad_key", False),
        (404, {"error": {"message": "no such model"}}, "model_unknown", False),
        (400, {"error": {"message": "The model `x` does not exist"}}, "model_unknown", False),
        (400, {"error": {"code": "context_length_exceeded", "message": "m"}}, "context_full", False),
        (400, {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}, "context_full", False),
        (
            400,
            {"error": {"message": "The input token count (9) exceeds the maximum number of tokens allowed (8)."}},
            "context_full",
            False,
        ),
        (413, {"error": {"type": "request_too_large"}}, "context_full", False),
        (400, {"error": {"message": "Invalid 'messages[1].tool_calls[0].id': string too long."}}, "provider_error", False),
        (429, {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}, "rate_limited", False),
        (402, {"error": {"message": "Insufficient credits"}}, "provider_error", False),
        (403, {"error": {"message": "Your input was flagged"}}, "content_filter", False),
        (400, {"error": {"code": "content_filter", "message": "content management policy"}}, "content_filter", False),
        (400, {"error": {"message": "API key not valid. Please pass a valid API key."}}, "bad_key", False),
        (429, {"error": {"message": "slow"}}, "rate_limited", True),
        (529, {"error": {"type": "overloaded_error", "message": "Overloaded"}}, "rate_limited", True),
        (408, {}, "provider_error", True),
        (500, {}, "provider_error", True),
        (502, {}, "provider_error", True),
        (503, {}, "provider_error", True),
        (504, {}, "provider_error", True),
        (400, {"error": {"message": "something else"}}, "provider_error", False),
        (422, {"detail": [{"msg": "field required"}]}, "provider_error", False),
    ],
)
async def test_status_table(kind: str, status: int, body: Any, code: str, retryable: bool) -> None:
    import json

    error = await failure(kind, Reply(json.dumps(body).encode(), status=status, content_type="application/json"))
    assert (error.code, error.retryable, error.status) == (code, retryable, status)


async def test_a_missing_key_is_told_apart() -> None:
    with serving(Reply(b'{"error":{"message":"Missing auth"}}', status=401, content_type="application/json")) as mock:
        client = connect("openai", mock.url)
        with pytest.raises(ProviderError) as caught:
            await collect(client, ask())
        await client.aclose()
    assert caught.value.code == "no_key"


async def test_b194_retry_after_seconds_date_and_none() -> None:
    now = 1_800_000_000
    for headers, wanted in (
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "1.5"}, 1.5),
        ({"retry-after-ms": "250"}, 0.25),
        ({"date": email.utils.formatdate(now, usegmt=True), "retry-after": email.utils.formatdate(now + 30, usegmt=True)}, 30.0),
        ({"date": email.utils.formatdate(now, usegmt=True), "retry-after": email.utils.formatdate(now - 30, usegmt=True)}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ):
        for status in (429, 503, 529, 408, 425, 520, 524):
            error = await failure("openai", Reply(b"{}", status=status, headers=headers))
            assert error.retry_after == wanted and error.retryable


async def test_google_says_when_to_come_back() -> None:
    body = b'{"error":{"code":429,"status":"RESOURCE_EXHAUSTED","details":[{"@type":"x.RetryInfo","retryDelay":"34s"}]}}'
    error = await failure("gemini", Reply(body, status=429))
    assert (error.code, error.retry_after) == ("rate_limited", 34.0)


@pytest.mark.parametrize("kind", KINDS)
async def test_nothing_listens(kind: str) -> None:
    with serving(Reply(b"")) as mock:
        url = mock.url
    client = connect(kind, url, KEY)
    with pytest.raises(ProviderError) as caught:
        await collect(client, ask())
    await client.aclose()
    assert (caught.value.code, caught.value.retryable) == ("provider_unreachable", True)


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://a b", "http://host:99999", "https://"])
async def test_bad_urls(url: str) -> None:
    with pytest.raises(SteadError) as caught:
        connect("openai", url, KEY)
    assert caught.value.code == "usage"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_no_stream(kind: str) -> None:
    error = await failure(kind, Reply(b"<html>Log in</html>", content_type="text/html"))
    assert error.code == "provider_error" and "URL" in (error.hint or "")
    error = await failure(kind, Reply(b'{"error":{"code":429,"message":"slow"}}', content_type="application/json"))
    assert error.code == "rate_limited"
    error = await failure(kind, Reply(b"", status=302, headers={"location": "https://elsewhere/"}))
    assert error.code == "provider_error"
    error = await failure(kind, Reply(sse("not json at all")))
    assert (error.code, error.retryable) == ("provider_error", False)
    torn = PLAIN[kind].replace(b"there", b'there"""', 1)
    error = await failure(kind, Reply(torn))
    assert error.code == "provider_error" and error.retryable


async def test_keys_never_show() -> None:
    body = b'{"error":{"message":"Incorrect API key provided: sk-abcd*****wxyz. AIzaSyD-abcdef012345"}}'
    error = await failure("openai", Reply(body, status=401))
    assert "sk-abcd" not in error.message and "AIza" not in error.message


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_without_end_is_broken_off(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.agent.models.http.MOST_BYTES", 1 << 20)
    for body in (b"data: " + b"x" * (2 << 20), b": ping\n\n" * (1 << 18)):  # one line, and nothing at all
        with serving() as mock:
            mock.reply(Reply(body, hang=True))
            with pytest.raises(ProviderError, match="no end") as failed:
                await collect(model(kind, mock), ask())
        assert failed.value.code == "provider_error" and not failed.value.retryable
