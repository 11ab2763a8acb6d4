"""What holds for every rule and every text."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from stead.agent.gate import Rule, broad, flag_for, generalise, glob, judge, parse, shell
from stead.agent.gate.rules import LAYERS, STRICT

_PROJECT, _HOME = Path("/nowhere/p"), Path("/nowhere/h")

_WORDS = [
    "ls",
    "git",
    "log",
    "rm",
    "-r",
    "x",
    ".env",
    "src/a",
    "../x",
    "~/k",
    "'a b'",
    '"$x"',
    "A=1",
    "*",
    "sudo",
    "find",
    "-delete",
    "-exec",
    "\\;",
]
_JOINTS = [
    " ",
    " ",
    " ",
    " && ",
    "; ",
    " | ",
    " > ",
    " < ",
    "\n",
    " $(",
    ") ",
    " `",
    " & ",
    " <<E\n",
    "\nE\n",
    " { ",
    "; } ",
    '"',
    "'",
    "\\",
]
_COMMANDS = st.lists(st.one_of(st.sampled_from(_WORDS), st.sampled_from(_JOINTS)), max_size=12).map(" ".join)
_PATTERNS = st.sampled_from(
    ["ls *", "git *", "rm *", "* x", "l*", "??", "ls", "git log *", "A=1 *", "sudo *", "find *", "* *", "? *", "[ls]"]
)
_PATHS = st.sampled_from(["src", "src/**", ".env", "**/.env", "*", "**", "/etc/**", "~/k", "../x", "src/*", "x"])
_LAYER = st.sampled_from(LAYERS)


@st.composite
def _rules(draw: st.DrawFn) -> Rule:
    tool = draw(st.sampled_from(["bash", "read", "edit", "write", "grep", "*"]))
    pattern = None if tool == "*" else draw(st.none() | (_PATTERNS if tool == "bash" else _PATHS))
    return Rule(tool, pattern, draw(st.sampled_from(["allow", "allow", "ask", "deny"])), draw(_LAYER))


@st.composite
def _calls(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    tool = draw(st.sampled_from(["bash", "bash", "read", "edit", "write", "glob", "grep", "list", "bash_input"]))
    path = draw(st.sampled_from([".", "src/a", ".env", "../x", "/etc/hosts", "~/k", "src/../.env"]))
    return tool, {
        "command": draw(_COMMANDS),
        "text": "rm x",
        "path": path,
        "pattern": draw(st.sampled_from(["*", "../*", "src/*"])),
    }


@given(st.lists(_rules(), max_size=5), _rules(), _calls())
def test_one_more_deny_never_makes_anything_more_allowed(rules: list[Rule], extra: Rule, call: tuple[str, dict[str, Any]]) -> None:
    deny = Rule(extra.tool, extra.pattern, "deny", extra.layer)
    before = judge(rules, *call, project=_PROJECT, home=_HOME).action
    after = judge([*rules, deny], *call, project=_PROJECT, home=_HOME).action
    assert STRICT[after] >= STRICT[before]


@given(st.lists(_rules(), max_size=4), st.text(), st.text(), _COMMANDS)
@example([], "\ud800$'\\U99999999'", "\0", "")
@example([Rule("read", "\ud800", "deny", "flag")], "cat \ud800", "\ud800", "x")
@example([Rule("edit", ".env", "deny", "flag")], "$(" * 3000, "/" * 3000, "`" * 3001)
@example([Rule("bash", "rm *", "deny", "flag")], "eval " * 300 + "rm", "a" * 70_000, "x" * 70_000)
def test_nothing_that_is_sent_makes_the_gate_fall_over(rules: list[Rule], text: str, other: str, command: str) -> None:
    for tool in ("bash", "bash_input", "read", "edit", "glob", "grep", "fetch", "mcp", "task", "skill", text):
        for value in (text, other, command, None, 7, [text], {}):
            input = dict.fromkeys(("command", "text", "path", "pattern", "glob", "url", "server", "agent", "name"), value)
            judge(rules, tool, input, project=_PROJECT, home=_HOME).to_json()
            flag_for(tool, input)
            for rule in generalise(tool, input):
                assert rule
    judge(rules, "bash", {}, project=_PROJECT, home=_HOME)


_JOINED = st.sampled_from(
    [
        "{} && {}",
        "{}; {}",
        "{} | {}",
        "{}\n{}",
        "{} & {}",
        "{} $({})",
        "{} `{}`",
        "{} <({})",
        "({}; {})",
        "{} > {}",
        "{} <<E\n{}\nE",
    ]
)
_SINGLE = st.lists(st.sampled_from(["ls", "x", "git", "log", "a/b", "'q r'", "-l"]), min_size=1, max_size=4).map(" ".join)


@given(st.lists(st.tuples(_PATTERNS, _LAYER), min_size=1, max_size=4), _JOINED, _SINGLE, _SINGLE)
def test_no_pattern_ever_allows_a_compound(patterns: list[tuple[str, Any]], joined: str, left: str, right: str) -> None:
    rules = [parse(f"bash({pattern})", "allow", layer) for pattern, layer in patterns] + [parse("edit", "allow", "flag")]
    assert judge(rules, "bash", {"command": joined.format(left, right)}, project=_PROJECT, home=_HOME).action == "ask"


@given(st.sampled_from(["bash", "edit", "fetch", "read", "skill", "mcp"]), st.text(min_size=1))
def test_a_rule_that_can_be_read_can_be_written_and_read_again(tool: str, pattern: str) -> None:
    pattern = pattern.strip().replace("\0", "") or "x"
    rule = parse(f"{tool}({pattern})", "allow", "session")
    assert parse(rule.text, "allow", "session") == rule
    broad(rule)


@given(st.text(alphabet="ab/*?.\\ ", max_size=12), st.text(alphabet="ab/. ", max_size=12))
def test_a_path_pattern_never_leaves_its_folder(pattern: str, path: str) -> None:
    pattern = pattern.strip().lstrip("/~") or "a"
    if ".." in pattern or "\\" in pattern:
        return
    rules = [Rule("edit", pattern, "allow", "flag")]
    outside = judge(rules, "edit", {"path": "../" + path.replace("..", "") + "/x"}, project=_PROJECT, home=_HOME)
    assert outside.action == "ask"


@given(st.text(alphabet="a.*?/", max_size=7), st.text(alphabet="a.*?/", max_size=7), st.text(alphabet="a./", max_size=6))
def test_two_patterns_that_fit_one_name_meet(shell: str, rule: str, name: str) -> None:
    left, right = glob.shell_tokens("/" + shell), glob.path_tokens(rule)
    hidden = any(part.startswith(".") for part in name.split("/"))
    if not hidden and glob.fits(left, "/" + name, slash=True) and glob.fits([glob.Lit("/"), *right], "/" + name, slash=True):
        assert glob.meet(left, [glob.Lit("/"), *right])


@given(st.text(alphabet="ab*?\\ /", max_size=10), st.text(alphabet="ab /", max_size=8))
def test_wildcards_agree_with_regular_expressions(pattern: str, text: str) -> None:
    tokens = glob.text_tokens(pattern)
    regex = "".join(re.escape(t) if type(t) is glob.Lit else "." if t == "?" else ".*" for t in tokens)
    assert glob.fits(tokens, text, slash=False) == bool(re.fullmatch(regex, text, re.DOTALL))
    tokens = glob.path_tokens(pattern)
    wild = {"?": "[^/]", "*": "[^/]*", "**": ".*", "**/": "(.*/)?"}
    regex = "".join(re.escape(t) if isinstance(t, glob.Lit) else wild[t] for t in tokens)
    assert glob.fits(tokens, text, slash=True) == bool(re.fullmatch(regex, text, re.DOTALL))


@given(_COMMANDS)
def test_a_simple_command_is_one_that_the_standard_library_reads_the_same(command: str) -> None:
    script = shell.read(command, {})
    if script.simple and "\\" not in command and "#" not in command:
        assert script.parts[0].words == shlex.split(command)
