"""Whether a command can run on an overlay here: what the system can do is tried, once a process; what lies in the project is looked
at each time."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stead.agent.overlay.layer import Layer, Way, make
from stead.agent.tree import place
from stead.core.errors import SteadError
from stead.core.ids import RandomIds
from stead.core.text import one_line
from stead.store import filesystem

_SECONDS = 10
_PROGRAMS = ("unshare", "mount", "umount")
_PLACES = "/usr/bin:/bin:/usr/sbin:/sbin"


@dataclass(frozen=True, slots=True)
class Support:
    """`way` is how it is done; None where it cannot be, and then `why` is a sentence."""

    way: Way | None
    why: str = ""


_tried: dict[tuple[Path, Path], Support] = {}


def support(root: Path, data: Path | None, home: Path) -> Support:
    """Whether commands in the project `root` (a real path) can run on an overlay whose upper layer lies in the data folder. The
    first question of a process about a project mounts an overlay to see (some 20 ms); later ones only look for what may have come:
    mounts and sockets below the project."""
    if data is None:
        return Support(None, "There is no data folder for what it changes.")
    if (why := _refusal(root, data, home)) is not None:
        return Support(None, why)
    key = (root, data)
    if key not in _tried:
        _tried[key] = _try(root, data, list(_ways()))
    return _tried[key]


def _refusal(root: Path, data: Path, home: Path) -> str | None:
    if sys.platform != "linux":
        return "This system has no overlays."
    if data.is_relative_to(root) or root.is_relative_to(data):
        return "The data folder and the project lie in each other."
    if (why := place.refusal(root, home)) is not None:
        return why
    if (name := filesystem.below(root).name).startswith("fuse"):
        return f"Its file system ({name}) may have a clock of its own."
    if (mount := _mount_below(root)) is not None:
        return f"Another file system is mounted below it: {mount}."
    if (socket := _socket_below(root)) is not None:
        return f"A program listens at a socket in it: {socket}."
    return _git_outside(root)


def _mount_below(root: Path) -> str | None:
    inside = os.fsencode(root) + b"/"
    with open("/proc/self/mountinfo", "rb") as file:
        for line in file:
            at = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4])
            if at.startswith(inside):
                return os.fsdecode(at)
    return None


def _socket_below(root: Path) -> str | None:
    inside = os.fsencode(root) + b"/"
    try:
        with open("/proc/net/unix", "rb") as file:
            names = [line.rstrip(b"\n").split(None, 7)[7:] for line in file]
    except OSError:
        return None
    return next((os.fsdecode(name[0]) for name in names if name and name[0].startswith(inside)), None)


def _git_outside(root: Path) -> str | None:
    """A commit must be taken back with the files, or kept with them: git's own files have to lie in the project."""
    for folder in (root, *root.parents):
        at = folder / ".git"
        if os.path.lexists(at):
            inside = folder == root and at.is_dir() and not at.is_symlink()
            return None if inside else "Its git repository lies outside of it."
    return None


def _ways() -> Iterator[Way]:
    path = os.pathsep.join(filter(None, (os.environ.get("PATH"), _PLACES)))
    found = [shutil.which(name, path=path) for name in _PROGRAMS]
    if not all(found):
        return
    unshare, mount, umount = map(str, found)
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        yield Way((unshare, "-m"), (), mount, umount)
    own = (unshare, "-U", "-r", "-m")
    if user != 0:
        yield Way(own, (unshare, "-U", f"--map-user={user}", f"--map-group={group}", "--"), mount, umount)
    yield Way(own, (), mount, umount)


def _try(root: Path, data: Path, ways: Sequence[Way]) -> Support:
    if not ways:
        return Support(None, f"There is no {', '.join(name for name in _PROGRAMS if shutil.which(name) is None)} here.")
    said = ""
    for way in ways:
        try:
            said = _tells_changes(data, way) or _mounts(root, data, way)
        except SteadError as error:
            said = error.message
        if not said:
            return Support(way)
    return Support(None, f"The system does not let this user mount overlays here ({one_line(said, 200)}).")


def _tells_changes(data: Path, way: Way) -> str:
    """Try in a folder of our own whether changes arrive in the upper layer in the form that is read here. "" when they do."""
    own = make(data, data, way, RandomIds().new())
    layer = replace(own, root=own.folder / "trial")
    try:
        (layer.root / "old").mkdir(parents=True)
        for name in ("here", "old/file"):
            (layer.root / name).write_bytes(b"1")
        said = _ran(layer, "echo 2 >here && rm -r old && mkdir old && echo 3 >old/new && mv here there && chmod 600 there")
        if said:
            return said
        upper = layer.upper
        gone = os.lstat(upper / "here")
        told = is_whiteout(upper / "here", gone) and is_opaque(upper / "old") and (upper / "there").read_bytes() == b"2\n"
        return "" if told else "changes are kept in another form"
    except OSError as error:
        return str(error)
    finally:
        own.close()


def _mounts(root: Path, data: Path, way: Way) -> str:
    layer = make(root, data, way, RandomIds().new())
    try:
        return _ran(layer, "true")
    finally:
        layer.close()


def _ran(layer: Layer, script: str) -> str:
    """Run a script there; "" when that went well, else what was said."""
    words, folder = layer.command(["/bin/sh", "-c", script])
    nothing = subprocess.DEVNULL
    try:
        done = subprocess.run(
            words, cwd=folder, stdin=nothing, stdout=nothing, stderr=subprocess.PIPE, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "it took too long"
    if layer.ready and done.returncode == 0:
        return ""
    return layer.fault or done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"


def is_whiteout(path: Path, seen: os.stat_result) -> bool:
    """Whether this entry of an upper layer says that nothing stands there any more."""
    if (seen.st_mode & 0o170000) == 0o020000:
        return seen.st_rdev == 0
    return (seen.st_mode & 0o170000) == 0o100000 and seen.st_size == 0 and attribute(path, "whiteout") is not None


def is_opaque(path: Path) -> bool:
    """Whether this folder of an upper layer hides what lies below it."""
    return attribute(path, "opaque") == b"y"


def attribute(path: Path, name: str) -> bytes | None:
    """What overlayfs notes of an entry of an upper layer; None where it notes nothing."""
    try:
        return os.getxattr(path, f"user.overlay.{name}", follow_symlinks=False) if sys.platform == "linux" else None
    except OSError:
        return None
