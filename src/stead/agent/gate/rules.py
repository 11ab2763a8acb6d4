"""Rules: what a person writes to allow, ask or deny, how it is read, and which of several rules decides."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from stead.agent.gate import glob
from stead.core.errors import SteadError

Action = Literal["allow", "ask", "deny"]
Layer = Literal["flag", "session", "agent", "project", "global"]

LAYERS: tuple[Layer, ...] = ("flag", "session", "agent", "project", "global")
"""From the nearest to the farthest."""
STRICT: dict[Action, int] = {"allow": 0, "ask": 1, "deny": 2}

READS = frozenset({"read", "list", "glob", "grep"})
EDITS = frozenset({"edit", "write"})
PATHS = READS | EDITS
_PATTERNED = PATHS | {"bash", "task", "fetch", "mcp", "skill"}
_PLAIN = frozenset({"todo_write", "ask", "bash_input", "web_search", "history_read", "search_sessions", "remember", "*"})
TOOLS = _PATTERNED | _PLAIN
_COVERS: dict[str, frozenset[str]] = {"read": READS, "edit": EDITS, "bash": frozenset({"bash", "bash_input"})}

_RUNS_ANYTHING = """
bash sh zsh dash ksh fish eval exec source command builtin sudo doas su env xargs parallel ssh nohup nice timeout time watch setsid
python python3 node deno bun perl ruby php lua awk gawk mawk osascript npx uvx pipx docker podman kubectl busybox make tclsh
"""
_ANY_PROGRAM = frozenset(_RUNS_ANYTHING.split())


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `pattern` None covers every use of the tool; `origin` says where it was written, for people."""

    tool: str
    pattern: str | None
    action: Action
    layer: Layer
    origin: str = ""

    @property
    def text(self) -> str:
        """The rule as it is written: `tool` or `tool(pattern)`."""
        return self.tool if self.pattern is None else f"{self.tool}({self.pattern})"

    @property
    def whole(self) -> bool:
        """Whether it covers the tool whatever its input: no pattern, or just `*` where that is any text."""
        return self.pattern is None or (self.pattern == "*" and self.tool not in PATHS)

    def covers(self, tool: str) -> bool:
        """Whether it speaks of this tool at all."""
        return self.tool in ("*", tool) or tool in _COVERS.get(self.tool, ())


def parse(text: str, action: Action, layer: Layer, origin: str = "") -> Rule:
    """Read `tool` or `tool(pattern)`; the pattern goes to the last bracket, so brackets inside need no escape. Raises `usage`."""
    tool, bracket, rest = text.strip().partition("(")
    tool = tool.strip()
    if not tool:
        raise SteadError("usage", "A rule needs the name of a tool.", hint="Write tool or tool(pattern), e.g. bash(npm test).")
    if tool not in TOOLS:
        raise _unknown_tool(text, tool)
    if not bracket:
        return Rule(tool, None, action, layer, origin)
    if not rest.endswith(")"):
        raise SteadError("usage", f"The rule {text!r} does not end with its closing bracket.", hint=f"Write {tool}(pattern).")
    pattern = rest[:-1].strip()
    if not pattern:
        raise SteadError("usage", f"The pattern of {text!r} is empty.", hint=f"Write {tool} alone to cover every use.")
    if "\0" in pattern:
        raise SteadError("usage", f"The rule {text!r} contains a NUL character, which no command or path has.")
    if tool not in _PATTERNED:
        raise SteadError("usage", f"The tool {tool} takes no pattern.", hint=f"Write {tool} alone.")
    if tool == "bash":  # commands are joined by single blanks: a pattern with two would silently never match
        pattern = re.sub(r"(?<!\\)[ \t]+", " ", pattern)
    return Rule(tool, pattern, action, layer, origin)


def _unknown_tool(text: str, tool: str) -> SteadError:
    hint = "Tools: " + ", ".join(sorted(TOOLS)) + "."
    if " " in tool:
        hint = f"If you mean a shell command, write bash({text.strip()})."
    elif ")" in tool:
        hint = "There is a closing bracket without an opening one."
    return SteadError("usage", f"The rule {text!r} names no tool that stead has.", hint=hint)


