"""Reading rules, which of several decides, and warnings for rules that allow nearly anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from stead.agent.gate import Rule, broad, flag_for, generalise, judge, parse
from stead.core.errors import SteadError


@pytest.mark.parametrize(
    ("text", "tool", "pattern"),
    [
        ("edit", "edit", None),
        (" bash ( npm test ) ", "bash", "npm test"),
        ("bash(echo (a) (b))", "bash", "echo (a) (b)"),
        ("mcp(files/read)", "mcp", "files/read"),
        ("fetch(https://example.com/docs*)", "fetch", "https://example.com/docs*"),
        ("*", "*", None),
        ("write(src/**)", "write", "src/**"),
    ],
)
def test_a_rule_is_a_tool_or_a_tool_with_a_pattern(text: str, tool: str, pattern: str | None) -> None:
    rule = parse(text, "allow", "flag")
    assert (rule.tool, rule.pattern) == (tool, pattern)
    assert parse(rule.text, "allow", "flag") == rule


@pytest.mark.parametrize(
    "text",
    [
        "",
        "()",
        "(x)",
        "bash(",
        "bash()",
        "bash( )",
        "bash(x",
        "bash x)",
        "bsh(x)",
        "bash *",
        "rm -rf x",
        "*(x)",
        "ask(x)",
        "edit(a) b",
        "read(\0)",
    ],
)
def test_a_malformed_rule_is_a_usage_error_with_a_next_step(text: str) -> None:
    with pytest.raises(SteadError) as caught:
        parse(text, "deny", "project")
    assert caught.value.code == "usage"
    assert caught.value.hint or "NUL" in caught.value.message


def test_a_command_without_its_tool_is_told_how_to_write_it() -> None:
    with pytest.raises(SteadError) as caught:
        parse("npm run test", "allow", "flag")
    assert "bash(npm run test)" in str(caught.value.hint)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "*",
            "bash",
            "bash(*)",
            "bash(* *)",
            "bash(sudo *)",
            "bash(python *)",
            "bash(/usr/bin/python3 *)",
            "bash(bash -c *)",
            "bash(*sh)",
        ),
        *(
            "bash(env*)",
            "edit",
            "write",
            "edit(**)",
            "edit(/**)",
            "edit(/)",
            "edit(~/**)",
            "read",
            "read(/**)",
            "read(~)",
            "fetch",
            "mcp(*)",
        ),
        *("fetch(*)", "fetch(https://*)", "mcp", "bash(git* x)"),
    ],
)
def test_b105_a_rule_that_allows_anything_is_warned_of(text: str) -> None:
    assert broad(parse(text, "allow", "global"))


@pytest.mark.parametrize(
    "text",
    [
        *(
            "bash(npm *)",
            "bash(git log *)",
            "bash(python -m pytest *)",
            "bash(python x.py)",
            "edit(src/**)",
            "edit(*)",
            "read(~/notes/**)",
        ),
        *(
            "fetch(example.com)",
            "fetch(https://example.com/*)",
            "mcp(files/*)",
            "task",
            "skill",
            "todo_write",
            "bash(bash build.sh)",
        ),
    ],
)
def test_b105_a_narrower_rule_is_not_warned_of(text: str) -> None:
    assert broad(parse(text, "allow", "global")) is None


@pytest.mark.parametrize("text", ["*", "bash", "edit", "bash(sudo *)"])
def test_b105_asking_and_denying_may_be_as_broad_as_one_likes(text: str) -> None:
    assert broad(parse(text, "deny", "global")) is None
    assert broad(parse(text, "ask", "global")) is None


def _named(rules: list[Rule], tool: str, /, **input: object) -> str:
    return judge(rules, tool, dict(input), project=Path("/p"), home=Path("/h")).action


def _allow(*texts: str) -> list[Rule]:
    return [parse(text, "allow", "flag") for text in texts]


def test_tools_without_effect_are_free_and_unknown_ones_ask() -> None:
    for tool in ("todo_write", "ask", "history_read", "search_sessions", "skill"):
        assert _named([], tool) == "allow"
    for tool in ("task", "fetch", "web_search", "remember", "bash_input", "mcp__files__read", "nothing_known", ""):
        assert _named([], tool) == "ask"
    assert _named([parse("*", "deny", "global")], "todo_write") == "deny"


def test_agents_skills_and_mcp_tools_go_by_name() -> None:
    assert _named(_allow("task(worker)"), "task", prompt="x") == "allow"
    assert _named(_allow("task(worker)"), "task", prompt="x", agent="other") == "ask"
    assert _named([parse("skill(deploy)", "deny", "flag")], "skill", name="deploy") == "deny"
    assert _named(_allow("mcp(files/read*)"), "mcp__files__read_file") == "allow"
    assert _named(_allow("mcp(files)"), "mcp", server="files", tool="write") == "allow"
    assert _named(_allow("mcp(files/*)"), "mcp__files2__read") == "ask"


@pytest.mark.parametrize(
    ("rule", "url", "action"),
    [
        ("example.com", "https://example.com/a", "allow"),
        ("example.com", "http://EXAMPLE.com.:80/a", "allow"),
        ("example.com", "https://example.com.evil.org/", "ask"),
        ("example.com", "https://example.com@evil.org/", "ask"),
        ("example.com", "https://evil.org\\@example.com/", "ask"),
        ("example.com", "file://example.com/etc", "ask"),
        ("*.example.com", "https://docs.example.com/", "allow"),
        ("https://example.com*", "https://example.com.evil.org/", "allow"),
        ("https://example.com/*", "https://example.com.evil.org/", "ask"),
        ("https://example.com/docs*", "https://example.com/docs/a?b", "allow"),
        ("https://example.com/docs/*", "https://example.com/docs/../admin", "ask"),
        ("https://example.com/docs/*", "https://example.com/docs/%2e%2e/admin", "ask"),
        ("https://example.com/docs/*", "http://example.com/docs/a", "ask"),
        ("https://example.com/docs", "not a url", "ask"),
        ("example.com", "https://[", "ask"),
    ],
)
def test_an_address_is_matched_by_host_and_path(rule: str, url: str, action: str) -> None:
    assert _named(_allow(f"fetch({rule})"), "fetch", url=url) == action


def test_a_denied_host_is_denied_in_any_disguise() -> None:
    rules = [parse("fetch", "allow", "flag"), parse("fetch(evil.org)", "deny", "global")]
    for url in ("https://evil.org", "https://EVIL.org.", "https://a@evil.org/", "https://evil.org\\x", "ht\ntps://evil.org/"):
        assert _named(rules, "fetch", url=url) == "deny"


@pytest.mark.parametrize(
    ("tool", "input", "offered", "flag"),
    [
        ("bash", {"command": "npm test"}, ["bash(npm test)", "bash(npm test *)"], "--allow 'bash(npm test)'"),
        (
            "bash",
            {"command": "npm run build --if x"},
            ["bash(npm run build --if x)", "bash(npm run *)"],
            "--allow 'bash(npm run build --if x)'",
        ),
        ("bash", {"command": "ls *.py"}, [r"bash(ls \*.py)", "bash(ls *)"], r"--allow 'bash(ls \*.py)'"),
        ("bash", {"command": "rm x"}, ["bash(rm x)"], "--allow 'bash(rm x)'"),
        ("bash", {"command": "python x.py"}, ["bash(python x.py)"], "--allow 'bash(python x.py)'"),
        (
            "bash",
            {"command": "git remote add x y"},
            ["bash(git remote add x y)", "bash(git remote add *)"],
            "--allow 'bash(git remote add x y)'",
        ),
        ("bash", {"command": "ls && ls"}, ["bash"], "--allow bash"),
        ("bash", {"command": "sudo ls"}, ["bash"], "--allow bash"),
        ("edit", {"path": "src/deep/a.py"}, ["edit(src/deep/a.py)", "edit(src/deep/**)"], "--allow edit"),
        ("write", {"path": "a.py"}, ["write(a.py)"], "--allow write"),
        ("edit", {"path": "../x"}, ["edit(../x)"], "--allow 'edit(../x)'"),
        ("read", {"path": "/etc/hosts"}, ["read(/etc/hosts)", "read(/etc/**)"], "--allow 'read(/etc/hosts)'"),
        ("grep", {"pattern": "x"}, ["grep(.)"], "--allow grep"),
        ("fetch", {"url": "https://example.com/a"}, ["fetch(example.com)"], "--allow 'fetch(example.com)'"),
        ("task", {"prompt": "x"}, ["task(worker)"], "--allow 'task(worker)'"),
        ("mcp__files__read", {}, ["mcp(files/read)", "mcp(files/*)"], "--allow 'mcp(files/read)'"),
        ("remember", {}, ["remember"], "--allow remember"),
    ],
)
def test_rules_are_offered_from_narrow_to_wide(tool: str, input: dict[str, str], offered: list[str], flag: str) -> None:
    assert generalise(tool, input) == offered
    assert flag_for(tool, input) == flag


@pytest.mark.parametrize(
    ("tool", "input"),
    [
        ("bash", {"command": "npm test"}),
        ("bash", {"command": r"grep 'a\*b?' x*"}),
        ("bash", {"command": "A=1 'x y' z"}),
        ("bash", {"command": "ls | cat"}),
        ("edit", {"path": "src/*.py"}),
        ("edit", {"path": "/etc/hosts"}),
        ("read", {"path": "~/x/y"}),
        ("fetch", {"url": "https://example.com:8080/a"}),
        ("task", {"prompt": "x"}),
        ("web_search", {"query": "x"}),
    ],
)
def test_each_offered_rule_and_the_flag_allow_the_call(tool: str, input: dict[str, str]) -> None:
    for text in [*generalise(tool, input), flag_for(tool, input).removeprefix("--allow ").strip("'")]:
        assert _named(_allow(text), tool, **input) == "allow", text


def test_a_decision_is_shown_in_its_documented_shape() -> None:
    rules = [parse("bash(ls *)", "allow", "project", "the settings file")]
    shown = judge(rules, "bash", {"command": "ls && rm x"}, project=Path("/p"), home=Path("/h")).to_json()
    assert set(shown) == {"decision", "rule", "why", "parts"}
    assert shown["decision"] == "ask" and shown["rule"] is None and "several commands" in shown["why"]
    assert shown["parts"] == [
        {"text": "ls", "decision": "allow", "rule": "bash(ls *)"},
        {"text": "rm x", "decision": "ask", "rule": None},
    ]
    simple = judge(rules, "bash", {"command": "ls"}, project=Path("/p"), home=Path("/h"))
    assert simple.to_json()["rule"] == "bash(ls *)" and "the settings file" in simple.why
