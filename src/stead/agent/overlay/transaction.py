"""A command's transaction: begun before it, ended behind it by putting what it changed into the project, or by leaving it out.

Say it, do it, say how it went: the events are durable before the project's files are touched (`facts.ready` says of which kind), so
a crash leaves nothing that the log does not know. Of the files in `.git` the log knows nothing, as undo never touches them; they
come last.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.agent.changing import see_through, stored_path
from stead.agent.overlay import facts, placing
from stead.agent.overlay.effect import Effect, Piece, read
from stead.agent.overlay.layer import FOLDER, Layer, make, sweep
from stead.agent.overlay.support import support
from stead.agent.tools.base import Result
from stead.core.errors import SteadError
from stead.core.jsontext import dump_foreign
from stead.core.text import one_line
from stead.domain.changes import ChangeApplied, ChangeCaptured, ChangeFailed, ChangeUncovered, Why
from stead.domain.runs import Run
from stead.store import faults

if TYPE_CHECKING:
    from stead.agent.tree import Mark, Tree
    from stead.store.log import Tx
    from stead.store.store import Store

Consent = Callable[[dict[str, Any]], Awaitable[str | None]]
"""Shows a person what an approval is about; gives None when they agree, else what the model is told."""
DISCARDED = "Nothing that it changed in the project folder was applied."
_SHARE = 100
_NAMED = 20


@dataclass(slots=True)
class Transaction:
    """One command on an overlay. `layer` is None where it runs in the project itself, and `why` then says why."""

    store: Store
    commit: Callable[[Callable[[Tx], Any]], Awaitable[Any]]
    run: Run
    root: Path
    call: str
    most_bytes: int
    tree: Tree | None
    outside: Sequence[str]
    asks: bool = False
    """A person has to agree with the effect."""
    layer: Layer | None = None
    why: str = ""
    begun: bool = False
    """It was agreed that the effect goes into the project."""
    _mark: Mark | None = None
    _notes: list[str] = field(default_factory=list)

    async def end(self, result: Result, command: str, consent: Consent | None) -> Result:
        """What the command did becomes the project's, with a person's `consent` where one is needed; durable when this returns.
        Gives the result with what has to be said of it. Once it has begun to apply it is seen through, also when the caller is
        cancelled."""
        if self.layer is None:
            return _with(result, [f"This command ran directly in the project. {self.why}"])
        if not await asyncio.to_thread(lambda layer: layer.ready, self.layer):
            fault = one_line(await asyncio.to_thread(lambda layer: layer.fault, self.layer), 200)
            return Result(error=f"Nothing was run: the overlay of the project could not be mounted ({fault or 'no reason given'}).")
        try:
            effect = await asyncio.to_thread(self._read, self.layer)
            origins = await asyncio.to_thread(facts.renames, self.root, effect.pieces)
        except (OSError, SteadError) as error:
            return replace(result, error=f"What it changed could not be read ({one_line(str(error), 200)}). {DISCARDED}")
        refused = None
        if consent is not None and effect.asked:
            files, patch = await asyncio.to_thread(facts.about, self.root, effect, origins)
            refused = await consent(self._about(command, files, patch))
        if refused is not None:
            return replace(_with(result, []), error=" ".join(filter(None, (result.error, refused))))
        self.begun = True
        await see_through(self._apply(effect, origins))
        if await asyncio.to_thread(self.layer.in_use):
            self._notes.append(
                "Processes that it started still run, on a copy of the project: what they change in it from now on is lost"
            )
        return _with(result, self._notes)

    def close(self) -> None:
        """Remove the overlay. Idempotent."""
        if self._mark is not None and self.tree is not None:
            self.tree.drop(self._mark)
            self._mark = None
        if self.layer is not None:
            self.layer.close()

    def _read(self, layer: Layer) -> Effect:
        others: set[str] | None = None
        if self._mark is not None and self.tree is not None:  # all that anybody changed in the project itself was not the command
            mark, self._mark = self._mark, None
            found = self.tree.after(mark)
            others = {one.path for one in found.seen} if mark.ready and not found.overflowed else None
        return read(layer, others)

    def _about(self, command: str, files: list[dict[str, Any]], patch: str) -> dict[str, Any]:
        gaps = [f"{path} lies outside the project: what the command did to it is done." for path in self.outside]
        return {
            "tool": "bash",
            "arguments": dump_foreign({"command": command, "changes": patch}),
            "why": "It has run, on a copy of the project. These changes are what it did; they are made if you agree.",
            "effect": files,
            "parts": [],
            "rules": [],
            **({"not_covered": gaps} if gaps else {}),
        }

    async def _apply(self, effect: Effect, origins: dict[str, str]) -> None:
        pieces = placing.ordered([one for one in effect.pieces if not one.touched])
        left: list[str] = []
        for at in range(0, len(pieces), _SHARE):
            left += await self._share(pieces[at : at + _SHARE], origins)
        await self._uncovered([(path, "outside") for path in self.outside] + [(path, "special") for path in effect.special])
        faults.point("overlay.files_done")
        left += await asyncio.to_thread(self._rest, effect, pieces)
        if left:
            self._notes.append(f"Not applied: {_listed(left)}")
        if effect.special:
            self._notes.append(f"Left behind, as a pipe, socket or device cannot be carried over: {_listed(effect.special)}")

    async def _share(self, share: list[Piece], origins: dict[str, str]) -> list[str]:
        """Some pieces: said, done, said to be done. Gives those that were left alone."""
        known = await asyncio.to_thread(lambda: [self._ready(piece, origins) for piece in share])
        seqs: list[int] = await self.commit(partial(self._say, known=known))
        if self.store.database.shared:  # a process that stood still here long enough has lost the run, and others went on
            await self.commit(lambda tx: None)
        faults.point("overlay.said")
        ends = await asyncio.to_thread(self._do, known, seqs)
        if ends:
            await self.store.commit(lambda tx: [tx.append(self.run.session, end, run=self.run.id) for end in ends])
        return [_left(one) for one in known if one.why is not None]

    def _ready(self, piece: Piece, origins: dict[str, str]) -> facts.Ready:
        origin = origins.get(piece.path)
        return facts.ready(self.store, self.root, self.call, self.run.message, self.most_bytes, piece, origin)

    def _say(self, tx: Tx, known: list[facts.Ready]) -> list[int]:
        seqs = []
        for one in known:
            for prepared in one.blobs:
                tx.put(prepared)
            seqs.append(tx.append(self.run.session, one.fact, run=self.run.id).seq)
            if one.why is not None:  # what the command made of it is kept, in the event
                tx.append(self.run.session, ChangeFailed(captured=seqs[-1], reason=one.why), run=self.run.id)
            elif one.lost:
                tx.append(self.run.session, self._gap(one.fact.path, one.fact.encoded, "too_large"), run=self.run.id)
        return seqs

    def _do(self, known: list[facts.Ready], seqs: list[int]) -> list[ChangeApplied | ChangeFailed]:
        ends: list[ChangeApplied | ChangeFailed] = []
        for one, seq in zip(known, seqs, strict=True):
            if one.why is not None:
                continue
            try:
                kept = one.piece.after.kind == "file" and one.blob is not None and not placing.only_mode(one.piece)
                placing.put(one.piece, self.store.blobs.chunks(one.blob) if kept and one.blob is not None else None)
            except (OSError, SteadError) as error:
                one.why = str(error)
                ends.append(ChangeFailed(captured=seq, reason=one.why))
            else:
                self._note(one.piece, one.blob)
                if isinstance(one.fact, ChangeCaptured):
                    ends.append(ChangeApplied(captured=seq, additions=one.additions, deletions=one.deletions))
            faults.point("overlay.file_done")
        return ends

    def _rest(self, effect: Effect, pieces: list[Piece]) -> list[str]:
        """What the log says nothing of: bits of new folders, new times, and git's own files."""
        placing.close_folders(pieces)
        for piece in sorted((one for one in effect.pieces if one.touched), key=lambda one: one.mtime):
            try:
                placing.put(piece, placing.chunks(piece))
            except (OSError, SteadError):
                continue  # it is not what it was: its time is new
            self._note(piece, None)
        told = (placing.put_repository(at, pieces) for at, pieces in sorted(effect.git.items()))
        return [one for one in told if one is not None]

    def _note(self, piece: Piece, blob: str | None) -> None:
        if self.tree is not None:
            self.tree.note(piece.before.path, blob if piece.after.kind == "file" else None)

    async def _uncovered(self, told: list[tuple[str, Why]]) -> None:
        gaps = [self._gap(*self._name(path, why), why) for path, why in told]
        if gaps:
            await self.commit(lambda tx: [tx.append(self.run.session, gap, run=self.run.id) for gap in gaps])

    def _name(self, path: str, why: Why) -> tuple[str, bool]:
        return (path, False) if why == "outside" else stored_path(self.root, self.root / path)

    def _gap(self, path: str, encoded: bool, why: Why) -> ChangeUncovered:
        return ChangeUncovered(call=self.call, message=self.run.message, path=path, why=why, encoded=encoded)


