"""Recorded traffic of the real providers: every stream is read without loss, and what goes back is what was sent back then."""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import Any

import pytest

from stead.agent.models import anthropic, chat, gemini
from stead.agent.models.anthropic_stream import AnthropicDecoder
from stead.agent.models.base import Finished, ProviderError, Request, ToolSpec, Turn
from stead.agent.models.chat_stream import ChatDecoder
from stead.agent.models.errors import refused
from stead.agent.models.gemini_stream import GeminiDecoder
from stead.agent.models.history import Names
from stead.agent.models.providers import connect
from stead.core.ids import CountingIds
from tests.agent.models.mock import STEP, Reply, collect, decode_all, parts_of, serving

FOLDER = Path(os.environ.get("STEAD_SHARED") or Path(__file__).resolve().parents[4] / "shared") / "cassettes"
KINDS = {"anthropic": "anthropic", "openai-chat": "openai", "openrouter": "openrouter", "gemini": "gemini", "ollama": "ollama"}


def interactions() -> list[tuple[str, int, dict[str, Any]]]:
    if not FOLDER.is_dir():
        return []
    from ruamel.yaml import YAML

    reader = YAML(typ="safe")
    found = []
    for file in sorted(FOLDER.glob("*.yaml")):
        if file.name.partition("__")[0] in KINDS:
            found += [(file.stem, n, item) for n, item in enumerate(reader.load(file)["interactions"])]
    return found


ALL = interactions()


def response(item: dict[str, Any]) -> bytes:
    body = item["response"].get("body")
    text = body.get("string") if isinstance(body, dict) else None
    if text is None:
        text = json.dumps(item["response"].get("parsed_body"))
    return text.encode() if isinstance(text, str) else bytes(text)


def is_stream(item: dict[str, Any]) -> bool:
    return b"data:" in response(item)[:4000] and item["response"]["status"]["code"] == 200


STREAMS = [(f"{name}:{n}", item) for name, n, item in ALL if is_stream(item)]
REFUSALS = [(f"{name}:{n}", item) for name, n, item in ALL if item["response"]["status"]["code"] >= 400]
need = pytest.mark.skipif(not ALL, reason=f"no recorded traffic in {FOLDER}")


def kind_of(name: str) -> str:
    return KINDS[name.partition("__")[0]]


def decoder(kind: str, request: Request) -> Any:
    maker: Any = {"anthropic": AnthropicDecoder, "gemini": GeminiDecoder}.get(kind, ChatDecoder)
    return maker(request, kind, Names(request.tools), CountingIds())


def recorded_text(kind: str, stream: bytes) -> tuple[str, str, list[tuple[str, Any]]]:
    """Text, thinking and calls of a stream by the plainest reading: an own witness against the decoder."""
    text = thinking = ""
    calls: dict[int, list[str]] = {}
    whole: list[tuple[str, Any]] = []
    for line in stream.decode().split("\n"):
        if not line.startswith("data:") or line.strip() == "data: [DONE]":
            continue
        value = json.loads(line[5:])
        if kind == "anthropic":
            start, delta = value.get("content_block") or {}, value.get("delta") or {}
            text += delta.get("text", "")
            thinking += delta.get("thinking", "")
            if start.get("type") == "tool_use":
                calls[value["index"]] = [start["name"], ""]
            if value.get("index") in calls:
                calls[value["index"]][1] += delta.get("partial_json", "")
        elif kind == "gemini":
            for part in value["candidates"][0].get("content", {}).get("parts", []):
                if "functionCall" in part:
                    whole.append((part["functionCall"]["name"], part["functionCall"]["args"]))
                elif part.get("thought"):
                    thinking += part["text"]
                else:
                    text += part.get("text", "")
        else:
            for choice in value.get("choices", []):
                text += choice["delta"].get("content") or ""
                thinking += choice["delta"].get("reasoning") or ""
                for call in choice["delta"].get("tool_calls") or []:
                    entry = calls.setdefault(call["index"], ["", ""])
                    entry[0] += call["function"].get("name") or ""
                    entry[1] += call["function"].get("arguments") or ""
    return text, thinking, whole + [(name, json.loads(arguments or "{}")) for name, arguments in calls.values()]


