"""Rules to offer: what a person may keep after a yes, and the flag that would have allowed a refused call."""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Any
from urllib.parse import urlsplit

from stead.agent.gate import glob
from stead.agent.gate.judge import mcp_name
from stead.agent.gate.rules import PATHS, READS, TOOLS, broad, parse
from stead.agent.gate.shell import Part, read

_SUBCOMMANDS = {"docker": ("compose",), "git": ("remote", "stash")}
_NEVER_WIDER = frozenset(["rm", "rmdir", "mv", "dd", "shred", "chmod", "chown", "kill", "pkill", "killall"])


def generalise(tool: str, input: dict[str, Any]) -> list[str]:
    """Rules that cover this call, the narrowest first. None of them is one that `broad` warns of, unless nothing else helps."""
    if tool == "bash":
        return _commands(str(input.get("command", "")))
    if tool in PATHS:
        return _paths(tool, str(input.get("path") or "."))
    if tool == "fetch":
        host = _host(input)
        return [f"fetch({host})"] if host else ["fetch"]
    if name := mcp_name(tool, input):
        server = glob.escaped(name.partition("/")[0])
        return [f"mcp({glob.escaped(name)})", f"mcp({server}/*)"]
    if tool in ("task", "skill"):
        return [_named(tool, input)]
    return [tool] if tool in TOOLS else []


def flag_for(tool: str, input: dict[str, Any]) -> str:
    """The narrowest `--allow RULE`, quoted for a shell, that would have allowed this call."""
    rule = generalise(tool, input)[0] if generalise(tool, input) else "*"
    if tool in ("edit", "write"):
        rule = tool if not _leads_out(str(input.get("path") or ".")) else rule
    elif tool in READS and not _leads_out(str(input.get("path") or ".")):
        rule = tool  # asked although it looks inside: a link leads out, and no pattern for the typed path covers both faces
    return f"--allow {shlex.quote(rule)}"


def _commands(command: str) -> list[str]:
    script = read(command, {})
    if not script.simple or script.why:
        return ["bash"]
    part = script.parts[0]
    exact = f"bash({glob.escaped(part.text)})"
    wide = _wider(part)
    return [exact, *(rule for rule in wide if rule != exact and broad(parse(rule, "allow", "session")) is None)]


def _wider(part: Part) -> list[str]:
    """The command with its leading fixed words and any arguments: `npm run *`, `git log *`."""
    words = part.words
    if part.assignments or words[0] in _NEVER_WIDER:
        return []
    deepest = 3 if words[1:2] and words[1] in _SUBCOMMANDS.get(words[0], ()) else 2
    fixed = 1
    while fixed < min(deepest, len(words)) and re.fullmatch(r"[a-z][a-z0-9:-]*", words[fixed]):
        fixed += 1
    lead = " ".join(glob.escaped(word) for word in words[:fixed])
    return [f"bash({lead} *)"]


def _paths(tool: str, path: str) -> list[str]:
    flat = posixpath.normpath(path)
    rules = [f"{tool}({glob.escaped(flat)})"]
    folder = posixpath.dirname(flat)
    if folder.strip("/.~"):
        rules.append(f"{tool}({glob.escaped(folder)}/**)")
    return rules


def _leads_out(path: str) -> bool:
    return path.startswith(("/", "~")) or posixpath.normpath(path).startswith("..")


def _host(input: dict[str, Any]) -> str:
    try:
        parts = urlsplit(str(input.get("url", "")))
        return glob.escaped(parts.hostname or "") + (f":{parts.port}" if parts.port else "")
    except ValueError:
        return ""


def _named(tool: str, input: dict[str, Any]) -> str:
    name = str(input.get("agent") or "worker") if tool == "task" else str(input.get("name", ""))
    return f"{tool}({glob.escaped(name)})" if name else tool
