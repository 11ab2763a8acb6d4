"""The world of one tool call: the project folder, the files it changes, what it may know of the environment.

Say it, do it, say how it went: a change is captured durably, then made, then noted as applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from stead.core.errors import SteadError
from stead.domain import changes, hunks, todos
from stead.domain.changes import FileState
from stead.domain.projects.folders import decode_path, encode_path
from stead.domain.runs import Run
from stead.store import safefile
from stead.store.log import Tx
from stead.store.store import Store

T = TypeVar("T")
_BLOCK = 4096
MOST_BYTES = 256 << 20
"""A larger file is not changed by a tool: what it held before could not be kept."""


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
    digests: dict[Path, str] = field(default_factory=dict)

    async def change(self, path: Path, content: bytes | None, *, mode: int | None = None) -> None:
        """Write or remove a file; see `tools.base.Context`. Raises `SteadError` when the file could not be written: it is then
        as it was, and the log says so. Once it has begun it is finished, also when the caller is cancelled."""
        target = await asyncio.to_thread(safefile.real_path, path)
        if self.judged is not None and target not in self.judged:
            raise SteadError("conflict", f"{path} leads to {target} by now, not where it led when permission was given.")
        await see_through(self._change(target, content, mode))

    async def _change(self, target: Path, content: bytes | None, mode: int | None) -> None:
        before, before_state = await asyncio.to_thread(_look, target)
        blobs = self.store.blobs
        old = None if before is None else await asyncio.to_thread(blobs.prepare, before)
        new = None if content is None else await asyncio.to_thread(blobs.prepare, content)
        if old is not None:
            before_state["blob"] = old.hash
        after_state: FileState = {"kind": "absent"}
        if new is not None:
            after_state = {"kind": "file", "size": new.size, "blob": new.hash, "mode": mode or before_state.get("mode", 0o644)}
        name, encoded = encode_path(_stored(self.root, target))
        fact = changes.ChangeCaptured(
            call=self.call,
            message=self.run.message,
            path=name,
            before=before_state,
            after=after_state,
            in_place=content is not None and safefile.in_place(target),
            encoded=encoded,
            folders=tuple(encode_path(_stored(self.root, folder))[0] for folder in _missing(target.parent)),
        )

        def capture(tx: Tx) -> int:
            for prepared in (old, new):
                if prepared is not None:
                    tx.put(prepared)
            return tx.append(self.run.session, fact, run=self.run.id).seq

        seq = await self.commit(capture)
        if self.store.database.shared:  # a process that stood still here long enough has lost the run, and others went on
            await self.commit(lambda tx: None)
        try:
            made = await asyncio.to_thread(_apply, target, content, mode)
        except (OSError, SteadError) as error:
            failed = changes.ChangeFailed(captured=seq, reason=str(error))
            await self.store.commit(lambda tx: tx.append(self.run.session, failed, run=self.run.id))
            raise
        additions, deletions = await asyncio.to_thread(hunks.count, before, content)
        done = changes.ChangeApplied(captured=seq, additions=additions, deletions=deletions, mode=made)
        await self.store.commit(lambda tx: tx.append(self.run.session, done, run=self.run.id))

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
    if change.in_place and now is not None and new is not None and _torn(now, old or b"", new):
        safefile.replace(path, new)
        now = new
    if now == new and now != old:
        additions, deletions = hunks.count(old, new)
        return changes.ChangeApplied(captured=change.seq, additions=additions, deletions=deletions)
    reason = "The program ended before the file was written." if now == old else "The file holds something else by now."
    return changes.ChangeFailed(captured=change.seq, reason=reason)


def _torn(now: bytes, old: bytes, new: bytes) -> bool:
    """Whether `now` is what an interrupted write of `new` over `old` leaves: each byte from one of them, or not yet written."""
    if now in (old, new) or len(now) not in (len(old), len(new), max(len(old), len(new))):
        return False
    old, new = old.ljust(len(now), b"\0"), new.ljust(len(now), b"\0")
    for at in range(0, len(now), _BLOCK):
        piece, one, other = (text[at : at + _BLOCK] for text in (now, old, new))
        if piece != one and piece != other and any(byte not in (a, b, 0) for byte, a, b in zip(piece, one, other, strict=False)):
            return False
    return True


def _look(path: Path) -> tuple[bytes | None, FileState]:
    found = safefile.state(path)
    if found.kind == "absent":
        return None, {"kind": "absent"}
    if found.kind != "file":
        raise SteadError("usage", f"{path} is a {found.kind}, not a file.")
    content = safefile.read_bytes(path, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        message = f"{path} has more than {MOST_BYTES >> 20} MiB, so what it holds could not be kept; it was left alone."
        raise SteadError("usage", message, hint="Change it with a command.")
    return content, {"kind": "file", "mode": found.mode, "size": len(content)}


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


def _stored(root: Path, path: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else path.as_posix()
