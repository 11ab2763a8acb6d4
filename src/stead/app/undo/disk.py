"""The disk as an undo sees it: what stands at a path, by content and not by time."""

from __future__ import annotations

import os
from pathlib import Path

from stead.core.errors import SteadError
from stead.domain.changes import FileState
from stead.domain.projects.folders import decode_path
from stead.store import safefile

NOTHING: FileState = {"kind": "absent"}


def place(root: Path, path: str, encoded: bool) -> Path:
    """The path on the disk of one that is stored."""
    return root / decode_path(path, encoded)


def seen(path: Path) -> tuple[FileState, safefile.Stamp]:
    """What stands at `path`, with the hash of its content, and the stamp by which it is known again. Reads the file; raises as
    `safefile.state`, and `conflict` where a folder of the path is a symbolic link by now."""
    import hashlib

    if (block := blocked(path)) is not None and safefile.state(block).kind == "symlink":
        raise SteadError("conflict", f"A folder of {path} has become a symbolic link.", details={"path": str(path)})
    found = safefile.state(path)
    state: FileState = {"kind": found.kind}
    if found.kind in ("file", "directory"):
        state["mode"] = found.mode
    if found.kind == "file":
        state["size"] = found.size
        if (digest := found.digest) is not None:
            state["blob"] = digest
    elif found.kind == "symlink":
        state["blob"] = hashlib.sha256(os.fsencode(found.target or "")).hexdigest()
    return state, found.stamp


def blocked(path: Path) -> Path | None:
    """The uppermost part of the way to `path` that is there and is no folder: a file, or a symbolic link, stands in its way."""
    for above in reversed(path.parents):
        kind = safefile.state(above).kind
        if kind == "absent":
            return None
        if kind != "directory":
            return above
    return None
