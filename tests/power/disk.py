"""A disk that remembers what is durable: what was written and not synced may be lost, in part or whole, when the power fails.

Real files lie below, so that SQLite's locks and shared memory work as always. Beside them a model is kept, by inode: the content
at its last sync with the writes since, and by folder the names at its last sync with the changes since. `cut` makes a folder as
a power failure could leave it: of what was not synced any subset reached the disk, of a write any of its sectors.
"""

from __future__ import annotations

import itertools
import os
import random
import stat
from pathlib import Path
from types import ModuleType
from typing import Any

import apsw

SECTOR = 512


class PowerCut(OSError):
    """The power failed: nothing is written any more."""


class Inode:
    def __init__(self, content: bytes = b"") -> None:
        self.durable = content
        self.pending: list[tuple[int, bytes | None]] = []  # (offset, data), or (size, None) for a truncation

    def sync(self) -> None:
        self.durable, self.pending = self._with(self.pending, None), []

    def after(self, rng: random.Random) -> bytes:
        return self._with(self.pending, rng)

    def _with(self, pending: list[tuple[int, bytes | None]], rng: random.Random | None) -> bytes:
        content = bytearray(self.durable)
        for at, data in pending:
            if rng is not None and rng.random() < 0.4:
                continue
            if data is None:
                content[:] = content[:at].ljust(at, b"\0")
                continue
            torn = rng is not None and rng.random() < 0.3
            for start in range(0, len(data), SECTOR):
                if torn and rng is not None and rng.random() < 0.5:
                    continue
                piece = data[start : start + SECTOR]
                first = at + start
                if len(content) < first + len(piece):
                    content.extend(bytes(first + len(piece) - len(content)))
                content[first : first + len(piece)] = piece
        return bytes(content)


class Disk:
    """What is durable below one folder. After `limit` operations the power is gone."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.limit = 1 << 60
        self.operations = 0
        self.inodes: dict[int, Inode] = {}
        self._known: dict[int, int] = {}  # the system gives the numbers of removed files away again, the model does not
        self._numbers = itertools.count(1)
        self.names: dict[str, dict[str, int]] = {}
        self.changed: dict[str, list[tuple[str, int | None]]] = {}

    def tick(self) -> None:
        self.operations += 1
        if self.operations > self.limit:
            raise PowerCut(5, "the power failed")

    def number(self, status: os.stat_result) -> tuple[int, bool]:
        """The model's number of a file, and whether it is new."""
        new = status.st_ino not in self._known
        number = self._known.setdefault(status.st_ino, next(self._numbers) if new else 0)
        if new and stat.S_ISREG(status.st_mode):
            self.inodes[number] = Inode()
        return number, new

    def removed(self, status: os.stat_result) -> None:
        if status.st_nlink <= 1:
            self._known.pop(status.st_ino, None)

    def name(self, path: Path, number: int | None) -> None:
        self.changed.setdefault(str(path.parent), []).append((path.name, number))

    def sync_folder(self, folder: Path) -> None:
        names = self.names.setdefault(str(folder), {})
        for name, number in self.changed.pop(str(folder), ()):
            if number is None:
                names.pop(name, None)
            else:
                names[name] = number

    def cut(self, target: Path, rng: random.Random) -> None:
        """Make the folder `target` as the power failure left the disk."""
        self._cut(self.root, target, rng)

    def _cut(self, folder: Path, target: Path, rng: random.Random) -> None:
        target.mkdir(mode=0o700, parents=True)
        names = dict(self.names.get(str(folder), {}))
        for name, number in self.changed.get(str(folder), ()):
            if rng.random() < 0.5:
                if number is None:
                    names.pop(name, None)
                else:
                    names[name] = number
        for name, number in names.items():
            if number in self.inodes:
                (target / name).write_bytes(self.inodes[number].after(rng))
            else:
                self._cut(folder / name, target / name, rng)


class PowerVFS(apsw.VFS):
    """SQLite's files on a `Disk`."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.disk = disk
        super().__init__(name, "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))
        made = self.disk
        file = _File(made, path, name, flags)
        if file.new:
            made.name(path, file.number)
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:
        self.disk.tick()
        status = os.stat(filename)
        super().xDelete(filename, syncdir)
        self.disk.removed(status)
        self.disk.name(Path(filename), None)
        if syncdir:
            self.disk.sync_folder(Path(filename).parent)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, path: Path, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._disk, self._path = disk, path
        self.number, self.new = disk.number(path.stat())
        self._inode = disk.inodes[self.number]
        self._sync_name = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and not path.name.endswith(".db")

    def xWrite(self, data: bytes, offset: int) -> None:
        self._disk.tick()
        super().xWrite(data, offset)
        self._inode.pending.append((offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        self._disk.tick()
        super().xTruncate(size)
        self._inode.pending.append((size, None))

    def xSync(self, flags: int) -> None:
        self._disk.tick()
        super().xSync(flags)
        self._inode.sync()
        if self._sync_name:  # as SQLite does with the first sync of each handle of a log or journal
            self._disk.sync_folder(self._path.parent)
            self._sync_name = False


class PowerOs(ModuleType):
    """The part of `os` that `safefile` writes with, on a `Disk`."""

    def __init__(self, disk: Disk) -> None:
        super().__init__("os")
        self._disk = disk
        self._open: dict[int, Path] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _inside(self, path: Path) -> bool:
        return path.is_relative_to(self._disk.root) and "locks" not in path.parts

    def _path(self, path: Any, dir_fd: int | None) -> Path:
        base = Path("/") if dir_fd is None else self._open.get(dir_fd, Path("/"))
        return base / path

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        whole = self._path(path, dir_fd)
        new = self._inside(whole) and not os.path.lexists(whole) and flags & os.O_CREAT
        if new:
            self._disk.tick()
        fd = os.open(path, flags, mode, dir_fd=dir_fd)
        self._open[fd] = whole
        if new:
            self._disk.name(whole, self._disk.number(os.fstat(fd))[0])
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        os.close(fd)

    def write(self, fd: int, data: Any) -> int:
        if not self._inside(self._open[fd]):
            return os.write(fd, data)
        self._disk.tick()
        at = os.lseek(fd, 0, os.SEEK_CUR)
        count = os.write(fd, data)
        self._disk.inodes[self._disk.number(os.fstat(fd))[0]].pending.append((at, bytes(data[:count])))
        return count

    def fsync(self, fd: int) -> None:
        path = self._open[fd]
        if self._inside(path):
            self._disk.tick()
            if path.is_dir():
                self._disk.sync_folder(path)
            else:
                self._disk.inodes[self._disk.number(os.fstat(fd))[0]].sync()
        os.fsync(fd)

    def mkdir(self, path: Any, mode: int = 0o777) -> None:
        whole = Path(path)
        if self._inside(whole):
            self._disk.tick()
        os.mkdir(path, mode)
        if self._inside(whole):
            self._disk.name(whole, self._disk.number(whole.stat())[0])

    def rename(self, old: Any, new: Any, *, src_dir_fd: int, dst_dir_fd: int) -> None:
        source, target = self._path(old, src_dir_fd), self._path(new, dst_dir_fd)
        if self._inside(target):
            self._disk.tick()
            if os.path.lexists(target):
                self._disk.removed(target.stat())
            self._disk.name(source, None)
            self._disk.name(target, self._disk.number(source.stat())[0])
        os.rename(old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._path(path, dir_fd)
        if self._inside(whole):
            self._disk.tick()
            self._disk.removed(os.stat(path, dir_fd=dir_fd, follow_symlinks=False))
            self._disk.name(whole, None)
        os.unlink(path, dir_fd=dir_fd)
