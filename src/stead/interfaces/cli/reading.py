"""A conversation as a person reads it on a terminal."""

from __future__ import annotations

import sys
from typing import Any

from stead.core.text import one_line
from stead.interfaces.cli import out

OUTPUT_LINES = 12


def conversation(session: dict[str, Any], messages: list[dict[str, Any]]) -> None:
    """Print the session's head and its messages."""
    out.line(_style(out.plain(session["title"]), "bold"))
    facts = [session["id"], out.plain(session["path"]), session["model"] or "", session["status"], out.dollars(session["cost"])]
    out.line(_style("  ".join(fact for fact in facts if fact), "dim"))
    if origin := session.get("forked_from"):
        out.line(_style(f"forked from {origin['message']}", "dim"))
    for message in messages:
        out.line()
        out.line(_style({"user": "You", "assistant": "Agent", "system": "System"}.get(message["role"], message["role"]), "cyan"))
        for part in message["parts"]:
            for line in lines(part):
                out.line(line)


def lines(part: dict[str, Any]) -> list[str]:
    """One part as lines for the terminal."""
    kind = part["type"]
    ends = [_style(f"[{mark}]", "yellow") for mark in ("cut", "open") if part.get(mark)]
    if part.get("truncated"):
        ends.append(_style(f"[{part['bytes']:,} bytes; --full shows all]", "dim"))
    if "issue" in part:
        return [_style(f"[damaged {kind}: {part['issue']['path']} {part['issue']['message']}]", "red")]
    if kind == "text":
        return [*out.plain(part["text"]).splitlines(), *ends]
    if kind == "reasoning":
        return [*(_style(line, "dim") for line in out.plain(part["text"]).splitlines()), *ends]
    if kind == "tool":
        return [*_tool(part), *ends]
    if kind == "patch":
        return [f"  {out.plain(file['path'])} +{file['additions']} -{file['deletions']}" for file in part["files"]]
    if kind == "file":
        return [_style(f"[{out.plain(part['name'])}, {part['mime']}, {part['size']:,} bytes]", "dim")]
    if kind == "step":
        return [_style(f"  {out.count(sum(part['tokens'].values()))} tokens, {out.dollars(part['cost'])}", "dim")]
    if kind in ("notice", "compaction"):
        return [_style(one_line(out.plain(part.get("text") or part.get("summary") or ""), 400), "yellow")]
    rest = {name: value for name, value in part.items() if name != "id"}
    return [_style(one_line(out.plain(out.json_text(rest)), 400), "dim")]


def _tool(part: dict[str, Any]) -> list[str]:
    from stead.interfaces.cli.progress import MARKS, target

    mark, colour = MARKS.get(part["status"], ("·", "dim"))
    given = part.get("input")
    about = target({"arguments": out.json_text(given) if isinstance(given, dict) else part.get("arguments", "")})
    made = [f"{_style(mark, colour)} {_style(out.plain(part['tool']), 'bold')} {about}".rstrip()]
    text = [line for said in (part.get("error"), part.get("output")) if said for line in out.plain(said).splitlines()]
    hidden = len(text) - OUTPUT_LINES
    made += [_style(f"    {line}", "dim") for line in text[:OUTPUT_LINES]]
    if hidden > 0:
        made.append(_style(f"    … {hidden:,} more lines", "dim"))
    return made


def _style(text: str, name: str) -> str:
    return out.style(text, name, sys.stdout)
