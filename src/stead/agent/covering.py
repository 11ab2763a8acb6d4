"""What a command changed in files: found around its call, and stored under it with what was there before.

The tree of the project is watched by `agent/tree`; here its findings become events. A command is not held up for it: where the tree
is not known yet, it is waited for a moment, and then the call says that its changes are not covered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.agent.changing import COUNTED_BYTES, stored_path
from stead.core.errors import SteadError
from stead.domain import hunks
from stead.domain.changes import ChangeFound, ChangeUncovered, FileState, Why
from stead.domain.runs import Run
from stead.store import faults

if TYPE_CHECKING:
    from stead.agent.tools.base import Tool
    from stead.agent.tree import Found, Limits, Mark, Seen, Shot, Tree
    from stead.domain.settings import Effective
    from stead.store.blobs import Prepared
    from stead.store.log import Tx
    from stead.store.store import Store

READY_SECONDS = 0.3
_SHARE = 100


def limits_of(values: Mapping[str, Effective]) -> Limits:
    """What the settings allow to be spent on the cover."""
    from stead.agent.tree import Limits

    return Limits(
        off=values["undo.capture"].value == "off",
        skip=tuple((values["undo.skip"].value or "").split()),
        file_bytes=values["undo.capture_file_bytes"].value,
        all_bytes=values["undo.capture_bytes"].value,
        files=values["undo.capture_files"].value,
        most_bytes=values["undo.max_file_bytes"].value,
    )


def gaps(tree: Tree | None, tool: Tool, paths: Iterable[Path], outside: Iterable[str], most: int) -> list[str]:
    """What of this call could not be taken back, as sentences for the person who is asked about it. `paths` are the files that
    it is about, `outside` those outside of the project that a command writes, `most` the largest file that is kept (bytes)."""
    from stead.store import safefile

    told = [f"{path} lies outside the project: what a command does to it cannot be undone." for path in outside]
    if tool.effect == "bash" and tree is not None:
        cover = tree.coverage()
        if cover.kind == "limited":
            told.append(f"Undo covers only files that git tracks, or that were read or changed here. {cover.why or ''}".strip())
        elif not cover.ready:
            told.append("The project is not known yet: what this command changes in the first moment may not be undone.")
    elif tool.effect == "edit":
        large = [path for path in paths if safefile.state(path).size > most]
        told += [f"{path} is too large to be kept: what it holds now cannot be brought back." for path in large]
    return told


@dataclass(slots=True)
class Covering:
    """The cover of one command: `begin` before it, `end` after it."""

    tree: Tree
    store: Store
    commit: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
    run: Run
    root: Path
    call: str
    outside: Iterable[str] = ()
    """Paths outside of the project that the command is known to write."""
    _mark: Mark | None = None

    async def begin(self) -> None:
        """Note where things stand, just before the command begins."""
        await asyncio.to_thread(self.tree.wait_ready, READY_SECONDS)
        self._mark = await asyncio.to_thread(self.tree.before)

    async def end(self) -> int:
        """Find what changed since `begin`, and store it; durable when it returns. Gives how many paths."""
        if self._mark is None:
            return 0
        mark, self._mark = self._mark, None
        found = await asyncio.to_thread(self.tree.after, mark)
        if not found.seen and not found.not_covered and not self.outside:
            return 0
        for at in range(0, len(found.seen), _SHARE):
            facts = await asyncio.to_thread(self._facts, found.seen[at : at + _SHARE])
            await self.commit(partial(self._put, facts=facts))
            faults.point("covering.stored")
        if gaps := self._gaps(found):
            await self.commit(lambda tx: [tx.append(self.run.session, gap, run=self.run.id) for gap in gaps])
        self.tree.keep(found.seen)
        return len(found.seen)

    def _facts(self, seen: Iterable[Seen]) -> list[tuple[ChangeFound, list[Prepared]]]:
        return [self._fact(one) for one in seen]

    def _put(self, tx: Tx, facts: list[tuple[ChangeFound, list[Prepared]]]) -> None:
        for fact, blobs in facts:
            for prepared in blobs:
                tx.put(prepared)
            tx.append(self.run.session, fact, run=self.run.id)

    def _gaps(self, found: Found) -> list[ChangeUncovered]:
        told = {one.path: one.why for one in found.not_covered}
        for seen in found.seen:
            for shot in (seen.before, seen.after):
                if shot.why is not None:
                    told.setdefault(seen.path, shot.why)
        gaps = [self._gap_of(*stored_path(self.root, self.root / path), why) for path, why in told.items()]
        return gaps + [self._gap_of(path, False, "outside") for path in self.outside]

    def _gap_of(self, path: str, encoded: bool, why: Why) -> ChangeUncovered:
        return ChangeUncovered(call=self.call, message=self.run.message, path=path, why=why, encoded=encoded)

    def _fact(self, seen: Seen) -> tuple[ChangeFound, list[Prepared]]:
        """The event for one path, and the blobs that it refers to."""
        blobs: list[Prepared] = []
        old, before = self._state(seen.before, blobs, None)
        new, after = self._state(seen.after, blobs, before.get("blob"))
        name, encoded = stored_path(self.root, self.root / seen.path)
        origin = None if seen.renamed_from is None else stored_path(self.root, self.root / seen.renamed_from)[0]
        added, gone = (0, 0) if max(len(old or b""), len(new or b"")) > COUNTED_BYTES else hunks.count(old, new)
        return ChangeFound(
            call=self.call,
            message=self.run.message,
            path=name,
            before=before,
            after=after,
            additions=added,
            deletions=gone,
            encoded=encoded,
            origin=origin,
        ), blobs

    def _state(self, shot: Shot, blobs: list[Prepared], previous: str | None) -> tuple[bytes | None, FileState]:
        """The content and the state to store; its blob is put to `blobs`."""
        state: FileState = {"kind": shot.kind}
        if shot.kind in ("file", "directory"):
            state["mode"] = shot.mode
        if shot.kind == "file":
            state["size"] = shot.size
        if shot.load is None:
            return None, state
        try:
            content = shot.load()
        except SteadError:
            return None, state
        prepared = self.store.blobs.prepare(content, after=previous)
        blobs.append(prepared)
        return content, {**state, "blob": prepared.hash}
