"""A disk that remembers what is durable: what was written and not synced may be lost, in part or whole, when the power fails.

Real files lie below, so that SQLite's locks and shared memory work as always. Beside them a model is kept, by inode: the content
at its last sync with the writes since, and by folder the names at its last sync with the changes since. `cut` makes a folder as
a power failure could leave it: of what was not synced any subset reached the disk, of a write any of its sectors, of a renaming
either half. The same disk may be small: then what does not fit fails, after a part of it was written.

`attach` puts it below a whole process: SQLite's files through a VFS, all others through the functions of `os`. What is written
past them (`open(…, "w")`) is what nobody synced.
"""

from __future__ import annotations

import errno
import itertools
import os
import random
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import apsw

SECTOR = 512
OVER = 77
"""With this the process ends when the power fails."""


class Inode:
    def __init__(self, content: bytes = b"") -> None:
        self.durable = content
        self.pending: list[tuple[int, bytes | None]] = []  # (offset, data), or (size, None) for another length

    def sync(self) -> None:
        self.durable, self.pending = self._with(self.pending, None), []

    def now(self) -> bytes:
        return self._with(self.pending, None)

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
    """What is durable below the folder `root`. After `limit` operations the power is gone; `space` is how many bytes still fit."""

    def __init__(self, root: Path, *, limit: int = 1 << 60, space: int = 1 << 60) -> None:
        self.root = root
        self.limit = limit
        self.space = space
        self.operations = 0
        self.lock = threading.RLock()
        self.inodes: dict[int, Inode] = {}
        self.names: dict[str, dict[str, int]] = {}
        self.changed: dict[str, list[tuple[str, int | None]]] = {}
        self.over: Callable[[], NoReturn] | None = None
        self.vfs: apsw.VFS | None = None
        self._known: dict[int, int] = {}  # the system gives the numbers of removed files away again, the model does not
        self._numbers = itertools.count(1)
        self._links: dict[int, Path] = {}
        self._adopt(root)

    def _adopt(self, folder: Path) -> None:
        """What was there before is durable."""
        for path in folder.iterdir():
            number = self.number(path.lstat())
            self.names.setdefault(str(folder), {})[path.name] = number
            if path.is_dir():
                self._adopt(path)
            elif number in self.inodes:
                self.inodes[number] = Inode(path.read_bytes())

    def inside(self, path: Path) -> bool:
        return path.is_relative_to(self.root)

    def tick(self) -> None:
        self.operations += 1
        if self.operations > self.limit and self.over is not None:
            self.over()

    def take(self, more: int) -> int:
        """Use up space; how many of these bytes fit."""
        fits = max(0, min(more, self.space))
        self.space -= fits
        return fits

    def number(self, status: os.stat_result, *, made: bool = False) -> int:
        """The model's number of a file or folder; a fresh one if it was `made` just now or was never seen."""
        if made or status.st_ino not in self._known:
            self._known[status.st_ino] = number = next(self._numbers)
            if stat.S_ISREG(status.st_mode):
                self.inodes[number] = Inode()
        return self._known[status.st_ino]

    def inode(self, status: os.stat_result) -> Inode | None:
        """The file that is written to, if it is one of ours."""
        return self.inodes.get(self._known.get(status.st_ino, 0))

    def removed(self, status: os.stat_result) -> None:
        if status.st_nlink <= 1:
            self._known.pop(status.st_ino, None)
            self.space += status.st_size

    def name(self, path: Path, number: int | None) -> None:
        self.changed.setdefault(str(path.parent), []).append((path.name, number))

    def sync_folder(self, folder: Path) -> None:
        listed = [path for path in folder.iterdir() if not shared_memory(path.name)]
        self.names[str(folder)] = {path.name: self.number(path.lstat()) for path in listed}
        self.changed.pop(str(folder), None)

    def cut(self, target: Path, rng: random.Random) -> None:
        """Make the folder `target` as the power failure left the disk."""
        self._links = {}
        self._cut(self.root, target, rng)

    def _cut(self, folder: Path, target: Path, rng: random.Random) -> None:
        os.makedirs(target, 0o700)
        names = dict(self.names.get(str(folder), {}))
        for name, number in self.changed.get(str(folder), ()):
            if rng.random() < 0.5:
                if number is None:
                    names.pop(name, None)
                else:
                    names[name] = number
        for name, number in names.items():
            if number not in self.inodes:
                self._cut(folder / name, target / name, rng)
            elif number in self._links:
                os.link(self._links[number], target / name)
            else:
                (target / name).write_bytes(self.inodes[number].after(rng))
                self._links[number] = target / name


