"""The recorded traffic of real providers: what they hold by the plainest reading, and copies made for a purpose."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

KINDS = {"openai-chat": "openai", "openrouter": "openrouter", "anthropic": "anthropic", "gemini": "gemini"}
OWN_PATH = {"openai": "/v1", "openrouter": "/api/v1", "anthropic": "", "gemini": ""}
"""What follows the cassette's name in a provider's address."""

_NO_TOKENS = {"input": 0, "cache_read": 0, "cache_write": 0, "output": 0, "reasoning": 0}


@dataclass
class Said:
    """What a stream says: words of a kind (text, thinking, other) with neighbours of one kind joined, calls as (name, arguments),
    and tokens in classes that do not overlap."""

    words: list[tuple[str, str]] = field(default_factory=list)
    calls: list[tuple[str, Any]] = field(default_factory=list)
    tokens: dict[str, int] = field(default_factory=lambda: dict(_NO_TOKENS))

    def say(self, kind: str, words: str | None) -> None:
        if words is not None and self.words and self.words[-1][0] == kind:
            words = self.words.pop()[1] + words
        if words or kind == "other":
            self.words.append((kind, words or ""))

    def all(self, kind: str) -> str:
        return "".join(words for one, words in self.words if one == kind)

    @property
    def answer(self) -> str:
        """What a person reads: texts that touch are one text, whatever else stands between them parts them."""
        return "\n\n".join(words for kind, words in self.words if kind == "text")


def kind_of(name: str) -> str:
    return KINDS[name.partition("__")[0]]


@cache
def interactions(folder: Path, name: str) -> list[dict[str, Any]]:
    with (folder / f"{name}.yaml").open("rb") as file:
        return list(yaml.load(file, getattr(yaml, "CSafeLoader", yaml.SafeLoader))["interactions"])


def body_of(item: dict[str, Any]) -> dict[str, Any]:
    """The recorded request."""
    return dict(item["request"].get("parsed_body") or json.loads(item["request"]["body"]))


def stream_of(item: dict[str, Any]) -> bytes:
    """The recorded answer, byte for byte."""
    text = item["response"]["body"]["string"]
    return text.encode() if isinstance(text, str) else bytes(text)


def model_of(item: dict[str, Any]) -> str:
    return str(body_of(item).get("model") or urlsplit(item["request"]["uri"]).path.rpartition("/")[2].partition(":")[0])


def prompt_of(item: dict[str, Any]) -> str:
    """The words of the recorded request's last message."""
    body = body_of(item)
    last = (body.get("messages") or body["contents"])[-1]
    content = last.get("content") or last["parts"]
    return content if isinstance(content, str) else str(content[0]["text"])


def read(kind: str, stream: bytes) -> Said:
    """A stream by the plainest reading there is: a witness that shares nothing with stead. An event without its end is left out."""
    said = Said()
    calls: dict[int, list[str]] = {}
    for block in stream.replace(b"\r\n", b"\n").split(b"\n\n")[:-1]:
        data = b"".join(line[5:] for line in block.split(b"\n") if line.startswith(b"data:"))
        if data and data.strip() != b"[DONE]":
            {"anthropic": _anthropic, "gemini": _gemini}.get(kind, _chat)(json.loads(data), said, calls)
    said.calls += [(name, json.loads(arguments or "{}")) for name, arguments in calls.values()]
    return said


def _chat(value: dict[str, Any], said: Said, calls: dict[int, list[str]]) -> None:
    for choice in value["choices"]:
        delta = choice["delta"]
        said.say("thinking", delta.get("reasoning"))
        said.say("text", delta.get("content"))
        for call in delta.get("tool_calls") or []:
            known = calls.setdefault(call["index"], ["", ""])
            known[0] += call["function"].get("name") or ""
            known[1] += call["function"].get("arguments") or ""
    if usage := value.get("usage"):
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
        said.tokens.update(input=usage["prompt_tokens"] - cached, cache_read=cached)
        said.tokens.update(output=usage["completion_tokens"] - thought, reasoning=thought)


def _anthropic(value: dict[str, Any], said: Said, calls: dict[int, list[str]]) -> None:
    start, delta = value.get("content_block") or {}, value.get("delta") or {}
    said.say("thinking", delta.get("thinking"))
    said.say("text", delta.get("text"))
    if start.get("type") not in (None, "text", "thinking"):
        said.say("other", "")
    if start.get("type") == "tool_use":
        calls[value["index"]] = [start["name"], ""]
    if value.get("index") in calls:
        calls[value["index"]][1] += delta.get("partial_json", "")
    usage = value.get("usage") or (value.get("message") or {}).get("usage") or {}
    for ours, theirs in (
        ("input", "input_tokens"),
        ("cache_read", "cache_read_input_tokens"),
        ("cache_write", "cache_creation_input_tokens"),
        ("output", "output_tokens"),
    ):
        said.tokens[ours] = usage.get(theirs, said.tokens[ours])


def _gemini(value: dict[str, Any], said: Said, calls: dict[int, list[str]]) -> None:
    for part in value["candidates"][0].get("content", {}).get("parts", []):
        if "functionCall" in part:
            said.calls.append((part["functionCall"]["name"], part["functionCall"]["args"]))
        else:
            said.say("thinking" if part.get("thought") else "text", part.get("text"))
    if usage := value.get("usageMetadata"):
        cached = usage.get("cachedContentTokenCount", 0)
        said.tokens.update(input=usage["promptTokenCount"] - cached, cache_read=cached)
        said.tokens.update(output=usage.get("candidatesTokenCount", 0), reasoning=usage.get("thoughtsTokenCount", 0))


def write(folder: Path, name: str, items: list[dict[str, Any]]) -> None:
    """A cassette for the replay server."""
    (folder / f"{name}.yaml").write_text(yaml.safe_dump({"interactions": items}, allow_unicode=True), encoding="utf-8")
