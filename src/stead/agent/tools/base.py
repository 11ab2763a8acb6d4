"""What a tool is: a name, a description, an input model, and an async function of a context and that input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict

from stead.core.parts import FilePart


class Input(BaseModel):
    """The base of every tool's input: strict types, unknown fields refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool gives back. `output` is what the model reads (already capped); `error` marks a failure and says why;
    `files` are images or files shown beside the text; `full` is the uncapped output, kept as a blob when `output` was cut."""

    output: str = ""
    error: str | None = None
    files: list[FilePart] = field(default_factory=list)
    full: bytes | None = None


class Context(Protocol):
    """The world of one tool call. Everything a tool does to the outside goes through here, so that it is known first."""

    root: Path
    """The project folder, resolved. Relative paths in a tool's input start here."""
    call: str
    environ: Mapping[str, str]
    """The environment for child processes: without provider keys and stead's own secrets."""

    async def change(self, path: Path, content: bytes | None, *, mode: int | None = None) -> None:
        """Write `content` to `path` (None: remove it) after its before-image is durable. Creates missing folders, follows a
        symlink to its target, keeps mode, owner and hard links; `mode` sets the permission bits of a new file."""
        ...

    async def keep(self, content: bytes) -> str:
        """Store bytes as a blob and give its hash."""
        ...

    def progress(self, text: str) -> None:
        """Show more of this call's output while it runs."""
        ...

    async def ask(self, question: str, options: list[str] | None) -> str:
        """Ask the person and wait for the answer."""
        ...

    async def set_todos(self, todos: list[dict[str, str]]) -> None:
        """Replace the session's list of todos."""
        ...

    def seen(self, path: Path, digest: str) -> None:
        """Remember that the model has read `path` with this SHA-256."""
        ...


Effect = Literal["read", "edit", "bash", "none"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A built-in tool. `paths` gives the paths an input touches, for the gate; `effect` says by which kind of rule it is judged."""

    name: str
    description: str
    input: type[Input]
    run: Callable[[Context, Any], Awaitable[Result]]
    effect: Effect
    paths: Callable[[Any], list[str]] = lambda _: []

    def schema(self) -> dict[str, Any]:
        """The JSON schema of the input, without titles."""
        return _plain(self.input.model_json_schema())


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A pydantic schema without the noise that costs tokens."""
    kept = {key: value for key, value in schema.items() if key != "title"}
    if "properties" in kept:
        kept["properties"] = {name: _plain(value) for name, value in kept["properties"].items()}
    return kept