def test_the_recorded_traffic_is_there() -> None:
    if not ALL:
        pytest.skip(f"no recorded traffic in {FOLDER}")
    assert len(STREAMS) >= 19 and len(REFUSALS) >= 8


@need
@pytest.mark.parametrize("item", [item for _, item in STREAMS], ids=[name for name, _ in STREAMS])
async def test_streams_are_read_without_loss(item: dict[str, Any], request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.id
    kind, stream = kind_of(name), response(item)
    asked = Request("m", [])
    if "stream_error" in name:
        with pytest.raises(ProviderError) as caught:
            decode_all(decoder(kind, asked), stream)
        assert caught.value.code in ("provider_error", "rate_limited") and len(caught.value.message) > 20
        return
    items = decode_all(decoder(kind, asked), stream)
    parts = parts_of(items)
    text, thinking, calls = recorded_text(kind, stream)
    assert "".join(part["text"] for part in parts if part["type"] == "text") == text
    plain = [part for part in parts if part["type"] == "reasoning" and "block" not in part.get("meta", {})]
    assert "".join(part["text"] for part in plain) == thinking
    assert [(part["tool"], json.loads(part["arguments"] or "{}")) for part in parts if part["type"] == "tool"] == calls
    finished = items[-1]
    assert isinstance(finished, Finished) and finished.finish == ("tool_calls" if calls else "stop")
    assert not finished.estimated and finished.tokens["input"] > 0 and finished.tokens["output"] >= 0
    for signature in (b'"signature":"', b'"thoughtSignature": "'):
        for piece in stream.split(signature)[1:]:
            value = piece.partition(b'"')[0].decode()
            assert value in json.dumps(parts), "a signature was lost"
    assert decode_all(decoder(kind, asked), stream, *range(0, len(stream), 7)) == items
    with serving(Reply(stream, chunk=7 if len(stream) < 30_000 else 997)) as mock:
        client = connect(kind, mock.url, "k", ids=CountingIds())
        assert await collect(client, asked) == items
        await client.aclose()


@need
@pytest.mark.parametrize("item", [item for _, item in REFUSALS], ids=[name for name, _ in REFUSALS])
def test_refusals_have_their_codes(item: dict[str, Any], request: pytest.FixtureRequest) -> None:
    status = item["response"]["status"]["code"]
    error = refused(status, response(item), key="k")
    wanted = {404: "model_unknown", 429: "rate_limited"}.get(status, "provider_error")
    assert error.code == wanted and error.retryable == (status == 429)
    assert 25 < len(error.message) < 400


# What goes back on a later turn: the recorded answers (streamed or not) become stored parts, the recorded results are filled in,
# and our request is compared with the recorded one.


def as_stream(kind: str, raw: bytes) -> bytes:
    """A recorded answer that was not streamed, as the stream it would have been."""
    value = json.loads(raw)
    if kind == "gemini":
        return b"data: " + raw + b"\n\n"
    if kind == "anthropic":
        events = [{"type": "message_start", "message": {"usage": value["usage"]}}]
        for n, block in enumerate(value["content"]):
            events += [
                {"type": "content_block_start", "index": n, "content_block": block},
                {"type": "content_block_stop", "index": n},
            ]
        events += [{"type": "message_delta", "delta": {"stop_reason": value["stop_reason"]}}, {"type": "message_stop"}]
    else:
        choice = value["choices"][0]
        message = choice["message"]
        for n, call in enumerate(message.get("tool_calls") or []):
            call["index"] = n
        events = [{**value, "choices": [{"index": 0, "delta": message, "finish_reason": choice["finish_reason"]}]}]
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def parts_from(kind: str, item: dict[str, Any], model: str) -> list[Any]:
    raw = response(item)
    stream = raw if is_stream(item) else as_stream(kind, raw)
    return parts_of(decode_all(decoder(kind, Request(model, [])), stream))


def our_body(kind: str, request: Request) -> dict[str, Any]:
    names = Names(request.tools)
    if kind == "anthropic":
        return anthropic.body(request, kind, names)
    return gemini.body(request, kind, names) if kind == "gemini" else chat.body(request, kind, names)


def answers(kind: str, recorded: list[dict[str, Any]]) -> list[Any]:
    """The model's side of a recorded request: in comparable form."""
    found = []
    for message in recorded:
        if message["role"] not in ("assistant", "model"):
            continue
        if kind == "anthropic":
            # `caller` came with the answer; the recording client dropped it, we send it back
            found.append([{k: v for k, v in block.items() if k not in ("cache_control", "caller")} for block in message["content"]])
        elif kind == "gemini":
            found.append([plain_gemini(part) for part in message["parts"] if part.get("text") != ""])
        else:
            calls = [
                (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"])) for c in message.get("tool_calls") or []
            ]
            found.append([message.get("content") or None, calls, plain_details(message.get("reasoning_details"))])
    return found


def plain_gemini(part: dict[str, Any]) -> dict[str, Any]:
    part = json.loads(json.dumps(part))
    part.get("functionCall", {}).pop("id", None)
    if signature := part.get("thoughtSignature"):  # the recording client wrote base 64 in its other alphabet
        part["thoughtSignature"] = base64.b64decode(signature.replace("-", "+").replace("_", "/")).hex()
    return part


def plain_details(details: Any) -> Any:
    return [{k: v for k, v in detail.items() if v is not None} for detail in details or []]


def results(kind: str, recorded: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The tool results of a recorded request, as (which call, words)."""
    found = []
    for message in recorded:
        if kind == "anthropic" and isinstance(message["content"], list):
            for block in message["content"]:
                if block["type"] == "tool_result":
                    content = block["content"]
                    found.append((block["tool_use_id"], content if isinstance(content, str) else content[0]["text"]))
        elif kind == "gemini":
            for part in message["parts"]:
                if "functionResponse" in part:
                    found.append((part["functionResponse"]["name"], str(next(iter(part["functionResponse"]["response"].values())))))
        elif message["role"] == "tool":
            found.append((message["tool_call_id"], str(message["content"])))
    return found


LATER = sorted({name for name, n, item in ALL if n > 0 and item["response"]["status"]["code"] == 200})
# In these the later requests are not continuations of the recorded answers alone.
OWN_STORY = {"anthropic__test_anthropic_cache_real_api", "openai-chat__test_openai_chat_prompt_cache_e2e"}


@need
@pytest.mark.parametrize("name", [name for name in LATER if name not in OWN_STORY])
def test_later_turns_send_back_what_was_sent_back(name: str) -> None:
    kind = kind_of(name)
    items = [item for found, _, item in ALL if found == name]
    last = items[-1]["request"]
    recorded = last.get("parsed_body") or json.loads(last["body"])
    history = recorded["contents" if kind == "gemini" else "messages"]
    model = recorded.get("model") or last["uri"].rpartition("/")[2].partition(":")[0]
    outputs = iter(results(kind, history))
    turns = [Turn("user", [{"type": "text", "text": "Q"}])]
    for item in items[:-1]:
        parts = parts_from(kind, item, model)
        for part in parts:
            if part["type"] == "tool":
                part.update(status="done", output=next(outputs, ("", "ok"))[1])
        turns.append(Turn("assistant", [*parts, STEP]))
        if not any(part["type"] == "tool" for part in parts):
            turns.append(Turn("user", [{"type": "text", "text": "Q"}]))
    tools = [ToolSpec(part["tool"], "", {}) for turn in turns for part in turn.parts if part["type"] == "tool"]
    request = Request(model, turns, tools=list({tool.name: tool for tool in tools}.values()))
    ours = our_body(kind, request)["contents" if kind == "gemini" else "messages"]
    assert answers(kind, ours) == answers(kind, history)
    assert results(kind, ours) == results(kind, history)
