"""Retrying, prices, the table of providers."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest

from stead.agent.models import providers
from stead.agent.models.base import ProviderError
from stead.agent.models.prices import context_window, price
from stead.agent.models.providers import find_local, list_models
from stead.agent.models.retry import delay
from stead.core.parts import Tokens
from tests.agent.models.mock import Reply, serving


def problem(retry_after: float | None = None, *, retryable: bool = True) -> ProviderError:
    return ProviderError("rate_limited", "slow", retryable=retryable, retry_after=retry_after)


def test_b194_waits_honour_the_provider_and_grow() -> None:
    low, high = (lambda: 0.0), (lambda: 1.0)
    assert [delay(problem(), n, jitter=low) for n in range(1, 6)] == [0.5, 1.0, 2.0, 4.0, None]
    assert [delay(problem(), n, jitter=high) for n in range(1, 6)] == [1.0, 2.0, 4.0, 8.0, None]
    assert delay(problem(), 30, jitter=high, attempts=99) == 60.0
    assert delay(problem(7), 1, jitter=low) == 7 and 7 < (delay(problem(7), 1, jitter=high) or 0) <= 8
    assert delay(problem(120), 1, jitter=low) == 120 and delay(problem(121), 1, jitter=low) is None
    assert delay(problem(0), 1, jitter=high) == 0
    assert [delay(problem(0), n, jitter=low) for n in range(2, 5)] == [0.5, 1.0, 2.0]  # it refused again: no quicker than ours
    assert delay(problem(retryable=False), 1, jitter=low) is None
    assert delay(problem(1), 5, jitter=low) is None


def tokens(input: int = 0, cache_read: int = 0, cache_write: int = 0, output: int = 0, reasoning: int = 0) -> Tokens:
    return {"input": input, "cache_read": cache_read, "cache_write": cache_write, "output": output, "reasoning": reasoning}


M = 1_000_000
AT = 1_764_500_000_000  # 30 November 2025: prices may change, the bundled history does not


@pytest.mark.parametrize(
    ("kind", "model", "rates"),
    [
        # dollars for a million of input, cache read, cache write, output
        ("anthropic", "claude-sonnet-4-5", (3, 0.3, 3.75, 15)),
        ("openai", "gpt-4o", (2.5, 1.25, None, 10)),
        ("gemini", "gemini-2.5-flash", (0.3, None, None, 2.5)),
        ("openrouter", "anthropic/claude-sonnet-4.5", (3, 0.3, 3.75, 15)),
    ],
)
def test_b132_golden_prices(kind: str, model: str, rates: Any) -> None:
    read, cached, written, out = rates
    assert price(kind, model, tokens(input=1000), at=AT) == pytest.approx(read * 1000 / M, abs=1e-9)
    assert price(kind, model, tokens(output=1000), at=AT) == pytest.approx(out * 1000 / M, abs=1e-9)
    assert price(kind, model, tokens(reasoning=1000), at=AT) == pytest.approx(out * 1000 / M, abs=1e-9)
    if cached is not None:
        assert price(kind, model, tokens(cache_read=1000), at=AT) == pytest.approx(cached * 1000 / M, abs=1e-9)
    if written is not None:
        mixed = tokens(36, 64, 10, 13, 7)
        wanted = (36 * read + 64 * cached + 10 * written + 20 * out) / M
        assert price(kind, model, mixed, at=AT) == pytest.approx(wanted, abs=1e-9)


def test_prices_that_are_unknown_or_nothing() -> None:
    some = tokens(10, 0, 0, 10)
    assert price("openai", "no-such-model", some) is None
    assert price("script", "x", some) is None and price("anthropic", "", some) is None
    assert price("ollama", "qwen3", some) == 0.0 and price("ollama", "qwen3", some, url="http://127.0.0.1:11434/v1") == 0.0
    assert price("ollama", "qwen3", some, url="https://ollama.com/v1") is None
    assert price("openai", "qwen3-coder", some, url="http://10.0.0.5:8000/v1") is None
    assert price("openai", "gpt-4o", some, url="http://10.0.0.5:8000/v1") == price("openai", "gpt-4o", some)
    assert price("openai", "gpt-4o", some, url="https://api.deepseek.com/v1") is None
    assert price("openai", "gpt-4o", some, url="https://api.openai.com/v1") is not None
    assert price("openai", "deepseek-chat", some, url="https://api.deepseek.com/v1") is not None
    assert context_window("openai", "gpt-4o") == 128_000 and context_window("ollama", "qwen3") is None


def test_prices_never_touch_the_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise AssertionError("network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert price("anthropic", "claude-sonnet-4-5", tokens(1)) == 0.000003


def reply(value: Any, **more: Any) -> Reply:
    return Reply(json.dumps(value).encode(), content_type="application/json", **more)


async def test_lists_of_models() -> None:
    fields = ("id", "context", "tools", "reasoning", "free", "size")
    cases: list[tuple[str, list[Reply], list[tuple[Any, ...]]]] = [
        (
            "openai",
            [reply({"data": [{"id": "m", "max_model_len": 4096}, {"id": "l", "meta": {"n_ctx_train": 8192, "size": 77}}]})],
            [("l", 8192, None, None, None, 77), ("m", 4096, None, None, None, None)],
        ),
        (
            "openrouter",
            [
                reply(
                    {
                        "data": [
                            {
                                "id": "a/x:free",
                                "context_length": 10,
                                "pricing": {"prompt": "0", "completion": "0"},
                                "supported_parameters": ["tools"],
                            },
                            {
                                "id": "a/y",
                                "context_length": 20,
                                "pricing": {"prompt": "0.1", "completion": "0"},
                                "supported_parameters": ["reasoning"],
                            },
                        ]
                    }
                )
            ],
            [("a/x:free", 10, True, False, True, None), ("a/y", 20, False, True, False, None)],
        ),
        (
            "anthropic",
            [
                reply({"data": [{"id": "claude-sonnet-4-5"}], "has_more": True}),
                reply({"data": [{"id": "claude-zz", "max_input_tokens": 5}]}),
            ],
            [("claude-sonnet-4-5", 200_000, True, None, None, None), ("claude-zz", 5, True, None, None, None)],
        ),
        (
            "gemini",
            [
                reply(
                    {
                        "models": [
                            {
                                "name": "models/g",
                                "inputTokenLimit": 9,
                                "thinking": True,
                                "supportedGenerationMethods": ["generateContent"],
                            },
                            {"name": "models/e", "supportedGenerationMethods": ["embedContent"]},
                        ]
                    }
                )
            ],
            [("g", 9, None, True, None, None)],
        ),
        (
            "ollama",
            [
                reply({"models": [{"name": "q:8b", "model": "q:8b", "size": 5_000}]}),
                reply({"capabilities": ["completion", "tools", "thinking"], "model_info": {"q.context_length": 40960}}),
            ],
            [("q:8b", 40960, True, True, True, 5_000)],
        ),
        ("ollama", [reply({}, status=404), reply({"data": [{"id": "m"}]})], [("m", None, None, None, True, None)]),
    ]
    for kind, replies, wanted in cases:
        with serving(*replies) as mock:
            found = await list_models(kind, mock.url, "key")
        assert [tuple(row[name] for name in fields) for row in found] == wanted, kind


async def test_a_list_that_cannot_be_had() -> None:
    for answer, code in (
        (reply({"error": {"message": "no"}}, status=401), "bad_key"),
        (Reply(b"<html>", content_type="text/html"), "provider_error"),
    ):
        with serving(answer) as mock:
            with pytest.raises(ProviderError) as caught:
                await list_models("openai", mock.url, "key")
        assert caught.value.code == code
    with pytest.raises(ProviderError) as caught:
        await list_models("openai", mock.url, "key")
    assert caught.value.code == "provider_unreachable"


async def test_local_servers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(reply({"data": [{"id": "m"}]})) as up, serving(Reply(b"", hang=True)) as stuck, serving(Reply(b"")) as gone:
        urls = [(name, "openai", f"{mock.url}/v1") for name, mock in (("Up", up), ("Stuck", stuck), ("Gone", gone))]
        gone.close()
        monkeypatch.setattr(providers, "LOCAL", tuple(urls))
        assert await find_local() == [{"name": "Up", "kind": "openai", "url": f"{up.url}/v1", "models": ["m"]}]
