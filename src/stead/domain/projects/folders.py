"""Folders: which one a text names, and what identifies it. Asks the disk, never the store; `stead.domain.projects` has the rule."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from stat import S_ISDIR, S_ISREG
from typing import Any, Protocol

from stead.core.errors import SteadError
from stead.core.jsontext import shown

INSTRUCTION_FILES = ("AGENTS.md", "CLAUDE.md")

Instruction = dict[str, Any]
"""An instruction file: `{"path", "size", "hash"}`; the path is relative to the project, its content is read when a run needs it."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A folder as `identify` found it. `path` and `encoded` are the key; `dev` and `ino` the hint; `spelling` what was typed."""

    path: str
    encoded: bool
    spelling: str
    dev: str
    ino: str

    @property
    def folder(self) -> str:
        """The path as the operating system takes it."""
        return decode_path(self.path, self.encoded)


class Disk(Protocol):
    """The few questions that identity asks of a file system."""

    def real(self, path: str) -> str:
        """`path` absolute, with links and `..` resolved; missing ends stay."""
        ...

    def key(self, path: str, *, follow: bool) -> tuple[int, int, int] | None:
        """`(device, inode, mode)` of what is at `path`, None when nothing is or it cannot be asked."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names in a folder as the disk spells them; empty when it cannot be listed."""
        ...


class SystemDisk:
    """The file systems of this machine."""

    def real(self, path: str) -> str:
        return os.path.realpath(path)

    def key(self, path: str, *, follow: bool) -> tuple[int, int, int] | None:
        try:
            found = os.stat(path, follow_symlinks=follow)
        except (OSError, ValueError):
            return None
        return found.st_dev, found.st_ino, found.st_mode

    def names(self, folder: str) -> list[str]:
        try:
            return os.listdir(folder)
        except OSError:
            return []


DISK = SystemDisk()


def identify(text: str | os.PathLike[str], *, disk: Disk = DISK) -> Identity:
    """Which folder `text` names: relative to the current one, with `~`, or as Windows spells it. Raises `project_missing`.

    Reads the disk, never the store and never what is in the folder; call it outside of jobs.
    """
    typed = _possible(os.fspath(text))
    path = os.path.expanduser(typed)
    if disk.key(path, follow=True) is None and (other := from_windows(typed)) is not None:
        path = other
    try:
        real = _as_the_disk_spells(disk.real(path), disk)
    except FileNotFoundError:
        message = "The folder that this command was started in is not there any more."
        raise SteadError(
            "project_missing", message, hint="Go to another one, or name one with -C.", details={"path": typed}
        ) from None
    found = disk.key(real, follow=True) if typed else None
    (spelling, _), (place, encoded) = encode_path(typed), encode_path(real)
    if found is None:
        raise SteadError("project_missing", f"There is no folder {spelling!r}.", details={"path": place})
    if not S_ISDIR(found[2]):
        raise SteadError("project_missing", f"{spelling!r} is not a folder.", details={"path": place})
    return Identity(place, encoded, spelling, str(found[0]), str(found[1]))


def _possible(text: str) -> str:
    """`text` without what no path can hold (NUL, surrogates that stand for no byte), so that asking for it finds nothing."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        text = shown(text)
    return text.replace("\0", "\ufffd")


def from_windows(text: str, mounts: str = "/mnt") -> str | None:
    """Where a Windows spelling leads under WSL: `C:\\x`, `c:/x`, `\\\\?\\C:\\x`, `\\\\wsl$\\Ubuntu\\x`; None for any other text."""
    plain = text.replace("\\", "/")
    for prefix in ("//?/UNC/", "//./UNC/", "//?/", "//./"):
        if plain[: len(prefix)].upper() == prefix:
            plain = ("//" if "UNC" in prefix else "") + plain[len(prefix) :]
            break
    drive = re.match(r"([A-Za-z]):(?:/+|$)", plain)
    if drive:
        return f"{mounts}/{drive[1].lower()}/{plain[drive.end() :]}".rstrip("/")
    inside = re.match(r"//wsl(?:\$|\.localhost)/+[^/]+", plain, re.IGNORECASE) if "\\" in text else None
    return (plain[inside.end() :].rstrip("/") or "/") if inside else None


def _as_the_disk_spells(path: str, disk: Disk) -> str:
    """`path` with each name as its folder lists it. Where the disk tells letter cases apart, nothing is listed."""
    built = ""
    for name in path.split("/"):
        if name:
            built += "/" + _listed_name(built or "/", name, disk)
    return built or "/"


def _listed_name(folder: str, name: str, disk: Disk) -> str:
    here = disk.key(f"{folder}/{name}", follow=False)
    others = _other_spellings(name)
    if here is None or not any(disk.key(f"{folder}/{other}", follow=False) == here for other in others):
        return name
    listed = disk.names(folder)
    if name in listed:
        return name
    wanted = _folded(name)
    for entry in listed:
        if _folded(entry) == wanted and disk.key(f"{folder}/{entry}", follow=False) == here:
            return entry
    return name


def _other_spellings(name: str) -> set[str]:
    others = {name.swapcase(), name.lower(), name.upper()}
    if not name.isascii():
        from unicodedata import normalize

        others |= {normalize("NFC", name), normalize("NFD", name)}
    return others - {name}


def _folded(name: str) -> str:
    if name.isascii():
        return name.lower()
    from unicodedata import normalize

    return normalize("NFC", normalize("NFD", name).casefold())


def encode_path(path: str) -> tuple[str, bool]:
    """A path of the operating system as text that can be stored and shown, and whether it had to be percent-encoded.

    A path that is UTF-8 stays as it is (a `%` in it included); in any other, `%` and the bytes that are not text become `%XX`.
    """
    try:
        path.encode()
    except UnicodeEncodeError:
        path = _possible(path)
        raw = os.fsencode(path).replace(b"%", b"%25")
        return re.sub(r"[\udc80-\udcff]", lambda m: f"%{ord(m[0]) - 0xDC00:02X}", raw.decode("utf-8", "surrogateescape")), True
    return path, False


def decode_path(path: str, encoded: bool) -> str:
    """What `encode_path` was given."""
    if not encoded:
        return path
    return os.fsdecode(re.sub(rb"%([0-9A-F]{2})", lambda m: bytes([int(m[1], 16)]), path.encode()))


def place_of(path: str, encoded: bool) -> str:
    """The short key of a canonical path, for indexes that cannot hold long texts."""
    from hashlib import sha256

    return sha256(f"{int(encoded)}{path}".encode()).hexdigest()[:32]


def find_instructions(folder: str) -> list[Instruction]:
    """The AGENTS.md and CLAUDE.md that speak for `folder`: its own, then those above it up to the root of its repository."""
    above = [folder]
    while not os.path.lexists(os.path.join(above[-1], ".git")):
        parent = os.path.dirname(above[-1])
        if parent == above[-1]:  # no repository: only the folder itself speaks for it
            above = [folder]
            break
        above.append(parent)
    found = (_instruction(os.path.join(level, name), folder) for level in above for name in INSTRUCTION_FILES)
    return [item for item in found if item is not None]


def _instruction(path: str, folder: str) -> Instruction | None:
    import hashlib

    try:
        # Without waiting: a pipe of that name must not hold us up.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            about = os.fstat(fd)
            if not S_ISREG(about.st_mode):
                return None
            with open(fd, "rb", closefd=False) as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        finally:
            os.close(fd)
    except OSError:
        return None
    return {"path": os.path.relpath(path, folder), "size": about.st_size, "hash": digest}
