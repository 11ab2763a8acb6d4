"""Gemini: streamGenerateContent of the Generative Language API (v1beta)."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

from stead.agent.models.base import Item, Request
from stead.agent.models.files import as_text, encoded, is_image, is_pdf
from stead.agent.models.gemini_schema import cleaned
from stead.agent.models.gemini_stream import GeminiDecoder
from stead.agent.models.history import Call, Names, Said, Step, arguments_of, arrange
from stead.agent.models.http import HttpModel, exchange
from stead.core.jsontext import parse_foreign
from stead.core.parts import FilePart, Meta, ReasoningPart, TextPart

STAND_IN = "skip_thought_signature_validator"
"""What Google documents as the signature of a function call that its model did not make itself."""


class GeminiModel(HttpModel):
    """A connection to the Gemini API. `url` is its bare origin."""

    own_family = "gemini"

    async def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        """Call the model. Closing the generator closes the connection at once."""
        names = Names(request.tools)
        decoder = GeminiDecoder(request, self.family, names, self._ids, key=self._key)
        model = request.model if "/" in request.model else f"models/{request.model}"
        url = f"{self._url}/v1beta/{quote(model, safe='/')}:streamGenerateContent?alt=sse"
        headers = {"x-goog-api-key": self._key} if self._key else {}
        payload = body(request, self.family, names)
        async with aclosing(exchange(self._client, url, headers, payload, decoder, self._key)) as items:
            async for item in items:
                yield item


def body(request: Request, family: str, names: Names) -> dict[str, Any]:
    """The request body. `request.options` is merged into it, mapping by mapping, and wins."""
    system, wire = arrange(request, family, names)
    contents: list[dict[str, Any]] = []
    for item in wire:
        if isinstance(item, Said):
            contents.append({"role": "user", "parts": [_spoken(request, said) for said in item.items]})
        else:
            contents.append({"role": "model", "parts": _model_parts(item, signed=needs_signatures(request.model))})
            if item.calls:
                contents.append({"role": "user", "parts": _results(request, item.calls)})
    sent: dict[str, Any] = {"contents": contents}
    if system:
        sent["systemInstruction"] = {"parts": [{"text": system}]}
    if request.tools:
        declarations = [_declaration(names, tool.name, tool.description, tool.schema) for tool in request.tools]
        sent["tools"] = [{"functionDeclarations": declarations}]
    config: dict[str, Any] = {}
    if request.max_output is not None:
        config["maxOutputTokens"] = request.max_output
    if _thinks(request.model):
        config["thinkingConfig"] = {"includeThoughts": True}
    if config:
        sent["generationConfig"] = config
    return _merged(sent, request.options)


def needs_signatures(model: str) -> bool:
    """Whether the model refuses function calls without a signature: Gemini 3 and later, and names that tell no number."""
    found = re.search(r"gemini-(\d+)", model)
    return int(found[1]) >= 3 if found else "gemini" in model


def _thinks(model: str) -> bool:
    found = re.search(r"gemini-(\d+)(?:\.(\d+))?", model)
    if not found or re.search(r"image|tts|live|audio|embedding", model):
        return False
    return (int(found[1]), int(found[2] or 0)) >= (2, 5)


def _declaration(names: Names, name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    declared: dict[str, Any] = {"name": names.wire(name), "description": description}
    parameters = cleaned(schema)
    if parameters.get("properties"):  # an object without properties is refused; no parameters at all is right for it
        declared["parameters"] = parameters
    return declared


def _spoken(request: Request, said: str | FilePart) -> dict[str, Any]:
    return {"text": said} if isinstance(said, str) else _file(request, said)


def _file(request: Request, part: FilePart) -> dict[str, Any]:
    if (is_image(part) or is_pdf(part)) and (data := encoded(request, part)) is not None:
        return {"inlineData": {"mimeType": part["mime"], "data": data}}
    return {"text": as_text(request, part)}


def _results(request: Request, calls: list[Call]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {
            "functionResponse": {
                "id": call.id,
                "name": call.name,
                "response": {"error" if call.failed else "output": call.result},
            }
        }
        for call in calls
    ]
    return parts + [_file(request, file) for call in calls for file in call.files]


def _model_parts(step: Step, *, signed: bool) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for item in step.items:
        if isinstance(item, Call):
            parts.append({"functionCall": {"id": item.id, "name": item.name, "args": arguments_of(item)}} | _signature(item.meta))
        else:
            parts += _text_parts(item)
    calls = [part for part in parts if "functionCall" in part]
    if signed and calls and not any("thoughtSignature" in part for part in calls):
        calls[0]["thoughtSignature"] = STAND_IN
    return parts


def _text_parts(item: TextPart | ReasoningPart) -> list[dict[str, Any]]:
    """A text as it was on the wire: what came before the signed piece, and that piece."""
    meta: Meta = item.get("meta") or {}
    if "block" in meta:
        return [parse_foreign(meta["block"])]
    thought = {"thought": True} if item["type"] == "reasoning" else {}
    if "signature" not in meta:
        return [{"text": item["text"], **thought}]
    at = min(int(meta.get("at", "0")), len(item["text"]))
    before, piece = item["text"][:at], item["text"][at:]
    parts: list[dict[str, Any]] = [{"text": before, **thought}] if before else []
    return [*parts, {"text": piece, **thought, **_signature(meta)}]


def _signature(meta: Meta) -> dict[str, Any]:
    return {"thoughtSignature": meta["signature"]} if meta.get("signature") else {}


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for name, value in more.items():
        old = merged.get(name)
        merged[name] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
