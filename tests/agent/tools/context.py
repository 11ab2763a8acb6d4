"""A context for tools without a house: changes go straight to the disk through safefile, everything told is kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stead.agent.tools import Result, call
from stead.agent.tools.environ import clean_environ
from stead.store import safefile


class FakeContext:
    """`before` holds the before-image of each changed path in order, `blobs` what was kept, `live` what was shown while running,
    `processes` the pids of what was started."""

    def __init__(self, root: Path, environ: Mapping[str, str] | None = None) -> None:
        self.root = root.resolve()
        self.call = "call_1_1"
        self.environ: Mapping[str, str] = clean_environ(os.environ if environ is None else environ)
        self.data_dir: Path | None = None
        self.judged: frozenset[Path] | None = None
        self.before: list[tuple[Path, bytes | None]] = []
        self.blobs: dict[str, bytes] = {}
        self.live: list[str] = []
        self.processes: list[int] = []
        self.digests: dict[Path, str] = {}
        self.denied: Callable[[Path], bool] = lambda path: False
        self.todos: list[dict[str, str]] = []
        self.asked: list[tuple[str, list[str] | None]] = []

    async def change(self, path: Path, content: bytes | None, *, mode: int | None = None) -> None:
        present = safefile.state(path).kind == "file"
        self.before.append((path, safefile.read_bytes(path) if present else None))
        if content is None:
            safefile.remove(path)
        else:
            safefile.replace(path, content, mode=mode)

    async def keep(self, content: bytes) -> str:
        digest = hashlib.sha256(content).hexdigest()
        self.blobs[digest] = content
        return digest

    def progress(self, text: str) -> None:
        self.live.append(text)

    def spawned(self, pid: int, so_far: Callable[[], str]) -> None:
        self.processes.append(pid)

    async def ask(self, question: str, options: list[str] | None) -> str:
        self.asked.append((question, options))
        await asyncio.sleep(0)
        return "yes"

    async def set_todos(self, todos: list[dict[str, str]]) -> None:
        self.todos = todos

    def seen(self, path: Path, digest: str) -> None:
        self.digests[path] = digest

    def undo(self) -> None:
        """Put back what stood before the changes, newest first."""
        for path, content in reversed(self.before):
            if content is None:
                safefile.remove(path)
            else:
                safefile.replace(path, content)

    async def use(self, tool: str, **given: Any) -> Result:
        """Call a tool as a model does, by JSON text."""
        return await call(tool, json.dumps(given), self)
