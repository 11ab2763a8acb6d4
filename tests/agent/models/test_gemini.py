"""Gemini: signatures at their parts, usage, refusals, schemas."""

from __future__ import annotations

from typing import Any

import pytest

from stead.agent.models.base import ProviderError, ToolSpec
from stead.agent.models.gemini import STAND_IN, body
from stead.agent.models.gemini_schema import cleaned
from stead.agent.models.gemini_stream import GeminiDecoder
from stead.agent.models.history import Names
from stead.core.ids import CountingIds
from tests.agent.models.mock import STEP, ask, assistant, call, decode_all, done, parts_of, sse, user
from tests.agent.models.streams import GEMINI_USAGE, gemini

SIG = "U2lnQSs/Lw=="


def read(*events: Any) -> list[Any]:
    return decode_all(GeminiDecoder(ask(), "gemini", Names([]), CountingIds()), sse(*events))


def sent(*turns: Any, model: str = "gemini-3-pro", **more: Any) -> dict[str, Any]:
    request = ask(*turns, model=model, **more)
    return body(request, "gemini", Names(request.tools))


def returned(*events: Any, **more: Any) -> list[dict[str, Any]]:
    """The model parts that go back after an answer, call ids taken out."""
    parts = [done(part) if part["type"] == "tool" else part for part in parts_of(read(*events))]
    turns = [user("hi"), assistant(*parts, STEP), *([] if parts[-1]["type"] == "tool" else [user("more")])]
    back: list[dict[str, Any]] = sent(*turns, **more)["contents"][1]["parts"]
    for part in back:
        part.get("functionCall", {}).pop("id", None)
    return back


