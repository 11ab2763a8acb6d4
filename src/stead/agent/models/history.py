"""From stored turns to what a model may be sent: valid whatever happened, and the stored parts untouched.

Each encoder gets a list of `Said` (user) and `Step` (one answer with its calls and their results). What holds for it: it begins
with `Said` and does not end with an open answer; every call has exactly one result; ids and names are valid and unique;
reasoning is the provider family's own and is followed by what it led to; no text is blank.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, cast

from stead.agent.models.answer import is_object
from stead.agent.models.base import Request, ToolSpec, Turn
from stead.core.jsontext import dump_foreign, parse_foreign, shown, shown_deep
from stead.core.parts import CompactionPart, FilePart, Meta, Part, ReasoningPart, TextPart, ToolPart, issue, known

_OPENING = "(The beginning of this conversation is not shown.)"
_CONTINUE = "Continue."


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call with its result. `arguments` is the text of a JSON object; `meta` is empty when it is another family's."""

    id: str
    name: str
    arguments: str
    result: str
    failed: bool
    files: list[FilePart]
    meta: Meta


@dataclass(slots=True)
class Step:
    """One answer of the model, in its order."""

    items: list[TextPart | ReasoningPart | Call]

    @property
    def calls(self) -> list[Call]:
        """The tool calls of this answer."""
        return [item for item in self.items if isinstance(item, Call)]


@dataclass(slots=True)
class Said:
    """What the user's side says: texts and files."""

    items: list[str | FilePart] = field(default_factory=list)


class Names:
    """Tool names as the wire allows them, and back. Two tools never share one."""

    def __init__(self, tools: list[ToolSpec], limit: int = 64) -> None:
        self._limit = limit
        self._wire: dict[str, str] = {}
        self._real: dict[str, str] = {}
        for tool in tools:  # those that are valid as they are keep their names, whatever the others turn into
            if _word(tool.name, limit) == tool.name:
                self.wire(tool.name)
        for tool in tools:
            self.wire(tool.name)

    def wire(self, name: str) -> str:
        """The name to send for the tool `name`."""
        if name not in self._wire:
            sent = _unique(_word(name, self._limit) or "tool", self._real, self._limit)
            self._wire[name] = sent
            self._real[sent] = name
        return self._wire[name]

    def real(self, name: str) -> str:
        """The tool that the model means by `name`; an unknown name stays."""
        return self._real.get(name, name)


def arrange(request: Request, family: str, names: Names, *, strict_ids: bool = True) -> tuple[str, list[Said | Step]]:
    """The instructions and the conversation of `request` for a provider of `family`. With `strict_ids` call ids have only
    letters, digits, `_` and `-`; without, whatever is printable."""
    used: dict[str, str] = {}
    wire: list[Said | Step] = []
    for turn in after_compaction(request.turns):
        if turn.role == "system":
            continue
        if turn.role == "user":
            _add(wire, Said(_said(turn.parts)))
            continue
        for segment, notes in _segments(turn.parts):
            _add(wire, Step(_answer(segment, family, names, used, strict_ids)))
            _add(wire, Said(list(notes)))
    if not wire or isinstance(wire[0], Step):
        wire.insert(0, Said([_OPENING if wire else _CONTINUE]))
    last = wire[-1]
    if isinstance(last, Step) and not last.calls:
        wire.append(Said([_CONTINUE]))
    return _instructions(request), wire


def own(part: TextPart | ReasoningPart | ToolPart, family: str) -> Meta:
    """The part's provider data when it is of `family`, else nothing."""
    meta = part.get("meta") or {}
    return meta if meta.get("family") == family else {}


def arguments_of(call: Call) -> dict[str, Any]:
    """A call's arguments as a value, integers of any size exact."""
    return cast(dict[str, Any], parse_foreign(call.arguments))


def _instructions(request: Request) -> str:
    texts = [request.system] + [
        part["text"]
        for turn in request.turns
        if turn.role == "system"
        for part in turn.parts
        if (part["type"] == "text" or part["type"] == "notice") and _sound(part)
    ]
    return shown("\n\n".join(text for text in texts if text.strip()))


def after_compaction(turns: list[Turn]) -> list[Turn]:
    """The turns with everything before the newest compaction replaced by its summary."""
    for at in range(len(turns) - 1, -1, -1):
        for n in range(len(turns[at].parts) - 1, -1, -1):
            part = turns[at].parts[n]
            if part["type"] == "compaction" and _sound(part):
                kept = Turn(turns[at].role, turns[at].parts[n + 1 :])
                return [Turn("user", [_summary(part)]), kept, *turns[at + 1 :]]
    return turns


def _summary(part: CompactionPart) -> TextPart:
    return {"type": "text", "text": f"Summary of the conversation up to here:\n\n{part['summary']}"}


def _sound(part: Part) -> bool:
    fields = cast(dict[str, Any], part)
    return known(fields) and issue(fields) is None


