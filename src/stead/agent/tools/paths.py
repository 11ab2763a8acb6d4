"""Paths as models write them: to the file they mean, and back into text that one line can hold."""

from __future__ import annotations

import json
import os
from pathlib import Path

from stead.agent.tools.base import Context
from stead.core.errors import SteadError
from stead.store import safefile


def typed(root: Path, text: str) -> Path:
    """The path that `text` names (absolute, from `~/`, or relative to `root`), no link followed."""
    if "\0" in text:
        raise SteadError("bad_value", "A path cannot contain NUL.")
    if text == "~" or text.startswith("~/"):
        text = os.path.expanduser(text)
    return Path(os.path.normpath(root / text)) if ".." not in Path(text).parts else root / text


def real(root: Path, text: str) -> Path:
    """Where `text` leads with every link followed, also when nothing is there yet: what permission is judged on."""
    return safefile.real_path(typed(root, text))


def located(context: Context, text: str) -> Path:
    """The real path for a path of the input. Refused when it is none of those that were judged: a link was swapped meanwhile."""
    path = real(context.root, text)
    if context.judged is not None and path not in context.judged:
        raise SteadError("conflict", f"{text} leads to {path} by now, not where it led when permission was given.")
    return path


def shown(context: Context, path: Path) -> str:
    """`path` for a model: relative to the project inside it, else absolute; quoted when a line could not hold it."""
    try:
        text = str(path.relative_to(context.root))
    except ValueError:
        text = str(path)
    return quoted(text)


def quoted(name: str) -> str:
    """A file name on one line: as it is, or as a JSON string when it has control characters or bytes that are not UTF-8."""
    if name.isprintable():
        return name
    raw = os.fsencode(name).decode("utf-8", "backslashreplace")
    return json.dumps(raw, ensure_ascii=False) if any(ord(char) < 32 or ord(char) == 127 for char in raw) or raw != name else raw


def left_out(context: Context, path: Path) -> bool:
    """Whether a tool that walks folders does not show this path: stead's own data, and what a rule denies."""
    return inside(path, context.data_dir) or context.denied(path)


def inside(path: Path, folder: Path | None) -> bool:
    """Whether `path` is `folder` or below it."""
    return folder is not None and path.is_relative_to(folder)