def function(name: str = "read", **args: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": args}}


@pytest.mark.parametrize(
    ("pieces", "wanted"),
    [
        # one call; parallel calls of which the first is signed; a step with text before
        ([function() | {"thoughtSignature": SIG}], [function() | {"thoughtSignature": SIG}]),
        ([function(a=1) | {"thoughtSignature": SIG}, function(b=2)], [function(a=1) | {"thoughtSignature": SIG}, function(b=2)]),
        (
            [{"text": "Now "}, {"text": "this."}, function() | {"thoughtSignature": SIG}],
            [{"text": "Now this."}, function() | {"thoughtSignature": SIG}],
        ),
        # signed text; the closing empty text; a signature in mid-text; one without text of its own
        ([{"text": "all", "thoughtSignature": SIG}], [{"text": "all", "thoughtSignature": SIG}]),
        (
            [{"text": "It is "}, {"text": "sunny."}, {"text": "", "thoughtSignature": SIG}],
            [{"text": "It is sunny."}, {"text": "", "thoughtSignature": SIG}],
        ),
        (
            [{"text": "a"}, {"text": "b", "thoughtSignature": SIG}, {"text": "c"}],
            [{"text": "a"}, {"text": "b", "thoughtSignature": SIG}, {"text": "c"}],
        ),
        (
            [function() | {"thoughtSignature": "A"}, {"thoughtSignature": SIG}],
            [function() | {"thoughtSignature": "A"}, {"text": "", "thoughtSignature": SIG}],
        ),
        # thoughts go back as thoughts, also signed ones
        (
            [{"text": "hm", "thought": True, "thoughtSignature": SIG}, {"text": "so"}],
            [{"text": "hm", "thought": True, "thoughtSignature": SIG}, {"text": "so"}],
        ),
        (
            [{"text": "hm", "thought": True}, {"text": "", "thoughtSignature": SIG}],
            [{"text": "hm", "thought": True}, {"text": "", "thoughtSignature": SIG}],
        ),
        # kinds that stead does not know
        (
            [{"executableCode": {"code": "1", "n": 10**25}, "thoughtSignature": SIG}, {"text": "so"}],
            [{"executableCode": {"code": "1", "n": 10**25}, "thoughtSignature": SIG}, {"text": "so"}],
        ),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_b187_signatures_return_at_their_part(pieces: Any, wanted: Any, together: bool) -> None:
    events = (
        [gemini(*pieces, finish="STOP")]
        if together
        else [*(gemini(piece) for piece in pieces), gemini({"text": ""}, finish="STOP")]
    )
    assert returned(*events) == wanted


def test_b187_foreign_calls_get_the_documented_stand_in() -> None:
    foreign = assistant({"type": "text", "text": "x"}, call(id="a"), call(id="b"), STEP, call(id="c"), STEP)
    for model, wanted in (
        ("gemini-3-pro", [STAND_IN, None, STAND_IN]),
        ("gemini-flash-latest", [STAND_IN, None, STAND_IN]),
        ("gemini-2.5-pro", [None] * 3),
    ):
        contents = sent(user("hi"), foreign, model=model)["contents"]
        calls = [part for content in contents for part in content["parts"] if "functionCall" in part]
        assert [part.get("thoughtSignature") for part in calls] == wanted


def test_b187_another_provider_in_between() -> None:
    own = [done(part) for part in parts_of(read(gemini(function() | {"thoughtSignature": SIG}, function("list"), finish="STOP")))]
    foreign = call(id="x", meta={"family": "anthropic", "block": "{}"})
    thought = {"type": "reasoning", "text": "secret", "meta": {"family": "anthropic", "signature": "S"}}
    contents = sent(user("1"), assistant(*own, STEP), user("2"), assistant(thought, foreign, STEP))["contents"]
    calls = [part for content in contents for part in content["parts"] if "functionCall" in part]
    assert [part.get("thoughtSignature") for part in calls] == [SIG, None, STAND_IN]
    assert "secret" not in str(contents)


def test_calls_and_their_answers_belong_together() -> None:
    parts = parts_of(read(gemini(function(), function(), function("list"), finish="STOP")))
    ids = [part["call"] for part in parts]
    assert len(set(ids)) == 3
    contents = sent(user("hi"), assistant(done(parts[0]), {**parts[1], "status": "error", "error": "no"}, done(parts[2]), STEP))[
        "contents"
    ]
    responses = [part["functionResponse"] for part in contents[2]["parts"]]
    assert [response["id"] for response in responses] == [part["functionCall"]["id"] for part in contents[1]["parts"]] == ids
    assert [response["response"] for response in responses] == [{"output": "ok"}, {"error": "no"}, {"output": "ok"}]
    assert [response["name"] for response in responses] == ["read", "read", "list"]


def test_big_numbers_stay_exact() -> None:
    part = parts_of(read(gemini(function(n=10**25), finish="STOP")))[0]
    assert part["arguments"] == '{"n":10000000000000000000000000}'
    assert sent(user("a"), assistant(done(part)))["contents"][1]["parts"][0]["functionCall"]["args"] == {"n": 10**25}


@pytest.mark.parametrize("finish", ["STOP", "FUNCTION_CALL", "FINISH_REASON_UNSPECIFIED"])
def test_b192_gemini_calls_decide(finish: str) -> None:
    assert read(gemini(function(), finish=finish))[-1].finish == "tool_calls"
    assert read(gemini(function()), gemini(finish=finish))[-1].finish == "tool_calls"


@pytest.mark.parametrize("reason", ["SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII"])
def test_withheld(reason: str) -> None:
    assert read(gemini({"text": "a"}, finish=reason))[-1].finish == "content_filter"
    assert read(gemini(finish=reason))[-1].finish == "content_filter"


def test_refused_prompt_and_malformed_call() -> None:
    with pytest.raises(ProviderError) as caught:
        read({"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {"promptTokenCount": 9}})
    assert (caught.value.code, caught.value.retryable) == ("content_filter", False)
    with pytest.raises(ProviderError) as caught:
        read(gemini({"text": "a"}), gemini(finish="MALFORMED_FUNCTION_CALL", finishMessage="Malformed: print(x)"))
    assert (caught.value.code, caught.value.retryable) == ("provider_error", True) and "print(x)" in caught.value.message


def test_length_and_errors_in_the_stream() -> None:
    assert read(gemini({"text": "a"}, finish="MAX_TOKENS"))[-1].finish == "length"
    with pytest.raises(ProviderError) as caught:
        read(gemini({"text": "a"}), {"error": {"code": 503, "message": "The model is overloaded.", "status": "UNAVAILABLE"}})
    assert (caught.value.code, caught.value.retryable) == ("provider_error", True)


@pytest.mark.parametrize(
    ("usage", "wanted"),
    [
        (GEMINI_USAGE, (36, 64, 0, 13, 7)),
        ({"promptTokenCount": 29, "totalTokenCount": 29}, (29, 0, 0, 0, 0)),
        ({"promptTokenCount": 10, "candidatesTokenCount": 5, "toolUsePromptTokenCount": 3}, (13, 0, 0, 5, 0)),
        # thoughts among the candidates, cached tokens beside the prompt: the total tells
        ({"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 2, "totalTokenCount": 15}, (10, 0, 0, 3, 2)),
        ({"promptTokenCount": 10, "candidatesTokenCount": 5, "thoughtsTokenCount": 2, "totalTokenCount": 17}, (10, 0, 0, 5, 2)),
        (
            {"promptTokenCount": 10, "cachedContentTokenCount": 64, "candidatesTokenCount": 5, "totalTokenCount": 79},
            (10, 64, 0, 5, 0),
        ),
    ],
)
def test_b132_gemini_usage_classes(usage: Any, wanted: Any) -> None:
    finished = read(gemini({"text": "a"}), gemini({"text": "b"}, finish="STOP", usage=usage))[-1]
    assert tuple(finished.tokens.values()) == wanted and not finished.estimated
    assert read(gemini({"text": "a"}, finish="STOP"))[-1].estimated


def test_files_system_and_options() -> None:
    picture = {"type": "file", "name": "a.png", "mime": "image/png", "kind": "image", "size": 3, "id": "f"}
    turn = user("see")
    turn.parts.append(picture)
    value = sent(turn, system="Be good.", max_output=9, load=lambda part: b"PNG", options={"generationConfig": {"temperature": 0}})
    assert value["contents"][0]["parts"][1] == {"inlineData": {"mimeType": "image/png", "data": "UE5H"}}
    assert value["systemInstruction"] == {"parts": [{"text": "Be good."}]}
    assert value["generationConfig"] == {"maxOutputTokens": 9, "temperature": 0, "thinkingConfig": {"includeThoughts": True}}
    assert "generationConfig" not in sent(user("a"), model="gemini-2.0-flash")
    declared = sent(tools=[ToolSpec("a.b", "d", {"type": "object", "properties": {}})])["tools"][0]["functionDeclarations"]
    assert declared == [{"name": "a_b", "description": "d"}]


def test_schemas_become_what_gemini_takes() -> None:
    node = {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]}, "n": {"const": 3}}}
    schema = {
        "$schema": "x",
        "type": "object",
        "additionalProperties": False,
        "$defs": {"Node": node, "Kind": {"enum": ["a", "b"], "title": "Kind"}},
        "properties": {
            "kind": {"$ref": "#/$defs/Kind", "description": "which"},
            "maybe": {"type": ["string", "null"], "default": None},
            "either": {"oneOf": [{"type": "string", "format": "uri"}, {"type": "integer", "format": "int64"}]},
            "many": {"type": "array", "items": {"type": "number", "exclusiveMinimum": 0}},
            "any": {},
            "list": {"type": "array"},
            "level": {"type": "integer", "enum": [1, 2]},
            "both": {
                "allOf": [{"properties": {"x": {"type": "string"}}, "required": ["x"]}, {"properties": {"y": {"type": "boolean"}}}]
            },
            "free": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["kind", "gone"],
    }
    assert cleaned(schema) == {
        "type": "object",
        "properties": {
            "kind": {"type": "string", "enum": ["a", "b"], "description": "which"},
            "maybe": {"type": "string", "nullable": True},
            "either": {"anyOf": [{"type": "string"}, {"type": "integer", "format": "int64"}]},
            "many": {"type": "array", "items": {"type": "number"}},
            "any": {"type": "string"},
            "list": {"type": "array", "items": {"type": "string"}},
            "level": {"type": "integer", "description": "One of: 1, 2."},
            "both": {"type": "object", "properties": {"x": {"type": "string"}, "y": {"type": "boolean"}}, "required": ["x"]},
            "free": {"type": "object"},
        },
        "required": ["kind"],
    }
    recursive = cleaned({"type": "object", "properties": {"root": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}})
    assert recursive["properties"]["root"]["properties"]["next"]["nullable"] is True
