"""Reading a Chat Completions stream, with the habits of the many servers that speak it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stead.agent.models.answer import Answer, Growing, is_object, reasoning_part, settle, text_part, tool_part
from stead.agent.models.base import Finish, Finished, Item, Request
from stead.agent.models.chat_usage import cost_of, stated, usage_of
from stead.agent.models.count import estimate
from stead.agent.models.errors import cut, in_stream
from stead.agent.models.history import Names
from stead.agent.models.http import decode
from stead.agent.models.sse import Event
from stead.core.ids import Ids
from stead.core.jsontext import dump_foreign, parse_foreign
from stead.core.parts import Meta, Tokens

_FINISH: dict[str, Finish] = {
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "safety": "content_filter",
}
# A prompt of this many characters or more that was counted as far fewer tokens than any text has was cut by the server.
_LONG = 4_000
_CHARS_PER_TOKEN = 6


class ChatDecoder:
    """State of one answer. `sent`: characters of text that were sent, given where the server is one whose context size the user
    sets, so that it may cut a prompt silently; 0 elsewhere."""

    def __init__(self, request: Request, family: str, names: Names, ids: Ids, *, key: str | None = None, sent: int = 0) -> None:
        self.done = False
        self.answered = False  # a finish reason was seen: only usage and the end mark are missing
        self._request, self._family, self._names, self._ids, self._key, self._sent = request, family, names, ids, key, sent
        self._answer = Answer()
        self._open: Growing | None = None  # the text or reasoning part that grows
        self._calls: list[_Call] = []
        self._at: dict[int, _Call] = {}
        self._finish: Finish = "stop"
        self._usage: dict[str, Any] | None = None
        self._model: str | None = None

    def feed(self, event: Event) -> Iterator[Item]:
        """The items of one chunk."""
        if event.data.strip() == "[DONE]":
            self.done = True
            return
        if not event.data.strip():
            return
        chunk = decode(event.data)
        if not isinstance(chunk, dict):
            return
        if chunk.get("error"):
            raise in_stream(chunk, key=self._key, tokens=self.tokens())
        self._usage = stated(chunk) or self._usage
        self._model = chunk.get("model") or self._model
        choices = chunk.get("choices") or ()
        if choices and isinstance(choices[0], dict):
            yield from self._choice(choices[0], event.data)

    def end(self) -> Iterator[Item]:
        """Close everything and finish; a text without a finish reason was cut, whatever else the stream said."""
        if not (self.answered or (self.done and self._calls)):  # the end mark alone ends no text: calls speak for themselves
            raise cut("the stream ended without a finish reason", self.tokens())
        for call in self._calls:
            yield from self._name(call, call.name)
        if self._open:
            yield from self._answer.close(self._open)
        finish = settle(self._finish, self._answer)
        yield from self._answer.close_all(finish)
        yield Finished(
            finish,
            self.tokens() or estimate(self._request, 0),
            estimated=self._usage is None,
            model=self._model,
            cost=cost_of(self._usage),
            warnings=self._warnings(),
        )

    def tokens(self) -> Tokens | None:
        """The provider's usage, else an estimate from what was sent and came."""
        if self._usage is not None:
            return usage_of(self._usage)
        if not self._answer.parts:
            return None
        thought = sum(len(part.text) for part in self._answer.parts if part.kind == "reasoning")
        return estimate(self._request, self._answer.size - thought, thought)

    def _choice(self, choice: dict[str, Any], raw: str) -> Iterator[Item]:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            delta = choice.get("message") if isinstance(choice.get("message"), dict) and not self._answer.parts else {}
        assert isinstance(delta, dict)
        yield from self._reasoning(delta, raw)
        for kind, text in _texts(delta.get("content")):
            yield from self._grow(kind, text)
        if isinstance(refusal := delta.get("refusal"), str) and refusal:
            self._finish = "content_filter"
            yield from self._grow("text", refusal)
        calls = delta.get("tool_calls") or ()
        if isinstance(old := delta.get("function_call"), dict):
            calls = [{"index": 0, "function": old}]
        if calls:
            if _needs_exact(calls):
                calls = _exact(raw).get("tool_calls") or calls
            for call in calls:
                if isinstance(call, dict):
                    yield from self._call(call)
        if choice.get("error"):
            raise in_stream(choice, key=self._key, tokens=self.tokens())
        if reason := choice.get("finish_reason"):
            self.answered = True
            self._finish = _FINISH.get(str(reason).lower(), self._finish)

    def _reasoning(self, delta: dict[str, Any], raw: str) -> Iterator[Item]:
        field = "reasoning_content" if delta.get("reasoning_content") else "reasoning"
        text = delta.get(field)
        text = text if isinstance(text, str) else ""
        if details := delta.get("reasoning_details"):
            details = _exact(raw).get("reasoning_details") or details
            text = text or "".join(_words(item) for item in details if isinstance(item, dict))
        if not text and not details:
            return
        yield from self._grow("reasoning", text, field=field)
        if details and self._open:
            known = parse_foreign(self._open.meta.get("reasoning_details", "[]"))
            self._open.meta["reasoning_details"] = dump_foreign(join_details([*known, *details]))

    def _grow(self, kind: str, text: str, field: str | None = None) -> Iterator[Item]:
        if self._open is None or self._open.kind != kind or self._open.closed:
            if self._open:
                yield from self._answer.close(self._open)
            meta: Meta = {"family": self._family, "model": self._request.model, "field": field or "reasoning"}
            part = text_part() if kind == "text" else reasoning_part()
            self._open, opened = self._answer.begin(part, meta if kind == "reasoning" else None)
            yield opened
        yield from self._answer.grow(self._open, text)

    def _call(self, delta: dict[str, Any]) -> Iterator[Item]:
        function = delta.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name") if isinstance(function.get("name"), str) else ""
        given = function.get("arguments")
        text = given if isinstance(given, str) else dump_foreign(given) if isinstance(given, dict) else ""
        call = self._find(delta, name or "", text)
        if call.whole:  # the server repeats a call that is complete
            return
        if not call.id and isinstance(delta.get("id"), str):
            call.id = delta["id"]
        call.name = call.name or name or ""
        if extra := delta.get("extra_content"):
            call.extra = dump_foreign(extra)
        if text.strip() and call.waiting.strip() == "{}":  # a server's stand-in for arguments that were still to come
            call.waiting = ""
        call.waiting += text
        if call.name:
            yield from self._name(call, call.name, more=True)

    def _name(self, call: _Call, name: str, *, more: bool = False) -> Iterator[Item]:
        """Open the call's part once its name is known, and hand on the arguments that came. With `more` to come, an empty object
        that they begin with is held back."""
        if call.part is None:
            if self._open:
                yield from self._answer.close(self._open)
                self._open = None
            part = tool_part(call.id or f"call_{self._ids.new()}", self._names.real(name))
            call.part, opened = self._answer.begin(part)
            yield opened
        if call.extra:
            call.part.meta.update(family=self._family, extra_content=call.extra)
        if more and not call.part.text and call.waiting.strip() == "{}":
            return
        text, call.waiting = call.waiting, ""
        yield from self._answer.grow(call.part, text)

    def _find(self, delta: dict[str, Any], name: str, text: str) -> _Call:
        """The call that a delta belongs to. Servers leave out the index, set it to null or 0 for all, repeat the id or change
        it; what tells calls apart for certain is a name that comes with a new id or after complete arguments."""
        index, given = delta.get("index"), delta.get("id") or ""
        known: _Call | None
        if isinstance(index, int):
            known = self._at.get(index)
        elif given:
            known = next((call for call in reversed(self._calls) if call.id == given), None)
            if known is None and not name:  # an id that changes from chunk to chunk
                known = self._calls[-1] if self._calls else None
        else:
            known = self._calls[-1] if self._calls else None
        if known is None or self._another(known, given, name, text):
            known = _Call()
            self._calls.append(known)
            if isinstance(index, int):
                self._at[index] = known
        return known

    def _another(self, known: _Call, given: str, name: str, text: str) -> bool:
        known.whole = False
        if not name:
            return False
        if given and known.id and given != known.id:
            return True
        if not text.lstrip().startswith("{"):  # first what is quick: some servers repeat the name with every piece
            return False
        so_far = known.arguments
        if not (so_far and is_object(so_far)):
            return False
        if given and given == known.id and name == known.name and text == so_far:
            known.whole = True
            return False
        return True

    def _warnings(self) -> tuple[str, ...]:
        sums = usage_of(self._usage or {})
        read = sums["input"] + sums["cache_read"] + sums["cache_write"]
        if read <= 0 or self._sent < max(_LONG, read * _CHARS_PER_TOKEN):
            return ()
        return (
            f"The server read only {read} tokens of a prompt of about {self._sent // 4}: it cut the beginning"
            " to fit its context size. Raise it (Ollama: OLLAMA_CONTEXT_LENGTH or num_ctx; llama.cpp: --ctx-size).",
        )