@lru_cache(4096)
def _text_tokens(pattern: str) -> tuple[list[glob.Token], list[glob.Token] | None]:
    tokens = glob.text_tokens(pattern)
    # `npm run *` also covers `npm run`: the blank in front of the star belongs to the arguments.
    bare = glob.text_tokens(pattern[:-2]) if pattern.endswith(" *") and not pattern.endswith("\\ *") else None
    return tokens, bare


def fits_command(pattern: str, text: str) -> bool:
    """Whether a bash pattern fits the whole of a simple command (words joined by single blanks)."""
    tokens, bare = _text_tokens(pattern)
    return glob.fits(tokens, text, slash=False) or (bare is not None and glob.fits(bare, text, slash=False))


def fits_text(pattern: str, text: str) -> bool:
    """Whether a pattern of names (agent, skill, host, server/tool) fits; `*` is any text."""
    return glob.fits(_text_tokens(pattern)[0], text, slash=False)


def literal_length(rule: Rule) -> int:
    """How much of the rule's pattern is literal text."""
    if rule.pattern is None:
        return 0
    return glob.literal_length(glob.path_tokens(rule.pattern) if rule.tool in PATHS else _text_tokens(rule.pattern)[0])


def decide(rules: Iterable[Rule], tool: str, fits: Callable[[Rule], bool]) -> Rule | None:
    """The rule that decides: any deny; else the nearest layer, in it the longest literal text, and ask before allow."""
    best: Rule | None = None
    for rule in rules:
        if rule.covers(tool) and (best is None or _rank(rule) > _rank(best)) and (rule.pattern is None or fits(rule)):
            best = rule
    return best


def _rank(rule: Rule) -> tuple[bool, int, int, int]:
    return rule.action == "deny", -LAYERS.index(rule.layer), literal_length(rule), STRICT[rule.action]


def whole_allow(rules: Sequence[Rule], tool: str) -> Rule | None:
    """The rule that decides for this tool among those that cover it whatever the input."""
    return decide((rule for rule in rules if rule.whole), tool, lambda _: True)


def broad(rule: Rule) -> str | None:
    """A sentence of warning for an allow rule that lets nearly anything happen, else None."""
    if rule.action != "allow":
        return None
    pattern = rule.pattern
    if rule.tool == "*":
        return "This allows every tool, every command and every file."
    if rule.tool == "bash":
        return _broad_command(pattern)
    if rule.tool in PATHS and pattern != "*" and (pattern is None or pattern.rstrip("/*") in ("", "~", "..", ".")):
        return _broad_path(rule.tool, pattern)
    if rule.tool == "fetch" and (pattern is None or re.fullmatch(r"(https?|\*)?(://)?[*/?.]*", pattern)):
        return "This allows requests to every host."
    if rule.tool == "mcp" and (pattern is None or not pattern.strip("*/?")):
        return "This allows every tool of every MCP server."
    return None


def _broad_path(tool: str, pattern: str | None) -> str | None:
    inside = pattern is not None and pattern[0] in "*." and not pattern.startswith("..")
    if inside and tool in READS:
        return None  # that is the default
    verb = "read" if tool in READS else "changed"
    where = "also outside the project" if pattern is None else "in the project" if inside else f"below {pattern.rstrip('*')}"
    return f"This allows every file to be {verb}, {where}."


def _broad_command(pattern: str | None) -> str | None:
    if pattern is None or not pattern.strip("*? "):
        return "This allows every shell command."
    first, _, rest = pattern.partition(" ")
    if "*" in first or "?" in first:
        return f"The name of the program in {pattern!r} has a wildcard: this allows many programs, not one."
    name = first.rsplit("/", 1)[-1]
    fixed = [word for word in rest.split() if word.strip("*?") and not word.startswith("-")]
    if name in _ANY_PROGRAM and "*" in rest and not fixed:
        return f"{name} runs any other program or code: this allows as much as every shell command."
    return None
