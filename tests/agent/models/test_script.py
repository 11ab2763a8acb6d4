"""The scripted model and its files."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from stead.agent.models.base import Delta, ProviderError
from stead.agent.models.script import ScriptModel, load
from stead.agent.models.script_file import parse
from stead.core.errors import SteadError
from tests.agent.models.mock import ask, collect, parts_of, user

pytestmark = pytest.mark.asyncio


def model(text: str) -> ScriptModel:
    return ScriptModel(parse(text))


async def test_a_turn_in_its_order() -> None:
    script = model(
        """
turns:
  - reasoning: thinking
    text: Hello 🎈 world
    tools:
      - {tool: read, input: {path: a.txt, day: 2026-01-02, yes: yes, big: 123456789012345678901234567890}}
      - tool: list
    usage: {input: 10, cache_read: 5, output: 3}
    chunk: 4
  - text: done
"""
    )
    items = await collect(script, ask(step=0))
    parts = parts_of(items)
    assert [part["type"] for part in parts] == ["reasoning", "text", "tool", "tool"]
    assert parts[1]["text"] == "Hello 🎈 world"
    assert json.loads(parts[2]["arguments"]) == {
        "path": "a.txt",
        "day": "2026-01-02",
        "yes": "yes",
        "big": 123456789012345678901234567890,
    }
    assert [part["call"] for part in parts[2:]] == ["call_1_1", "call_1_2"] and parts[3]["arguments"] == "{}"
    assert max(len(item.text) for item in items if isinstance(item, Delta)) == 4
    assert items[-1].finish == "tool_calls" and not items[-1].estimated
    assert items[-1].tokens == {"input": 10, "cache_read": 5, "cache_write": 0, "output": 3, "reasoning": 0}


async def test_steps_count_and_the_last_text_stays() -> None:
    script = model("turns:\n- text: one\n  tools: [{tool: x}]\n- text: two\n  tools: [{tool: y}]\n")
    for step, text, tools in ((0, "one", ["x"]), (1, "two", ["y"]), (2, "two", []), (9, "two", [])):
        parts = parts_of(await collect(script, ask(step=step)))
        assert parts[0]["text"] == text and [part["tool"] for part in parts[1:]] == tools
    assert parts_of(await collect(script, ask(step=1)))[1]["call"] == "call_2_1"


async def test_prompts_by_pattern() -> None:
    script = model(
        "turns: [{text: other}]\nprompts:\n- {match: '(?i)fix', turns: [{text: fixed}]}\n- {match: f, turns: [{text: f}]}\n"
    )
    for prompt, text in (("please FIX it", "fixed"), ("of", "f"), ("hm", "other")):
        assert parts_of(await collect(script, ask(prompt=prompt)))[0]["text"] == text
    with pytest.raises(SteadError) as caught:
        await collect(model("prompts: [{match: a, turns: [{text: b}]}]"), ask(prompt="x"))
    assert caught.value.code == "script_invalid"


async def test_usage_by_characters_and_none_at_all() -> None:
    items = await collect(model("turns: [{text: 'abcdefgh', reasoning: abcd}]"), ask(user("x" * 40)))
    assert items[-1].tokens == {"input": 10, "cache_read": 0, "cache_write": 0, "output": 2, "reasoning": 1}
    assert (await collect(model("turns: [{text: a, usage: null}]"), ask()))[-1].estimated


@pytest.mark.parametrize(
    ("kind", "code"),
    [("disconnect", "stream_cut"), ("truncate", "stream_cut"), ("http_429", "rate_limited"), ("http_500", "provider_error")],
)
@pytest.mark.parametrize("after", [0, 4, 99])
async def test_faults_strike_and_pass(kind: str, code: str, after: int) -> None:
    script = model(f"turns: [{{text: '0123456789', chunk: 3, fault: {{kind: {kind}, after: {after}, retry_after: 2, times: 2}}}}]")
    for _ in range(2):
        seen: list[Any] = []
        with pytest.raises(ProviderError) as caught:
            async for item in script.stream(ask()):
                seen.append(item)
        assert caught.value.code == code and caught.value.retryable
        assert "".join(item.text for item in seen if isinstance(item, Delta)) == "0123456789"[:after]
        if kind.startswith("http"):
            assert caught.value.retry_after == 2 and caught.value.status == int(kind[5:])
    assert parts_of(await collect(script, ask()))[0]["text"] == "0123456789"


async def test_hang_and_delay_can_be_cancelled() -> None:
    for script in (
        model("turns: [{text: ab, fault: {kind: hang, after: 1}}]"),
        model("turns: [{text: abc, chunk: 1, delay_ms: 60000}]"),
    ):
        task = asyncio.create_task(collect(script, ask()))
        await asyncio.sleep(0.05)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    started = time.monotonic()
    await collect(model("turns: [{text: abcd, chunk: 1, delay_ms: 20}]"), ask())
    assert time.monotonic() - started >= 0.08


async def test_b084_raw_arguments_and_finish() -> None:
    items = await collect(model('turns: [{tools: [{tool: write, input: \'{"path": "a\'}], finish: length}]'), ask())
    assert items[-1].finish == "length" and parts_of(items)[0]["cut"] is True


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("turns:\n- text: a\n  bogus: 1\n", 3, "bogus"),
        ("turn:\n- text: a\n", 1, "turn"),
        ("turns:\n- text: 5\n", 2, "`text` must be text"),
        ("turns:\n- text: a\n- tools:\n  - tool: x\n    inptu: {}\n", 5, "inptu"),
        ("turns:\n- tools:\n  - input: {}\n", 3, "`tool` is missing"),
        ("turns:\n- tools: [{tool: x, input: [1]}]\n", 2, "`input`"),
        ("turns:\n- chunk: 0\n", 2, "chunk"),
        ("turns:\n- chunk: true\n", 2, "chunk"),
        ("turns:\n- delay_ms: fast\n", 2, "delay_ms"),
        ("turns:\n- finish: end\n", 2, "finish"),
        ("turns:\n- usage:\n    input: -1\n", 3, "input"),
        ("turns:\n- usage:\n    tokens: 1\n", 3, "tokens"),
        ("turns:\n- fault: {kind: explode}\n", 2, "kind"),
        ("turns:\n- fault: {after: 3}\n", 2, "`kind` is missing"),
        ("turns:\n- fault: {kind: hang, times: 0}\n", 2, "times"),
        ("turns: []\n", 1, "turns"),
        ("turns: hello\n", 1, "turns"),
        ("prompts:\n- turns: [{text: a}]\n", 2, "match"),
        ("prompts:\n- match: '('\n  turns: [{text: a}]\n", 2, "regular expression"),
        ("- text: a\n", 1, "a list"),
        ("", 1, "nothing"),
        ("turns:\n- text: a\n  text: b\n", 3, "duplicate"),
        ("turns:\n  - [\n", 3, "expected"),
    ],
)
async def test_a_wrong_file_is_told_with_its_line(text: str, line: int, words: str, tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(text)
    with pytest.raises(SteadError) as caught:
        load(file)
    assert caught.value.code == "script_invalid" and caught.value.details is not None
    assert f"{file}, line {line}:" in caught.value.message and words in caught.value.message
    assert caught.value.details["line"] == line


async def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(SteadError) as caught:
        load(tmp_path / "none.yaml")
    assert caught.value.code == "not_found"
    (tmp_path / "b").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SteadError) as caught:
        load(tmp_path / "b")
    assert caught.value.code == "script_invalid"