class _Call:
    """A tool call of which parts have come. It has a part once its name is known."""

    def __init__(self) -> None:
        self.id = ""
        self.name = ""
        self.extra = ""
        self.waiting = ""
        self.whole = False
        self.part: Growing | None = None

    @property
    def arguments(self) -> str:
        return (self.part.text if self.part else "") + self.waiting


def join_details(details: list[Any]) -> list[Any]:
    """OpenRouter's reasoning details as whole blocks: pieces of the same block joined, everything else as it came."""
    whole: list[Any] = []
    for item in details:
        last = whole[-1] if whole else None
        if not (isinstance(item, dict) and isinstance(last, dict) and _same_block(last, item)):
            whole.append(dict(item) if isinstance(item, dict) else item)
            continue
        for name, value in item.items():
            if name in ("text", "summary") and isinstance(value, str) and isinstance(last.get(name), str):
                last[name] += value
            elif value is not None or name not in last:
                last[name] = value
    return whole


def _same_block(last: dict[str, Any], item: dict[str, Any]) -> bool:
    if item.get("type") not in ("reasoning.text", "reasoning.summary") or last.get("type") != item.get("type"):
        return False
    if last.get("signature"):  # a signature ends its block
        return False
    return bool(last.get("index") == item.get("index") and (not item.get("id") or last.get("id") in (None, item["id"])))


def _words(detail: dict[str, Any]) -> str:
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""


def _texts(content: Any) -> Iterator[tuple[str, str]]:
    """Content as (kind, text); Mistral sends it as a list of chunks with thinking among them."""
    if isinstance(content, str):
        if content:
            yield "text", content
    elif isinstance(content, list):
        for chunk in content:
            if isinstance(chunk, dict) and chunk.get("type") == "thinking":
                for _, text in _texts(chunk.get("thinking")):
                    yield "reasoning", text
            elif isinstance(chunk, dict) and isinstance(chunk.get("text"), str) and chunk["text"]:
                yield "text", chunk["text"]


def _needs_exact(calls: Any) -> bool:
    """Whether a value is among the calls that must not lose digits to the fast parser."""
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict) and ("extra_content" in call or isinstance(function.get("arguments"), dict)):
            return True
    return False


def _exact(raw: str) -> dict[str, Any]:
    """The first choice's delta, parsed exactly."""
    choice = parse_foreign(raw)["choices"][0]
    delta = choice.get("delta") or choice.get("message")
    return delta if isinstance(delta, dict) else {}
