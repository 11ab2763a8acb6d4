"""What is sent is valid whatever is stored: one strict reader for each format judges it."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.agent.models import anthropic, chat, gemini
from stead.agent.models.base import Request, ToolSpec, Turn
from stead.agent.models.history import Call, Names, Said, Step, arrange
from stead.agent.models.http import encode
from tests.agent.models.mock import STEP, ask, assistant, call, user


def text(value: str, **more: Any) -> Any:
    return {"type": "text", "text": value, **more}


def thought(family: str, **meta: str) -> Any:
    return {"type": "reasoning", "text": "hm", "meta": {"family": family, **meta}}


def notice(value: str) -> Any:
    return {"type": "notice", "code": "run_interrupted", "text": value}


def order(request: Request, family: str = "openai") -> list[Any]:
    return arrange(request, family, Names(request.tools))[1]


def check_chat(request: Request, family: str = "openai") -> dict[str, Any]:
    """What a strict Chat Completions server demands."""
    sent: dict[str, Any] = json.loads(encode(chat.body(request, family, Names(request.tools))))
    messages = sent["messages"][1:] if sent["messages"][0]["role"] == "system" else sent["messages"]
    assert messages[0]["role"] == "user" and messages[-1]["role"] in ("user", "tool")
    seen: set[str] = set()
    waiting: list[str] = []
    last = ""
    for message in messages:
        if message["role"] == "tool":
            assert waiting.pop(0) == message["tool_call_id"] and message["content"]
            last = "tool"
            continue
        assert not waiting and message["role"] != last, message
        last = message["role"]
        assert last in ("user", "assistant") and (message.get("content") or message.get("tool_calls"))
        for sent_call in message.get("tool_calls", ()):
            assert sent_call["id"] not in seen and re.fullmatch(r"[!-~]{1,64}", sent_call["id"])
            seen.add(sent_call["id"])
            waiting.append(sent_call["id"])
            assert isinstance(json.loads(sent_call["function"]["arguments"]), dict)
            assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", sent_call["function"]["name"])
    assert not waiting
    return sent


def check_anthropic(request: Request) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(encode(anthropic.body(request, "anthropic", Names(request.tools))))
    messages = sent["messages"]
    assert messages[0]["role"] == "user" and messages[-1]["role"] == "user"
    seen: set[str] = set()
    waiting: list[str] = []
    for before, message in zip([None, *messages], messages, strict=False):
        assert message["content"] and message["role"] != (before or {}).get("role")
        for n, piece in enumerate(message["content"]):
            if piece["type"] == "text":
                assert piece["text"].strip()
            if piece["type"] == "tool_result":
                assert piece["tool_use_id"] == waiting.pop(0) and n < len(message["content"])
                assert all(other["type"] == "tool_result" for other in message["content"][:n])
            if piece["type"] == "tool_use":
                assert re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", piece["id"]) and piece["id"] not in seen
                assert isinstance(piece["input"], dict) and re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", piece["name"])
                seen.add(piece["id"])
                waiting.append(piece["id"])
            if piece["type"] == "thinking":
                assert piece["signature"]
        if message["role"] == "assistant":
            assert message["content"][-1]["type"] not in ("thinking", "redacted_thinking")
        else:
            assert not waiting
    assert json.dumps(sent).count("cache_control") <= 4
    return sent


def check_gemini(request: Request) -> dict[str, Any]:
    sent: dict[str, Any] = json.loads(encode(gemini.body(request, "gemini", Names(request.tools))))
    contents = sent["contents"]
    assert contents[0]["role"] == "user" and contents[-1]["role"] == "user"
    waiting: list[tuple[str, str]] = []
    for content in contents:
        assert content["parts"]
        calls = [part["functionCall"] for part in content["parts"] if "functionCall" in part]
        answers = [part["functionResponse"] for part in content["parts"] if "functionResponse" in part]
        assert [(answer["id"], answer["name"]) for answer in answers] == waiting
        waiting = [(called["id"], called["name"]) for called in calls]
        for part in content["parts"]:
            assert "text" not in part or part["text"].strip() or part.get("thoughtSignature")
        first = next((part for part in content["parts"] if "functionCall" in part), None)
        assert first is None or any("thoughtSignature" in part for part in content["parts"] if "functionCall" in part)
    assert not waiting
    return sent


def check(request: Request) -> None:
    check_chat(request)
    check_chat(request, "openrouter")
    check_anthropic(request)
    check_gemini(request)


STATES: list[dict[str, Any]] = [
    {"status": "pending"},
    {"status": "running"},
    {"status": "running", "duration_ms": 4200, "output": "half a file"},
    {"status": "pending", "arguments": '{"path": "a', "cut": True},
    {"status": "error", "error": "run interrupted"},
    {"status": "denied", "error": "the rule bash(rm *) denies it"},
    {"status": "done", "output": "fine"},
    {"status": "done"},
]


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("step", [True, False])
@pytest.mark.parametrize("said", [True, False])
def test_b073_a_resumed_session_is_valid(state: Any, count: int, step: bool, said: bool) -> None:
    calls = [{**call(id=f"c{n}"), **(state if n == count - 1 else {"status": "done", "output": "x"})} for n in range(count)]
    turns = [user("hi"), assistant(text("I will."), *calls, *([STEP] if step else [])), *([user("go on")] if said else [])]
    check(Request("gemini-3-pro", turns))


def test_b076_the_model_is_told_what_is_known() -> None:
    parts = [{**call(id=f"c{n}"), **state} for n, state in enumerate(STATES)]
    step = order(ask(user("hi"), assistant(*parts, STEP)))[1]
    results = {item.result: item.failed for item in step.calls}
    lines = list(results)
    assert "Not executed" in lines[0]
    assert "started" in lines[1] and "unknown" in lines[1] and "Not executed" not in lines[1]
    assert "after 4.2 s" in lines[2] and "half a file" in lines[2]
    assert "cut off" in lines[3]
    assert lines[4] == "run interrupted"
    assert lines[5] == "Not executed: the rule bash(rm *) denies it"
    assert lines[6:] == ["fine", "(no output)"] and [results[line] for line in lines] == [True] * 6 + [False] * 2


def test_b085_odd_ids_names_and_arguments() -> None:
    tools = [ToolSpec("mcp/a.b", "", {}), ToolSpec("mcp_a_b", "", {}), ToolSpec("mcp a.b", "", {})]
    parts = [
        call("mcp/a.b", "", id="same"),
        call("mcp_a_b", "{}", id="same"),
        call("mcp a.b", "null", id="same"),
        call("unknown tool!", "[]", id="functions.read:0"),
        call("", '{"a": NaN}', id=""),
        call("x" * 200, "{" * 5000, id="ä" * 100),
        call("x" * 200, '{"a": "\\ud83d", "\\udc00": 1}', id="y" * 100),
        call("9lives", '{"n": 123456789012345678901234567890}', id="y" * 101),
    ]
    request = Request("gemini-3-pro", [user("hi"), assistant(*parts, STEP), user("and"), assistant(*parts, STEP)], tools=tools)
    check(request)
    calls = order(request)[1].calls
    assert [sent.name for sent in calls[:3]] == ["mcp_a_b_2", "mcp_a_b", "mcp_a_b_3"]
    assert [sent.arguments for sent in calls[:5]] == ["{}"] * 5
    assert [sent.failed for sent in calls[:5]] == [False, False, True, True, True]
    assert json.loads(calls[6].arguments) == {"a": "\ufffd", "\ufffd": 1}
    assert calls[7].arguments == '{"n": 123456789012345678901234567890}'
    assert '"n":123456789012345678901234567890' in encode(anthropic.body(request, "anthropic", Names(tools))).decode().replace(
        " ", ""
    )
    names = Names(tools)
    assert [names.real(names.wire(tool.name)) for tool in tools] == [tool.name for tool in tools]
    kept = arrange(request, "openai", Names(tools), strict_ids=False)[1][1]
    assert isinstance(kept, Step) and kept.calls[3].id == "functions.read:0"  # some models want their own ids back


def test_b189_foreign_thinking_is_left_out() -> None:
    turns = [
        user("1"),
        assistant(thought("anthropic", signature="S"), text("a"), call(id="a", meta={"family": "anthropic"}), STEP),
        user("2"),
        assistant(thought("openai", field="reasoning", model="m"), text("b"), call(id="b"), STEP),
        user("3"),
        assistant(thought("gemini", signature="G"), text("c", meta={"family": "gemini", "signature": "T", "at": "0"}), STEP),
        user("4"),
    ]
    request = Request("gemini-3-pro", turns)
    check(request)
    assert json.dumps(check_anthropic(request)).count('"thinking": "hm"') == 1
    sent = json.dumps(check_gemini(request))
    assert sent.count('"thought": true') == 1 and sent.count('"T"') == 1 and '"S"' not in sent
    assert "hm" not in json.dumps(check_chat(request, "ollama"))
    for part in (thought("x"), {"type": "reasoning", "text": "hm"}):
        assert len(order(ask(user("a"), assistant(part, text("b"), STEP)), "anthropic")[1].items) == 1


def test_b195_reasoning_stays_with_what_it_led_to() -> None:
    alone = thought("anthropic", signature="S")
    for parts in ([alone], [alone, text("  ")], [text("a"), alone], [alone, STEP, text("b")], [alone, alone, STEP]):
        request = ask(user("1"), assistant(*parts, STEP), user("2"))
        check(request)
        assert "thinking" not in json.dumps(check_anthropic(request))
    kept = ask(user("1"), assistant(alone, text("a"), STEP, call(), STEP), user("2"))
    assert json.dumps(check_anthropic(kept)).count('"thinking"') == 2  # the type and the field of one block


def test_compaction_replaces_what_is_before_it() -> None:
    compaction = {"type": "compaction", "removed": 2, "summary": "We met."}
    head = [user("old"), assistant(text("older"), call(id="o"), STEP)]
    for turns in (
        [*head, Turn("user", [compaction, text("new")])],
        [*head, Turn("system", [compaction]), user("new")],
        [*head, Turn("assistant", [text("oldest"), compaction, call(id="n"), STEP]), user("new")],
        [Turn("user", [{**compaction, "summary": "First."}]), *head, Turn("user", [compaction]), user("new")],
    ):
        request = Request("gemini-3-pro", turns)
        check(request)
        sent = json.dumps(check_chat(request))
        assert "We met." in sent and "new" in sent and "old" not in sent and "First." not in sent


def test_b075_a_damaged_history_is_repaired_in_the_view() -> None:
    turns = [
        assistant(call(id="orphan", status="pending")),
        assistant(text("a")),
        assistant(text("b"), STEP),
        user(""),
        user("1"),
        user("2"),
        Turn("assistant", []),
        Turn("assistant", [{"type": "tool", "call": "x"}, {"type": "strange"}, {"type": "text"}]),  # type: ignore[list-item]
        Turn("assistant", [{"type": "patch", "files": []}, {"type": "knowledge", "pages": []}]),
    ]
    for end in range(len(turns) + 1):
        check(Request("gemini-3-pro", turns[:end]))
    wire = order(ask(*turns))
    assert isinstance(wire[0], Said) and isinstance(wire[2], Step)
    assert [part["text"] for part in wire[2].items if not isinstance(part, Call)] == ["a", "b"]
    assert wire[3] == Said(["1", "2"])


def test_system_turns_notices_and_odd_text() -> None:
    turns = [
        Turn("system", [text("Speak \ud83d German.")]),
        user("lone \udc00 surrogate"),
        assistant(text("half", cut=True), notice("The run was interrupted.")),
        user("again"),
    ]
    request = ask(*turns, system="Be good.")
    check(request)
    messages = check_chat(request)["messages"]
    assert messages[0]["content"] == "Be good.\n\nSpeak \ufffd German."
    assert messages[1]["content"] == "lone \ufffd surrogate"
    assert messages[3]["content"] == "The run was interrupted.\n\nagain"


def test_an_open_answer_is_asked_to_go_on() -> None:
    for parts in ([text("half", cut=True)], [text("whole"), STEP]):
        request = ask(user("a"), assistant(*parts))
        check(request)
        assert order(request)[-1] == Said(["Continue."])


def test_the_stored_parts_stay_untouched() -> None:
    parts = [thought("anthropic", signature="S"), text("a\ud800"), call(id="a b", arguments="{"), STEP]
    before = json.dumps(parts)
    check(ask(user("1"), assistant(*parts), user("2"), model="gemini-3-pro"))
    assert json.dumps(parts) == before


PARTS = st.one_of(
    st.builds(text, st.text(max_size=3)),
    st.sampled_from(
        [thought("anthropic", signature="S"), thought("anthropic", data="D"), thought("openai", field="reasoning", model="m")]
    ),
    st.builds(
        lambda id, status, arguments: call(id=id, status=status, arguments=arguments),
        st.sampled_from(["a", "b", "ä", ""]),
        st.sampled_from(["pending", "running", "done", "error", "denied"]),
        st.sampled_from(["{}", "", '{"a', "[]"]),
    ),
    st.sampled_from(
        [
            STEP,
            notice("n"),
            {"type": "compaction", "removed": 1, "summary": "s"},
            text("", meta={"family": "gemini", "signature": "x"}),
        ]
    ),
)
TURNS = st.lists(st.builds(Turn, st.sampled_from(["user", "assistant", "system"]), st.lists(PARTS, max_size=5)), max_size=6)


@given(TURNS)
def test_any_history_is_valid(turns: list[Turn]) -> None:
    for turn in turns:
        if turn.role != "assistant":
            turn.parts[:] = [part for part in turn.parts if part["type"] in ("text", "notice", "compaction")]
    check(Request("gemini-3-pro", turns))
