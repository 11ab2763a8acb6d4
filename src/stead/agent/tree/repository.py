"""The git repositories that a project lies in and holds: which object has the content of a file that is as git knows it.

Only `.git/index` and a few small files beside it are read; no git command runs here that could write.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from stead.agent.tree.gitindex import GitIndex
from stead.agent.tree.objects import Objects
from stead.agent.tree.stamps import unpacked
from stead.core.errors import SteadError
from stead.store import safefile

_MOST_INDEX = 128 << 20
_MOST_REPOSITORIES = 100
_MOST_CHILDREN = 8
_SMALL = 1 << 16
_CONVERTING = re.compile(rb"(?i)\b(text|eol|ident|crlf|working-tree-encoding|filter)\b|autocrlf|promisor|partialclone")
_FILTER = re.compile(rb"(?i)\bfilter\s*=\s*(?!lfs\b)")
_SHA256 = re.compile(rb"(?im)^\s*objectformat\s*=\s*sha256")


@dataclass(frozen=True, slots=True)
class Held:
    """Content that lies in a repository: by the object's name, with the size that it must have."""

    repository: Repository
    name: bytes
    size: int


class Repository:
    """One repository. `folder`: its work tree, relative to the project; `prefix`: where the project lies in it."""

    def __init__(self, root: Path, folder: str, prefix: bytes, git_dir: Path) -> None:
        self._root, self.folder, self._prefix, self._git_dir = root, folder, prefix, git_dir
        self.attributes: set[str] = set()
        self.objects = Objects(str(git_dir))
        self.index: GitIndex | None = None
        self._seen: tuple[int, int, int] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Read git's index again when it is another one by now."""
        path = self._git_dir / "index"
        try:
            found = os.stat(path)
            seen = (found.st_mtime_ns, found.st_size, found.st_ino)
            if seen == self._seen:
                return
            self._seen, self.index = seen, None
            if found.st_size <= _MOST_INDEX:
                self.index = GitIndex(path.read_bytes(), found.st_mtime_ns, 32 if self.hash == "sha256" else 20)
        except OSError:
            self._seen = self.index = None

    @cached_property
    def hash(self) -> str:
        """The hash by which its objects are named."""
        return "sha256" if _SHA256.search(_read(self._common / "config")) else "sha1"

    @cached_property
    def _common(self) -> Path:
        """Where a worktree's repository keeps what all its worktrees share."""
        told = os.fsdecode(_read(self._git_dir / "commondir").strip())
        return Path(os.path.normpath(self._git_dir / told)) if told else self._git_dir

    @cached_property
    def _rules(self) -> bytes:
        """All that says how files differ from the objects that git keeps of them."""
        home = Path.home()
        files = [self._root / path for path in self.attributes]
        files += [self._common / "info/attributes", self._common / "config", home / ".gitconfig", home / ".config/git/config"]
        files += [home / ".config/git/attributes", Path("/etc/gitconfig"), Path("/etc/gitattributes")]
        return b"\n".join(map(_read, files))

    @cached_property
    def converts(self) -> bool:
        """Whether some files may differ from their objects, or objects may be missing."""
        return bool(_CONVERTING.search(self._rules))

    @cached_property
    def filters(self) -> bool:
        """Whether a program of somebody's makes files from objects: then not even an equal length says that they are equal."""
        return bool(_FILTER.search(self._rules))

    def name(self, path: str) -> bytes:
        """How git calls the project's `path`."""
        return self._prefix + os.fsencode(path[len(self.folder) :].lstrip("/") if self.folder else path)

    def paths(self) -> list[str]:
        """The tracked files that lie in the project, as the project calls them."""
        start = f"{self.folder}/" if self.folder else ""
        names = self.index.paths() if self.index is not None else []
        cut = len(self._prefix)
        return [start + os.fsdecode(name[cut:]) for name in names if name.startswith(self._prefix)]


