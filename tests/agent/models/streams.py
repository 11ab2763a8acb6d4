"""Small streams of the three formats, written for these tests: thinking, text and two calls, with usage."""

from __future__ import annotations

from typing import Any

from tests.agent.models.mock import sse


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"id": "x", "model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], **more}


def tool(id: str | None = None, name: str | None = None, arguments: Any = None, **more: Any) -> dict[str, Any]:
    function = {key: value for key, value in (("name", name), ("arguments", arguments)) if value is not None}
    return {**({"id": id} if id is not None else {}), "type": "function", "function": function, **more}


CHAT_USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 20,
    "total_tokens": 120,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {"reasoning_tokens": 7},
}
CHAT = sse(
    chunk({"role": "assistant", "content": "", "reasoning_content": "Grübeln "}),
    chunk({"reasoning_content": "über 🦊."}),
    chunk({"content": "Höre "}),
    chunk({"content": "🎈👍🏽!"}),
    chunk({"tool_calls": [tool("call_a", "read", "", index=0)]}),
    chunk({"tool_calls": [tool(arguments='{"path": "ä', index=0)]}),
    chunk({"tool_calls": [tool(arguments='.txt"}', index=0)]}),
    chunk({"tool_calls": [tool("call_b", "list", "{}", index=1)]}),
    chunk({}, "tool_calls"),
    {"id": "x", "model": "m-1", "choices": [], "usage": CHAT_USAGE},
    "[DONE]",
)
CHAT_TEXT = sse(
    chunk({"content": "Hello"}), chunk({"content": " there"}), chunk({}, "stop"), {"choices": [], "usage": CHAT_USAGE}, "[DONE]"
)


def block(index: int, start: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": start},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def anthropic(
    *blocks: list[dict[str, Any]], stop: str = "end_turn", start: Any = None, delta: Any = None, sequence: Any = None
) -> bytes:
    usage = (
        start
        if start is not None
        else {"input_tokens": 36, "cache_read_input_tokens": 64, "cache_creation_input_tokens": 10, "output_tokens": 1}
    )
    return sse(
        {"type": "message_start", "message": {"id": "m", "model": "m-1", "content": [], "usage": usage}},
        {"type": "ping"},
        *(event for events in blocks for event in events),
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": sequence},
            "usage": delta or {"output_tokens": 20},
        },
        {"type": "message_stop"},
        names=True,
    )


THINKING = block(
    0,
    {"type": "thinking", "thinking": "", "signature": ""},
    {"type": "thinking_delta", "thinking": "Grübeln "},
    {"type": "thinking_delta", "thinking": "über 🦊."},
    {"type": "signature_delta", "signature": "SigA+/=="},
)
REDACTED = block(1, {"type": "redacted_thinking", "data": "Opaque=="})
TEXT = block(2, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Höre "}, {"type": "text_delta", "text": "🎈👍🏽!"})
CALL = block(
    3,
    {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}},
    {"type": "input_json_delta", "partial_json": ""},
    {"type": "input_json_delta", "partial_json": '{"path": "ä'},
    {"type": "input_json_delta", "partial_json": '.txt"}'},
)
CALL_2 = block(4, {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}})
ANTHROPIC = anthropic(THINKING, REDACTED, TEXT, CALL, CALL_2, stop="tool_use")
ANTHROPIC_TEXT = anthropic(block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": "Hello there"}))


def gemini(*parts: dict[str, Any], finish: str | None = None, usage: Any = None, **more: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}, **more}
    if finish:
        candidate["finishReason"] = finish
    return {"candidates": [candidate], "modelVersion": "m-1", **({"usageMetadata": usage} if usage else {})}


GEMINI_USAGE = {
    "promptTokenCount": 100,
    "candidatesTokenCount": 13,
    "thoughtsTokenCount": 7,
    "cachedContentTokenCount": 64,
    "totalTokenCount": 120,
}
GEMINI = sse(
    gemini({"text": "Grübeln ", "thought": True}),
    gemini({"text": "über 🦊.", "thought": True}),
    gemini({"text": "Höre "}),
    gemini({"text": "🎈👍🏽!"}),
    gemini({"functionCall": {"name": "read", "args": {"path": "ä.txt"}}, "thoughtSignature": "U2lnQQ=="}),
    gemini({"functionCall": {"name": "list", "args": {}}}, finish="STOP", usage=GEMINI_USAGE),
)
GEMINI_TEXT = sse(gemini({"text": "Hello"}), gemini({"text": " there"}, finish="STOP", usage=GEMINI_USAGE))
