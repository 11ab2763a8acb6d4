"""Reading an Anthropic Messages stream: one part for each block, in order, nothing of a block lost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stead.agent.models.answer import Answer, Growing, is_object, reasoning_part, settle, text_part, tool_part
from stead.agent.models.base import Finish, Finished, Item, Request
from stead.agent.models.count import counted, estimate
from stead.agent.models.errors import cut, in_stream
from stead.agent.models.history import Names
from stead.agent.models.http import decode
from stead.agent.models.sse import Event
from stead.core.ids import Ids
from stead.core.jsontext import dump_foreign, parse_foreign
from stead.core.parts import Tokens

_FINISH: dict[str, Finish] = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_PAUSED = "The provider paused a long answer; a further message lets it go on."


class AnthropicDecoder:
    """State of one answer. Blocks of a kind that stead does not know itself (server tools) become reasoning parts that keep the
    whole block as JSON text in `meta["block"]`."""

    def __init__(self, request: Request, family: str, names: Names, ids: Ids, *, key: str | None = None) -> None:
        self.done = False
        self.answered = False
        self._request, self._family, self._names, self._ids, self._key = request, family, names, ids, key
        self._answer = Answer()
        self._blocks: dict[int, Growing] = {}
        self._raw: dict[int, dict[str, Any]] = {}  # opaque blocks as they grow, by part number
        self._usage: dict[str, Any] = {}
        self._reason: str | None = None
        self._stop: str | None = None
        self._model: str | None = None

    def feed(self, event: Event) -> Iterator[Item]:
        """The items of one event."""
        value = decode(event.data)
        if not isinstance(value, dict):
            return
        kind = value.get("type")
        if kind == "content_block_delta":
            if (part := self._blocks.get(value.get("index", -1))) and isinstance(delta := value.get("delta"), dict):
                yield from self._delta(part, delta, event.data)
        elif kind == "content_block_start":
            yield from self._start(parse_foreign(event.data))
        elif kind == "content_block_stop":
            if part := self._blocks.pop(value.get("index", -1), None):
                yield from self._stop_block(part)
        elif kind == "message_start":
            message = value.get("message") or {}
            self._model = message.get("model")
            self._take_usage(message.get("usage"))
        elif kind == "message_delta":
            delta = value.get("delta") or {}
            self._reason = delta.get("stop_reason") or self._reason
            self._stop = delta.get("stop_sequence") or self._stop
            self._take_usage(value.get("usage"))
            self.answered = self._reason is not None
        elif kind == "message_stop":
            self.done = True
        elif kind == "error":
            raise in_stream(value, key=self._key, tokens=self.tokens())

    def end(self) -> Iterator[Item]:
        """Close everything and finish; without the provider's own end the answer was cut."""
        if not (self.done or self.answered):
            raise cut("the stream ended without message_stop", self.tokens())
        finish = settle(_FINISH.get(self._reason or "", "stop"), self._answer)
        for index in sorted(self._blocks):
            part = self._blocks[index]
            if part.n in self._raw:
                yield from self._stop_block(part)
        yield from self._answer.close_all(finish)
        yield Finished(
            finish,
            self.tokens() or estimate(self._request, 0),
            estimated=not self._usage,
            stop_sequence=self._stop,
            model=self._model,
            warnings=(_PAUSED,) if self._reason == "pause_turn" else (),
        )

    def tokens(self) -> Tokens | None:
        """The newest usage; its output count lags behind until the answer is complete."""
        if not self._usage:
            return estimate(self._request, self._answer.size) if self._answer.parts else None
        tokens = usage_of(self._usage)
        if not self.answered:
            came = estimate(self._request, self._answer.size)["output"]
            tokens["output"] = max(tokens["output"], came)
        return tokens

    def _take_usage(self, usage: Any) -> None:
        """Newer values replace older ones, class by class; they are never added."""
        if isinstance(usage, dict):
            self._usage.update({name: value for name, value in usage.items() if value is not None})

    def _start(self, value: dict[str, Any]) -> Iterator[Item]:
        block = value.get("content_block") or {}
        kind = block.get("type")
        first = ""
        if kind == "text":
            part, opened = self._answer.begin(text_part())
            first = block.get("text") or ""
            if block.get("citations"):
                part.meta.update(family=self._family, citations=dump_foreign(block["citations"]))
        elif kind == "thinking":
            part, opened = self._answer.begin(reasoning_part(), {"family": self._family, "signature": block.get("signature") or ""})
            first = block.get("thinking") or ""
        elif kind == "redacted_thinking":
            part, opened = self._answer.begin(reasoning_part(), {"family": self._family, "data": block.get("data") or ""})
        elif kind == "tool_use":
            call = block.get("id") or f"toolu_{self._ids.new()}"
            part, opened = self._answer.begin(tool_part(call, self._names.real(str(block.get("name", "")))))
            self._keep_rest(part, block)
        else:
            part, opened = self._answer.begin(reasoning_part(), {"family": self._family})
            self._raw[part.n] = dict(block)
            first = f"[{block.get('name') or kind}]"  # so that a person sees that something happened here
        self._blocks[value.get("index", -1)] = part
        yield opened
        yield from self._answer.grow(part, first)

    def _keep_rest(self, part: Growing, block: dict[str, Any]) -> None:
        """What a tool_use block has beside id, name and input goes back as it came; a complete input may stand here too."""
        rest = {name: value for name, value in block.items() if name not in ("type", "id", "name", "input")}
        if rest:
            part.meta.update(family=self._family, block=dump_foreign(rest))
        if block.get("input"):
            part.meta["input"] = dump_foreign(block["input"])  # until it is known whether deltas follow

    def _delta(self, part: Growing, delta: dict[str, Any], raw: str) -> Iterator[Item]:
        kind = delta.get("type")
        if part.n in self._raw:
            self._grow_raw(part, parse_foreign(raw)["delta"])
        elif kind == "text_delta":
            yield from self._answer.grow(part, delta.get("text") or "")
        elif kind == "thinking_delta":
            yield from self._answer.grow(part, delta.get("thinking") or "")
        elif kind == "input_json_delta":
            yield from self._answer.grow(part, delta.get("partial_json") or "")
        elif kind == "signature_delta":
            part.meta["signature"] = part.meta.get("signature", "") + (delta.get("signature") or "")
        elif kind == "citations_delta":
            known = parse_foreign(part.meta.get("citations", "[]"))
            known.append(parse_foreign(raw)["delta"].get("citation"))
            part.meta.update(family=self._family, citations=dump_foreign(known))

    def _grow_raw(self, part: Growing, delta: dict[str, Any]) -> None:
        block = self._raw[part.n]
        if delta.get("type") == "input_json_delta":
            part.meta["input"] = part.meta.get("input", "") + (delta.get("partial_json") or "")
            return
        for name, value in delta.items():
            if name == "type":
                continue
            old = block.get(name)
            block[name] = old + value if isinstance(old, str) and isinstance(value, str) else value

    def _stop_block(self, part: Growing) -> Iterator[Item]:
        given = part.meta.pop("input", "")
        if part.n in self._raw:
            block = self._raw.pop(part.n)
            if given and is_object(given):
                block["input"] = parse_foreign(given)
            part.meta["block"] = dump_foreign(block)
        elif part.kind == "tool":
            if not part.text and given:
                yield from self._answer.grow(part, given)
            if not part.text or not is_object(part.text):
                return  # whether it was cut is known when the reason of the end is: `end` closes it
        yield from self._answer.close(part)


def usage_of(usage: dict[str, Any]) -> Tokens:
    """Anthropic's usage as five classes: its input count leaves cached tokens out; thinking is part of the output count, and
    only newer answers say how much of it."""
    details = usage.get("output_tokens_details") or {}
    output = counted(usage.get("output_tokens"))
    reasoning = min(counted(details.get("thinking_tokens")), output)
    return {
        "input": counted(usage.get("input_tokens")),
        "cache_read": counted(usage.get("cache_read_input_tokens")),
        "cache_write": counted(usage.get("cache_creation_input_tokens")),
        "output": output - reasoning,
        "reasoning": reasoning,
    }
