"""Which file system lies below a folder: a write-ahead log needs memory that all its processes share, and locks that hold.

A network file system gives neither, and some that only look local do not either (the Windows drives and the whole of WSL 1).
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

from stead.core.errors import SteadError

VARIABLE = "STEAD_FILESYSTEM"
"""Names the file system instead of what the system says: `local`, `network`, or a type such as `nfs`."""

_NETWORK = frozenset(
    [
        "network",
        "9p",
        "acfs",
        "afpfs",
        "afs",
        "auristorfs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "drvfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lustre",
        "lxfs",
        "ncpfs",
        "nfs",
        "nfs3",
        "nfs4",
        "ocfs2",
        "orangefs",
        "osxfs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "quobyte",
        "smb",
        "smb2",
        "smb3",
        "smbfs",
        "sshfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "webdav",
        "wslfs",
    ]
)
_LOCAL = frozenset(
    [
        "local",
        "apfs",
        "bcachefs",
        "btrfs",
        "erofs",
        "exfat",
        "ext2",
        "ext3",
        "ext4",
        "f2fs",
        "hfs",
        "jfs",
        "msdos",
        "ntfs",
        "ntfs3",
        "overlay",
        "ramfs",
        "reiserfs",
        "squashfs",
        "tmpfs",
        "ufs",
        "vfat",
        "xfs",
        "zfs",
    ]
)
_FUSE_ON_THIS_MACHINE = frozenset(("fuseblk", "fuse.fuse-overlayfs", "fuse.gocryptfs", "fuse.encfs"))
_MOUNTS = Path("/proc/self/mountinfo")


class FileSystem(NamedTuple):
    """`name` is its type as the system calls it, empty where that is not told. `network`: no write-ahead log belongs there."""

    name: str
    network: bool


def below(path: Path) -> FileSystem:
    """The file system on which `path` lies, or would lie if it were made. Raises `usage` where the variable names none."""
    if named := os.environ.get(VARIABLE, "").strip().lower():
        if named not in _NETWORK | _LOCAL | _FUSE_ON_THIS_MACHINE and named.partition(".")[0] != "fuse":
            raise SteadError(
                *("usage", f"{VARIABLE} names no file system that stead knows: {named}."),
                hint="It is `local`, `network` or the type of a file system, such as `nfs`.",
            )
        return FileSystem(named, _is_network(named))
    whole = path.resolve()
    if sys.platform == "darwin":
        return _asked(next(one for one in (whole, *whole.parents) if one.exists()))
    try:
        name = _mounted(_MOUNTS.read_bytes(), os.fsencode(whole))
    except OSError:
        name = ""
    return FileSystem(name, _is_network(name))


def _is_network(name: str) -> bool:
    """An unknown FUSE file system may be anything; any other unknown one is taken for a disk's."""
    return name in _NETWORK or (name.startswith("fuse") and name not in _FUSE_ON_THIS_MACHINE)


def _mounted(mounts: bytes, path: bytes) -> str:
    """The type of the mount that holds `path`, out of the lines of Linux's `mountinfo`: the deepest, and of equals the last."""
    best, name = -1, ""
    for line in mounts.splitlines():
        fields, _, rest = line.partition(b" - ")
        place = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), fields.split(b" ")[4])
        holds = path == place or path.startswith(place.rstrip(b"/") + b"/")
        if holds and len(place) >= best:
            best, name = len(place), rest.split(b" ")[0].decode("ascii", "replace")
    return name


def _asked(path: Path) -> FileSystem:
    """macOS tells in `statfs` whether a file system is local."""
    import ctypes

    library = ctypes.CDLL(None, use_errno=True)
    ask = getattr(library, "statfs$INODE64", None) or library.statfs
    told = ctypes.create_string_buffer(4096)
    return _told(told.raw) if ask(os.fsencode(path), told) == 0 else FileSystem("", False)


def _told(statfs: bytes) -> FileSystem:
    """What macOS's `struct statfs` says: `f_flags` at 64 (0x1000 is MNT_LOCAL), `f_fstypename` at 72, 16 bytes."""
    name = statfs[72:88].split(b"\0")[0].decode("ascii", "replace")
    here = int.from_bytes(statfs[64:68], sys.byteorder) & 0x1000
    return FileSystem(name, not here or _is_network(name))
