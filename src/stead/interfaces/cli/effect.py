"""What a tool call would do, whole, for the person who has to say yes or no."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from stead.core.jsontext import parse_foreign
from stead.interfaces.cli import out


def effect(tool: str, arguments: str, root: Path) -> list[str]:
    """Lines for the terminal: the diff of an edit where it can be computed, the command of bash, else the input."""
    try:
        given = parse_foreign(arguments)
    except ValueError:
        return out.plain(arguments).splitlines()
    if not isinstance(given, dict):
        return out.plain(arguments).splitlines()
    if tool == "bash" and isinstance(given.get("command"), str):
        rest = {name: value for name, value in given.items() if name != "command"}
        return [*out.plain(given["command"]).splitlines(), *_fields(rest)]
    if tool in ("edit", "write") and (lines := _diff(tool, given, root)):
        return lines
    return _fields(given)


def _fields(given: dict[str, Any]) -> list[str]:
    lines = []
    for name, value in given.items():
        text = value if isinstance(value, str) else out.json_text(value)
        first, *more = out.plain(text).splitlines() or [""]
        lines += [f"{out.plain(name)}: {first}", *(f"    {line}" for line in more)]
    return lines


def _diff(tool: str, given: dict[str, Any], root: Path) -> list[str]:
    """The change as a diff; empty where it cannot be told before (then the input is shown)."""
    from stead.domain.patches import FileDiff, git_patch

    path = given.get("path")
    if not isinstance(path, str):
        return []
    try:
        before = (root / path).read_bytes()
        old_text = before.decode()
    except FileNotFoundError:
        before, old_text = None, ""
    except (OSError, ValueError):
        return []
    if tool == "write":
        new_text = str(given.get("content", ""))
    else:
        old, new = str(given.get("old", "")), str(given.get("new", ""))
        if old and "\r\n" in old_text and "\r\n" not in old:
            return []  # line ends are the tool's own affair
        if (old and old_text.count(old) < 1) or (not old and before is not None):
            return []
        new_text = old_text.replace(old, new, -1 if given.get("all") else 1) if old else new
    return coloured(git_patch(FileDiff(path.encode("utf-8", "replace"), before, new_text.encode("utf-8", "replace"))))


def coloured(patch: bytes) -> list[str]:
    """A unified diff as lines for stderr or stdout, added and removed lines in colour."""
    names = {"+": "green", "-": "red", "@": "cyan"}
    lines = out.plain(patch.decode("utf-8", "replace")).splitlines()
    return [out.style(line, names[line[0]], sys.stderr) if line[:1] in names else line for line in lines]
