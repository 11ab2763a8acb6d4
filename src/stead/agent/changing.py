"""How a tool changes a file: captured durably, then made, then noted as applied; and what becomes of it when the program dies
between.

Say it, do it, say how it went.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from stead.core.errors import SteadError
from stead.domain import changes, hunks
from stead.domain.changes import FileState
from stead.domain.projects.folders import decode_path, encode_path
from stead.domain.runs import Run
from stead.store import safefile
from stead.store.blobs import Prepared
from stead.store.log import Tx
from stead.store.store import Store

T = TypeVar("T")
_BLOCK = 4096
COUNTED_BYTES = 8 << 20
"""The lines of larger contents are not counted."""


@dataclass(frozen=True, slots=True)
class Writer:
    """What the write protocol needs of a call: whose it is, where it is stored, how large a content is kept (bytes)."""

    store: Store
    commit: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
    run: Run
    root: Path
    call: str
    most_bytes: int

    async def change(self, target: Path, content: bytes | None, mode: int | None) -> str | None:
        """Write or remove the file at this real path; gives the hash of its content then. Raises `SteadError` when that failed:
        the file is as it was, and the log says so.

        A file that is too large to be kept is changed all the same, and noted as not covered: the person was told before.
        """
        before, old, new = await asyncio.to_thread(self._ready, target, content)
        after: FileState = {"kind": "absent"}
        if new is not None:
            after = {"kind": "file", "size": new.size, "blob": new.hash, "mode": mode or before.get("mode", 0o644)}
        name, encoded = stored_path(self.root, target)
        fact = changes.ChangeCaptured(
            call=self.call,
            message=self.run.message,
            path=name,
            before=before,
            after=after,
            in_place=content is not None and safefile.in_place(target),
            encoded=encoded,
            folders=tuple(stored_path(self.root, folder)[0] for folder in _missing(target.parent)),
        )
        seq = await self.commit(lambda tx: self._capture(tx, fact, old, new))
        if self.store.database.shared:  # a process that stood still here long enough has lost the run, and others went on
            await self.commit(lambda tx: None)
        try:
            made, additions, deletions = await asyncio.to_thread(self._make, target, content, mode, old)
        except (OSError, SteadError) as error:
            failed = changes.ChangeFailed(captured=seq, reason=str(error))
            await self.store.commit(lambda tx: tx.append(self.run.session, failed, run=self.run.id))
            raise
        done = changes.ChangeApplied(captured=seq, additions=additions, deletions=deletions, mode=made)
        await self.store.commit(lambda tx: tx.append(self.run.session, done, run=self.run.id))
        return None if new is None else new.hash

    def _ready(self, target: Path, content: bytes | None) -> tuple[FileState, Prepared | None, Prepared | None]:
        """What stands there, and both contents ready to be stored."""
        before, old = self._look(target)
        new = None if content is None else self.store.blobs.prepare(content, after=before.get("blob"))
        return before, old, new

    def _make(self, target: Path, content: bytes | None, mode: int | None, old: Prepared | None) -> tuple[int | None, int, int]:
        """Change the file; the permission bits that it has then, and the lines that came and went."""
        made = _apply(target, content, mode)
        return made, *self._count(old, content)

    def _look(self, path: Path) -> tuple[FileState, Prepared | None]:
        """What stands at the path, and its content ready to be stored; None where it has none or too much."""
        import os

        found = safefile.state(path)
        if found.kind == "absent":
            return {"kind": "absent"}, None
        if found.kind != "file":
            raise SteadError("usage", f"{path} is a {found.kind}, not a file.")
        state: FileState = {"kind": "file", "mode": found.mode, "size": found.size}
        if found.size > self.most_bytes:
            return state, None
        with os.fdopen(safefile.opened(path), "rb") as file:
            kept = self.store.blobs.prepare_stream(file)
        return {**state, "size": kept.size, "blob": kept.hash}, kept

    def _capture(self, tx: Tx, fact: changes.ChangeCaptured, old: Prepared | None, new: Prepared | None) -> int:
        for prepared in (old, new):
            if prepared is not None:
                tx.put(prepared)
        seq = tx.append(self.run.session, fact, run=self.run.id).seq
        if fact.before["kind"] == "file" and old is None:
            lost = changes.ChangeUncovered(
                call=self.call, message=self.run.message, path=fact.path, why="too_large", encoded=fact.encoded
            )
            tx.append(self.run.session, lost, run=self.run.id)
        return seq

    def _count(self, old: Prepared | None, content: bytes | None) -> tuple[int, int]:
        if max(old.size if old else 0, len(content or b"")) > COUNTED_BYTES:
            return 0, 0
        return hunks.count(None if old is None else self.store.blobs.get(old.hash), content)


def stored_path(root: Path, path: Path) -> tuple[str, bool]:
    """A path as it is stored: relative to the project with `/`, outside of it absolute; and whether it had to be encoded."""
    return encode_path(path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix())


async def see_through(work: Awaitable[T]) -> T:
    """Await `work` to its end even when the caller is cancelled meanwhile; the cancellation is raised then."""
    task = asyncio.ensure_future(work)
    stop: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as cancelled:
            stop = cancelled
    if stop is not None:
        if not task.cancelled():
            task.exception()  # seen: it is not what the caller hears
        raise stop
    return task.result()


def settle(store: Store, root: Callable[[str], Path | None], alive: Callable[[str], bool]) -> bool:
    """After a crash: decide by the disk what became of changes that were captured and not noted as applied.

    `root` gives a session's project folder; `alive` says whether the process that owns a run still works on it. A file that the
    crash tore while it was written in place is completed from its `after` blob; one that holds something else is left alone.
    Idempotent. False when something could not be looked at now, so that the next start has to try again.
    """
    whole = True
    with store.view() as view:
        left = changes.unsettled(view)
    for change in left:
        folder = root(change.session)
        if folder is None or (change.run is not None and alive(change.run)):
            continue
        path = folder / decode_path(change.path, change.encoded)
        try:
            if path.parent.is_dir():
                safefile.sweep(path.parent, path.name)
            fact = _settled(store, change, path)
        except (OSError, SteadError):
            logging.getLogger("stead.agent").warning("what became of %s is not known yet", change.path, exc_info=True)
            whole = False
            continue
        store.write(lambda tx, change=change, fact=fact: _note(tx, change, fact))  # type: ignore[misc]
    return whole


def _note(tx: Tx, change: changes.Change, fact: changes.ChangeApplied | changes.ChangeFailed) -> None:
    if any(one.seq == change.seq for one in changes.unsettled(tx)):  # another process may have been faster
        tx.append(change.session, fact, run=change.run)


def _settled(store: Store, change: changes.Change, path: Path) -> changes.ChangeApplied | changes.ChangeFailed:
    found = safefile.state(path)
    if found.kind not in ("absent", "file"):
        return changes.ChangeFailed(captured=change.seq, reason=f"A {found.kind} stands there now.")
    old = None if change.before_blob is None else store.blobs.get(change.before_blob)
    new = None if change.after_blob is None else store.blobs.get(change.after_blob)
    most = max(len(old or b""), len(new or b""))  # with more in it, it is another file by now, however large
    now = safefile.read_bytes(path, most + 1) if found.kind == "file" else None
    unknown = change.before_kind == "file" and old is None  # it was too large to be kept
    if change.in_place and now is not None and new is not None and not unknown and torn(now, old or b"", new):
        safefile.replace(path, new)
        now = new
    if now == new and (now != old or unknown):
        additions, deletions = hunks.count(old, new)
        return changes.ChangeApplied(captured=change.seq, additions=additions, deletions=deletions)
    reason = "The program ended before the file was written." if now == old else "The file holds something else by now."
    return changes.ChangeFailed(captured=change.seq, reason=reason)


def torn(now: bytes, old: bytes, new: bytes) -> bool:
    """Whether `now` is what an interrupted write of `new` over `old` leaves: each byte from one of them, or not yet written."""
    if now in (old, new) or len(now) not in (len(old), len(new), max(len(old), len(new))):
        return False
    old, new = old.ljust(len(now), b"\0"), new.ljust(len(now), b"\0")
    for at in range(0, len(now), _BLOCK):
        piece, one, other = (text[at : at + _BLOCK] for text in (now, old, new))
        if piece != one and piece != other and any(byte not in (a, b, 0) for byte, a, b in zip(piece, one, other, strict=False)):
            return False
    return True


def _apply(path: Path, content: bytes | None, mode: int | None) -> int | None:
    """Change the file at this real path; gives the permission bits that it has then. A link on the way by now is refused."""
    if content is None:
        safefile.remove(path, follow=False)
        return None
    safefile.replace(path, content, mode=mode, follow=False)
    return safefile.state(path).mode


def _missing(folder: Path) -> list[Path]:
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    return missing[::-1]
