"""Anthropic Messages: Claude, and the other servers that speak its format."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from stead.agent.models.anthropic_stream import AnthropicDecoder
from stead.agent.models.base import Item, Request
from stead.agent.models.files import as_text, encoded, is_image, is_pdf
from stead.agent.models.history import Call, Names, Said, Step, arguments_of, arrange
from stead.agent.models.http import HttpModel, exchange
from stead.core.jsontext import parse_foreign
from stead.core.parts import FilePart, Meta, ReasoningPart, TextPart

VERSION = "2023-06-01"
_CACHED = {"type": "ephemeral"}
_ROOM = 8_192  # tokens for the answer beside its thinking


class AnthropicModel(HttpModel):
    """A connection to a server that speaks Anthropic Messages. `url` is its bare origin."""

    own_family = "anthropic"

    async def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        """Call the model. Closing the generator closes the connection at once."""
        names = Names(request.tools)
        decoder = AnthropicDecoder(request, self.family, names, self._ids, key=self._key)
        headers = {"anthropic-version": VERSION, **({"x-api-key": self._key} if self._key else {})}
        payload = body(request, self.family, names)
        if betas := payload.pop("betas", None):  # an option that travels as a header
            headers["anthropic-beta"] = ",".join(betas) if isinstance(betas, list) else str(betas)
        async with aclosing(exchange(self._client, f"{self._url}/v1/messages", headers, payload, decoder, self._key)) as items:
            async for item in items:
                yield item


def body(request: Request, family: str, names: Names) -> dict[str, Any]:
    """The request body. Keys of `request.options` go in as they are and win; tools among them are added to those of stead."""
    system, wire = arrange(request, family, names)
    options = dict(request.options)
    tools: list[dict[str, Any]] = [
        {"name": names.wire(tool.name), "description": tool.description, "input_schema": _schema(tool.schema)}
        for tool in request.tools
    ]
    tools += options.pop("tools", None) or []
    sent: dict[str, Any] = {
        "model": request.model,
        "max_tokens": request.max_output or default_output(request.model),
        "messages": _messages(request, wire),
        "stream": True,
    }
    if system:
        sent["system"] = [{"type": "text", "text": system}]
    if tools:
        sent["tools"] = tools
    sent.update(options)
    _fit_thinking(sent, wire)
    _mark_cached(sent)
    return sent


def default_output(model: str) -> int:
    """Tokens to ask for where nobody says: what a long file needs, within what old models allow."""
    if re.search(r"claude-3-(opus|haiku|sonnet)", model):
        return 4_096
    return 8_192 if "claude-3-5" in model else 32_000


def _messages(request: Request, wire: list[Said | Step]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for item in wire:
        if isinstance(item, Said):
            _append(messages, "user", [_spoken(request, said) for said in item.items])
            continue
        _append(messages, "assistant", _blocks(item))
        # All results of one answer stand first in the next user message.
        _append(messages, "user", [_result(request, call) for call in item.calls])
    return messages


def _append(messages: list[dict[str, Any]], role: str, blocks: list[dict[str, Any]]) -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"] += blocks
    else:
        messages.append({"role": role, "content": blocks})


def _spoken(request: Request, said: str | FilePart) -> dict[str, Any]:
    return {"type": "text", "text": said} if isinstance(said, str) else _file(request, said)


def _file(request: Request, part: FilePart) -> dict[str, Any]:
    kind = "image" if is_image(part) else "document" if is_pdf(part) else None
    if kind and (data := encoded(request, part)) is not None:
        return {"type": kind, "source": {"type": "base64", "media_type": part["mime"], "data": data}}
    return {"type": "text", "text": as_text(request, part)}


def _result(request: Request, call: Call) -> dict[str, Any]:
    content: Any = call.result
    if call.files:
        content = [{"type": "text", "text": call.result}, *(_file(request, file) for file in call.files)]
    return {"type": "tool_result", "tool_use_id": call.id, "content": content, **({"is_error": True} if call.failed else {})}


def _blocks(step: Step) -> list[dict[str, Any]]:
    blocks = [block for item in step.items if (block := _block(item))]
    results = {block["tool_use_id"] for block in blocks if "tool_use_id" in block}
    # A server tool whose result never came would be refused.
    kept = [block for block in blocks if not str(block["type"]).endswith("_tool_use") or block.get("id") in results]
    return kept or [{"type": "text", "text": "(no answer)"}]


def _block(item: TextPart | ReasoningPart | Call) -> dict[str, Any] | None:
    if isinstance(item, Call):
        rest = parse_foreign(item.meta["block"]) if "block" in item.meta else {}
        return {"type": "tool_use", "id": item.id, "name": item.name, "input": arguments_of(item), **rest}
    meta: Meta = item.get("meta") or {}
    if item["type"] == "text":
        cited = {"citations": parse_foreign(meta["citations"])} if "citations" in meta else {}
        return {"type": "text", "text": item["text"], **cited}
    if "block" in meta:
        block = parse_foreign(meta["block"])
        return block if isinstance(block, dict) else None
    if "data" in meta:
        return {"type": "redacted_thinking", "data": meta["data"]}
    # Thinking without its signature (an answer that was cut) is refused.
    return {"type": "thinking", "thinking": item["text"], "signature": meta["signature"]} if meta.get("signature") else None


def _fit_thinking(sent: dict[str, Any], wire: list[Said | Step]) -> None:
    """Make a wish for thinking acceptable: room for the answer beside it, and none at all in a tool loop that began without
    (with another provider): its first answer would have to begin with a thinking block."""
    thinking = sent.get("thinking")
    if not isinstance(thinking, dict) or thinking.get("type") == "disabled":
        return
    budget = thinking.get("budget_tokens")
    if isinstance(budget, int) and sent["max_tokens"] <= budget:
        sent["max_tokens"] = budget + _ROOM
    loop = None
    for item in reversed(wire):
        if isinstance(item, Said):
            break
        loop = item
    if loop is not None and thinking.get("type") == "enabled" and not _begins_thinking(loop):
        del sent["thinking"]


def _begins_thinking(step: Step) -> bool:
    first = _blocks(step)[0]
    return first["type"] in ("thinking", "redacted_thinking")


def _mark_cached(sent: dict[str, Any]) -> None:
    """Three places to cache up to: the instructions (or the tools), and the last two user messages, so that each call of a tool
    loop finds what the one before it wrote."""
    for name in ("system", "tools"):
        if isinstance(sent.get(name), list) and sent[name]:
            sent[name] = [*sent[name][:-1], {**sent[name][-1], "cache_control": _CACHED}]
            break
    users = [message for message in sent["messages"] if message["role"] == "user"]
    for message in users[-2:]:
        message["content"][-1]["cache_control"] = _CACHED


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **schema}
