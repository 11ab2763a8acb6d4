"""A session's branches, drawn."""

from __future__ import annotations

import sys
from typing import Any

from stead.interfaces.cli import out


def drawn(branches: dict[str, Any]) -> list[str]:
    """Lines: each message under the one before it, a branch that was left dimmed, forks where they leave, children at the end."""
    below: dict[str | None, list[dict[str, Any]]] = {}
    for message in branches["messages"]:
        below.setdefault(message["parent"], []).append(message)
    forks: dict[str, list[dict[str, Any]]] = {}
    for fork in branches["forks"]:
        forks.setdefault(fork["message"], []).append(fork)
    lines: list[str] = []
    stack = [(message, "") for message in reversed(below.get(None, []))]
    while stack:
        message, indent = stack.pop()
        lines.append(_line(message, indent))
        lines += [f"{indent}  ⑂ {fork['id']}  {out.plain(fork['title'])}" for fork in forks.get(message["id"], [])]
        after = sorted(below.get(message["id"], []), key=lambda one: bool(one["active"]), reverse=True)
        # What goes on stays in its column; what was left, or is a second way on, is set in.
        stack += [(one, indent if at == 0 else indent + "│ ") for at, one in reversed(list(enumerate(after)))][::1]
    lines += [f"↳ {child['id']}  {out.plain(child['title'])}" for child in branches["children"]]
    return lines


def _line(message: dict[str, Any], indent: str) -> str:
    mark = "●" if message["active"] else "○"
    text = f"{indent}{mark} {message['id']}  {message['role']}  {out.plain(message['text'])}".rstrip()
    return text if message["active"] else out.style(text, "dim", sys.stdout)
