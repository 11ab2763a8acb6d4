"""From what was noted to what changed: contents are read and compared, renames paired, and what cannot be had is named."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from stead.agent.tree import inotify
from stead.agent.tree.mark import Mark, Was
from stead.agent.tree.reading import Read, read, reread
from stead.agent.tree.repository import Held, Repositories
from stead.agent.tree.reserve import Kept
from stead.agent.tree.shots import Counts, Found, Limits, NotCovered, Seen, Shot
from stead.agent.tree.stamps import Stamp, unpacked

_IN_MEMORY = 32 << 20
_ONLY_ATTRIBUTES = inotify.ATTRIB | inotify.FOLDER
_NOTHING = Shot("absent")


@dataclass(slots=True, eq=False)
class Item:
    """One path that was noted. `held` is what git may have of it, `origin` what it was renamed from, `heir` what it became."""

    path: str
    was: Was
    old: Stamp | None
    state: bytes | None
    now: Stamp | None
    target: str | None
    mask: int
    held: Held | None
    origin: Item | None = None
    heir: Item | None = None
    read: Read | None = None
    same: bool | None = None
    after: Shot = _NOTHING

    @property
    def old_file(self) -> bool:
        """A file was there."""
        return self.old is not None and self.old.kind == "file"

    @property
    def now_file(self) -> bool:
        """A file is there."""
        return self.now is not None and self.now.kind == "file"


def item(path: str, was: Was, state: bytes | None, target: str | None, mask: int, held: Held | None) -> Item:
    """A path that was noted, with what it is now."""
    old = None if was.state is None else unpacked(was.state)
    return Item(path, was, old, state, None if state is None else unpacked(state), target, mask, held)


@dataclass(slots=True)
class Finder:
    """Makes a `Found` of items. `carry(kept, path, state)` is told where content that is known turned up again."""

    root: Path
    limits: Limits
    counts: Counts
    repositories: Repositories
    blob_of: Callable[[str], bytes] | None
    carry: Callable[[Kept, str, bytes], None]
    room: int = _IN_MEMORY

    def found(self, mark: Mark, items: list[Item]) -> Found:
        """Read what has to be read and say what changed. Reads no directory."""
        items = [one for one in items if not self._is_nothing(one)]
        _pair(items)
        self._ask_git(items)
        for one in items:
            if one.now_file:
                self._look_into(one)
        for one in items:
            one.after = self._after(one)
        changed = [one for one in items if not (one.same and one.old and one.now and one.old.bits == one.now.bits)]
        seen = [Seen(one.path, self._before(one), one.after, one.origin.path if one.origin else None) for one in changed]
        for one in items:
            self._carry_on(one)
        return Found(sorted(seen, key=lambda s: s.path), sorted(_gaps(mark, seen), key=lambda gap: gap.path), mark.overflowed)

    def _is_nothing(self, one: Item) -> bool:
        """Whether nothing changed, as far as can be said without a look at the content."""
        old, now = one.old, one.now
        if old is None or now is None:
            return old is now
        if old.kind != now.kind:
            return False
        if old.kind == "file":
            assert one.was.state is not None and one.state is not None
            attributes = bool(one.mask) and not one.mask & ~_ONLY_ATTRIBUTES and old.size == now.size and old.ino == now.ino
            one.same = attributes or None
            return attributes and old.bits == now.bits
        if old.kind == "symlink":
            return one.was.target == one.target
        return old.bits == now.bits and (old.kind == "directory" or old.ino == now.ino)

    def _ask_git(self, items: Iterable[Item]) -> None:
        """Keep only what git really has."""
        asked = [one for one in items if one.held is not None]
        whole = self.repositories.whole([one.held for one in asked if one.held is not None]) if asked else set()
        for one in asked:
            if one.held not in whole:
                one.held = None

    def _look_into(self, one: Item) -> None:
        """Read what a file holds now, and say whether it held the same before."""
        assert one.now is not None
        compare = one.old_file and one.old is not None and one.old.size == one.now.size
        git = one.held.repository.hash if compare and one.held is not None else None
        self.counts.files_read += 1
        one.read = read(self.root / one.path, min(self.room, self.limits.file_bytes), git)
        if one.read is None:
            return
        if one.read.content is not None:
            self.room -= one.read.size
        if not one.old_file or one.same:
            return
        if one.old is not None and one.old.size != one.read.size:
            one.same = False
        elif one.was.kept is not None and one.was.kept.digest:
            one.same = one.was.kept.digest == one.read.digest
        elif one.held is not None and one.read.git is not None:
            one.same = one.held.name == one.read.git

    def _after(self, one: Item) -> Shot:
        now, found = one.now, one.read
        if now is None:
            return _NOTHING
        if now.kind == "symlink":
            return _link(now, one.target, one.state)
        if now.kind != "file":
            return Shot(now.kind, now.bits, why="special" if now.kind == "other" else None, state=one.state)
        if found is None:
            return Shot("file", now.bits, now.size, why="special", state=one.state)
        if found.size > self.limits.most_bytes:
            return Shot("file", found.bits, found.size, found.digest, why="too_large", state=found.state)
        if found.content is not None:
            load: Callable[[], bytes] = partial(bytes, found.content)
        else:
            load = partial(reread, self.root / one.path, found.digest, self.limits.most_bytes)
        return Shot("file", found.bits, found.size, found.digest, load, state=found.state)

    def _before(self, one: Item) -> Shot:
        old = one.old
        if old is None:
            return _NOTHING
        if old.kind == "symlink":
            return _link(old, one.was.target, one.was.state)
        if old.kind != "file":
            return Shot(old.kind, old.bits, why="special" if old.kind == "other" else None)
        kept = one.was.kept
        twin = one.after if one.same else one.heir.after if one.heir is not None else _NOTHING
        if twin.load is not None:
            return Shot("file", old.bits, old.size, twin.digest, twin.load)
        if old.size > self.limits.most_bytes:
            return Shot("file", old.bits, old.size, why="too_large")
        if kept is not None and kept.digest and kept.copy is None and kept.held is None:
            load = partial(self.blob_of, kept.digest) if self.blob_of is not None else None
            return Shot("file", old.bits, old.size, kept.digest, load, stored=True)
        if one.held is not None:
            return Shot("file", old.bits, old.size, load=partial(self.repositories.load, one.held))
        if kept is not None and kept.copy is not None:
            return Shot("file", old.bits, old.size, kept.digest, kept.content)
        return Shot("file", old.bits, old.size, why=one.was.why)

    def _carry_on(self, one: Item) -> None:
        """What is known of the content before is worth keeping where the content is still there."""
        there = one if one.same else one.heir
        if one.old is None or one.was.state is None or there is None or there.state is None or not one.old_file:
            return
        kept = one.was.kept
        if kept is None and one.held is not None:
            kept = Kept(one.was.state, one.old.size, held=one.held)
        if kept is not None:
            self.carry(kept, there.path, there.state)


def _pair(items: list[Item]) -> None:
    """Find renames: an inode that left one path and came to another, as it was."""
    by_path = {one.path: one for one in items}
    left = {one.old.ino: one for one in items if one.old is not None and (one.now is None or one.now.ino != one.old.ino)}
    came = [one for one in items if one.now is not None and (one.old is None or one.old.ino != one.now.ino)]
    inner = set[tuple[str, str]]()  # the folders, old and new, between which something moved
    files = [one for one in came if one.now is not None and one.now.kind != "directory"]
    folders = sorted((one for one in came if one.now is not None and one.now.kind == "directory"), key=lambda one: one.path)
    for one in (*files, *reversed(folders), *folders):  # folders twice: what is in them tells of them, and what they are in
        origin = left.get(one.now.ino) if one.now is not None and one.origin is None else None
        if origin is None or origin.heir is not None or not _moved(origin, one, by_path, inner):
            continue
        one.origin, origin.heir = origin, one
        inner.add((_above(origin.path), _above(one.path)))


def _moved(origin: Item, one: Item, by_path: dict[str, Item], inner: set[tuple[str, str]]) -> bool:
    assert origin.old is not None and one.now is not None
    if origin.old.kind != one.now.kind:
        return False
    if one.now.kind == "file":
        return (origin.old.size, origin.old.mtime) == (one.now.size, one.now.mtime)
    if one.now.kind == "symlink":
        return origin.was.target == one.target and origin.old.mtime == one.now.mtime
    # The number of a removed folder is soon another one's: an event, what is in it, or what it is in must speak for it.
    if one.mask & (inotify.CREATE | inotify.MOVED_TO):
        return not one.mask & inotify.CREATE
    parent = by_path.get(_above(one.path))
    with_parent = parent is not None and parent.origin is not None and parent.origin.path == _above(origin.path)
    return (origin.path, one.path) in inner or (with_parent and origin.path.rpartition("/")[2] == one.path.rpartition("/")[2])


def _above(path: str) -> str:
    return path.rpartition("/")[0]


def _link(about: Stamp, target: str | None, state: bytes | None) -> Shot:
    if target is None:
        return Shot("symlink", about.bits, about.size, why="special", state=state)
    content = os.fsencode(target)
    return Shot("symlink", about.bits, len(content), hashlib.sha256(content).hexdigest(), partial(bytes, content), state=state)


def _gaps(mark: Mark, seen: list[Seen]) -> list[NotCovered]:
    gaps = dict(mark.unsure)
    for one in seen:
        for shot in (one.after, one.before):
            if shot.why is not None and (shot is one.before or shot.why in ("too_large", "special")):
                gaps[one.path] = shot.why
    return [NotCovered(path, why) for path, why in gaps.items()]