async def begin(made: Transaction, data: Path, home: Path) -> Transaction:
    """Have the overlay ready in which the command is to run, where that can be. Does not raise for what stands in the way of it."""
    try:
        found = await asyncio.to_thread(support, made.root, data, home)
    except (OSError, SteadError) as error:
        made.why = one_line(str(error), 200)
        return made
    if found.way is None:
        made.why = found.why
        return made
    if made.tree is not None and made.tree.coverage().ready:
        made._mark = await asyncio.to_thread(made.tree.before)
    try:
        made.layer = await asyncio.to_thread(make, made.root, data, found.way, made.store.ids.new())
    except SteadError as error:
        made.close()
        made.why = error.message
    return made


async def tidy(data: Path) -> None:
    """Remove what dead processes left of their overlays; nothing is raised, the next one tries again."""
    if not (data / FOLDER).is_dir():
        return
    try:
        await asyncio.to_thread(sweep, data)
    except (OSError, SteadError):
        logging.getLogger("stead.agent").warning("old overlays could not be removed", exc_info=True)


def _left(one: facts.Ready) -> str:
    kept = f"; the command's version: `stead storage blob {one.blob[:12]}`" if one.blob is not None else ""
    return f"{one.fact.path} ({(one.why or '').rstrip('.')}{kept})"


def _listed(told: Sequence[str]) -> str:
    more = f", and {len(told) - _NAMED} more" if len(told) > _NAMED else ""
    return ", ".join(one_line(one, 300) for one in told[:_NAMED]) + more


def _with(result: Result, notes: Iterable[str]) -> Result:
    told = [f"[{note.rstrip('.')}]" for note in notes]
    return replace(result, output="\n".join(filter(None, (result.output, *told)))) if told else result