class Repositories:
    """Those of one project. Not thread-safe."""

    def __init__(self, root: Path) -> None:
        """Raises nothing: where git's files cannot be read there is no repository. Reads no directory."""
        self._root = root
        self._all: dict[str, Repository] = {}
        self._begun: set[str] = set()
        for above in (root, *root.parents):
            git_dir = _git_dir(above / ".git")
            if git_dir is not None:
                prefix = os.fsencode(root.relative_to(above).as_posix())
                self._all[""] = Repository(root, "", b"" if above == root else prefix + b"/", git_dir)
                break

    def add(self, folder: str) -> None:
        """A `.git` was seen in a folder of the project."""
        if folder in self._all and (folder or self._all[""].name("") == b""):
            return
        git_dir = _git_dir(self._root / folder / ".git")
        if len(self._all) >= _MOST_REPOSITORIES:
            return
        if git_dir is None:  # just being made, it may be
            self._begun.add(folder)
            return
        self._begun.discard(folder)
        self._all[folder] = Repository(self._root, folder, b"", git_dir)

    def attributes(self, path: str) -> None:
        """A `.gitattributes` was seen at `path`."""
        repository = self.of(path)
        if repository is not None:
            repository.attributes.add(path)
            for name in ("_rules", "converts", "filters"):
                repository.__dict__.pop(name, None)

    def of(self, path: str) -> Repository | None:
        """The repository that `path` belongs to."""
        if len(self._all) > ("" in self._all):
            while "/" in path:
                path = path.rpartition("/")[0]
                if path in self._all:
                    return self._all[path]
        return self._all.get("")

    def held(self, path: str, state: bytes) -> Held | None:
        """The object that has the content of `path`, when its state says that it is unchanged. Ask `whole` before relying on it."""
        repository = self.of(path)
        if repository is None or repository.index is None or repository.filters:
            return None
        about = unpacked(state)
        name = repository.index.clean(repository.name(path), about)
        return None if name is None else Held(repository, name, about.size)

    def whole(self, held: Iterable[Held]) -> set[Held]:
        """Those whose object is there and has the file's length: where git converts line ends or filters it has another one."""
        asked: dict[Repository, list[Held]] = {}
        for one in held:
            asked.setdefault(one.repository, []).append(one)
        found: set[Held] = set()
        for repository, wanted in asked.items():
            sizes = repository.objects.sizes([one.name for one in wanted])
            found.update(one for one, size in zip(wanted, sizes, strict=True) if size == one.size)
        if len(asked) > _MOST_CHILDREN:
            self._rest()
        return found

    def load(self, held: Held) -> bytes:
        """The content. Raises `not_found` when git does not give it."""
        content = held.repository.objects.load(held.name)
        if content is None or len(content) != held.size:
            raise SteadError("not_found", "git does not have this content any more.", details={"object": held.name.hex()})
        return content

    def paths(self) -> list[str]:
        """The tracked files of all of them."""
        return [path for repository in self._all.values() for path in repository.paths()]

    def refresh(self) -> None:
        """Read again those indexes of git that changed, and find repositories that were only begun when they were seen."""
        for folder in list(self._begun):
            self._begun.discard(folder)
            if os.path.lexists(self._root / folder / ".git"):
                self.add(folder)
        for repository in self._all.values():
            repository.refresh()

    def __iter__(self) -> Iterator[Repository]:
        return iter(list(self._all.values()))

    def _rest(self) -> None:
        for repository in self._all.values():
            repository.objects.close()

    close = _rest


def _git_dir(path: Path) -> Path | None:
    """Where the repository is that `.git` is, or points to."""
    with suppress(OSError, ValueError):
        if path.is_dir():
            return path if (path / "HEAD").is_file() else None
        told = _read(path)
        if told.startswith(b"gitdir:"):
            found = Path(os.path.normpath(path.parent / os.fsdecode(told[7:].strip())))
            return found if (found / "HEAD").is_file() else None
    return None


def _read(path: Path) -> bytes:
    """The head of a small file; nothing where there is none."""
    try:
        return safefile.read_bytes(path, _SMALL)
    except SteadError:
        return b""
