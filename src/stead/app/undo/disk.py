"""The disk as an undo sees it: what stands at a path, by content and not by time."""

from __future__ import annotations

import os
from pathlib import Path

from stead.domain.changes import FileState
from stead.domain.projects.folders import decode_path
from stead.store import safefile


def place(root: Path, path: str, encoded: bool) -> Path:
    """The path on the disk of one that is stored."""
    return root / decode_path(path, encoded)


def seen(path: Path) -> tuple[FileState, safefile.Stamp]:
    """What stands at `path`, with the hash of its content, and the stamp by which it is known again. Reads the file; raises as
    `safefile.state`, and `conflict` where a folder of the path is a symbolic link by now."""
    import hashlib

    refuse_link_above(path)
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


def refuse_link_above(path: Path) -> None:
    """Raise `conflict` when a folder on the way is a symbolic link: the file that was meant stood elsewhere."""
    from stead.core.errors import SteadError

    if safefile.real_path(path.parent) != path.parent:
        raise SteadError("conflict", f"A folder of {path} has become a symbolic link.", details={"path": str(path)})
