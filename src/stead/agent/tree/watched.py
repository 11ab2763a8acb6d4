"""Table, events, marks and contents of one project, held together. All but `__init__` needs `lock`, unless it says otherwise."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stead.agent.tree import inotify, place
from stead.agent.tree.copies import Copier
from stead.agent.tree.found import Item, item
from stead.agent.tree.index import RELIST, Index
from stead.agent.tree.inotify import Inotify
from stead.agent.tree.mark import Mark, Was
from stead.agent.tree.repository import Repositories
from stead.agent.tree.reserve import Kept, Reserve
from stead.agent.tree.shots import Counts, Limits
from stead.agent.tree.stamps import is_file, is_folder, packed, unpacked
from stead.core.clock import Clock

if TYPE_CHECKING:
    from stead.domain.changes import Why

_TRY_EVERY = 0.02  # seconds


class Watched:
    """See the module. Without events, or where the tree is `limited`, `compare` has to be called instead of `apply`."""

    def __init__(self, root: Path, data_dir: Path | None, limits: Limits, clock: Clock, events: bool) -> None:
        self.lock = threading.RLock()
        self.limits, self.counts, self._clock = limits, Counts(), clock
        self.ready = threading.Event()
        self.limited: str | None = None
        self.known: set[str] = set()  # where it is limited: the paths that are looked at
        self.marks: list[Mark] = []
        self.touched: dict[str, int] = {}
        self.stale: dict[str, int] = {}
        self.fresh: dict[str, int] = {}  # files whose content is wanted; the number says that it is wanted anew
        self._wanted = 0
        self.copied = False
        self.again = False  # what git says of its files may be of less worth by now: copies have to be made again
        self.overflow = False
        self._built = False
        self._looking = ("", 0)
        self._events = events and sys.platform == "linux"
        self.index = Index(
            root,
            clock=clock,
            counts=self.counts,
            told=self._told,
            met=self._met,
            skip=place.inside(root, data_dir),
            most_folders=limits.folders,
            most_watches=inotify.most_watches() // 2 if self._events else 1 << 30,
        )
        self.reserve = Reserve(limits)
        self.repositories: Repositories | None = None
        self.copier: Copier | None = None

    # ---- building ----

    def listen(self, tries: int = 1) -> Inotify | None:
        """A queue to give to `open`; None where there is none to be had. May wait between two tries; does not need the lock."""
        for _ in range(tries if self._events else 0):
            try:
                return Inotify()
            except OSError:  # those that were closed are given back a little later
                threading.Event().wait(_TRY_EVERY if tries > 1 else 0)
        return None

    def open(self, refused: str | None, watch: Inotify | None) -> None:
        """Find the repositories, and listen where that is not refused. Without a queue the tree is compared. Reads no directory."""
        self.repositories = Repositories(self.index.root)
        self.copier = Copier(self.index, self.reserve, self.repositories, self.limits, self.counts, self.lock, self._busy)
        self.index.watch = watch
        if refused is not None:
            self.limit(refused)

    def pieces(self) -> Iterator[int]:
        """Look at everything, quietly; a step after each folder or some files. The lock may be given up between two steps."""
        if self.limited is None:
            yield from self.index.scan("", quiet=True)
            return
        for number, path in enumerate(list(self.known)):
            self.index.place(path, quiet=True)
            if not number % 100:
                yield 100

    def built(self) -> None:
        """Everything was looked at."""
        self._built = True
        self.ready.set()

    def limit(self, why: str) -> None:
        """Give the tree as a whole up; what git tracks is looked at from now on (by the next `pieces` or `compare`)."""
        watch = self.index.watch
        self.index.clear()
        if watch is not None:
            watch.close()
        self.limited, self.overflow = why, False
        self.touched, self.stale = {}, {}
        tracked = self.repositories.paths() if self.repositories is not None else []
        self.known.update(tracked[: self.limits.tracked])

    def close(self) -> None:
        """Stop listening, end git's processes."""
        self.ready.clear()
        if self.index.watch is not None:
            self.index.watch.close()
        self.index.clear()
        if self.repositories is not None:
            self.repositories.close()

    # ---- events ----

    @property
    def listens(self) -> bool:
        """Whether the system tells what was touched."""
        return self.index.watch is not None

    def drain(self) -> None:
        """Take what the system has to tell."""
        if self.index.watch is None:
            return
        watched, touched = self.index.watched, self.touched
        for watch, mask, name in self.index.watch.read():
            if mask & inotify.OVERFLOW:
                self.overflow = True
                continue
            at = watched.get(watch)
            if at is None or not (name or mask & inotify.IGNORED):
                continue
            if mask & inotify.IGNORED:
                del watched[watch]
                path, mask = at, RELIST
                self.overflow = self.overflow or not at
            else:
                path = f"{at}/{name}" if at else name
                if name in (".git", ".gitattributes"):
                    self._met(path)
                    if name == ".git":
                        continue
                    self.again = True
            if path:
                touched[path] = touched.get(path, 0) | mask

    def lost(self) -> bool:
        """Whether events were lost, so that everything has to be compared."""
        return self.listens and (self.overflow or not self.index.is_root())

    def apply(self, *, most: int | None = None, until: float | None = None) -> None:
        """Look at what was touched; at most so many paths, or until then (monotonic seconds): the rest stays in `touched`."""
        index = self.index
        # A folder may go before the look at what is in it: what else was that file is to be known then.
        linked = {path: index.siblings(path, index.get(path)) for path in self.touched} if index.linked else {}
        for number, path in enumerate(sorted(self.touched)):
            if (most is not None and number >= most) or (until is not None and self._clock.monotonic() > until):
                return
            self._look(path, self.touched.pop(path))
            for other in linked.get(path, set()) | index.siblings(path, index.get(path)):
                self._look(other, inotify.MODIFY)
        for path in index.pair():
            self._look(path, inotify.MODIFY)

    def compare(self) -> None:
        """Look at everything that is known, whatever was touched. Raises `Limited` when the tree has grown too large."""
        self.overflow = False
        self.touched, self.stale = {}, {}
        if self.limited is not None:
            for path in list(self.known):
                self.index.place(path)
        else:
            for _ in self.index.scan(""):
                pass

    def settle_stale(self) -> None:
        """What `before` had no time for is nobody's doing; if it was touched again it is not known whose."""
        stale, self.stale = self.stale, {}
        for path in sorted(stale):
            again = self.touched.pop(path, 0)
            unknown = self.index.get(path) is None
            self.index.look(path, stale[path] | again, quiet=True)
            if again or (unknown and is_folder(self.index.get(path))):
                for mark in self.marks:
                    mark.unsure[path] = "index_not_ready"

    def catch_up(self) -> None:
        """Just before a command: look at what happened until now, for a short time. What is left is `stale`."""
        until = self._clock.monotonic() + self.limits.fresh_seconds
        if self.listens:
            self.apply(most=self.limits.fresh_files, until=until)
            for path, mask in self.touched.items():
                self.stale[path] = self.stale.get(path, 0) | mask
            self.touched = {}
        self.copy_fresh(self.limits.fresh_files, until)

    def want(self, path: str) -> None:
        """What `path` holds is to be copied when there is time."""
        self._wanted += 1
        self.fresh[path] = self._wanted

    def copy_fresh(self, most: int, until: float | None = None) -> None:
        """Copy files that changed, as far as git does not hold them. With `until`: a command is about to begin. Does not need the
        lock; what is being written to stays in `fresh`."""
        for path, number in list(self.fresh.items())[:most]:
            if self.copier is None or (until is not None and self._clock.monotonic() > until):
                return
            outcome = self.copier.one(path, now=until is not None)
            with self.lock:
                if self.fresh.get(path) != number:
                    continue
                if outcome != "later":
                    del self.fresh[path]
                elif until is not None or not self.marks:  # it may have changed without a word
                    self._look_without_word(path)
                    if until is not None and self.copier.one(path, now=True) != "later":
                        self.fresh.pop(path, None)

    def _look_without_word(self, path: str) -> None:
        if self.limited is not None:
            self.index.place(path)
        else:
            self._look(path, inotify.MODIFY)

    def note(self, path: str, digest: str | None) -> None:
        """Our own tools read or wrote `path`; `digest`: the blob with its content."""
        self.drain()
        self.known.add(path)
        self.touched.pop(path, None)
        if self.limited is not None:
            self.index.place(path, quiet=True)
        else:
            at = path
            while "/" in at and at.rpartition("/")[0] not in self.index.folders:
                at = at.rpartition("/")[0]  # the folders that were made for it
                self.touched.pop(at, None)
            self.index.look(at, inotify.CREATE if at != path else 0, quiet=True)
        state = self.index.get(path) if self._built else _state(self.index.root / path)
        if state is not None and digest is not None:
            self.point(path, state, digest)

    def point(self, path: str, state: bytes, digest: str) -> None:
        """The store holds the content of `path` as it is now."""
        self.reserve.point(path, Kept(state, unpacked(state).size, digest))
        self.fresh.pop(path, None)

    def items(self, mark: Mark) -> list[Item]:
        """What was noted under a mark, with what is there now."""
        items = []
        for path, was in mark.old.items():
            if path in mark.unsure:
                continue
            held = was.kept.held if was.kept is not None else None
            if was.state is not None and is_file(was.state) and (was.kept is None or was.kept.copy is not None):
                held = self.repositories.held(path, was.state) if self.repositories is not None else None
            items.append(item(path, was, self.index.get(path), self.index.targets.get(path), mark.masks.get(path, 0), held))
        return items

    # ---- what the index tells ----

    def _look(self, path: str, mask: int) -> None:
        for mark in self.marks:
            mark.masks[path] = mark.masks.get(path, 0) | mask
        self._looking = (path, mask)
        self.index.look(path, mask)
        self._looking = ("", 0)

    def _told(self, path: str, old: bytes | None, new: bytes | None, quiet: bool) -> None:
        if quiet and not self._built:
            return
        if not quiet:
            for mark in self.marks:
                self._journal(mark, path, old)
        if new is None:
            self.fresh.pop(path, None)
            self.reserve.forget(path)
        elif is_file(new):
            if old is not None and is_file(old) and self._only_attributes(path, old, new):
                self._restamp(path, old, new)
                return
            if old == new:  # the same state may hide another content
                self.reserve.forget(path)
            if self._built and not self.limits.off:
                self.want(path)

    def _journal(self, mark: Mark, path: str, old: bytes | None) -> None:
        if path in mark.old:
            return
        if not mark.ready and old is None:
            folder = self.index.folders.get(path.rpartition("/")[0])
            if folder is None or folder.born > mark.born:  # it may have been there, in a folder that was not listed yet
                mark.unsure[path] = "index_not_ready"
                return
        kept = None if old is None else self.reserve.get(path, old)
        size = 0 if old is None else unpacked(old).size
        waits = not self.limits.off and (not self.copied or path in self.fresh)
        late = not mark.ready or (waits and size <= self.limits.file_bytes)
        why: Why = "index_not_ready" if late else "too_large" if size > self.limits.most_bytes else "budget"
        mark.old[path] = Was(old, self.index.targets.get(path), kept, why)

    def _only_attributes(self, path: str, old: bytes, new: bytes) -> bool:
        where, mask = self._looking
        if where != path or not mask or mask & ~(inotify.ATTRIB | inotify.FOLDER):
            return False
        before, after = unpacked(old), unpacked(new)
        return before.size == after.size and before.ino == after.ino

    def _restamp(self, path: str, old: bytes, new: bytes) -> None:
        held = self.repositories.held(path, old) if self.repositories is not None else None
        if held is not None and self.reserve.get(path, old) is None:
            self.reserve.point(path, Kept(new, held.size, held=held))
        else:
            self.reserve.restamp(path, old, new)

    def _met(self, path: str) -> None:
        if self.repositories is None:
            return
        folder, _, name = path.rpartition("/")
        if name == ".git":
            self.repositories.add(folder)
        else:
            self.repositories.attributes(path)

    def _busy(self, path: str) -> bool:
        return path in self.touched or path in self.stale or (bool(self.marks) and path in self.index.racy)


def _state(path: Path) -> bytes | None:
    with suppress(OSError):
        return packed(os.lstat(path))
    return None


def full(path: Path | str, root: Path) -> str | None:
    """`path` as the table calls it; None when it does not lie in the project."""
    text = os.path.normpath(os.path.join(root, path))
    start = f"{root}{'' if str(root).endswith('/') else '/'}"
    return text[len(start) :] if text.startswith(start) else None
