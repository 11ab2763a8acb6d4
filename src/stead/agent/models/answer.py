"""The parts of one answer while they grow: numbering, joining, closing; the same for every wire format."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from stead.agent.models.base import Closed, Delta, Finish, Item, Opened
from stead.core.jsontext import parse_foreign
from stead.core.parts import Meta, Part, ReasoningPart, TextPart, ToolPart


@dataclass(slots=True)
class Growing:
    """A part that is not complete. `meta` is what its `Closed` will carry."""

    n: int
    kind: str
    part: dict[str, Any]
    meta: Meta = field(default_factory=dict)
    pieces: list[str] = field(default_factory=list)
    held: str = ""  # the first half of a surrogate pair whose second half comes with the next delta
    closed: bool = False

    @property
    def text(self) -> str:
        """All text (of a tool part: its arguments) so far."""
        return "".join(self.pieces) + self.held


class Answer:
    """Opens, grows and closes numbered parts and gives the items that tell of it."""

    def __init__(self) -> None:
        self.parts: list[Growing] = []

    def begin(self, part: Part, meta: Meta | None = None) -> tuple[Growing, Opened]:
        """A new part; its text or arguments are empty."""
        fields = cast(dict[str, Any], part)
        grown = Growing(len(self.parts), part["type"], fields, dict(meta or {}))
        self.parts.append(grown)
        return grown, Opened(grown.n, cast(Part, dict(fields)))

    def grow(self, part: Growing, text: str) -> list[Item]:
        """More text for `part`; a surrogate pair that was cut between two deltas is joined again."""
        text = part.held + text
        part.held = ""
        if text and "\ud800" <= text[-1] <= "\udbff":
            part.held, text = text[-1], text[:-1]
        if not text:
            return []
        text = join_surrogates(text)
        part.pieces.append(text)
        return [Delta(part.n, text)]

    def close(self, part: Growing, *, cut: bool = False) -> list[Item]:
        """`part` is complete (nothing happens when it was closed before)."""
        if part.closed:
            return []
        part.closed = True
        whole = dict(part.part)
        whole["arguments" if part.kind == "tool" else "text"] = part.text
        if part.meta:
            whole["meta"] = dict(part.meta)
        if cut:
            whole["cut"] = True
        return [Closed(part.n, cast(Part, whole))]

    def close_all(self, finish: Finish | None = None) -> list[Item]:
        """Close what is open, in order; with a tool call's arguments marked cut where they broke off."""
        items: list[Item] = []
        for part in self.parts:
            if not part.closed:
                last = part is self.parts[-1]
                items += self.close(part, cut=part.kind == "tool" and broken_off(part.text, finish, last=last))
        return items

    @property
    def calls(self) -> list[Growing]:
        """The tool calls, in order."""
        return [part for part in self.parts if part.kind == "tool"]

    @property
    def size(self) -> int:
        """Characters of text, reasoning and arguments so far."""
        return sum(len(piece) for part in self.parts for piece in part.pieces)


def text_part() -> TextPart:
    """An empty text part."""
    return {"type": "text", "text": ""}


def reasoning_part() -> ReasoningPart:
    """An empty reasoning part."""
    return {"type": "reasoning", "text": ""}


def tool_part(call: str, tool: str) -> ToolPart:
    """A tool call without arguments yet."""
    return {"type": "tool", "call": call, "tool": tool, "arguments": "", "status": "pending"}


def join_surrogates(text: str) -> str:
    """`text` with surrogate pairs that stand as two code points made one; lone ones stay."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return text


def is_object(arguments: str) -> bool:
    """Whether a call's arguments are a JSON object; nothing at all counts as an empty one."""
    if not arguments.strip():
        return True
    try:
        return isinstance(parse_foreign(arguments), dict)
    except (ValueError, RecursionError):
        return False


def broken_off(arguments: str, finish: Finish | None, *, last: bool = False) -> bool:
    """Whether a call's arguments stop before their end: they cannot be read, and the answer was cut by its length or the text
    ends where JSON expects more. Merely wrong JSON is not cut. The `last` call of an answer that was cut by its length is cut
    also where not even the beginning of its arguments came."""
    if last and finish == "length" and not arguments.strip():
        return True
    if is_object(arguments):
        return False
    if finish == "length":
        return True
    try:
        parse_foreign(arguments)
    except json.JSONDecodeError as error:
        return error.msg.startswith("Unterminated") or error.pos >= len(arguments.rstrip())
    except (ValueError, RecursionError):
        return False
    return False


def settle(finish: Finish, answer: Answer) -> Finish:
    """The finish that counts: calls decide, whatever word the provider used, unless the answer was cut or withheld."""
    if finish in ("length", "content_filter"):
        return finish
    return "tool_calls" if answer.calls else "stop"