def _said(parts: list[Part]) -> list[str | FilePart]:
    items: list[str | FilePart] = []
    for part in parts:
        if not _sound(part):
            continue
        if part["type"] == "text" or part["type"] == "notice":
            if part["text"].strip():
                items.append(shown(part["text"]))
        elif part["type"] == "file":
            items.append(part)
    return items


def _segments(parts: list[Part]) -> list[tuple[list[Part], list[str]]]:
    """An assistant turn cut at its `step` parts, each piece with the notices in it: those are told by the user's side."""
    pieces: list[tuple[list[Part], list[str]]] = [([], [])]
    for part in parts:
        if part["type"] == "step":
            pieces.append(([], []))
        elif _sound(part):
            if part["type"] == "notice":
                pieces[-1][1].append(shown(part["text"]))
            else:
                pieces[-1][0].append(part)
    return pieces


def _answer(
    parts: list[Part], family: str, names: Names, used: dict[str, str], strict: bool
) -> list[TextPart | ReasoningPart | Call]:
    items: list[TextPart | ReasoningPart | Call] = []
    for part in parts:
        if part["type"] == "text":
            meta = own(part, family)
            if part["text"].strip() or meta.get("signature"):  # Gemini signs an answer on an empty last text
                items.append(_text(part, meta))
        elif part["type"] == "reasoning":
            if (meta := own(part, family)) and not part.get("cut"):
                items.append({"type": "reasoning", "text": shown(part["text"]), "meta": meta})
        elif part["type"] == "tool":
            items.append(_call(part, family, names, used, strict))
    while items and _thought(items[-1]):
        items.pop()  # what it led to is missing: a provider refuses reasoning alone
    return items


def _thought(item: TextPart | ReasoningPart | Call) -> bool:
    """Whether an item is thinking, and not a provider's own tool that is kept in the same kind of part."""
    return not isinstance(item, Call) and item["type"] == "reasoning" and "block" not in (item.get("meta") or {})


def _text(part: TextPart, meta: Meta) -> TextPart:
    text: TextPart = {"type": "text", "text": shown(part["text"])}
    if meta:
        text["meta"] = meta
    return text


def _call(part: ToolPart, family: str, names: Names, used: dict[str, str], strict: bool) -> Call:
    valid = is_object(part["arguments"])
    result, failed = result_of(part, valid)
    call = re.sub(r"[^A-Za-z0-9_-]" if strict else r"[^!-~]", "_", part["call"])
    wire = _unique(call[:40] if strict or len(call) > 64 else call, used, 40 if strict else 64)
    used[wire] = part["call"]
    return Call(
        id=wire,
        name=names.wire(part["tool"]),
        arguments=_readable(part["arguments"]) if valid else "{}",
        result=shown(result),
        failed=failed,
        files=list(part.get("files") or []),
        meta=own(part, family),
    )


def result_of(part: ToolPart, valid: bool = True) -> tuple[str, bool]:
    """What the model is told of a call, and whether that is a failure. `valid`: its arguments could be read."""
    status, output, error = part["status"], part.get("output", ""), part.get("error", "")
    if not valid:
        lead = "Not executed: the arguments were cut off or are not a valid JSON object."
        return f"{lead}\n{error}".rstrip(), True
    if status == "done":
        return output or "(no output)", False
    if status == "denied":
        return f"Not executed: {error or 'the call was refused'}", True
    if status == "pending":
        return f"Not executed: {error or 'the run ended before this call was started'}", True
    if status == "running":
        after = f" after {part['duration_ms'] / 1000:g} s" if "duration_ms" in part else ""
        error = f"Interrupted{after}: this call was started and its end is unknown. It may have had effects."
    return "\n".join(text for text in (error or "The call failed.", output) if text), True


def _readable(arguments: str) -> str:
    """Arguments as they came, unless an escaped lone surrogate is in them, which no strict reader takes."""
    if not arguments.strip():
        return "{}"
    if "\\u" not in arguments and shown(arguments) == arguments:
        return arguments
    value = parse_foreign(arguments)
    seen = shown_deep(value)
    return arguments if seen == value else dump_foreign(seen)


def _add(wire: list[Said | Step], new: Said | Step) -> None:
    """Append, joining what providers want as one message: user texts in a row, and answers that no call stands between."""
    if not new.items:
        return
    last = wire[-1] if wire else None
    if isinstance(last, Said) and isinstance(new, Said):
        last.items += new.items
        return
    if isinstance(last, Step) and isinstance(new, Step) and not last.calls:
        last.items += new.items
        return
    wire.append(new)


def _word(name: str, limit: int) -> str:
    word = re.sub(r"[^A-Za-z0-9_-]", "_", name)
    return (word if re.match(r"[A-Za-z_]", word) else f"_{word}" if word else "")[:limit]


def _unique(word: str, used: dict[str, str], limit: int) -> str:
    word = word or "call"
    count, wanted = 2, word
    while word in used:
        tail = f"_{count}"
        word = wanted[: limit - len(tail)] + tail
        count += 1
    return word
