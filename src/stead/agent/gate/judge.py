"""The judgement: may this tool be used with this input, and which rule says so."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from stead.agent.gate import paths
from stead.agent.gate.commands import judge_command
from stead.agent.gate.decision import Decision, PartDecision, reason, strictest
from stead.agent.gate.rules import PATHS, READS, Action, Rule, decide, fits_text

_FREE = frozenset({"todo_write", "ask", "history_read", "search_sessions", "skill"})


def judge(rules: Sequence[Rule], tool_name: str, input: dict[str, Any], *, project: Path, home: Path) -> Decision:
    """Judge one tool call. Never raises for whatever a model may send; what is not understood asks."""
    where = paths.places(project, home)
    if tool_name in ("bash", "bash_input"):
        text = input.get("command") if tool_name == "bash" else input.get("text", "")
        return judge_command(rules, tool_name, text, where)
    if tool_name in PATHS:
        return _judge_paths(rules, tool_name, input, where)
    return _judge_named(rules, tool_name, input)


# -- paths


def judge_path(rules: Sequence[Rule], tool: str, text: str, where: paths.Places, *, outside: bool = False) -> PartDecision:
    """Judge one path for a path tool: both faces, the stricter one decides. `outside`: the path may climb out of the project."""
    spot = paths.locate(text, where)
    home_like = [paths.locate("./" + text, where)] if text.startswith("~") else []
    outside = outside or not spot.sound
    free = tool in READS and not outside and paths.inside(spot, where)
    found: list[PartDecision] = []
    for face in spot.faces:
        rule = decide(rules, tool, lambda rule, face=face: _covers(rule, face, where))  # type: ignore[misc]
        if outside and rule is not None and rule.action == "allow" and rule.pattern is not None:
            rule = None  # where it really goes is not known: only a rule for every path covers it
        found.append(PartDecision(text, rule.action if rule else "allow" if free else "ask", rule))
    for literal in home_like:  # a tool that does not know `~` would open a file of that name
        found += [PartDecision(text, "deny", rule) for face in literal.faces if (rule := denies(rules, tool, face, where))]
    return strictest(found) or PartDecision(text, "ask")


def denies(rules: Sequence[Rule], tool: str, face: str, where: paths.Places) -> Rule | None:
    """The deny rule that covers this face, if any."""
    return decide((rule for rule in rules if rule.action == "deny"), tool, lambda rule: _covers(rule, face, where))


def path_denied(rules: Sequence[Rule], tool: str, path: str, *, project: Path, home: Path) -> Rule | None:
    """The deny rule for a path, typed or resolved. For tools that walk folders: what it names is to be left out."""
    where = paths.places(project, home)
    return next((rule for face in paths.locate(path, where).faces if (rule := denies(rules, tool, face, where))), None)


def _covers(rule: Rule, face: str, where: paths.Places) -> bool:
    return rule.pattern is not None and paths.fits_path(rule.pattern, face, where, deny=rule.action == "deny")


def _judge_paths(rules: Sequence[Rule], tool: str, input: dict[str, Any], where: paths.Places) -> Decision:
    asked = _asked_paths(tool, input)
    if asked is None:
        rule = decide((rule for rule in rules if rule.pattern is None and rule.action != "allow"), tool, lambda _: False)
        return Decision(rule.action if rule else "ask", rule, reason("ask", rule, "The input names no path."), [])
    parts = [judge_path(rules, tool, text, where, outside=outside) for text, outside in asked]
    worst = strictest(parts)
    assert worst is not None
    verb = "Reading" if tool in READS else "Changing files"
    allowed = worst.action == "allow"
    default = f"{verb} in the project is allowed." if allowed else f"{verb} here asks: no rule speaks of {worst.text}."
    return Decision(worst.action, worst.rule, reason(worst.action, worst.rule, default), parts)


def _asked_paths(tool: str, input: dict[str, Any]) -> list[tuple[str, bool]] | None:
    """The paths an input names, each with whether it may lead out of the project in a way that cannot be followed."""
    path = input.get("path")
    if path is None and tool in ("list", "glob", "grep"):
        path = "."
    if not isinstance(path, str) or not path:
        return None
    asked = [(path, path.startswith("~") and not (path == "~" or path.startswith("~/")))]
    pattern = input.get({"glob": "pattern", "grep": "glob"}.get(tool, ""))
    if isinstance(pattern, str) and pattern:
        asked.append(_start_of(path, pattern))
    return asked


def _start_of(path: str, pattern: str) -> tuple[str, bool]:
    """Where the search for a file pattern begins, and whether it may climb out of there (`*/../..`, `{/etc,a}`)."""
    fixed = re.split(r"[*?\[{\\]", pattern, maxsplit=1)[0]
    whole = fixed if fixed == pattern else fixed.rpartition("/")[0] or ("/" if fixed.startswith("/") else "")
    rest = pattern[len(whole) :]
    climbs = ".." in re.split(r"[/{},\\]", rest) or "\\" in rest or "{/" in rest or ",/" in rest
    return (whole if whole.startswith(("/", "~")) else posixpath.join(path, whole) if whole else path), climbs


# -- everything that goes by a name


def _judge_named(rules: Sequence[Rule], tool: str, input: dict[str, Any]) -> Decision:
    kind, name, fits = _named(tool, input)
    rule = decide(rules, kind, lambda rule: rule.pattern is not None and fits(rule))
    action: Action = rule.action if rule else "allow" if kind in _FREE else "ask"
    default = f"{tool} needs no permission." if action == "allow" else f"{tool} asks: no rule speaks of it."
    return Decision(action, rule, reason(action, rule, default), [PartDecision(name or tool, action, rule)])


def _named(tool: str, input: dict[str, Any]) -> tuple[str, str, Callable[[Rule], bool]]:
    """The kind of rule that speaks of a tool, the name such rules look at, and how they look at it."""
    if tool == "fetch":
        url = str(input.get("url", ""))
        return "fetch", url, lambda rule: fits_url(rule.pattern or "*", url, deny=rule.action == "deny")
    if tool == "task":
        agent = str(input.get("agent") or "worker")
        return "task", agent, lambda rule: fits_text(rule.pattern or "*", agent)
    if tool == "skill":
        skill = str(input.get("name", ""))
        return "skill", skill, lambda rule: fits_text(rule.pattern or "*", skill)
    if name := mcp_name(tool, input):
        return "mcp", name, lambda rule: fits_text(rule.pattern or "*", name) or fits_text(f"{rule.pattern}/*", name)
    return tool, "", lambda _: False


def mcp_name(tool: str, input: dict[str, Any]) -> str | None:
    """`server/tool` for a tool of an MCP server, which is called `mcp__server__tool`, or `mcp` with the two as input."""
    if tool == "mcp":
        return f"{input.get('server', '')}/{input.get('tool', '')}"
    if tool.startswith("mcp__") and "__" in tool[5:]:
        server, _, name = tool[5:].partition("__")
        return f"{server}/{name}"
    return None


def fits_url(pattern: str, url: str, *, deny: bool = False) -> bool:
    """Whether `host` or `https://host/path*` covers an address. An allow needs an address that can only be read one way."""
    clean = re.sub(r"[\t\r\n]", "", url.strip())
    try:
        parts = urlsplit(clean.replace("\\", "/"))
        host = (parts.hostname or "").rstrip(".")
        port = parts.port
    except ValueError:
        return False
    doubtful = clean != url or "\\" in url or "@" in parts.netloc or re.search(r"[\s\x00-\x1f]", clean) is not None
    if not host or parts.scheme not in ("http", "https") or (doubtful and not deny):
        return False
    scheme, mark, rest = pattern.partition("://")
    place, slash, path = rest.partition("/") if mark else (pattern, "", "")
    if mark and not fits_text(scheme.lower(), parts.scheme):
        return False
    named = f"{host}:{port}" if port else host
    if not (fits_text(place.lower(), host) or fits_text(place.lower(), named)):
        return False
    if not slash:
        return True
    typed = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    flat = posixpath.normpath(unquote(parts.path or "/")).replace("//", "/")
    flat += "/" if parts.path.endswith("/") and flat != "/" else ""
    hits = [fits_text("/" + path, text) for text in (typed, parts.path or "/", flat)]
    return any(hits) if deny else (hits[0] or hits[1]) and hits[2]