def shared_memory(name: str) -> bool:
    """Memory that SQLite's processes share looks like a file and is none: after a power failure it is made anew."""
    return name.endswith("-shm")


class PowerVFS(apsw.VFS):
    """SQLite's files on a `Disk`."""

    def __init__(self, name: str, disk: Disk) -> None:
        self.disk = disk
        self.below = apsw.vfs_names()[0]  # named, since from now on the default is this one
        super().__init__(name, self.below, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        path = Path(name.filename() if isinstance(name, apsw.URIFilename) else str(name))
        if not self.disk.inside(path):
            return apsw.VFSFile(self.below, name, flags)  # type: ignore[arg-type]
        with self.disk.lock:
            made = not path.exists()
            file = _File(self.disk, self.below, path, name, flags, made)
            if made:
                self.disk.name(path, file.number)
        return file

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.disk.lock:
            self.disk.tick()
            status = os.stat(filename)
            super().xDelete(filename, syncdir)
            self.disk.removed(status)
            self.disk.name(Path(filename), None)
            if syncdir:
                self.disk.sync_folder(Path(filename).parent)


class _File(apsw.VFSFile):
    def __init__(self, disk: Disk, below: str, path: Path, name: Any, flags: list[int], made: bool) -> None:
        super().__init__(below, name, flags)
        self._disk, self._path = disk, path
        self.number = disk.number(path.stat(), made=made)
        self._inode = disk.inodes[self.number]
        self._sync_name = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and not path.name.endswith(".db")

    def xWrite(self, data: bytes, offset: int) -> None:
        with self._disk.lock:
            self._disk.tick()
            more = max(0, offset + len(data) - self.xFileSize())
            if self._disk.take(more) < more:
                raise apsw.FullError("no space left on this disk")
            super().xWrite(data, offset)
            self._inode.pending.append((offset, bytes(data)))

    def xTruncate(self, size: int) -> None:
        with self._disk.lock:
            self._disk.tick()
            self._disk.space += max(0, self.xFileSize() - size)
            super().xTruncate(size)
            self._inode.pending.append((size, None))

    def xSync(self, flags: int) -> None:
        with self._disk.lock:
            self._disk.tick()
            self._inode.sync()
            if self._sync_name:  # as SQLite does with the first sync of each handle of a log or journal
                self._disk.sync_folder(self._path.parent)
                self._sync_name = False


def attach(disk: Disk, name: str = "power") -> None:
    """Put the disk below this process, for good: call it in a child that was forked for it."""
    disk.vfs = PowerVFS(name, disk)  # kept: it serves as long as it lives
    shim = _Os(disk)
    for function in ("open", "write", "fsync", "ftruncate", "posix_fallocate", "mkdir", "rename", "replace", "unlink", "link"):
        setattr(os, function, getattr(shim, function))
    os.remove, os.fdatasync = shim.unlink, shim.fsync  # type: ignore[assignment]


_real = {name: getattr(os, name) for name in dir(os) if callable(getattr(os, name)) and not name.startswith("_")}


class _Os:
    """The functions of `os` that change files, on a `Disk`. They sync nothing: what is durable is what the model says."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._folders: dict[int, Path] = {}

    def _path(self, path: Any, dir_fd: int | None) -> Path:
        base = Path.cwd() if dir_fd is None else self._folders.get(dir_fd, Path("/"))
        return base / os.fsdecode(path)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        whole = self._path(path, dir_fd)
        with self._disk.lock:
            new = self._disk.inside(whole) and flags & os.O_CREAT and not os.path.lexists(whole)
            if new:
                self._disk.tick()
                self._room()
            fd: int = _real["open"](path, flags, mode, dir_fd=dir_fd)
            status = _real["fstat"](fd)
            if stat.S_ISDIR(status.st_mode):
                self._folders[fd] = whole
            elif new:
                self._disk.name(whole, self._disk.number(status, made=True))
            elif flags & os.O_TRUNC and (inode := self._disk.inode(status)) is not None:
                inode.pending.append((0, None))
            return fd

    def _room(self) -> None:
        if self._disk.space <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, fd: int, data: Any) -> int:
        with self._disk.lock:
            status = _real["fstat"](fd)
            inode = self._disk.inode(status) if stat.S_ISREG(status.st_mode) else None
            if inode is None:
                return int(_real["write"](fd, data))
            self._disk.tick()
            at = _real["lseek"](fd, 0, os.SEEK_CUR)
            more = max(0, at + len(data) - status.st_size)
            fits = len(data) - more + self._disk.take(more)
            if data and not fits:
                self._room()
            count: int = _real["write"](fd, data[:fits])
            inode.pending.append((at, bytes(data[:count])))
            return count

    def fsync(self, fd: int) -> None:
        with self._disk.lock:
            status = _real["fstat"](fd)
            if stat.S_ISDIR(status.st_mode):
                folder = self._folders.get(fd)
                if folder is not None and self._disk.inside(folder):
                    self._disk.tick()
                    self._disk.sync_folder(folder)
            elif (inode := self._disk.inode(status)) is not None:
                self._disk.tick()
                inode.sync()

    def ftruncate(self, fd: int, size: int) -> None:
        with self._disk.lock:
            status = _real["fstat"](fd)
            if (inode := self._disk.inode(status)) is not None:
                self._disk.tick()
                if size < status.st_size:
                    self._disk.space += status.st_size - size
                inode.pending.append((size, None))
            _real["ftruncate"](fd, size)

    def posix_fallocate(self, fd: int, offset: int, count: int) -> None:
        with self._disk.lock:
            status = _real["fstat"](fd)
            if (inode := self._disk.inode(status)) is not None:
                self._disk.tick()
                more = max(0, offset + count - status.st_size)
                if self._disk.space < more:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                self._disk.take(more)
                inode.pending.append((max(offset + count, status.st_size), None))
            _real["posix_fallocate"](fd, offset, count)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        whole = self._path(path, dir_fd)
        with self._disk.lock:
            inside = self._disk.inside(whole)
            if inside and not os.path.lexists(whole):
                self._disk.tick()
                self._room()
            _real["mkdir"](path, mode, dir_fd=dir_fd)
            if inside:
                self._disk.name(whole, self._disk.number(whole.stat(), made=True))

    def rename(self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        source, target = self._path(old, src_dir_fd), self._path(new, dst_dir_fd)
        with self._disk.lock:
            if self._disk.inside(target) and os.path.lexists(source):
                self._disk.tick()
                if os.path.lexists(target):
                    self._disk.removed(target.lstat())
                self._disk.name(source, None)
                self._disk.name(target, self._disk.number(source.lstat()))
            _real["rename"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    replace = rename

    def link(self, old: Any, new: Any, **more: Any) -> None:
        target = self._path(new, more.get("dst_dir_fd"))
        with self._disk.lock:
            if self._disk.inside(target):
                self._disk.tick()
            _real["link"](old, new, **more)
            if self._disk.inside(target):
                self._disk.name(target, self._disk.number(target.lstat()))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        whole = self._path(path, dir_fd)
        with self._disk.lock:
            if self._disk.inside(whole) and os.path.lexists(whole):
                self._disk.tick()
                self._disk.removed(_real["stat"](path, dir_fd=dir_fd, follow_symlinks=False))
                self._disk.name(whole, None)
            _real["unlink"](path, dir_fd=dir_fd)
