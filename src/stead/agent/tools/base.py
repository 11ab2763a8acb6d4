"""What a tool is: a name, a description, an input model, and an async function of a context and that input."""

from __future__ import annotations

import asyncio
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


class Interrupted(asyncio.CancelledError):
    """The call was cancelled while its effect was under way. Raised by `bash` in place of the plain `CancelledError` (which it
    is), once everything it started in its process group is dead.

    `partial` is what it had put out so far, capped like any output; `seconds` how long it ran. A tool that is cancelled with a
    plain `CancelledError` has nothing to tell.
    """

    def __init__(self, partial: Result, seconds: float) -> None:
        super().__init__("interrupted")
        self.partial = partial
        self.seconds = seconds


class Context(Protocol):
    """The world of one tool call. Everything a tool does to the outside goes through here, so that it is known first."""

    root: Path
    """The project folder, resolved. Relative paths in a tool's input start here."""
    call: str
    environ: Mapping[str, str]
    """The environment for child processes: without provider keys and stead's own secrets (see `environ.clean_environ`), and with
    the mark of this call (`orphans.MARK`), by which its processes are known when this one is dead."""
    data_dir: Path | None
    """Stead's own data folder, resolved: `list`, `glob` and `grep` leave it out."""
    judged: frozenset[Path] | None
    """The real paths (`paths.real`) that the gate allowed for this call; a path that leads elsewhere by now is refused.
    None: nobody judged (a test)."""

    @property
    def denied(self) -> Callable[[Path], bool]:
        """Whether a deny rule forbids this call to see a path: what walks folders leaves it out."""
        ...

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

    def spawned(self, pid: int, so_far: Callable[[], str]) -> None:
        """Know of a process that was started for this call, as the leader of a session of its own: should this process die, who
        recovers finds what it left. Called at once; does not wait."""
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
        """The JSON schema of the input: no titles, nothing by reference, fields that models should not use left out."""
        full = self.input.model_json_schema()
        plain: dict[str, Any] = _plain(full, full.get("$defs", {}))
        return plain


def _plain(schema: Any, defs: dict[str, Any]) -> Any:
    """A pydantic schema without the noise that costs tokens and that some providers refuse (`$ref`, `$defs`, `title`)."""
    if isinstance(schema, list):
        return [_plain(item, defs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        named = defs[schema["$ref"].rpartition("/")[2]]
        return _plain({**named, **{key: value for key, value in schema.items() if key != "$ref"}}, defs)
    kept = {key: _plain(value, defs) for key, value in schema.items() if key not in ("title", "$defs", "properties", "default")}
    if "default" in schema and schema["default"] not in ("", []):  # an empty default says no more than "optional" does
        kept["default"] = schema["default"]
    if "properties" in schema:
        kept["properties"] = {name: _plain(value, defs) for name, value in schema["properties"].items()}
    return kept
