"""What real providers sent, replayed to the real command line: whole, in pieces of seven bytes, and cut in the middle."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.judges import recordings
from tests.judges.door import add_provider, prompt
from tests.judges.replay import CUT, LATER, Replay

pytestmark = [pytest.mark.judges, pytest.mark.slow]

STREAMS = (
    *CUT,
    *LATER,
    "anthropic__test_anthropic_code_execution_tool_stream",
    "anthropic__test_anthropic_model_thinking_part_redacted_stream",
    "anthropic__test_request_stream_fallback_for_high_max_tokens",
    "gemini__test_google_model_stream",
)
REFUSED = {
    "openai-chat__test_model_name_suggestion-openai-chat-": ("model_unknown", 3),
    "openai-chat__test_openai_o1_mini_system_role-system-": ("provider_error", 1),
    "anthropic__test_model_name_suggestion-anthropic-": ("model_unknown", 3),
    "anthropic__test_anthropic_explicit_effort_xhigh_unsupported_model_errors": ("provider_error", 1),
}


@pytest.mark.parametrize("chunk", [0, 7], ids=["whole", "chunk=7"])
@pytest.mark.parametrize("name", STREAMS)
def test_every_stream_is_read_without_loss(replay: Replay, proj: Path, name: str, chunk: int) -> None:
    kind, items = recordings.kind_of(name), replay.items(name)
    before = len(replay.report(name))
    add_provider(kind, replay.address(name, chunk=chunk))
    seen = prompt(proj, recordings.model_of(items[0]), recordings.prompt_of(items[0]))
    said = [recordings.read(kind, recordings.stream_of(item)) for item in items]
    if said[-1].calls:  # the recording ends where a loop goes on
        assert (seen.code, seen.run["error"]["code"]) == (1, "provider_error") and "cassette has only" in seen.err
    else:
        assert (seen.code, seen.run["outcome"], seen.run["error"]) == (0, "done", None), seen.err
    assert seen.texts() == "".join(one.all("text") for one in said)
    assert seen.run["result"] == said[-1].answer
    assert "".join(filter(is_plain, seen.each("reasoning"))) == "".join(one.all("thinking") for one in said)
    assert [(part["tool"], part["input"]) for part in seen.tools] == [call for one in said for call in one.calls]
    assert seen.run["usage"] == {part: sum(one.tokens[part] for one in said) for part in said[0].tokens}
    asked = [one for one in replay.report(name)[before:] if one["n"] < len(items)]
    assert [(one["n"], one["path_ok"]) for one in asked] == [(n, True) for n in range(len(items))]


def is_plain(thought: str) -> bool:
    """Whether it is words: what providers send closed stands as the name of its kind in brackets."""
    return not re.fullmatch(r"\[\w+( \w+)*\]", thought)


@pytest.mark.parametrize("name", CUT)
def test_a_stream_that_is_cut_every_time_is_an_error_and_what_came_is_kept(replay: Replay, proj: Path, name: str) -> None:
    kind, [item] = recordings.kind_of(name), replay.items(name)
    stream = recordings.stream_of(item)
    at = len(stream) * 2 // 3
    add_provider(kind, replay.address(name, copy_of="again__", cut=at))
    seen = prompt(proj, recordings.model_of(item), recordings.prompt_of(item))
    assert (seen.code, seen.run["outcome"], seen.run["error"]["code"]) == (1, "error", "stream_cut"), seen.err
    came = recordings.read(kind, stream[:at])
    whole = recordings.read(kind, stream)
    assert came.words and came.words != whole.words
    assert (seen.texts(), "".join(seen.each("reasoning"))) == (came.all("text"), came.all("thinking"))
    assert [part for part in seen.parts if part["type"] in ("text", "reasoning")][-1]["cut"] is True
    assert "stream_cut" in seen.err and not any(part["type"] == "step" for part in seen.parts)


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_have_their_codes_and_the_provider_s_words(replay: Replay, proj: Path, name: str) -> None:
    [item] = replay.items(name)
    add_provider(recordings.kind_of(name), replay.address(name))
    seen = prompt(proj, recordings.model_of(item), recordings.prompt_of(item))
    assert (seen.run["error"]["code"], seen.code) == REFUSED[name] and seen.parts == []
    words = item["response"]["parsed_body"]["error"]["message"]
    assert words.rstrip(".") in seen.run["error"]["message"] and words.rstrip(".") in seen.err
