"""An undo carried out: what stands there is stored, what is to be done is said, then done, then said to be done.

Safe to run any number of times: a rewind whose process died is finished by `finish`, which looks at each path. A path that is
neither what the plan saw nor what it wants is left alone and named.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.app.undo.disk import place, seen
from stead.app.undo.plan import Item, Plan
from stead.core.errors import SteadError
from stead.domain import changes, hunks, rewinds
from stead.domain.changes import Change, ChangeApplied, ChangeCaptured, ChangeFailed, FileState
from stead.store import faults, safefile

if TYPE_CHECKING:
    from stead.store.blobs import Prepared
    from stead.store.log import Tx
    from stead.store.store import Store

_SHARE = 200
SINCE = "It was changed since the preview."
NOT_EMPTY = "It is not empty."


@dataclass(slots=True)
class Result:
    """What became of an undo: paths restored, paths left alone and why, what could not be covered, the rewind's id if there was
    one."""

    restored: list[str] = field(default_factory=list)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    not_covered: list[dict[str, Any]] = field(default_factory=list)
    rewind: str | None = None
    messages: list[int] = field(default_factory=list)
    while_command: list[str] = field(default_factory=list)
    """Of those restored: what was found changed after a command, by that or by somebody else while it ran."""

    def to_json(self, *, dry_run: bool = False) -> dict[str, Any]:
        """`{restored, conflicts: [{path, why, …}], not_covered: [{path, why}], dry_run, messages, rewind?}`."""
        shown = {"restored": self.restored, "conflicts": self.conflicts, "not_covered": self.not_covered, "dry_run": dry_run}
        shown |= {"messages": self.messages, "while_command": [path for path in self.while_command if path in self.restored]}
        return {**shown, "rewind": self.rewind} if self.rewind is not None else shown


def foreseen(plan: Plan) -> Result:
    """What carrying the plan out would give."""
    shown = Result(messages=plan.messages)
    shown.restored = sorted(item.path for item in plan.items if item.visible)
    shown.while_command = sorted(item.path for item in plan.items if item.visible and item.found)
    shown.conflicts = [conflict_json(item) for item in plan.conflicts]
    shown.not_covered = [one.to_json() for one in plan.not_covered]
    return shown


def conflict_json(item: Item) -> dict[str, Any]:
    """A path that is left alone: why, the hash of the content that it had (`stead storage blob` prints it), whether the lines
    could be merged."""
    shown: dict[str, Any] = {"path": item.path, "why": item.why, **({"encoded": True} if item.encoded else {})}
    if item.case == "merge":
        shown["merge"] = True
    if item.before is not None and "blob" in item.before:
        shown["blob"] = item.before["blob"]
    return shown


def carry_out(store: Store, plan: Plan, *, rewind: str, owner: str, actor: str) -> Result:
    """Do what the plan says, and give what became of it; durable when it returns. `rewind` is a fresh id, `owner` this
    process's name.

    A path that is no longer what the plan saw is left alone. Nothing is written when there is nothing to do. Raises `conflict`
    when a run or another undo is under way in the session, or the conversation moved since the plan.
    """
    told = foreseen(plan)
    if plan.empty:
        return told
    doing, stamps, late = _captured(store, plan)
    told.conflicts += late
    facts = {item.path: _fact(item, rewind) for item in doing}
    planned = rewinds.RewindPlanned(
        id=rewind,
        what=plan.what,
        files=len(facts),
        owner=owner,
        first=plan.messages[0] if plan.messages else None,
        about=plan.scope.about,
        of=plan.scope.of,
    )
    if not facts and not plan.messages:
        told.restored = []
        return told
    _journal(store, plan, planned, facts, doing, actor)
    faults.point("undo.planned")
    with store.view() as view:
        begun = rewinds.get(view, rewind)
    failed = finish(store, begun, plan.root, stamps, actor=actor)
    told.rewind = rewind
    told.restored = sorted(ready.path for ready in doing if ready.item.visible and ready.path not in failed)
    told.conflicts += [
        {"path": item.path, "why": failed[item.path]}
        for item in doing
        if item.path in failed and not (item.folder and failed[item.path] == NOT_EMPTY)  # a folder goes when it may
    ]
    return told


@dataclass(frozen=True, slots=True)
class Ready:
    """A path that is about to change, with what is stored for it: what stands there, and what was merged."""

    item: Item
    blobs: tuple[Prepared, ...]

    @property
    def path(self) -> str:
        """Where."""
        return self.item.path

    @property
    def folder(self) -> bool:
        """Whether it is only about a folder."""
        return self.item.folder


def _captured(store: Store, plan: Plan) -> tuple[list[Ready], dict[str, safefile.Stamp], list[dict[str, Any]]]:
    """Look again at each path and have ready what stands there: whatever is overwritten can be had back."""
    doing: list[Ready] = []
    stamps: dict[str, safefile.Stamp] = {}
    late: list[dict[str, Any]] = []
    for item in plan.items:
        if not item.doable:
            continue
        at = place(plan.root, item.path, item.encoded)
        try:
            blobs, stamp = _keep(store, at, item)
        except SteadError as error:
            if error.code in ("disk_full", "store_busy"):
                raise
            late.append({"path": item.path, "why": error.message})
            continue
        stamps[item.path] = stamp
        doing.append(Ready(item, blobs))
    return doing, stamps, late


def _keep(store: Store, at: Path, item: Item) -> tuple[tuple[Prepared, ...], safefile.Stamp]:
    import os

    blobs: list[Prepared] = []
    if item.block is not None:  # what stands in its way is done before it
        return ((store.blobs.prepare(item.want.content),) if item.want.content is not None else ()), safefile.ABSENT
    if item.have["kind"] == "file":
        with os.fdopen(safefile.opened(at), "rb") as file:
            blobs.append(store.blobs.prepare_stream(file))
    elif item.have["kind"] == "symlink":
        blobs.append(store.blobs.prepare(os.fsencode(safefile.state(at).target or "")))
    now = safefile.stamp(at)
    if (blobs and blobs[0].hash != item.have.get("blob")) or now != item.stamp:
        raise SteadError("conflict", SINCE)
    if item.want.content is not None:
        blobs.append(store.blobs.prepare(item.want.content, after=item.have.get("blob")))
    return tuple(blobs), now


def _fact(ready: Ready, rewind: str) -> ChangeCaptured:
    item = ready.item
    return ChangeCaptured(
        call=item.call,
        message=item.message,
        path=item.path,
        before=item.have,
        after=item.want.state,
        in_place=item.in_place,
        encoded=item.encoded,
        rewind=rewind,
        undoes=item.undoes,
        partly=item.partly,
        origin=item.origin,
    )


def _journal(
    store: Store,
    plan: Plan,
    planned: rewinds.RewindPlanned,
    facts: Mapping[str, ChangeCaptured],
    doing: list[Ready],
    actor: str,
) -> None:
    """Say what is to be done, durably: nothing is touched before all of it is in the log."""

    def begin(tx: Tx) -> None:
        if plan.messages and _moved(tx, plan):
            raise SteadError("conflict", "The conversation went on since the preview, so nothing was taken back.")
        rewinds.begin(tx, plan.session, planned)

    def say(share: list[Ready]) -> Callable[[Tx], None]:
        def job(tx: Tx) -> None:
            for ready in share:
                for prepared in ready.blobs:
                    tx.put(prepared)
                tx.append(plan.session, facts[ready.path])

        return job

    shares = [doing[at : at + _SHARE] for at in range(0, len(doing), _SHARE)]
    if not shares:
        store.write(begin, actor=actor)
        return

    def first(tx: Tx) -> None:
        begin(tx)
        say(shares[0])(tx)

    store.write(first, actor=actor)
    for share in shares[1:]:
        store.write(say(share), actor=actor)


def _moved(tx: Tx, plan: Plan) -> bool:
    from stead.domain import sessions

    if plan.scope.of is None:
        return sessions.numbers(tx, plan.session, since=plan.messages[0]) != plan.messages
    branch = rewinds.get(tx, plan.scope.of).branch
    return branch is None or not sessions.may_resume(tx, plan.session, branch)


def finish(
    store: Store,
    rewind: rewinds.Rewind,
    root: Path,
    stamps: Mapping[str, safefile.Stamp] | None = None,
    *,
    actor: str | None = None,
) -> dict[str, str]:
    """Carry out what a planned rewind still has to do, and note its end. Gives by path why it was left alone.

    `stamps`: what is known of paths by somebody who has just looked. Idempotent, and may be killed anywhere. A rewind of which not
    everything stands in the log touched nothing, and is given up.
    """
    by: dict[str, Any] = {} if actor is None else {"actor": actor}
    with store.view() as view:
        whole, rows = rewinds.all_captured(view, rewind), changes.of_rewind(view, rewind.session, rewind.id)
    if not whole:
        store.write(lambda tx: _give_up(tx, rewind, rows), **by)
        return {}
    ends: list[ChangeApplied | ChangeFailed] = []
    failed: dict[str, str] = {}
    for row in rows:
        if row.state != "captured":
            continue
        try:
            _done(store, row, place(root, row.path, row.encoded), root, (stamps or {}).get(row.path))
            ends.append(_applied(store, row))
        except SteadError as error:
            failed[row.path] = error.message
            ends.append(ChangeFailed(captured=row.seq, reason=error.message))
        faults.point("undo.file_done")
    for at in range(0, len(ends), _SHARE):
        share = ends[at : at + _SHARE]
        if at + _SHARE < len(ends):
            store.write(lambda tx, share=share: _note(tx, rewind, share), **by)  # type: ignore[misc]
    store.write(lambda tx: _end(tx, rewind, ends[-(len(ends) % _SHARE or _SHARE) :]), **by)
    faults.point("undo.ended")
    return failed


def _give_up(tx: Tx, rewind: rewinds.Rewind, rows: list[Change]) -> None:
    if rewinds.get(tx, rewind.id).state == "planned":
        for row in rows:
            tx.append(rewind.session, ChangeFailed(captured=row.seq, reason="The program ended before it began."))
        rewinds.end(tx, rewind, done=False)


def _note(tx: Tx, rewind: rewinds.Rewind, ends: list[ChangeApplied | ChangeFailed]) -> None:
    open_rows = {row.seq for row in changes.of_rewind(tx, rewind.session, rewind.id) if row.state == "captured"}
    for fact in ends:
        if fact.captured in open_rows:  # else another process was faster
            tx.append(rewind.session, fact)


def _end(tx: Tx, rewind: rewinds.Rewind, ends: list[ChangeApplied | ChangeFailed]) -> None:
    _note(tx, rewind, ends)
    rewinds.end(tx, rewind, done=True)


def _done(store: Store, row: Change, at: Path, root: Path, stamp: safefile.Stamp | None) -> None:
    """Make one path what it is to be. One that is not what it was a moment ago is looked at by its content: another name of the
    same file (a hard link) may have been done before it. Raises `SteadError` when it was left alone."""
    try:
        _do(store, row, at, root, stamp)
    except SteadError as error:
        if error.code != "conflict" or stamp is None:
            raise
        _do(store, row, at, root, None)


def _do(store: Store, row: Change, at: Path, root: Path, stamp: safefile.Stamp | None) -> None:
    """Make one path what it is to be, if it still is what it was. Raises `SteadError` when it was left alone."""
    if stamp is None:
        if at.parent.is_dir():
            safefile.sweep(at.parent, at.name)  # what the process that began it may have left
        have, stamp = seen(at)
        if changes.same(have, row.after):
            return
        if not changes.same(have, row.before) and not _torn(store, at, row, have):
            raise SteadError("conflict", "It holds something else by now.")
    if row.origin is not None and _renamed_back(row, at, root):
        return
    _place(store, row, at, stamp)


def _renamed_back(row: Change, at: Path, root: Path) -> bool:
    """Rename the file from where it stands, where it still is the one that is wanted."""
    old = place(root, row.origin or "", row.encoded)
    try:
        have, stamp = seen(old)
        if not changes.same(have, row.after):
            return False
        safefile.rename(old, at, expect=stamp)
    except SteadError:
        return False
    return True


def _place(store: Store, row: Change, at: Path, stamp: safefile.Stamp) -> None:
    have, want = row.before["kind"], row.after["kind"]
    if want == "absent":
        if have == "directory":
            if not safefile.remove_folder(at):
                raise SteadError("conflict", NOT_EMPTY)
        elif not safefile.remove(at, follow=False, expect=stamp) and stamp.kind != "absent":
            return
    elif want == "directory":
        if have == "directory":
            safefile.set_mode(at, row.after.get("mode", 0o755), expect=stamp)
            return
        if have != "absent":
            safefile.remove(at, follow=False, expect=stamp)
        safefile.make_folder(at, row.after.get("mode", 0o755))
    else:
        if have == "directory" and not safefile.remove_folder(at):
            raise SteadError("conflict", NOT_EMPTY)
        expect = safefile.stamp(at) if have == "directory" else stamp
        blob = row.after.get("blob", "")
        if want == "symlink":
            safefile.link(at, store.blobs.get(blob), expect=expect)
        elif have == "file" and row.before.get("blob") == blob:
            safefile.set_mode(at, row.after.get("mode", 0o644), expect=expect)
        else:
            pieces = store.blobs.chunks(blob)
            safefile.replace(at, pieces, mode=row.after.get("mode"), follow=False, expect=expect, apart=not row.in_place)


def _torn(store: Store, at: Path, row: Change, have: FileState) -> bool:
    """Whether the path is what an interrupted write in place leaves: then it is written again."""
    from stead.agent.changing import torn

    if not have["kind"] == row.before["kind"] == row.after["kind"] == "file" or not safefile.in_place(at):
        return False
    old, new = store.blobs.get(row.before["blob"]), store.blobs.get(row.after["blob"])
    return torn(safefile.read_bytes(at, max(len(old), len(new)) + 1, follow=False), old, new)


def _applied(store: Store, row: Change) -> ChangeApplied:
    additions, deletions = 0, 0
    if max(row.before_size or 0, row.after_size or 0) <= changes.SHOWN_BYTES:
        try:
            old, new = (store.blobs.get(state["blob"]) if "blob" in state else None for state in (row.before, row.after))
            additions, deletions = hunks.count(old, new)
        except SteadError:
            logging.getLogger("stead").warning("the lines of %s could not be counted", row.path, exc_info=True)
    return ChangeApplied(captured=row.seq, additions=additions, deletions=deletions)
