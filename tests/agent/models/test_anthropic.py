"""Anthropic Messages: blocks in and out, usage, caching."""

from __future__ import annotations

from typing import Any

import pytest

from stead.agent.models.anthropic import body, default_output
from stead.agent.models.anthropic_stream import AnthropicDecoder
from stead.agent.models.base import ProviderError, ToolSpec
from stead.agent.models.history import Names
from stead.core.ids import CountingIds
from tests.agent.models.mock import STEP, ask, assistant, call, decode_all, done, parts_of, sse, user
from tests.agent.models.streams import ANTHROPIC, CALL, REDACTED, TEXT, THINKING, anthropic, block


def read(stream: bytes) -> list[Any]:
    return decode_all(AnthropicDecoder(ask(), "anthropic", Names([]), CountingIds()), stream)


def sent(*turns: Any, family: str = "anthropic", **more: Any) -> dict[str, Any]:
    request = ask(*turns, **more)
    return body(request, family, Names(request.tools))


def plain(value: Any) -> Any:
    """Without the cache marks."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items() if name != "cache_control"}
    return [plain(item) for item in value] if isinstance(value, list) else value


BLOCKS = [
    {"type": "thinking", "thinking": "Grübeln über 🦊.", "signature": "SigA+/=="},
    {"type": "redacted_thinking", "data": "Opaque=="},
    {"type": "text", "text": "Höre 🎈👍🏽!"},
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {"path": "ä.txt"}},
    {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
]


def test_b188_blocks_return_identical_and_in_order() -> None:
    parts = parts_of(read(ANTHROPIC))
    assert [part["type"] for part in parts] == ["reasoning", "reasoning", "text", "tool", "tool"]
    stored = [done(part) if part["type"] == "tool" else part for part in parts]
    messages = plain(sent(user("hi"), assistant(*stored, STEP))["messages"])
    assert messages[1] == {"role": "assistant", "content": BLOCKS}
    results = [{"type": "tool_result", "tool_use_id": id, "content": "ok"} for id in ("toolu_1", "toolu_2")]
    assert messages[2] == {"role": "user", "content": results}


def test_b188_interleaved_and_late_signatures() -> None:
    late = [*THINKING[:3], *THINKING[4:], *TEXT[:1], *TEXT[1:]]
    late.insert(-1, {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "lost"}})
    assert parts_of(read(anthropic(late)))[0]["meta"]["signature"] == ""  # after its block has stopped it belongs to nothing
    split = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "signature_delta", "signature": "One"},
        {"type": "thinking_delta", "thinking": "x"},
        {"type": "signature_delta", "signature": "Two"},
    )
    assert parts_of(read(anthropic(split, TEXT)))[0]["meta"]["signature"] == "OneTwo"
    mixed = anthropic(THINKING, REDACTED, block(2, {"type": "thinking", "thinking": "b", "signature": "B"}), CALL, stop="tool_use")
    parts = [done(part) if part["type"] == "tool" else part for part in parts_of(read(mixed))]
    kinds = [piece["type"] for piece in sent(user("hi"), assistant(*parts))["messages"][1]["content"]]
    assert kinds == ["thinking", "redacted_thinking", "thinking", "tool_use"]


def test_thinking_without_a_signature_is_left_out() -> None:
    cut = {"type": "reasoning", "text": "half", "meta": {"family": "anthropic", "signature": ""}}
    assert sent(user("a"), assistant(cut, call(), STEP))["messages"][1]["content"][0]["type"] == "tool_use"


def test_server_tools_return_lossless() -> None:
    use = block(
        0,
        {"type": "server_tool_use", "id": "srv_1", "name": "search", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"q": 12345678901234'},
        {"type": "input_json_delta", "partial_json": "567890}"},
    )
    result = {"type": "search_tool_result", "tool_use_id": "srv_1", "content": [{"x": 1.0, "encrypted": "Ab+/="}], "odd": None}
    parts = parts_of(
        read(anthropic(use, block(1, result), block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "so"})))
    )
    assert [part["type"] for part in parts] == ["reasoning", "reasoning", "text"]
    content = plain(sent(user("a"), assistant(*parts, STEP), user("b"))["messages"][1]["content"])
    first = {"type": "server_tool_use", "id": "srv_1", "name": "search", "input": {"q": 12345678901234567890}}
    assert content == [first, result, {"type": "text", "text": "so"}]
    # the answer broke off before the result came
    assert plain(sent(user("a"), assistant(parts[0], parts[2]), user("b"))["messages"][1]["content"]) == [
        {"type": "text", "text": "so"}
    ]


def test_unknown_parts_of_known_blocks_return() -> None:
    use = block(0, {"type": "tool_use", "id": "t", "name": "x", "input": {}, "caller": {"type": "direct"}})
    text = block(
        1, {"type": "text", "text": ""}, {"type": "text_delta", "text": "a"}, {"type": "citations_delta", "citation": {"n": 1}}
    )
    parts = parts_of(read(anthropic(text, use, stop="tool_use")))
    content = plain(sent(user("a"), assistant(parts[0], done(parts[1])))["messages"][1]["content"])
    assert content == [
        {"type": "text", "text": "a", "citations": [{"n": 1}]},
        {"type": "tool_use", "id": "t", "name": "x", "input": {}, "caller": {"type": "direct"}},
    ]


def test_a_whole_input_at_the_start_of_a_call() -> None:
    whole = block(0, {"type": "tool_use", "id": "t", "name": "x", "input": {"k": 10**25}})
    part = parts_of(read(anthropic(whole, stop="tool_use")))[0]
    assert part["arguments"] == '{"k":10000000000000000000000000}' and "meta" not in part
    assert sent(user("a"), assistant(done(part)))["messages"][1]["content"][0]["input"] == {"k": 10**25}


@pytest.mark.parametrize(
    ("stop", "finish"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "stop"),
        ("new_word", "stop"),
    ],
)
def test_b192_anthropic_finishes(stop: str, finish: str) -> None:
    assert read(anthropic(TEXT, stop=stop))[-1].finish == finish
    with_call = read(anthropic(TEXT, CALL, stop=stop))[-1].finish
    assert with_call == (finish if finish in ("length", "content_filter") else "tool_calls")


def test_stop_sequence_and_pause() -> None:
    assert read(anthropic(TEXT, stop="stop_sequence", sequence="END"))[-1].stop_sequence == "END"
    assert read(anthropic(TEXT, stop="pause_turn"))[-1].warnings


@pytest.mark.parametrize("stop", ["max_tokens", "tool_use", "end_turn"])
def test_b084_anthropic_arguments_that_break_off(stop: str) -> None:
    half = block(
        0,
        {"type": "tool_use", "id": "t", "name": "write", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"path": "a'},
    )
    for stream in (anthropic(half, stop=stop), anthropic(half[:-1], stop=stop)):
        items = read(stream)
        assert parts_of(items)[0]["cut"] is True and parts_of(items)[0]["arguments"] == '{"path": "a'
        assert items[-1].finish == ("length" if stop == "max_tokens" else "tool_calls")
    messages = sent(user("a"), assistant(parts_of(items)[0]), user("b"))["messages"]
    assert messages[1]["content"][0]["input"] == {} and messages[2]["content"][0]["is_error"] is True


def test_b084_the_last_call_without_any_arguments_is_cut_where_the_answer_was() -> None:
    bare = [block(n, {"type": "tool_use", "id": f"t{n}", "name": "list", "input": {}}) for n in range(2)]
    assert [part.get("cut") for part in parts_of(read(anthropic(*bare, stop="max_tokens")))] == [None, True]
    assert [part.get("cut") for part in parts_of(read(anthropic(*bare, stop="tool_use")))] == [None, None]


START = {"input_tokens": 36, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 10, "output_tokens": 1}


@pytest.mark.parametrize(
    ("deltas", "wanted"),
    [
        ([{"output_tokens": 20}], (36, 64, 10, 20, 0)),
        ([START | {"output_tokens": 20}], (36, 64, 10, 20, 0)),
        ([{"output_tokens": 5}, {"output_tokens": 20}], (36, 64, 10, 20, 0)),
        ([START | {"output_tokens": 5}, START | {"output_tokens": 20}], (36, 64, 10, 20, 0)),
        ([{"output_tokens": 20, "input_tokens": None, "cache_read_input_tokens": 70}], (36, 70, 10, 20, 0)),
        ([{"output_tokens": 20, "output_tokens_details": {"thinking_tokens": 7}}], (36, 64, 10, 13, 7)),
    ],
)
def test_b131_the_last_usage_wins(deltas: Any, wanted: Any) -> None:
    events = [{"type": "message_start", "message": {"model": "m", "usage": START}}, *TEXT]
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": delta} for delta in deltas]
    items = read(sse(*events, {"type": "message_stop"}, names=True))
    assert tuple(items[-1].tokens.values()) == wanted


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        ("overloaded_error", "rate_limited", True),
        ("rate_limit_error", "rate_limited", True),
        ("api_error", "provider_error", True),
        ("authentication_error", "no_key", False),
        ("invalid_request_error", "provider_error", False),
    ],
)
@pytest.mark.parametrize("names", [True, False])
def test_error_events(kind: str, code: str, retryable: bool, names: bool) -> None:
    from stead.agent.models.http import _fed
    from stead.agent.models.sse import Reader

    decoder = AnthropicDecoder(ask(), "anthropic", Names([]), CountingIds())
    stream = sse(
        {"type": "message_start", "message": {"usage": START}},
        *TEXT[:2],
        {"type": "error", "error": {"type": kind, "message": "m"}},
        names=names,
    )
    with pytest.raises(ProviderError) as caught:
        for event in Reader().feed(stream):
            list(_fed(decoder, event, None))
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    assert caught.value.tokens is not None and caught.value.tokens["cache_read"] == 64


def test_cache_marks_follow_the_conversation() -> None:
    tools = [ToolSpec("a", "", {}), ToolSpec("b", "", {"type": "object"})]
    turns = [user("1"), assistant(call(id="x"), STEP, call(id="y"), STEP)]
    value = sent(*turns, system="Be good.", tools=tools)
    assert value["system"] == [{"type": "text", "text": "Be good.", "cache_control": {"type": "ephemeral"}}]
    marked = [message["content"][-1].get("cache_control") is not None for message in value["messages"]]
    assert [message["role"] for message in value["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    assert marked == [False, False, True, False, True]
    assert value["tools"] == [
        {"name": "a", "description": "", "input_schema": {"type": "object"}},
        {"name": "b", "description": "", "input_schema": {"type": "object"}},
    ]
    assert "cache_control" in sent(*turns, tools=tools)["tools"][-1] and "system" not in sent(*turns)


def test_files_in_messages_and_results() -> None:
    picture = {"type": "file", "name": "a.png", "mime": "image/png", "kind": "image", "size": 3, "id": "f"}
    paper = {**picture, "mime": "application/pdf", "kind": "other"}
    turns = [user("see"), assistant(call(files=[picture]), STEP)]
    turns[0].parts.extend([picture, paper])
    messages = plain(sent(*turns, load=lambda part: b"PNG")["messages"])
    source = {"type": "base64", "media_type": "image/png", "data": "UE5H"}
    assert messages[0]["content"][1:] == [
        {"type": "image", "source": source},
        {"type": "document", "source": {**source, "media_type": "application/pdf"}},
    ]
    assert messages[2]["content"][0]["content"][1] == {"type": "image", "source": source}


def test_default_output_and_thinking_room() -> None:
    assert default_output("claude-3-haiku-20240307") == 4096 and default_output("claude-sonnet-4-5") == 32_000
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 40_000}}
    assert sent(user("a"), options=thinking)["max_tokens"] > 40_000
    assert sent(user("a"), max_output=77)["max_tokens"] == 77


def test_b189_thinking_is_not_wished_for_in_a_foreign_tool_loop() -> None:
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 2000}}
    assert "thinking" not in sent(user("a"), assistant(call(), STEP), options=thinking)
    assert "thinking" in sent(user("a"), assistant(call(), STEP), user("b"), options=thinking)
    own = {"type": "reasoning", "text": "t", "meta": {"family": "anthropic", "signature": "S"}}
    assert "thinking" in sent(user("a"), assistant(own, call(), STEP, call(id="b"), STEP), options=thinking)
