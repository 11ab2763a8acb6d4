"""Names in folders: files, links and folders that come, go, or get another name. Durable when a function returns."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from stead.core.errors import SteadError
from stead.store import faults
from stead.store.safefile import walk
from stead.store.safefile.errors import reported
from stead.store.safefile.exchange import Unexpected, found, move, put
from stead.store.safefile.leftovers import temp_name
from stead.store.safefile.state import Stamp
from stead.store.safefile.walk import folder as opened_folder
from stead.store.safefile.walk import make_folders, real_path


def remove(path: Path, *, follow: bool = True, expect: Stamp | None = None) -> bool:
    """Remove the file or link at `path` durably (a link itself, not its target); False when nothing was there. With `expect`
    only while it has this stamp (`conflict`)."""
    parent = real_path(path.parent) if follow else path.parent
    with reported(path):
        try:
            with opened_folder(parent, follow=False) as folder:
                if stat.S_ISDIR(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode):
                    raise SteadError("conflict", f"{path} is a folder and was left alone.", details={"path": str(path)})
                if expect is not None and found(folder, path.name) != expect:
                    raise changed(path)
                os.unlink(path.name, dir_fd=folder)
                faults.point("safefile.removed")
                walk.sync(folder)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def link(path: Path, target: bytes, *, expect: Stamp | None = None) -> None:
    """Make `path` a symbolic link with this target, in place of the file or link there; with `expect` only while it has this
    stamp."""
    make_folders(path.parent)
    with reported(path), opened_folder(path.parent, follow=False) as folder:
        n = 0
        while True:
            temp = temp_name(path.name, n)
            try:
                os.symlink(target, os.fsencode(temp), dir_fd=folder)
                break
            except FileExistsError:
                n += 1
        try:
            put(folder, temp, path.name, expect)
        except BaseException as error:
            os.unlink(temp, dir_fd=folder)
            if isinstance(error, Unexpected):
                raise changed(path) from None
            raise
        faults.point("safefile.linked_to")
        walk.sync(folder)


def rename(old: Path, new: Path, *, expect: Stamp | None = None) -> None:
    """Give the file, link or folder at `old` the name `new`; missing folders are made. Nothing is overwritten: `conflict` where
    something stands at `new`, or where `old` no longer has the stamp `expect`."""
    make_folders(new.parent)
    with reported(old), opened_folder(old.parent, follow=False) as here, opened_folder(new.parent, follow=False) as there:
        if expect is not None and found(here, old.name) != expect:
            raise changed(old)
        try:
            move(here, old.name, there, new.name)
        except Unexpected:
            raise SteadError("conflict", f"Something stands at {new}.", details={"path": str(new)}) from None
        faults.point("safefile.moved")
        walk.sync(there)
        walk.sync(here)


def make_folder(path: Path, mode: int) -> None:
    """Make the folder `path` with these permission bits; one that stands there gets the bits."""
    make_folders(path.parent)
    with reported(path), opened_folder(path.parent, follow=False) as folder:
        try:
            os.mkdir(path.name, 0o700, dir_fd=folder)
        except FileExistsError:
            if found(folder, path.name).kind != "directory":
                raise
        os.chmod(path.name, mode, dir_fd=folder)
        walk.sync(folder)


def remove_folder(path: Path) -> bool:
    """Remove the folder `path` if it is empty. False, and nothing is done, when it is not, or is no folder."""
    with reported(path):
        try:
            with opened_folder(path.parent, follow=False) as folder:
                if found(folder, path.name).kind != "directory":
                    return False
                os.rmdir(path.name, dir_fd=folder)
                faults.point("safefile.folder_removed")
                walk.sync(folder)
        except OSError as error:
            import errno

            if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY, errno.ENOENT, errno.ENOTDIR):
                return False
            raise
    return True


def set_mode(path: Path, mode: int, *, expect: Stamp | None = None) -> None:
    """Give the file or folder at `path` these permission bits; with `expect` only while it has this stamp (`conflict`)."""
    with reported(path), opened_folder(path.parent, follow=False) as folder:
        now = found(folder, path.name)
        if now.kind not in ("file", "directory") or (expect is not None and now != expect):
            raise changed(path)
        os.chmod(path.name, mode, dir_fd=folder)
        walk.sync(folder)


def changed(path: Path) -> SteadError:
    """The error for a path that is not what somebody saw there."""
    return SteadError("conflict", f"{path} was changed in this moment and was left alone.", details={"path": str(path)})
