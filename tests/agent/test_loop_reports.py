"""Field reports about what models and their servers send: each from the wire to what is stored and sent back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.core.clock import ManualClock
from tests.agent.house import calls, events, house, kinds, parts, project, provide, script, tools, until, use
from tests.agent.servers import MODELS, Answer, answer, call, serving, text

BASH = [parse("bash", "allow", "flag")]


@pytest.mark.parametrize("count", [2, 5, 20])
async def test_b079_every_call_of_a_turn_ends_in_order_with_any_mix(count: int, tmp_path: Path) -> None:
    folder = project(tmp_path)
    mix = [
        use("read", path="calc.py"),
        use("bash", command="echo allowed"),
        use("bash", command="rm -rf nothing"),
        use("write", path="asked.txt", content="x"),
        use("read", path="calc.py"),
        use("no_such_tool"),
    ]
    expected = ["done", "done", "denied", "denied", "done", "error"]
    turns = [{"tools": [mix[n % 6] for n in range(count)]}, {"text": "ok"}]
    rules = [parse("bash(echo *)", "allow", "flag"), parse("bash(rm *)", "deny", "flag")]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=rules)
        result = await run.result()
        assert [tool["status"] for tool in tools(at, run)] == [expected[n % 6] for n in range(count)]
        ends = [event.data.call for event in events(at, run.session, "tool.ended")]
        assert ends == [f"call_1_{n + 1}" for n in range(count)]
        assert result["result"] == "ok" and result["outcome"] == ("denied" if count > 3 else "done")


async def test_b079_results_stand_in_the_order_of_their_calls_on_the_wire(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(*(call("bash", {"command": f"echo {n}"}, id=f"c{n}") for n in range(20))), answer(text("ok")))
            run = await at.prompt(None, "go", project=folder, model=model, rules=BASH)
            await run.ended()
        results = [message for message in server.asked[-1]["messages"] if message["role"] == "tool"]
        assert [message["tool_call_id"] for message in results] == [f"c{n}" for n in range(20)]
        assert [message["content"].split("\n")[0] for message in results] == [str(n) for n in range(20)]
        assert server.refusals == []


async def test_b083_parts_of_one_clock_tick_come_back_in_their_order(tmp_path: Path, postgres_url: str) -> None:
    await in_one_tick(tmp_path / "lite", None)
    await in_one_tick(tmp_path / "pg", postgres_url)


async def in_one_tick(tmp_path: Path, url: str | None) -> None:
    tmp_path.mkdir()
    folder = project(tmp_path)
    turns = [
        {"text": "t", "tools": [use("todo_write", todos=[{"text": str(n), "status": "doing"}]) for n in range(50)]},
        {"text": "end"},
    ]
    async with house(tmp_path, models=script(turns), clock=ManualClock(), database_url=url) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        await run.ended()
        assert len({event.ts for event in events(at, run.session)}) == 1
        first = parts(at, run)
        assert [tool["call"] for tool in tools(at, run)] == [f"call_1_{n + 1}" for n in range(50)]
        assert all(parts(at, run) == first for _ in range(20))


@pytest.mark.parametrize("finish", ["length", "tool_calls"])
@pytest.mark.parametrize("tool", ["write", "bash"])
async def test_b084_arguments_that_were_cut_are_not_executed(tool: str, finish: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    broken = '{"path": "made.txt", "content": "hal' if tool == "write" else '{"command": "touch made.txt; ec'
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(call(tool, broken), finish=finish), answer(text("ok")))
            run = await at.prompt(None, "go", project=folder, model=model, rules=[parse("*", "allow", "flag")])
            assert (await run.result())["outcome"] == "done"
            (stored,) = tools(at, run)
        assert stored["arguments"] == broken and stored["status"] == "error" and "cut off" in stored["error"]
        assert not (folder / "made.txt").exists()
        sent = server.asked[-1]["messages"]
        assert sent[-2]["tool_calls"][0]["function"]["arguments"] == "{}" and "cut off" in sent[-1]["content"]
        assert server.refusals == []


async def test_b084_a_model_whose_calls_are_always_cut_is_not_asked_for_ever(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("anthropic") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(*(answer(call("write", '{"path": "a'), finish="max_tokens") for _ in range(9)))
            run = await at.prompt(None, "go", project=folder, model=model)
            result = await run.result()
        assert result["outcome"] == "error" and "cut off" in result["error"]["message"] and len(server.asked) == 3
        assert server.refusals == []


async def test_b085_odd_calls_each_get_an_error_at_once(tmp_path: Path) -> None:
    folder = project(tmp_path)
    odd = [
        call("read", "", id="same"),
        call("read", "{}", id="same"),
        call("no_such_tool", "{}", id="c3"),
        call("we.ird na/me", "{}", id="c 4"),
        call("read", '{"path": "calc.py", "nonsense": 1}', id="c5"),
        call("read", '{"path": "\\u0000"}', id="c6"),
        call("write", '{"path": "x\\ud800", "content": ""}', id="c7"),
        call("list", "", id="c8"),
    ]
    for kind in ("openai", "anthropic"):
        with serving(kind) as server:
            async with house(tmp_path) as at:
                model = await provide(at, server)
                server.say(answer(*odd), answer(text("ok")))
                run = await at.prompt(None, "go", project=folder, model=model, rules=[parse("*", "allow", "flag")])
                async with asyncio.timeout(3):
                    result = await run.result()
                assert result["outcome"] == "done", result
                stored = tools(at, run)
                assert [one["status"] for one in stored] == ["error"] * 7 + ["done"]
                assert all(one["error"] and one["duration_ms"] == 0 for one in stored[:6])
                assert (await (await at.prompt(run.session, "more")).result())["outcome"] == "done"
            assert server.refusals == []
    assert sorted(path.name for path in folder.iterdir()) == ["calc.py"]


async def test_b134_an_aborted_stream_has_a_row_marked_estimated(tmp_path: Path) -> None:
    folder = project(tmp_path)
    for kind in ("openai", "anthropic", "gemini"):
        with serving(kind) as server:
            async with house(tmp_path) as at:
                model = await provide(at, server)
                server.say(answer(text("word " * 1000), hang=500))
                came: list[str] = []
                at.on_frame(lambda frame, came=came: came.append(frame.text))  # type: ignore[misc]
                run = await at.prompt(None, "go", project=folder, model=model)
                await until(lambda came=came: len("".join(came)) > 3400)  # type: ignore[misc]
                since = time.monotonic()
                run.abort()
                await run.ended()
                assert server.gone.wait(1) and time.monotonic() - since < 1  # the connection is closed at once
                (row,) = calls(at, run.id)
                assert row["purpose"] == "aborted" and row["estimated"] == 1 and row["input"] > 500 and row["output"] > 500
                assert at.run_json(run.id)["cost"] > 0
                (part,) = parts(at, run)
                assert part["cut"] is True and len(part["text"]) > 3000


async def test_b134_an_abort_before_the_first_word_has_its_row_too(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(text("x"), hang=0))
            run = await at.prompt(None, "go", project=folder, model=model)
            await asyncio.to_thread(server.reached.wait, 3)
            run.abort()
            await run.ended()
            assert [(row["purpose"], row["estimated"], row["output"]) for row in calls(at, run.id)] == [("aborted", 1, 0)]
            assert calls(at, run.id)[0]["input"] > 500 and parts(at, run) == []


async def test_b134_each_failed_attempt_has_its_own_row_and_an_answer_without_usage_is_estimated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stead.agent.models import retry

    monkeypatch.setattr(retry, "delay", lambda *args, **more: 0.0)
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(call("list"), cut=3), Answer(status=500), answer(text("ok " * 400), usage=None))
            run = await at.prompt(None, "go", project=folder, model=model)
            result = await run.result()
            rows = calls(at, run.id)
            assert [(row["purpose"], row["estimated"]) for row in rows] == [("failed", 1), ("failed", 1), ("step", 1)]
            assert rows[0]["input"] > 500 and (rows[1]["input"], rows[1]["nano"]) == (0, 0) and rows[2]["output"] >= 300
            assert result["cost"] == pytest.approx(sum(row["nano"] for row in rows) / 1e9)
            assert parts(at, run)[-1]["estimated"] is True


def chunk(delta: Any, finish: Any = None) -> dict[str, Any]:
    return {"id": "x", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def wire(index: Any, id: Any, name: Any, given: Any) -> dict[str, Any]:
    """A piece of a call as odd servers send it; what is None is left out."""
    function = {key: value for key, value in (("name", name), ("arguments", given)) if value is not None}
    head = {key: value for key, value in (("index", index), ("id", id)) if value is not None}
    return chunk({"tool_calls": [{**head, "function": function}]})


READ, ARGS = "read", '{"path": "calc.py"}'
LAST = [chunk({}, "tool_calls"), "[DONE]"]


NO_INDEX = {
    "whole calls": ([wire(None, "a", READ, ARGS), wire(None, "b", "list", "{}"), *LAST], 2),
    "id only first": ([wire(None, "a", READ, ARGS[:5]), wire(None, None, None, ARGS[5:]), *LAST], 1),
    "id repeated": ([wire(None, "a", READ, ARGS[:5]), wire(None, "a", None, ARGS[5:]), *LAST], 1),
}
INDEX_0 = {
    "whole calls": ([wire(0, "a", READ, ARGS), wire(0, "b", "list", "{}"), *LAST], 2),
    "object and nothing": ([wire(0, "a", READ, {"path": "calc.py"}), wire(0, "b", "list", ""), *LAST], 2),
}
FINISH = {
    "stop": ([wire(0, "a", READ, ARGS), chunk({}, "stop"), "[DONE]"], 1),
    "end_turn": ([wire(0, "a", READ, ARGS), chunk({}, "end_turn"), "[DONE]"], 1),
    "none": ([wire(0, "a", READ, ARGS), "[DONE]"], 1),
    "empty": ([wire(0, "a", READ, ARGS), chunk({}, ""), "[DONE]"], 1),
    "function_call": ([wire(0, "a", READ, ARGS), chunk({}, "function_call"), "[DONE]"], 1),
}


async def run_calls(stream: list[Any], count: int, tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(Answer(raw=stream), answer(text("ok")))
            run = await at.prompt(None, "go", project=folder, model=model)
            assert (await run.result())["result"] == "ok"
            assert [tool["tool"] for tool in tools(at, run)] == ["read", "list"][:count]
            assert all(tool["status"] == "done" for tool in tools(at, run))
        assert server.refusals == [] and len(server.asked) == 2


@pytest.mark.parametrize("stream", list(NO_INDEX))
async def test_b190_calls_without_an_index_are_run(stream: str, tmp_path: Path) -> None:
    await run_calls(*NO_INDEX[stream], tmp_path)


@pytest.mark.parametrize("stream", list(INDEX_0))
async def test_b191_parallel_calls_that_share_an_index_are_run(stream: str, tmp_path: Path) -> None:
    await run_calls(*INDEX_0[stream], tmp_path)


@pytest.mark.parametrize("stream", list(FINISH))
async def test_b192_calls_are_run_whatever_the_finish_reason_says(stream: str, tmp_path: Path) -> None:
    await run_calls(*FINISH[stream], tmp_path)


async def test_b192_a_turn_that_says_nothing_is_told_and_ends(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(Answer(raw=[chunk({}, "tool_calls"), "[DONE]"]), answer(text("now")))
            run = await at.prompt(None, "go", project=folder, model=model)
            assert (await run.result())["outcome"] == "done"
            assert kinds(at, run) == ["step", "notice"] and parts(at, run)[-1]["code"] == "empty_answer"
            assert (await (await at.prompt(run.session, "go on")).result())["result"] == "now"
        assert server.refusals == [] and len(server.asked) == 2


async def test_b194_a_wish_to_wait_is_honoured_shown_and_abortable(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            shown: list[str] = []
            at.on_frame(lambda frame: shown.append(frame.text) if frame.frame == "notice" else None)
            server.say(Answer(status=429, headers={"retry-after": "0.3"}), answer(text("ok")))
            run = await at.prompt(None, "go", project=folder, model=model)
            assert (await run.result())["result"] == "ok"
            assert 0.3 <= server.times[1] - server.times[0] < 1.5 and len(shown) == 1 and "Trying again" in shown[0]
            server.say(Answer(status=429, headers={"retry-after": "60"}))
            run = await at.prompt(run.session, "go")
            await until(lambda: len(shown) == 2)
            since = time.monotonic()
            run.abort()
            assert (await run.result())["outcome"] == "aborted" and time.monotonic() - since < 0.5
            server.say(Answer(status=429, headers={"retry-after": "9999"}))
            run = await at.prompt(run.session, "go")
            result = await run.result()
            assert (result["outcome"], result["error"]["code"]) == ("error", "rate_limited")
        assert len(server.asked) == 4


async def test_b194_no_text_is_doubled_by_a_retry_in_mid_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.models import retry

    monkeypatch.setattr(retry, "delay", lambda *args, **more: 0.0)
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(text("The answer is 42."), cut=3), answer(text("The answer is 42.")))
            run = await at.prompt(None, "go", project=folder, model=model)
            assert (await run.result())["result"] == "The answer is 42."
            assert kinds(at, run) == ["text", "step"]
            # Whoever saw the first attempt grow is told that it is gone.
            (gone,) = events(at, run.session, "step.retracted")
            (kept,) = [event for event in events(at, run.session, "part.added") if event.data.message == 2]
            assert gone.data.n == 0 and kept.data.n == 1 and gone.seq < kept.seq


async def test_b196_a_prompt_that_the_server_cut_is_noticed(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(text("ok"), usage={"input": 40, "output": 5}))
            run = await at.prompt(None, "word " * 3000, project=folder, model=model)
            assert (await run.result())["outcome"] == "done"
            notice = parts(at, run)[-1]
            assert notice["type"] == "notice" and notice["code"] == "provider_warning" and "context size" in notice["text"]
            assert (await (await at.prompt(run.session, "more")).result())["outcome"] == "done"
        assert server.refusals == [] and MODELS["openai"] in str(server.asked[-1]["model"])
