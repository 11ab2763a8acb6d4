"""Chat Completions: OpenAI, OpenRouter, Ollama, llama.cpp, vLLM, LM Studio and the others that speak it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import urlsplit

from stead.agent.models.address import is_loopback
from stead.agent.models.base import Item, Request
from stead.agent.models.chat_stream import ChatDecoder, join_details
from stead.agent.models.files import as_text, encoded, is_image, is_pdf
from stead.agent.models.history import Call, Names, Said, Step, arrange
from stead.agent.models.http import HttpModel, exchange
from stead.core.jsontext import parse_foreign
from stead.core.parts import FilePart, Meta

_CACHED = {"type": "ephemeral"}


class ChatModel(HttpModel):
    """A connection to a server that speaks Chat Completions. `url` ends with its version (`…/v1`)."""

    own_family = "openai"

    async def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        """Call the model. Closing the generator closes the connection at once."""
        names = Names(request.tools)
        headers = {"authorization": f"Bearer {self._key}"} if self._key else {}
        payload = body(request, self.family, names, url=self._url)
        sent = _chars(payload["messages"]) if self.family == "ollama" or is_loopback(self._url) else 0
        decoder = ChatDecoder(request, self.family, names, self._ids, key=self._key, sent=sent)
        async with aclosing(exchange(self._client, f"{self._url}/chat/completions", headers, payload, decoder, self._key)) as items:
            async for item in items:
                yield item


def body(request: Request, family: str, names: Names, *, url: str = "") -> dict[str, Any]:
    """The request body. Keys of `request.options` go in as they are and win."""
    native = (urlsplit(url).hostname or "").endswith("openai.com")
    sent: dict[str, Any] = {
        "model": request.model,
        "messages": _messages(request, family, names, native=native),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if request.tools:
        sent["tools"] = [
            {
                "type": "function",
                "function": {"name": names.wire(tool.name), "description": tool.description, "parameters": tool.schema},
            }
            for tool in request.tools
        ]
    if request.max_output is not None:
        # OpenAI's newer models take only the long name; most other servers know only the short one.
        sent["max_completion_tokens" if native else "max_tokens"] = request.max_output
    if family == "openrouter":
        sent["usage"] = {"include": True}
    return {**sent, **request.options}


def _messages(request: Request, family: str, names: Names, *, native: bool) -> list[dict[str, Any]]:
    system, wire = arrange(request, family, names, strict_ids=False)
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    for item in wire:
        if isinstance(item, Said):
            messages.append(_user(request, family, item.items))
        else:
            messages.append(_assistant(request, item, native=native))
            messages += [{"role": "tool", "tool_call_id": call.id, "content": call.result} for call in item.calls]
            if files := [file for call in item.calls for file in call.files]:
                # A tool message holds only text here, so what tools show comes from the user's side right after.
                messages.append(_user(request, family, ["Files that the tools returned:", *files]))
    if family == "openrouter" and request.model.startswith("anthropic/"):
        _mark_cached(messages)
    return messages


def _user(request: Request, family: str, items: list[str | FilePart]) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    for item in items:
        content.append({"type": "text", "text": item} if isinstance(item, str) else _file(request, family, item))
    if all(piece["type"] == "text" for piece in content):
        return {"role": "user", "content": "\n\n".join(piece["text"] for piece in content)}
    return {"role": "user", "content": content}


def _file(request: Request, family: str, part: FilePart) -> dict[str, Any]:
    if is_image(part) and (data := encoded(request, part)) is not None:
        return {"type": "image_url", "image_url": {"url": f"data:{part['mime']};base64,{data}"}}
    if is_pdf(part) and family in ("openai", "openrouter") and (data := encoded(request, part)) is not None:
        return {"type": "file", "file": {"filename": part["name"], "file_data": f"data:application/pdf;base64,{data}"}}
    return {"type": "text", "text": as_text(request, part)}


def _assistant(request: Request, step: Step, *, native: bool) -> dict[str, Any]:
    spoken = [item for item in step.items if not isinstance(item, Call)]
    texts = [part for part in spoken if part["type"] == "text"]
    thoughts = [part for part in spoken if part["type"] == "reasoning"]
    message: dict[str, Any] = {"role": "assistant", "content": "".join(part["text"] for part in texts) or None}
    details: list[Any] = []
    for part in thoughts:
        meta = part.get("meta") or {}
        if "reasoning_details" in meta and _same_vendor(meta.get("model", ""), request.model):
            details += parse_foreign(meta["reasoning_details"])
    if details:
        message["reasoning_details"] = join_details(details)
    if step.calls:
        message["tool_calls"] = [_tool_call(call) for call in step.calls]
        # Thinking with calls is asked back by the open models that give it as plain text; OpenAI itself never gives it.
        plain = [part for part in thoughts if "reasoning_details" not in (part.get("meta") or {})]
        same: list[tuple[Meta, str]] = [(part.get("meta") or {}, part["text"]) for part in plain]
        said = [(meta.get("field", "reasoning"), text) for meta, text in same if meta.get("model") == request.model]
        if said and not native:
            message[said[0][0]] = "".join(text for _, text in said)
    return message


def _tool_call(call: Call) -> dict[str, Any]:
    sent: dict[str, Any] = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if "extra_content" in call.meta:
        sent["extra_content"] = parse_foreign(call.meta["extra_content"])
    return sent


def _chars(value: Any) -> int:
    """Characters of the text in messages; a picture's data is not text."""
    if isinstance(value, str):
        return 0 if value.startswith("data:") else len(value)
    if isinstance(value, dict):
        return sum(_chars(value[name]) for name in ("content", "text", "tool_calls", "function", "arguments") if name in value)
    return sum(_chars(item) for item in value) if isinstance(value, list) else 0


def _same_vendor(left: str, right: str) -> bool:
    """Whether two OpenRouter models come from one house: a signature of one means nothing to another."""
    return left == right or ("/" in left and left.split("/")[0] == right.split("/")[0])


def _mark_cached(messages: list[dict[str, Any]]) -> None:
    """Anthropic behind OpenRouter caches only where it is told to: after the instructions and after the newest user message."""
    users = [message for message in messages if message["role"] == "user"]
    for message in [m for m in messages[:1] if m["role"] == "system"] + users[-1:]:
        content = message["content"]
        pieces: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        pieces[-1]["cache_control"] = _CACHED
        message["content"] = pieces
