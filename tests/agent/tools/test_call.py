"""Calling a tool: every wrong call has an immediate, useful error; output is capped in one place; schemas are plain."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stead.agent.tools import TOOLS, Input, Result, Tool, call, check
from stead.agent.tools.cap import cap, estimated_tokens
from stead.agent.tools.paths import quoted, real
from tests.agent.tools.context import FakeContext
from tests.agent.tools.test_files import bad, good


@pytest.fixture
def context(tmp_path: Path) -> FakeContext:
    return FakeContext(tmp_path)


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("read", "", "path: Field required"),
        ("read", "{}", "path: Field required"),
        ("write", '{"path": "f", "content": "cut in the mid', "not valid JSON"),
        ("read", "[]", "not an object"),
        ("read", '"f"', "not an object"),
        ("read", "null", "not an object"),
        ("read", '{"path": "f", "ofset": 2}', "ofset: Extra inputs"),
        ("read", '{"path": "f", "offset": "2"}', "offset: Input should be a valid integer"),
        ("read", '{"path": "f", "offset": 0}', "offset: Input should be greater"),
        ("read", '{"path": "f", "offset": true}', "offset: Input should be a valid integer"),
        ("read", '{"path": 5}', "path: Input should be a valid string"),
        ("read", '{"path": ""}', "path: String should have at least 1"),
        ("read", '{"path": NaN}', "not valid JSON"),
        ("edit", '{"path": "f", "old": "a", "new": "b", "all": "yes"}', "all: Input should be a valid boolean"),
        ("bash", '{"command": "true", "timeout": 1e99}', "timeout: Input should be less"),
        ("write", '{"path": "f", "content": "\\ud83d"}', "half a character"),
        ("todo_write", '{"todos": [{"text": "a", "status": "open"}]}', "todos.0.status"),
        ("todo_write", "[" * 5_000, "not valid JSON"),
    ],
)
async def test_b085_a_wrong_call_is_answered_at_once_with_the_schema(
    context: FakeContext, tool: str, arguments: str, said: str
) -> None:
    error = bad(await call(tool, arguments, context))
    assert said in error and "nothing was done" in error
    assert json.loads(error.partition("The schema is: ")[2]) == TOOLS[tool].schema()
    error.encode()
    assert list(context.root.iterdir()) == []


@pytest.mark.parametrize("name", ["nope", "", "read.file", "read file", "Read", "x" * 5_000, "a\nb\ud800"])
async def test_b085_an_unknown_tool_is_named_with_those_there_are(context: FakeContext, name: str) -> None:
    error = bad(await call(name, "{}", context))
    assert "There is no tool" in error and "read, write, edit, list, glob, grep, bash, todo_write, ask" in error
    assert len(error) < 300 and "\n" not in error and error.encode()


async def test_b085_no_arguments_are_fine_where_none_are_needed(context: FakeContext) -> None:
    assert good(await call("list", "", context)) == "(the folder is empty)"
    assert good(await call("list", '{"path": null}', context)) == "(the folder is empty)"  # null for "not given"


def test_the_gate_gets_the_paths_as_typed() -> None:
    for name, given in (
        ("read", {"path": "../x"}),
        ("write", {"path": "../x", "content": ""}),
        ("edit", {"path": "../x", "old": "a", "new": "b"}),
        ("list", {"path": "../x"}),
        ("glob", {"path": "../x", "pattern": "*"}),
        ("grep", {"path": "../x", "pattern": "a"}),
    ):
        checked = check(name, json.dumps(given))
        assert not isinstance(checked, Result)
        tool, value = checked
        assert tool.paths(value) == ["../x"]
    assert {name: tool.effect for name, tool in TOOLS.items()} == {
        "read": "read",
        "write": "edit",
        "edit": "edit",
        "list": "read",
        "glob": "read",
        "grep": "read",
        "bash": "bash",
        "todo_write": "none",
        "ask": "none",
    }


@pytest.mark.parametrize("name", TOOLS)
def test_schemas_are_plain(name: str) -> None:
    schema = TOOLS[name].schema()
    text = json.dumps(schema)
    assert schema["type"] == "object" and schema["additionalProperties"] is False
    assert not any(word in text for word in ("$ref", "$defs", '"title"', "anyOf", "exclusiveMinimum"))
    assert len(text) + len(TOOLS[name].description) < 900  # models pay for each of these characters


async def test_a_fault_in_a_tool_is_a_result(context: FakeContext) -> None:
    class Nothing(Input):
        pass

    async def broken(context: Any, given: Any) -> Result:
        raise ZeroDivisionError

    tools = {"broken": Tool(name="broken", description="", input=Nothing, run=broken, effect="none")}
    assert "a fault in stead itself (ZeroDivisionError)" in bad(await call("broken", "{}", context, tools))


async def test_todos_and_questions(context: FakeContext) -> None:
    todos = [{"text": "a", "status": "done"}, {"text": "b", "status": "doing"}]
    assert good(await context.use("todo_write", todos=todos)) == "The list has 2 todos: 1 doing, 1 done."
    assert context.todos == todos
    assert good(await context.use("todo_write", todos=[])) == "The list is empty."
    assert good(await context.use("ask", question="Which?", options=["a", "b"])) == "yes"
    assert good(await context.use("ask", question="Why?")) == "yes"
    assert context.asked == [("Which?", ["a", "b"]), ("Why?", None)]


# ---- cap ----


def test_a_small_text_is_left_alone() -> None:
    assert cap("a\n" * 10, "") == ("a\n" * 10, None)


def test_the_marker_counts_what_is_missing() -> None:
    text = "".join(f"{number}\n" for number in range(20_000))
    shown, full = cap(text, "ask again", limit=10_000)
    assert full == text.encode() and len(shown.encode()) <= 10_000
    head, marker, tail = shown.partition("[… ")
    size, lines = marker and tail.split(" bytes (")[0], tail.split("(")[1].split(" lines")[0]
    rest = tail.partition(" …]\n")[2]
    assert "; ask again …]" in shown and head.endswith("\n") and text.startswith(head) and text.endswith(rest)
    assert int(size.replace(",", "")) == len(text) - len(head) - len(rest)
    assert int(lines.replace(",", "")) == text.count("\n") - head.count("\n") - rest.count("\n")


@pytest.mark.parametrize("unit", ["🎉", "👨‍👩‍👧‍👦", "e\u0301", "🇩🇪", "設", "x"])
def test_b145_cuts_are_between_characters_at_every_length(unit: str) -> None:
    text = unit * 2_000
    for limit in range(1_000, 1_060):
        shown, _ = cap(text, "", limit=limit)
        shown.encode()
        assert len(shown.encode()) <= limit
        head, _, rest = shown.partition("\n[… ")
        tail = rest.partition("…]\n")[2]
        assert head == unit * (len(head) // len(unit)) and tail == unit * (len(tail) // len(unit)) and head and tail


def test_b141_dear_characters_get_fewer_bytes() -> None:
    shown, full = cap("設" * 20_000, "")
    assert full is not None and estimated_tokens(shown) <= 12_000
    assert cap("a" * 40_000, "")[1] is None


# ---- paths ----


@pytest.mark.parametrize(
    ("name", "text"),
    [("a b", "a b"), ("ü設🎉", "ü設🎉"), ("a\nb", '"a\\nb"'), ("\udcff", '"\\\\xff"'), ('q"', 'q"'), ("a\u202eb", "a\u202eb")],
)
def test_names_on_one_line(name: str, text: str) -> None:
    assert quoted(name) == text


def test_real_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path.resolve()
    (root / "sub" / "deep").mkdir(parents=True)
    (root / "link").symlink_to("sub/deep")
    monkeypatch.setenv("HOME", str(root / "sub"))
    assert real(root, "f") == real(root, "./x/../f") == root / "f"
    assert real(root, "link/../f") == root / "sub" / "f"  # as the operating system goes, not by the letters
    assert real(root, "~/f") == root / "sub" / "f"
    assert real(root, "/") == Path("/")
