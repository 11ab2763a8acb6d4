"""What a command did, read from the upper layer of its overlay. Reads that and what it names in the project; writes nothing."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from stead.agent.overlay.layer import Layer
from stead.agent.overlay.support import attribute, is_opaque, is_whiteout
from stead.core.errors import SteadError
from stead.store import safefile
from stead.store.safefile import State

_CHUNK = 1 << 20
MOVED = "It was changed by somebody else while the command ran."


@dataclass(frozen=True, slots=True)
class Piece:
    """One path that the command changed (relative, as `os.fsdecode` spells it). `before` is what stands in the project, `after`
    what the command made of it; its `path` is where that lies in the layer. `moved`: somebody else changed it since the command
    began. `touched`: only its time is new."""

    path: str
    before: State
    after: State
    moved: bool = False
    touched: bool = False

    @property
    def kinds(self) -> set[str]:
        """What it was and is."""
        return {self.before.kind, self.after.kind}

    @property
    def mtime(self) -> int:
        """When the command wrote it (ns)."""
        return self.after.stamp.mtime_ns


@dataclass(slots=True)
class Effect:
    """What a command changed in the project. `git` has what it changed in repositories' own files, by the path of their `.git`;
    `special` are pipes, sockets and devices that it made, which stay behind."""

    pieces: list[Piece] = field(default_factory=list)
    git: dict[str, list[Piece]] = field(default_factory=dict)
    special: list[str] = field(default_factory=list)

    @property
    def asked(self) -> bool:
        """Whether it wants a person's consent. New times of files do not, nor does git's index alone: `git status` writes it."""
        repositories = any(piece.path != f"{at}/index" for at, pieces in self.git.items() for piece in pieces)
        return repositories or any(not piece.touched for piece in self.pieces)


def read(layer: Layer, others: Collection[str] | None = None) -> Effect:
    """What the layer says was changed. `others` are the paths that somebody else changed meanwhile, where all are known."""
    effect = Effect()
    for piece in _walk(layer, "", effect.special):
        if others is not None and piece.path in others:
            piece = replace(piece, moved=True)
        elif others is not None and piece.before.kind == "absent" and piece.after.kind != "directory":
            piece = replace(piece, moved=False)
        if (repository := _repository(piece.path)) is not None:
            effect.git.setdefault(repository, []).append(piece)
        else:
            effect.pieces.append(piece)
    effect.pieces = _below_moved(effect.pieces)
    return effect


def _walk(layer: Layer, folder: str, special: list[str], *, below: bool = True) -> Iterator[Piece]:
    """The changes in one folder of the layer. `below`: the project has it as a folder too."""
    upper = layer.upper / folder
    _open(upper)
    names = sorted(os.listdir(upper))
    if below and folder and is_opaque(upper):
        for name in sorted(set(_names(layer.root / folder)) - set(names)):
            yield from _gone(layer, f"{folder}/{name}")
    for name in names:
        path = f"{folder}/{name}" if folder else name
        seen = os.lstat(upper / name)
        if is_whiteout(upper / name, seen):
            yield from _gone(layer, path)
            continue
        here = layer.root / path
        before, after = safefile.state(here) if below else State(here, "absent"), safefile.state(upper / name)
        if after.kind == "other":
            special.append(path)
        elif after.kind == "directory":
            if before.kind != "directory" or before.mode != after.mode:
                yield Piece(path, before, after, _moved(layer, before, after))
            yield from _walk(layer, path, special, below=before.kind == "directory")
        else:
            if before.kind == "directory":
                for inner in sorted(_names(layer.root / path)):
                    yield from _gone(layer, f"{path}/{inner}")
            yield from _changed(layer, path, before, after)


def _open(folder: Path) -> None:
    """The command may have taken its own rights away; the layer is ours."""
    if not os.access(folder, os.R_OK | os.X_OK):
        os.chmod(folder, stat.S_IMODE(os.lstat(folder).st_mode) | 0o500)


def _changed(layer: Layer, path: str, before: State, after: State) -> Iterator[Piece]:
    moved = _moved(layer, before, after)
    if before.kind == after.kind and before.target == after.target and _same_content(before, after):
        if after.kind == "symlink":
            return
        if before.mode == after.mode:
            if after.stamp.mtime_ns > max(before.stamp.mtime_ns, layer.since) and not moved:
                yield Piece(path, before, after, touched=True)
            return
    yield Piece(path, before, after, moved)


def _gone(layer: Layer, path: str) -> Iterator[Piece]:
    """The path, and what is below it, is not there any more."""
    before = safefile.state(layer.root / path)
    if before.kind == "absent":
        return
    if before.kind == "directory":
        for name in sorted(_names(layer.root / path)):
            yield from _gone(layer, f"{path}/{name}")
    after = State(layer.upper / path, "absent")
    yield Piece(path, before, after, before.kind != "directory" and _moved(layer, before, after))


def _moved(layer: Layer, before: State, after: State) -> bool:
    """Whether what stands there is not what stood there when the command began. A folder's time tells of what is in it: where that
    changed, nobody knows of its permissions."""
    if before.kind != "absent":
        return os.lstat(before.path).st_ctime_ns > layer.since
    if attribute(after.path, "origin") is None:
        return False
    # It was copied up from something. A folder of an overlay keeps its name; a file may have had another one, and the name that it
    # has now was free all the time if none came or went beside it.
    return after.kind == "directory" or _time_of(before.path.parent) > layer.since


def _time_of(folder: Path) -> int:
    try:
        return os.lstat(folder).st_ctime_ns
    except OSError:
        return 0  # it is to be made


def _same_content(before: State, after: State) -> bool:
    if before.kind != "file":
        return before.kind == after.kind
    if before.size != after.size:
        return False
    readable(after)
    try:
        with os.fdopen(safefile.opened(before.path), "rb") as old, os.fdopen(safefile.opened(after.path), "rb") as new:
            while piece := old.read(_CHUNK):
                if piece != new.read(_CHUNK):
                    return False
            return not new.read(1)
    except SteadError:
        return False


def readable(after: State) -> None:
    """Let us read a file of the layer that the command made unreadable; which mode it gave it, is known already."""
    if after.kind == "file" and not os.access(after.path, os.R_OK):
        os.chmod(after.path, after.mode | 0o400)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def _repository(path: str) -> str | None:
    parts = path.split("/")
    return "/".join(parts[: parts.index(".git") + 1]) if ".git" in parts else None


def _below_moved(pieces: list[Piece]) -> list[Piece]:
    """What lies in a folder that somebody took away meanwhile has no place any more."""
    folders = [piece for piece in pieces if piece.after.kind == "directory" != piece.before.kind]
    lost = [piece.path + "/" for piece in folders if piece.moved]
    if not lost:
        return pieces
    return [replace(piece, moved=True) if piece.path.startswith(tuple(lost)) else piece for piece in pieces]
