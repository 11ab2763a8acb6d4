"""The table of states: every path of the project, as it was when it was last looked at, folder by folder."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from stead.agent.tree import inotify, place
from stead.agent.tree.inotify import Inotify
from stead.agent.tree.place import Limited
from stead.agent.tree.shots import Counts
from stead.agent.tree.stamps import RACY_NS, inode, is_folder, packed
from stead.core.clock import Clock

RELIST = 1 << 40
"""In a mask: the folder may be another one by now."""
_ANEW = inotify.CREATE | inotify.MOVED_TO | RELIST
_GONE = inotify.MOVED_FROM | inotify.DELETE
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Folder:
    """One directory: its names with their states. `watch` is 0 where it is not watched, `born` its number in order of discovery."""

    born: int
    names: dict[str, bytes] = field(default_factory=dict)
    watch: int = 0


class Index:
    """States by path (relative to `root`, with `/`; the project itself is `""`). Not thread-safe.

    `told(path, old, new, quiet)` is called before a state changes; `quiet` is what the caller of the function said. `met(path)` is
    called for each `.git` and `.gitattributes` that is seen. `skip` is a path that is left alone.
    """

    def __init__(
        self,
        root: Path,
        *,
        clock: Clock,
        counts: Counts,
        told: Callable[[str, bytes | None, bytes | None, bool], None],
        met: Callable[[str], None],
        watch: Inotify | None = None,
        skip: str | None = None,
        most_folders: int = 20_000,
        most_watches: int = 1 << 30,
    ) -> None:
        self.root = root
        self.watch = watch
        self.folders: dict[str, Folder] = {}
        self.watched: dict[int, str] = {}
        self.targets: dict[str, str] = {}
        self.racy: set[str] = set()
        self.linked: dict[bytes, set[str]] = {}
        self._here, self._clock, self._counts = os.fspath(root), clock, counts
        self._told, self._met, self._skip = told, met, skip
        self._most_folders, self._most_watches = most_folders, most_watches
        self._unpaired: set[bytes] = set()
        self._born = 0
        self._devices: dict[int, bool] = {}

    @property
    def born(self) -> int:
        """How many folders were met so far."""
        return self._born

    def get(self, path: str) -> bytes | None:
        """The state of `path`; None when nothing is there, or it is not known."""
        parent, _, name = path.rpartition("/")
        folder = self.folders.get(parent)
        return None if folder is None else folder.names.get(name)

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Every path that is no folder, with its state. The index may change meanwhile: what is new may be missing then."""
        for at, folder in list(self.folders.items()):
            start = f"{at}/" if at else ""
            for name, state in list(folder.names.items()):
                if not is_folder(state):
                    yield start + name, state

    def is_root(self) -> bool:
        """Whether the project's folder is the one that was scanned."""
        try:
            return inode(packed(os.lstat(self._here))) == self._root_inode
        except (OSError, AttributeError):
            return False

    def look(self, path: str, mask: int = 0, *, quiet: bool = False) -> None:
        """Take the state of `path` anew, and with it all below when it is a folder that is new, or was made anew by `mask`."""
        parent, _, name = path.rpartition("/")
        folder = self.folders.get(parent)
        if folder is None or path == self._skip:
            return
        now = self._now()
        found = self._lstat(path)
        if found is not None and mask & _GONE and not self._spelt_so(parent, name):
            found = None
        old = folder.names.get(name)
        state = self._put(folder, path, found, now, quiet)
        if state is not None and is_folder(state):
            if path not in self.folders or mask & _ANEW or old is None or inode(old) != inode(state):
                for _ in self.scan(path, quiet=quiet):
                    pass

    def place(self, path: str, *, quiet: bool = False) -> None:
        """Take the state of a file anew where folders are not scanned: those above it count as known, and a folder as nothing."""
        parent = path.rpartition("/")[0]
        folder = self.folders.get(parent)
        if folder is None:
            folder = self.folders[parent] = self._folder()
        now, found = self._now(), self._lstat(path)
        if found is not None and stat.S_ISDIR(found.st_mode):
            found = None
        self._put(folder, path, found, now, quiet)

    def scan(self, path: str, *, quiet: bool = False) -> Iterator[int]:
        """Compare the folder `path` and all below with what is known; after each folder gives how many names it holds.

        Raises `Limited` when there are too many folders.
        """
        stack = [path]
        while stack:
            at = stack.pop()
            if at and not is_folder(self.get(at)):
                continue  # it went while others were scanned
            now = self._now()
            names = self._list(at)
            if names is None and at:
                continue
            names, folder = names or {}, self.folders.get(at) or self._folder()
            start = f"{at}/" if at else ""
            for name in folder.names.keys() - names.keys():
                self._put(folder, start + name, None, now, quiet)
            for name, found in names.items():
                self._put(folder, start + name, found, now, quiet)
                if stat.S_ISDIR(found.st_mode):
                    stack.append(start + name)
            yield len(names)

    def siblings(self, path: str, state: bytes | None) -> set[str]:
        """Other paths that are known to be the same inode."""
        return set() if state is None else self.linked.get(inode(state), set()) - {path}

    def pair(self) -> set[str]:
        """Look for the other names of files that turned out to have several; gives those that were not known as such."""
        wanted, self._unpaired = self._unpaired, set()
        found: set[str] = set()
        if wanted:
            for path, state in self.files():
                if inode(state) in wanted and path not in self.linked[inode(state)]:
                    self.linked[inode(state)].add(path)
                    found.add(path)
        return found

    def clear(self) -> None:
        """Forget everything, and watch nothing."""
        self.folders, self.watched = {}, {}
        self.targets, self.racy, self.linked, self._unpaired = {}, set(), {}, set()
        self.watch = None

    # ---- one state ----

    def _put(self, folder: Folder, path: str, found: os.stat_result | None, now: int, quiet: bool) -> bytes | None:
        name = path.rpartition("/")[2]
        old = folder.names.get(name)
        new = None if found is None else packed(found)
        if old == new and path not in self.racy:
            return new
        target = None
        if found is not None and stat.S_ISLNK(found.st_mode):
            with suppress(OSError):
                target = os.readlink(os.path.join(self._here, path))
        self._told(path, old, new, quiet)
        if is_folder(old) and not is_folder(new):
            self._drop(path, quiet)
        if new is None or found is None:
            folder.names.pop(name, None)
            self.targets.pop(path, None)
            self.racy.discard(path)
            return None
        folder.names[name] = new
        if target is not None:
            self.targets[path] = target
        else:
            self.targets.pop(path, None)
        if stat.S_ISDIR(found.st_mode):
            return new
        (self.racy.add if now - found.st_ctime_ns < RACY_NS else self.racy.discard)(path)
        if found.st_nlink > 1:
            known = self.linked.setdefault(inode(new), set())
            known.add(path)
            if not quiet and len(known) < found.st_nlink:
                self._unpaired.add(inode(new))
        return new

    def _drop(self, path: str, quiet: bool) -> None:
        """What was below a folder is gone."""
        stack = [path]
        while stack:
            at = stack.pop()
            folder = self.folders.pop(at, None)
            if folder is None:
                continue
            self._unwatch(at, folder.watch)
            for name, state in folder.names.items():
                below = f"{at}/{name}"
                self._told(below, state, None, quiet)
                self.targets.pop(below, None)
                self.racy.discard(below)
                if is_folder(state):
                    stack.append(below)

    def _lstat(self, path: str) -> os.stat_result | None:
        self._counts.lstats += 1
        try:
            return os.lstat(os.path.join(self._here, path))
        except OSError:
            return None

    def _now(self) -> int:
        return self._clock.now() * 1_000_000

    def _spelt_so(self, parent: str, name: str) -> bool:
        """Whether the folder lists exactly this name: where letter cases are one, `lstat` finds a file by its old name as well."""
        self._counts.directories_read += 1
        try:
            return name in os.listdir(os.path.join(self._here, parent))
        except OSError:
            return False

    # ---- one folder ----

    def _folder(self) -> Folder:
        self._born += 1
        return Folder(self._born)

    def _list(self, at: str) -> dict[str, os.stat_result] | None:
        """Watch a folder, then read it. None when it is not the one that its parent listed, or cannot be read."""
        full = os.path.join(self._here, at)
        watch = self._watch(full)
        if watch is None:
            return None
        try:
            fd = os.open(full, _OPEN)
        except OSError:
            if watch and watch not in self.watched and self.watch is not None:
                self.watch.remove(watch)
            return None
        try:
            about = os.fstat(fd)
            if at == "":
                self._root_inode, self._device = inode(packed(about)), about.st_dev
            expected = self._root_inode if at == "" else inode(self.get(at) or packed(about))
            if inode(packed(about)) != expected:
                return None
            self._enter(at, watch)
            return self._names(fd, at) if self._tells(about.st_dev, full) else {}
        except OSError:
            return None
        finally:
            os.close(fd)

    def _names(self, fd: int, at: str) -> dict[str, os.stat_result]:
        self._counts.directories_read += 1
        names: dict[str, os.stat_result] = {}
        with os.scandir(fd) as entries:
            for entry in entries:
                path = f"{at}/{entry.name}" if at else entry.name
                if entry.name in (".git", ".gitattributes"):
                    self._met(path)
                if entry.name == ".git" or path == self._skip:
                    continue
                with suppress(OSError):
                    names[entry.name] = entry.stat(follow_symlinks=False)
        self._counts.lstats += len(names)
        return names

    def _watch(self, full: str) -> int | None:
        """The number of the watch, 0 where nothing is watched, None when there is no such folder."""
        if self.watch is None:
            return 0
        try:
            return self.watch.add(full)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise Limited("The system does not allow to watch so many folders.") from None
            return None

    def _enter(self, at: str, watch: int) -> None:
        folder = self.folders.get(at)
        if folder is None:
            folder = self.folders[at] = self._folder()
            if len(self.folders) > self._most_folders:
                raise Limited(f"It has more than {self._most_folders:,} folders.")
            if len(self.folders) > self._most_watches:
                raise Limited("It has more folders than half of what the system allows to watch.")
        elif folder.watch != watch:
            self._unwatch(at, folder.watch)
        folder.watch = watch
        if watch:
            self.watched[watch] = at

    def _unwatch(self, at: str, watch: int) -> None:
        if watch and self.watched.get(watch) == at:  # else it is the same folder, by another name
            del self.watched[watch]
            if self.watch is not None:
                self.watch.remove(watch)

    def _tells(self, device: int, full: str) -> bool:
        """Whether a file system that is mounted in the project tells of changes."""
        if device == self._device:
            return True
        if device not in self._devices:
            self._devices[device] = place.tells(Path(full))
        return self._devices[device]
