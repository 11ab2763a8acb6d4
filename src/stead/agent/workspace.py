"""The world of one tool call: the project folder, the files it changes, what it may know of the environment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.agent.changing import Writer, see_through
from stead.core.errors import SteadError
from stead.domain import todos
from stead.domain.runs import Run
from stead.store import safefile
from stead.store.log import Tx
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.tree import Tree

MOST_BYTES = 1 << 30
"""A larger file is not kept before it changes, unless a setting says otherwise."""


@dataclass(slots=True)
class CallContext:
    """`tools.base.Context` for one call of one run."""

    store: Store
    commit: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
    """Stores what the run does; refuses when the run is not this process's any more."""
    run: Run
    root: Path
    call: str
    environ: Mapping[str, str]
    data_dir: Path | None
    judged: frozenset[Path] | None
    denied: Callable[[Path], bool]
    show: Callable[[str], None]
    started: Callable[[dict[str, Any], Callable[[], str]], None]
    question: Callable[[str, list[str] | None], Awaitable[str]]
    tree: Tree | None = None
    """What watches the project's files, so that it takes none of this for the doing of a command."""
    most_bytes: int = MOST_BYTES
    """The largest content of a file that is kept before it changes."""
    digests: dict[Path, str] = field(default_factory=dict)

    async def change(self, path: Path, content: bytes | None, *, mode: int | None = None) -> None:
        """Write or remove a file; see `tools.base.Context`. Raises `SteadError` when the file could not be written: it is then
        as it was, and the log says so. Once it has begun it is finished, also when the caller is cancelled."""
        target = await asyncio.to_thread(safefile.real_path, path)
        if self.judged is not None and target not in self.judged:
            raise SteadError("conflict", f"{path} leads to {target} by now, not where it led when permission was given.")
        writer = Writer(self.store, self.commit, self.run, self.root, self.call, self.most_bytes)
        stored = await see_through(writer.change(target, content, mode))
        if self.tree is not None:
            self.tree.note(target, stored)

    async def keep(self, content: bytes) -> str:
        """Store bytes as a blob and give its hash."""
        prepared = await asyncio.to_thread(self.store.blobs.prepare, content)
        digest: str = await self.commit(lambda tx: tx.put(prepared))
        return digest

    def progress(self, text: str) -> None:
        """Show more of this call's output while it runs."""
        self.show(text)

    def spawned(self, pid: int, so_far: Callable[[], str]) -> None:
        """Keep what is needed to find a process again that this call started, and what it printed, should nobody see its end."""
        from stead.agent.orphans import describe

        self.started(describe(pid), so_far)

    async def ask(self, question: str, options: list[str] | None) -> str:
        """Ask the person and wait for the answer."""
        return await self.question(question, options)

    async def set_todos(self, items: list[dict[str, str]]) -> None:
        """Replace the session's list of todos."""
        wanted: Any = [(item["text"], item["status"]) for item in items]
        await self.commit(lambda tx: todos.replace(tx, self.run.session, wanted, self.run.id))

    def seen(self, path: Path, digest: str) -> None:
        """Remember that the model has read `path` with this SHA-256."""
        self.digests[path] = digest
        if self.tree is not None:
            self.tree.note(path)
