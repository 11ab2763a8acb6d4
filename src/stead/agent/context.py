"""What a model is sent: the system text, the history in neutral parts, the tools. Built from what is stored."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, cast

from stead.agent.models.base import Request, ToolSpec, Turn
from stead.agent.models.count import tokens, tools_chars
from stead.agent.tools import TOOLS
from stead.core import parts as known_parts
from stead.core.clock import day
from stead.core.errors import SteadError
from stead.core.parts import FilePart
from stead.domain import attachments, sessions
from stead.store.blobs import Blobs
from stead.store.database import Reads


def system_text(root: Path, now: int, language: str | None = None) -> str:
    """The standing instructions of the built-in agent; `language` is the one to answer in."""
    import platform

    return (
        "You are stead, a coding agent working in a person's project on their own machine. Use the tools to look before you act,"
        " make the smallest change that does what was asked, and check it when a quick check exists. Paths are relative to the"
        " project folder. Never commit, push or delete work that you did not make unless you are asked to. When a tool call is"
        " refused, do not try to get around it: say what you would need. When you are done, say briefly what you changed and what"
        " is left.\n\n"
        f"{f'Answer in this language: {language}.{chr(10) * 2}' if language else ''}"
        f"Project folder: {root}\nPlatform: {platform.system()} {platform.machine()}\nToday: {day(now)} (UTC)"
    )


@cache
def _tool_specs() -> tuple[ToolSpec, ...]:
    """Made once: a schema from pydantic costs a millisecond."""
    return tuple(ToolSpec(tool.name, tool.description, tool.schema()) for tool in TOOLS.values())


def tool_specs(mode: str = "manual") -> list[ToolSpec]:
    """The built-in tools as models see them; while planning only those that change nothing."""
    return [spec for spec in _tool_specs() if mode != "plan" or TOOLS[spec.name].effect in ("read", "none")]


@cache
def fixed_chars(root: Path) -> int:
    """Characters of what every request of this project carries beside the conversation."""
    return len(system_text(root, 0)) + tools_chars(_tool_specs())


def history(view: Reads, session: str, blobs: Blobs, *, before: int | None = None) -> list[Turn]:
    """The session's messages (those numbered below `before`) as turns, long strings back in their place, unknown parts left out."""
    turns = []
    for message in sessions.messages(view, session, before=before):
        parts = [blobs.resolve(part) for _, part in message.parts if known_parts.known(part)]
        sound = [part for part in parts if known_parts.issue(part) is None]
        turns.append(Turn(message.role, cast(Any, sound)))
    return turns


def loader(blobs: Blobs, folder: Path) -> Callable[[FilePart], bytes]:
    """A function that gives the content of a file part: an attachment or a tool's blob."""

    def load(part: FilePart) -> bytes:
        if "blob" in part:
            return blobs.get(part["blob"])
        return attachments.load(folder, part.get("id", ""), part["size"])

    return load


def refuse_overfull(request: Request, window: int | None, chars: int) -> None:
    """Raise `context_full` before a call that cannot fit is paid for. `chars` are the request's; the count of tokens is a low
    estimate, and the provider has the last word."""
    if window is None or (estimate := tokens(chars)) <= window:
        return
    raise SteadError(
        "context_full",
        f"The conversation has about {estimate:,} tokens; {request.model} reads {window:,}.",
        hint="Start a new session (`stead run` without -c), or choose a model with a larger window (`-m`). Nothing was sent.",
        details={"tokens": estimate, "window": window},
    )
