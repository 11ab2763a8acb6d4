"""Chat Completions: the habits of many servers, and what is sent back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stead.agent.models.base import Delta, Finished, ProviderError, ToolSpec
from stead.agent.models.chat import body
from stead.agent.models.chat_stream import ChatDecoder
from stead.agent.models.chat_usage import usage_of
from stead.agent.models.history import Names
from stead.core.ids import CountingIds
from stead.core.parts import FilePart
from tests.agent.models.mock import STEP, ask, assistant, decode_all, done, parts_of, sse, user
from tests.agent.models.streams import CHAT_USAGE, chunk, tool


def read(*events: Any, family: str = "openai", sent: int = 0, request: Any = None) -> list[Any]:
    request = request or ask()
    return decode_all(ChatDecoder(request, family, Names(request.tools), CountingIds(), sent=sent), sse(*events))


def calls(*deltas: list[dict[str, Any]], finish: Any = "tool_calls", legacy: Any = None) -> list[tuple[str, str, str]]:
    events = [chunk({"tool_calls": delta}) for delta in deltas]
    found = parts_of(read(*events, chunk({}, finish), "[DONE]"))
    return [(part["call"], part["tool"], part["arguments"]) for part in found if part["type"] == "tool"]


def messages(*turns: Any, family: str = "openai", **more: Any) -> list[dict[str, Any]]:
    request = ask(*turns, **more)
    sent: list[dict[str, Any]] = body(request, family, Names(request.tools))["messages"]
    return sent


@pytest.mark.parametrize(
    ("deltas", "wanted"),
    [
        # no index; null; id only in the first; id in each; the whole call in one piece
        ([[tool("a", "x", '{"k"')], [tool(arguments=":1}")]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", '{"k"', index=None)], [tool(arguments=":1}", index=None)]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", '{"k"', index=0)], [tool(arguments=":1}", index=0)]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", '{"k"', index=0)], [tool("a", arguments=":1}", index=0)]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", '{"k"', index=0)], [tool("a", "x", ":1}", index=0)]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", '{"k"')], [tool("a", arguments=":1}")]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", '{"k":1}')]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", '{"k":1}'), tool("b", "y", "{}")]], [("a", "x", '{"k":1}'), ("b", "y", "{}")]),
        ([[tool("a", "x", "{}")], [tool("b", "x", "{}")]], [("a", "x", "{}"), ("b", "x", "{}")]),
        ([[tool("", "x", '{"k"', index=0)], [tool("", "", ":1}", index=0)]], [("call_*", "x", '{"k":1}')]),
        # an id that changes from chunk to chunk, and no index
        ([[tool("r1", "x", '{"k"')], [tool("r2", arguments=":1}")]], [("r1", "x", '{"k":1}')]),
        ([[tool("r1", "x", '{"k"', index=None)], [tool("r2", "", ":1}", index=None)]], [("r1", "x", '{"k":1}')]),
        # neither index nor id: a name after complete arguments begins another call
        (
            [[tool(None, "x", '{"k"')], [tool(arguments=":1}")], [tool(None, "x", '{"k"')], [tool(arguments=":2}")]],
            [("call_*", "x", '{"k":1}'), ("call_*", "x", '{"k":2}')],
        ),
        # the name comes late
        ([[tool("a", index=0)], [tool(name="x", arguments="{}", index=0)]], [("a", "x", "{}")]),
        ([[tool("a", arguments="{", index=0)], [tool(name="x", arguments="}", index=0)]], [("a", "x", "{}")]),
    ],
)
def test_b190_calls_without_a_proper_index(deltas: Any, wanted: Any) -> None:
    found = calls(*deltas)
    assert [("call_*" if want[0] == "call_*" else got[0], *got[1:]) for got, want in zip(found, wanted, strict=True)] == wanted


@pytest.mark.parametrize(
    ("deltas", "wanted"),
    [
        ([[tool("a", "x", '{"k":1}', index=0), tool("b", "y", "{}", index=0)]], [("a", "x", '{"k":1}'), ("b", "y", "{}")]),
        ([[tool("a", "x", '{"k":1}', index=0)], [tool("b", "x", "{}", index=0)]], [("a", "x", '{"k":1}'), ("b", "x", "{}")]),
        (
            [[tool("a", "x", '{"k"', index=0)], [tool("b", "y", "{", index=0)], [tool(arguments="}", index=0)]],
            [("a", "x", '{"k"'), ("b", "y", "{}")],
        ),
        ([[tool("a", "x", {"k": 10**25}, index=0)]], [("a", "x", '{"k":10000000000000000000000000}')]),
        ([[tool("a", "x", {}, index=0), tool("b", "x", {}, index=1)]], [("a", "x", "{}"), ("b", "x", "{}")]),
        ([[tool("a", "x", "", index=0)]], [("a", "x", "")]),
        ([[tool("a", "x", None, index=0)]], [("a", "x", "")]),
        # a last chunk that repeats the whole call is not a second call; the same id with other arguments is one
        ([[tool("a", "x", '{"k":1}', index=0)], [tool("a", "x", '{"k":1}', index=0)]], [("a", "x", '{"k":1}')]),
        (
            [[tool("a", "x", '{"k":1}', index=0)], [tool("a", "x", '{"k":2}', index=0)]],
            [("a", "x", '{"k":1}'), ("a", "x", '{"k":2}')],
        ),
        (
            [[tool("a", "x", '{"k":1}', index=0), tool("a", "x", '{"k":1}', index=1)]],
            [("a", "x", '{"k":1}'), ("a", "x", '{"k":1}')],
        ),
        # an empty object first, the arguments after it
        (
            [[tool("a", "x", {}, index=0)], [tool(arguments='{"k"', index=0)], [tool(arguments=":1}", index=0)]],
            [("a", "x", '{"k":1}')],
        ),
        ([[tool("a", "x", "{}", index=0)], [tool(arguments='{"k":1}', index=0)]], [("a", "x", '{"k":1}')]),
        ([[tool("a", "x", "{}", index=0)], [tool(arguments="", index=0)]], [("a", "x", "{}")]),
        # an id that changes from chunk to chunk
        ([[tool("a", "x", '{"k"', index=0)], [tool("z", None, ":1}", index=0)]], [("a", "x", '{"k":1}')]),
    ],
)
def test_b191_index_zero_objects_and_empty_arguments(deltas: Any, wanted: Any) -> None:
    assert calls(*deltas) == wanted


@pytest.mark.parametrize("finish", ["stop", "end_turn", None, "", "function_call", "tool_calls", "unheard_of"])
def test_b192_calls_decide(finish: Any) -> None:
    items = read(chunk({"tool_calls": [tool("a", "x", "{}", index=0)]}), chunk({}, finish), "[DONE]")
    assert items[-1].finish == "tool_calls" and parts_of(items)[0]["tool"] == "x"


@pytest.mark.parametrize(
    ("finish", "wanted"),
    [("tool_calls", "stop"), ("stop", "stop"), ("length", "length"), ("content_filter", "content_filter")],
)
def test_b192_finish_without_calls(finish: Any, wanted: str) -> None:
    items = read(chunk({}, finish), "[DONE]")
    assert [type(item) for item in items] == [Finished] and items[-1].finish == wanted


@pytest.mark.parametrize("finish", [None, ""])
def test_b192_a_text_without_a_finish_reason_is_never_a_short_answer(finish: Any) -> None:
    for events in ([chunk({"content": "It is"}, finish), "[DONE]"], [chunk({"content": "It is"}, finish)], ["[DONE]"]):
        with pytest.raises(ProviderError) as caught:
            read(*events)
        assert (caught.value.code, caught.value.retryable) == ("stream_cut", True)


def test_b192_finish_missing_and_legacy_call() -> None:
    choice = {"index": 0, "delta": {"function_call": {"name": "x", "arguments": '{"k"'}}}
    rest = {"index": 0, "delta": {"function_call": {"arguments": ":1}"}}}
    items = read({"choices": [choice]}, {"choices": [rest]}, "[DONE]")
    assert items[-1].finish == "tool_calls" and parts_of(items)[0]["arguments"] == '{"k":1}'


@pytest.mark.parametrize("finish", ["length", "tool_calls", "stop"])
def test_b084_arguments_that_break_off(finish: str) -> None:
    items = read(
        chunk({"tool_calls": [tool("a", "write", '{"path": "a", "content": "half a', index=0)]}), chunk({}, finish), "[DONE]"
    )
    part = parts_of(items)[0]
    assert part["arguments"] == '{"path": "a", "content": "half a' and part["cut"] is True
    assert items[-1].finish == ("length" if finish == "length" else "tool_calls")
    error = {**part, "status": "error", "error": "Your output limit was reached."}
    sent = messages(user("hi"), assistant(error, STEP), user("go on"))
    assert sent[1]["tool_calls"][0]["function"]["arguments"] == "{}"
    assert "cut off" in sent[2]["content"] and "Your output limit was reached." in sent[2]["content"]


def test_b084_the_last_call_without_any_arguments_is_cut_where_the_answer_was() -> None:
    def cut(finish: str) -> list[Any]:
        two = [tool("a", "list", "", index=0), tool("b", "list", index=1)]
        return [part.get("cut") for part in parts_of(read(chunk({"tool_calls": two}), chunk({}, finish), "[DONE]"))]

    assert cut("length") == [None, True] and cut("tool_calls") == [None, None]


def test_arguments_that_are_merely_wrong_are_not_cut() -> None:
    for wrong in ("{path: 1}", "[1]", "nonsense", '"text"'):
        part = parts_of(read(chunk({"tool_calls": [tool("a", "w", wrong, index=0)]}), chunk({}, "tool_calls"), "[DONE]"))[0]
        assert part["arguments"] == wrong and "cut" not in part


def test_reasoning_fields_and_lists_of_chunks() -> None:
    for field in ("reasoning", "reasoning_content"):
        items = read(chunk({field: "a", "content": ""}), chunk({field: "b", "content": None}), chunk({"content": "c"}, "stop"))
        assert [(part["type"], part["text"]) for part in parts_of(items)] == [("reasoning", "ab"), ("text", "c")]
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "so"}]
    items = read(chunk({"content": thinking}, "stop"), "[DONE]")
    assert [(part["type"], part["text"]) for part in parts_of(items)] == [("reasoning", "hm"), ("text", "so")]


def test_text_around_calls_keeps_its_place() -> None:
    items = read(chunk({"content": "a"}), chunk({"tool_calls": [tool("i", "x", "{}", index=0)]}), chunk({"content": "b"}), "[DONE]")
    assert [part["type"] for part in parts_of(items)] == ["text", "tool", "text"]


def test_usage_with_and_without_choices() -> None:
    for events in (
        [chunk({"content": "a"}, "stop"), {"choices": [], "usage": CHAT_USAGE}],
        [chunk({"content": "a"}, "stop", usage=CHAT_USAGE)],
        [chunk({"content": "a"}, usage={"prompt_tokens": 1, "completion_tokens": 1}), chunk({}, "stop", usage=CHAT_USAGE)],
        [chunk({"content": "a"}, "stop"), {"usage": CHAT_USAGE}],
    ):
        assert read(*events, "[DONE]")[-1].tokens["cache_read"] == 64
    silent = read(chunk({"content": "a" * 40}, "stop", usage=None), "[DONE]")[-1]
    assert silent.estimated and silent.tokens["output"] == 10 and silent.tokens["input"] == 1


def test_openrouter_states_the_cost() -> None:
    items = read(chunk({"content": "a"}, "stop"), {"choices": [], "usage": {**CHAT_USAGE, "cost": 0.00123456789}}, "[DONE]")
    assert items[-1].cost == 0.001234568
    assert body(ask(), "openrouter", Names([]))["usage"] == {"include": True}


def test_error_in_mid_stream() -> None:
    for error, code, retryable in (
        ({"code": 429, "message": "Rate limited", "metadata": {"raw": "upstream busy"}}, "rate_limited", True),
        ({"code": "502", "message": "Bad gateway"}, "provider_error", True),
        ({"code": "context_length_exceeded", "message": "too long", "type": "invalid_request_error"}, "context_full", False),
        ({"message": "no code"}, "provider_error", True),
        ("just words", "provider_error", True),
    ):
        with pytest.raises(ProviderError) as caught:
            read(chunk({"content": "half"}), {"error": error, "choices": [{"index": 0, "delta": {}, "finish_reason": "error"}]})
        assert (caught.value.code, caught.value.retryable) == (code, retryable)
        assert caught.value.tokens is not None


def test_surrogate_pairs_cut_between_deltas() -> None:
    halves = (b"a\\ud83d", b"\\ude00b")
    raw = b"".join(b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % half for half in halves)
    raw += b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    items = decode_all(ChatDecoder(ask(), "openai", Names([]), CountingIds()), raw)
    assert [item.text for item in items if isinstance(item, Delta)] == ["a", "😀b"]
    assert parts_of(items)[0]["text"] == "a😀b"


DETAILS = [
    {"type": "reasoning.text", "text": "Let ", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.text", "text": "me.", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.text", "signature": "Sig==", "index": 0, "format": "anthropic-claude-v1"},
    {"type": "reasoning.encrypted", "data": "Opaque", "id": "rs_1", "index": 1, "big": 123456789012345678901234567890},
]


def test_openrouter_reasoning_details_go_back_whole() -> None:
    request = ask(model="anthropic/claude")
    events = [chunk({"content": "", "reasoning": d.get("text"), "reasoning_details": [d]}) for d in DETAILS]
    end = [chunk({"content": "Hi"}), chunk({}, "stop"), "[DONE]"]
    parts = parts_of(read(*events, *end, family="openrouter", request=request))
    assert [(part["type"], part["text"]) for part in parts] == [("reasoning", "Let me."), ("text", "Hi")]
    wanted = [
        {"type": "reasoning.text", "text": "Let me.", "signature": "Sig==", "index": 0, "format": "anthropic-claude-v1"},
        DETAILS[3],
    ]
    turns = (user("hi"), assistant(*parts, STEP), user("more"))
    sent = messages(*turns, family="openrouter", model="anthropic/claude")
    assert sent[1]["reasoning_details"] == wanted
    for family, model in (("openai", "anthropic/claude"), ("openrouter", "openai/gpt"), ("ollama", "anthropic/claude")):
        assert "reasoning_details" not in messages(*turns, family=family, model=model)[1]


def test_encrypted_reasoning_after_the_text() -> None:
    events = [
        chunk({"content": "Hi"}),
        chunk({"content": "", "reasoning_details": [DETAILS[3]]}),
        chunk({"content": "!"}),
        chunk({}, "stop"),
    ]
    parts = parts_of(read(*events, "[DONE]", family="openrouter"))
    assert [part["type"] for part in parts] == ["text", "reasoning", "text"]
    assert messages(user("hi"), assistant(*parts), user("x"), family="openrouter")[1]["reasoning_details"] == [DETAILS[3]]


def test_thinking_goes_back_with_calls_to_the_same_model_only() -> None:
    parts = parts_of(read(chunk({"reasoning_content": "hm"}), chunk({"tool_calls": [tool("a", "x", "{}", index=0)]}), "[DONE]"))
    turns = (user("hi"), assistant(parts[0], done(parts[1]), STEP))
    assert messages(*turns)[1]["reasoning_content"] == "hm"
    assert "reasoning_content" not in messages(*turns, model="other")[1]
    assert "reasoning_content" not in messages(*turns, family="ollama")[1]
    native = body(ask(*turns), "openai", Names([]), url="https://api.openai.com/v1")["messages"]
    assert "reasoning_content" not in native[1]


def test_google_signature_over_the_compatible_interface() -> None:
    extra = {"google": {"thought_signature": "U2ln+/=="}}
    parts = parts_of(read(chunk({"tool_calls": [tool("a", "x", "{}", index=0, extra_content=extra)]}), "[DONE]"))
    turns = (user("hi"), assistant(done(parts[0]), STEP))
    assert messages(*turns)[1]["tool_calls"][0]["extra_content"] == extra
    assert "extra_content" not in messages(*turns, family="openrouter")[1]["tool_calls"][0]


def test_b196_a_prompt_that_the_server_cut() -> None:
    usage = {"prompt_tokens": 2048, "completion_tokens": 3}
    request = ask(user("word " * 8000))
    events = (chunk({"content": "a"}, "stop"), {"choices": [], "usage": usage}, "[DONE]")
    warned = read(*events, family="ollama", sent=40_000, request=request)[-1].warnings
    assert len(warned) == 1 and "2048" in warned[0] and "OLLAMA_CONTEXT_LENGTH" in warned[0]
    assert read(*events, family="openai", request=request)[-1].warnings == ()
    honest = (chunk({"content": "a"}, "stop"), {"choices": [], "usage": {"prompt_tokens": 8010, "completion_tokens": 3}}, "[DONE]")
    assert read(*honest, family="ollama", sent=40_000, request=request)[-1].warnings == ()
    assert read(*events, family="ollama", sent=5, request=ask(user("short")))[-1].warnings == ()


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        ({"prompt_tokens": 10, "completion_tokens": 5}, (10, 0, 0, 5, 0)),
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": None, "completion_tokens_details": None},
            (10, 0, 0, 5, 0),
        ),
        (CHAT_USAGE, (36, 64, 0, 13, 7)),
        # xAI counts reasoning beside the completion
        (
            {
                "prompt_tokens": 10,
                "completion_tokens": 5,
                "total_tokens": 45,
                "completion_tokens_details": {"reasoning_tokens": 30},
            },
            (10, 0, 0, 5, 30),
        ),
        # DeepSeek
        (
            {"prompt_tokens": 10, "completion_tokens": 5, "prompt_cache_hit_tokens": 4, "prompt_cache_miss_tokens": 6},
            (6, 4, 0, 5, 0),
        ),
        # OpenRouter
        (
            {
                "prompt_tokens": 110,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 64, "cache_write_tokens": 10},
            },
            (36, 64, 10, 5, 0),
        ),
        # cached tokens beside the prompt's: there are more of them, or the total says so
        ({"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 99}}, (10, 99, 0, 5, 0)),
        (
            {"prompt_tokens": 90, "completion_tokens": 5, "total_tokens": 159, "prompt_tokens_details": {"cached_tokens": 64}},
            (90, 64, 0, 5, 0),
        ),
        (
            {
                "prompt_tokens": 90,
                "completion_tokens": 5,
                "total_tokens": 189,
                "prompt_tokens_details": {"cached_tokens": 64},
                "completion_tokens_details": {"reasoning_tokens": 30},
            },
            (90, 64, 0, 5, 30),
        ),
        # LiteLLM
        (
            {"prompt_tokens": 110, "completion_tokens": 5, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 10},
            (36, 64, 10, 5, 0),
        ),
        ({}, (0, 0, 0, 0, 0)),
    ],
)
def test_b132_chat_usage_classes(usage: Any, wanted: Any) -> None:
    assert tuple(usage_of(usage).values()) == wanted


def test_b132_usage_is_found_wherever_the_server_puts_it() -> None:
    in_choice = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": CHAT_USAGE}]}
    extension = {"choices": [], "x_groq": {"usage": CHAT_USAGE}}
    for last in ([in_choice], [chunk({}, "stop"), extension], [chunk({}, "stop", usage=CHAT_USAGE), {"choices": [], "usage": {}}]):
        finished = read(chunk({"content": "a"}), *last, "[DONE]")[-1]
        assert not finished.estimated and finished.tokens == usage_of(CHAT_USAGE)


def image(kind: str = "image", mime: str = "image/png", name: str = "a.png") -> FilePart:
    return {"type": "file", "name": name, "mime": mime, "kind": kind, "size": 3, "id": "f"}  # type: ignore[typeddict-item]


def test_images_and_files() -> None:
    request = ask(assistant(), user("see"), load=lambda part: b"PNG")
    request.turns[1].parts.extend([image(), image("text", "text/plain", "n.txt"), image("other", "application/zip", "z.zip")])
    content = body(request, "openai", Names([]))["messages"][0]["content"]
    assert content[0] == {"type": "text", "text": "see"}
    assert content[1] == {"type": "image_url", "image_url": {"url": "data:image/png;base64,UE5H"}}
    assert content[2] == {"type": "text", "text": "File n.txt:\nPNG"}
    assert content[3]["text"] == "(File z.zip, application/zip, 3 bytes, is not shown.)"

    def broken(part: FilePart) -> bytes:
        raise OSError("gone")

    for load in (None, broken):
        request = ask(user("see"), load=load)
        request.turns[0].parts.append(image())
        assert "is not shown" in body(request, "openai", Names([]))["messages"][0]["content"]


def test_files_of_tools_follow_their_results() -> None:
    part = {"type": "tool", "call": "a", "tool": "x", "arguments": "{}", "status": "done", "output": "two", "files": [image()]}
    sent = messages(user("hi"), assistant(part, {**part, "call": "b", "files": []}, STEP), load=lambda part: b"PNG")
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "tool", "user"]
    assert sent[4]["content"][1]["type"] == "image_url"


def test_tools_limits_and_options() -> None:
    request = ask(tools=[ToolSpec("mcp/a.b", "does", {"type": "object"})], max_output=5, options={"temperature": 0.5})
    sent = body(request, "ollama", Names(request.tools))
    assert sent["tools"][0]["function"] == {"name": "mcp_a_b", "description": "does", "parameters": {"type": "object"}}
    assert sent["max_tokens"] == 5 and sent["temperature"] == 0.5
    native = body(request, "openai", Names(request.tools), url="https://api.openai.com/v1")
    assert native["max_completion_tokens"] == 5 and "max_tokens" not in native
    items = read(chunk({"tool_calls": [tool("a", "mcp_a_b", "{}", index=0)]}), "[DONE]", request=request)
    assert parts_of(items)[0]["tool"] == "mcp/a.b"


def test_cache_marks_for_claude_behind_openrouter() -> None:
    sent = messages(user("hi"), family="openrouter", model="anthropic/claude", system="Be good.")
    assert sent[0]["content"][-1]["cache_control"] == sent[1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert json.dumps(messages(user("hi"), family="openrouter", model="openai/x", system="s")).count("cache_control") == 0


async def test_b196_over_the_network_and_after_a_compaction() -> None:
    from stead.agent.models.providers import connect
    from tests.agent.models.mock import Reply, collect, serving

    answer = sse(
        chunk({"content": "a"}, "stop"), {"choices": [], "usage": {"prompt_tokens": 900, "completion_tokens": 1}}, "[DONE]"
    )
    long = user("word " * 4000)
    picture = image()
    compacted = user("now")
    compacted.parts.insert(0, {"type": "compaction", "removed": 1, "summary": "We talked."})
    with serving(Reply(answer)) as mock:
        client = connect("ollama", mock.url)
        assert (await collect(client, ask(long)))[-1].warnings
        assert not (await collect(client, ask(long, compacted)))[-1].warnings
        small = user("see")
        small.parts.append(picture)
        assert not (await collect(client, ask(small, load=lambda part: b"x" * 50_000)))[-1].warnings
        await client.aclose()
