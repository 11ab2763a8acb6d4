"""Reading a Gemini stream: each signature stays with the very part that it came with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stead.agent.models.answer import Answer, Growing, reasoning_part, settle, text_part, tool_part
from stead.agent.models.base import Finish, Finished, Item, ProviderError, Request
from stead.agent.models.count import counted, estimate
from stead.agent.models.errors import clean, cut, in_stream
from stead.agent.models.history import Names
from stead.agent.models.http import decode
from stead.agent.models.sse import Event
from stead.core.ids import Ids
from stead.core.jsontext import dump_foreign, parse_foreign
from stead.core.parts import Meta, Tokens

_WITHHELD = frozenset(
    {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "LANGUAGE", "MODEL_ARMOR"}
)
_FAILED = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MALFORMED_RESPONSE", "TOO_MANY_TOOL_CALLS"})


class GeminiDecoder:
    """State of one answer. A text or reasoning part keeps its signature in `meta["signature"]` and in `meta["at"]` where in the
    text the signed piece begins: on the wire that is a part of its own. Kinds that stead does not know (code execution, images)
    become reasoning parts with the whole part as JSON text in `meta["block"]`."""

    # This format has no mark behind which nothing comes, and some models repeat STOP in each chunk: read to the end.
    done = False
    answered = False

    def __init__(self, request: Request, family: str, names: Names, ids: Ids, *, key: str | None = None) -> None:
        self._request, self._family, self._names, self._ids, self._key = request, family, names, ids, key
        self._answer = Answer()
        self._open: Growing | None = None
        self._usage: dict[str, Any] = {}
        self._reason = ""
        self._message = ""
        self._model: str | None = None

    def feed(self, event: Event) -> Iterator[Item]:
        """The items of one chunk."""
        value = decode(event.data)
        if not isinstance(value, dict):
            return
        if value.get("error"):
            raise in_stream(value, key=self._key, tokens=self.tokens())
        self._model = value.get("modelVersion") or self._model
        if isinstance(usage := value.get("usageMetadata"), dict):
            self._usage.update(usage)
        candidates = value.get("candidates") or ()
        feedback = value.get("promptFeedback") or {}
        if feedback.get("blockReason") and not candidates:
            raise self._blocked(feedback)
        for candidate in candidates[:1]:
            for part in _parts(candidate, event.data):
                if isinstance(part, dict):
                    yield from self._part(part)
            self._reason = candidate.get("finishReason") or self._reason
            self._message = candidate.get("finishMessage") or self._message

    def end(self) -> Iterator[Item]:
        """Close everything and finish; without a finish reason the answer was cut."""
        if not self._reason:
            raise cut("the stream ended without a finish reason", self.tokens())
        if self._reason in _FAILED or (self._reason == "OTHER" and not self._answer.parts):
            # The model itself stumbled: another try usually goes well.
            words = clean(self._message, self._key)
            raise ProviderError(
                "provider_error",
                f"The model's answer was not usable ({self._reason}){': ' + words if words else '.'}",
                retryable=True,
                tokens=self.tokens(),
            )
        said: Finish = "content_filter" if self._reason in _WITHHELD else "length" if self._reason == "MAX_TOKENS" else "stop"
        finish = settle(said, self._answer)
        yield from self._answer.close_all(finish)
        yield Finished(finish, self.tokens() or estimate(self._request, 0), estimated=not self._usage, model=self._model)

    def tokens(self) -> Tokens | None:
        """The newest usage, else an estimate from what was sent and came."""
        if self._usage:
            return usage_of(self._usage)
        return estimate(self._request, self._answer.size) if self._answer.parts else None

    def _blocked(self, feedback: dict[str, Any]) -> ProviderError:
        words = clean(str(feedback.get("blockReasonMessage") or ""), self._key)
        return ProviderError(
            "content_filter",
            f"The provider refused the prompt ({feedback['blockReason']}){': ' + words if words else '.'}",
            tokens=self.tokens(),
        )

    def _part(self, part: dict[str, Any]) -> Iterator[Item]:
        signature = part.get("thoughtSignature") or part.get("thought_signature") or ""
        if isinstance(call := part.get("functionCall"), dict):
            yield from self._call(call, signature)
        elif isinstance(text := part.get("text"), str):
            yield from self._text("reasoning" if part.get("thought") else "text", text, signature)
        elif signature and set(part) <= {"thoughtSignature", "thought", "thought_signature"}:
            yield from self._text("text", "", signature)
        elif part:
            yield from self._shut()
            grown, opened = self._answer.begin(reasoning_part(), {"family": self._family, "block": dump_foreign(part)})
            yield opened
            yield from self._answer.grow(grown, f"[{next(iter(part))}]")
            yield from self._answer.close(grown)

    def _text(self, kind: str, text: str, signature: str) -> Iterator[Item]:
        if not text and not signature:
            return
        # A signature alone belongs to the part before it only where that is text; it never signs a thought.
        if self._open is None or self._open.kind != kind:
            yield from self._shut()
            meta: Meta | None = {"family": self._family} if kind == "reasoning" else None
            self._open, opened = self._answer.begin(text_part() if kind == "text" else reasoning_part(), meta)
            yield opened
        yield from self._answer.grow(self._open, text)
        if signature:
            at = len(self._open.text) - len(text)
            self._open.meta.update(family=self._family, signature=signature, at=str(at))
            yield from self._shut()  # what comes after it is another part

    def _call(self, call: dict[str, Any], signature: str) -> Iterator[Item]:
        yield from self._shut()
        meta: Meta = {"family": self._family}
        if signature:
            meta["signature"] = signature
        name = self._names.real(str(call.get("name") or ""))
        part, opened = self._answer.begin(tool_part(str(call.get("id") or f"call_{self._ids.new()}"), name), meta)
        yield opened
        yield from self._answer.grow(part, dump_foreign(call.get("args") or {}))
        yield from self._answer.close(part)

    def _shut(self) -> Iterator[Item]:
        if self._open:
            yield from self._answer.close(self._open)
            self._open = None


def _parts(candidate: dict[str, Any], raw: str) -> list[Any]:
    """The parts of the chunk `raw`; those that hold more than text parsed once more, with all digits."""
    parts: list[Any] = (candidate.get("content") or {}).get("parts") or []
    if all(isinstance(part, dict) and "text" in part for part in parts):
        return parts
    exact: list[Any] = parse_foreign(raw)["candidates"][0]["content"]["parts"]
    return exact


def usage_of(usage: dict[str, Any]) -> Tokens:
    """Gemini's usage as five classes: the prompt count includes cached tokens; thoughts are counted beside the candidates; what
    its own tools read comes on top. Servers that count otherwise are told by their total."""
    prompt, cached = counted(usage.get("promptTokenCount")), counted(usage.get("cachedContentTokenCount"))
    output, thoughts = counted(usage.get("candidatesTokenCount")), counted(usage.get("thoughtsTokenCount"))
    tools = counted(usage.get("toolUsePromptTokenCount"))
    more = counted(usage.get("totalTokenCount")) - prompt - tools - output
    if cached > prompt or (cached > 0 and more == cached + thoughts):
        prompt += cached
    elif more == 0 and 0 < thoughts <= output:
        output -= thoughts
    return {
        "input": prompt - cached + tools,
        "cache_read": cached,
        "cache_write": 0,
        "output": output,
        "reasoning": thoughts,
    }
