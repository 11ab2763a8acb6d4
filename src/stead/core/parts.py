"""Message parts: pure JSON values in one union, told apart by `type`.

A part is what is stored, shown and (with its `meta`) sent back to a provider; order inside a message is its number, never a
time. `meta` is opaque provider data (signatures, reasoning details) with the `family` it belongs to: it is kept byte for byte,
never shown, and sent only to the same family. A part of a type that this version does not know is kept whole and shown as
`unknown`. Foreign JSON (tool arguments) is kept as its original text.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

Meta = dict[str, str]
"""Opaque provider data: `family` plus values that are strings (a signature as it came, or the JSON text of a structure)."""

ToolStatus = Literal["pending", "running", "done", "error", "denied"]


class TextPart(TypedDict):
    type: Literal["text"]
    text: str
    meta: NotRequired[Meta]
    cut: NotRequired[bool]


class ReasoningPart(TypedDict):
    """Thinking. Redacted thinking has an empty text and its data in `meta`. One part for each block on the wire."""

    type: Literal["reasoning"]
    text: str
    meta: NotRequired[Meta]
    cut: NotRequired[bool]


class ToolPart(TypedDict):
    """A tool call and its one result. `arguments` is the model's own JSON text; `call` the provider's id, unique in the session."""

    type: Literal["tool"]
    call: str
    tool: str
    arguments: str
    status: ToolStatus
    output: NotRequired[str]
    error: NotRequired[str]
    duration_ms: NotRequired[int]
    files: NotRequired[list[FilePart]]
    meta: NotRequired[Meta]
    cut: NotRequired[bool]


class FilePart(TypedDict):
    """A file given to or made in a conversation. `id` names an attachment, `blob` (SHA-256) the content of one that a tool made."""

    type: Literal["file"]
    name: str
    mime: str
    kind: Literal["image", "text", "other"]
    size: int
    id: NotRequired[str]
    blob: NotRequired[str]


class PatchFile(TypedDict):
    path: str
    additions: int
    deletions: int


class PatchPart(TypedDict):
    """What one step changed: the sum of its file changes. A step without changes has none."""

    type: Literal["patch"]
    files: list[PatchFile]


class Tokens(TypedDict):
    """Five classes that never overlap: `input` without cached tokens, `output` without `reasoning`."""

    input: int
    cache_read: int
    cache_write: int
    output: int
    reasoning: int


class StepPart(TypedDict):
    """The end of one model call. `cost` is dollars, None where the price is unknown; `estimated` where no usage was sent."""

    type: Literal["step"]
    model: str
    tokens: Tokens
    cost: float | None
    finish: str
    estimated: NotRequired[bool]
    stop_sequence: NotRequired[str]


class KnowledgePage(TypedDict):
    title: str
    url: str


class KnowledgePart(TypedDict):
    type: Literal["knowledge"]
    pages: list[KnowledgePage]


class CompactionPart(TypedDict):
    """Older turns stand as `summary` in what is sent; the stored messages are untouched. `removed` counts the turns."""

    type: Literal["compaction"]
    removed: int
    summary: str


class NoticePart(TypedDict):
    """A fact about the run that the person (and on the next turn the model) should know: `run_interrupted`, a limit."""

    type: Literal["notice"]
    code: str
    text: str


class UnknownPart(TypedDict):
    """How a part of a type that this version does not know is shown: whole."""

    type: Literal["unknown"]
    original: Any


Part = (
    TextPart
    | ReasoningPart
    | ToolPart
    | FilePart
    | PatchPart
    | StepPart
    | KnowledgePart
    | CompactionPart
    | NoticePart
    | UnknownPart
)

NO_TOKENS: Tokens = {"input": 0, "cache_read": 0, "cache_write": 0, "output": 0, "reasoning": 0}


class Issue(TypedDict):
    """Why a stored part cannot be shown as what it says it is; computed at each read, never stored."""

    path: str
    message: str


_FIELDS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "text": {"text": str},
    "reasoning": {"text": str},
    "tool": {"call": str, "tool": str, "arguments": str, "status": str},
    "file": {"name": str, "mime": str, "kind": str, "size": int},
    "patch": {"files": list},
    "step": {"model": str, "tokens": dict, "cost": (int, float, type(None)), "finish": str},
    "knowledge": {"pages": list},
    "compaction": {"removed": int, "summary": str},
    "notice": {"code": str, "text": str},
    "unknown": {},
}
_OPTIONAL: dict[str, dict[str, type | tuple[type, ...]]] = {
    "tool": {"output": str, "error": str, "duration_ms": (int, float), "files": list},
}
_ITEMS: dict[str, tuple[str, dict[str, type]]] = {
    "patch": ("files", {"path": str, "additions": int, "deletions": int}),
    "knowledge": ("pages", {"title": str, "url": str}),
}


def known(part: Any) -> bool:
    """Whether this version knows the part's type."""
    return isinstance(part, dict) and isinstance(part.get("type"), str) and part["type"] in _FIELDS


def issue(part: dict[str, Any]) -> Issue | None:
    """The first field of a known part that is missing or of the wrong kind, as `{path, message}`; None when the part is sound."""
    kind = part["type"]
    for name, wanted in _FIELDS[kind].items():
        if found := _wrong(part, name, wanted, name):
            return found
    for name, wanted in _OPTIONAL.get(kind, {}).items():
        if name in part and (found := _wrong(part, name, wanted, name)):
            return found
    if kind == "step":
        for name in NO_TOKENS:
            if found := _wrong(part["tokens"], name, int, f"tokens.{name}"):
                return found
    if kind in _ITEMS:
        field, shape = _ITEMS[kind]
        for n, item in enumerate(part[field]):
            for name, wanted in shape.items():
                if found := _wrong(item, name, wanted, f"{field}[{n}].{name}"):
                    return found
    return None


def _wrong(holder: Any, name: str, wanted: type | tuple[type, ...], path: str) -> Issue | None:
    if not isinstance(holder, dict) or name not in holder:
        return {"path": path, "message": "missing"}
    if not isinstance(holder[name], wanted) or isinstance(holder[name], bool):  # to Python, True is an int
        return {"path": path, "message": f"{type(holder[name]).__name__} where another kind is needed"}
    return None
