"""Limits, refusals before paying, and content of every size and kind on its way to a model and into the store."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.core.errors import SteadError
from stead.core.ids import RandomIds
from stead.domain import attachments, sessions, settings
from tests.agent.house import calls, events, house, kinds, parts, project, provide, script, tools, use, write_script
from tests.agent.servers import answer, call, serving, text

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
LOOK = [{"tools": [use("list")]} for _ in range(9)]
ALL = [parse("*", "allow", "flag")]


async def test_max_steps_ends_the_run_with_every_call_answered(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(LOOK)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", max_steps=3)
        result = await run.result()
        assert result["outcome"] == "limit" and result["error"]["code"] == "limit_steps"
        assert [tool["status"] for tool in tools(at, run)] == ["done"] * 3
        (end,) = events(at, run.session, "run.ended")
        assert end.data.steps == 3


async def test_f256_a_sessions_own_limit_holds_and_a_runs_is_nearer(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(LOOK)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", max_steps=1)
        await run.ended()
        await at.store.commit(lambda tx: sessions.change(tx, run.session, max_steps=4))
        for limit, steps in ((None, 4), (2, 2)):
            run = await at.prompt(run.session, "go", max_steps=limit)
            await run.ended()
            assert kinds(at, run).count("step") == steps


async def test_max_cost_ends_the_run_and_counts_failed_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.models import retry

    monkeypatch.setattr(retry, "delay", lambda *args, **more: 0.0)
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(call("list"), usage={"input": 100_000, "output": 1000}))
            run = await at.prompt(None, "go", project=folder, model=model, max_cost=0.01)
            result = await run.result()
            assert result["outcome"] == "limit" and result["error"]["code"] == "limit_cost" and len(server.asked) == 1
            server.say(*(answer(text("x " * 4000), cut=2_000, chunk=3) for _ in range(4)))
            run = await at.prompt(run.session, "go", max_cost=0.005)
            result = await run.result()
            assert result["outcome"] == "limit" and result["cost"] >= 0.005 and len(server.asked) == 3
            assert [row["purpose"] for row in calls(at, run.id)] == ["failed", "failed"]


async def test_an_unknown_price_refuses_a_cost_limit_before_the_first_call(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(LOOK)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", max_cost=1.0)
        result = await run.result()
        assert result["outcome"] == "error" and result["error"]["code"] == "price_unknown" and kinds(at, run) == []
        free = await at.prompt(None, "go", project=folder, model=write_script(folder, [{"text": "ok"}]), max_cost=1.0)
        assert (await free.result())["cost"] == 0.0


@pytest.mark.parametrize("values", [{"max_steps": 0}, {"max_steps": -1}, {"max_cost": -0.5}, {"max_cost": float("nan")}])
async def test_limits_that_mean_nothing_are_refused(values: Any, tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(LOOK)) as at:
        with pytest.raises(SteadError) as refused:
            await at.prompt(None, "go", project=folder, model="fake/m", **values)
        assert refused.value.code == "usage" and events(at) == []


async def test_a_history_over_the_window_is_refused_before_it_is_paid_for(tmp_path: Path) -> None:
    folder = project(tmp_path)
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            await at.store.commit(lambda tx: settings.change(tx, values={f"context_window.{model}": 4000}))
            run = await at.prompt(None, "short", project=folder, model=model)
            assert (await run.result())["outcome"] == "done"
            run = await at.prompt(run.session, "long " * 4000)
            result = await run.result()
            assert (result["outcome"], result["error"]["code"]) == ("error", "context_full")
            assert result["cost"] == 0 and calls(at, run.id) == [] and len(server.asked) == 1
            server.say(answer(call("bash", {"command": "seq 30000"})), answer(text("never")))
            run = await at.prompt(None, "go", project=folder, model=model, rules=ALL)
            assert (await run.result())["error"]["code"] == "context_full"  # also when a tool's output fills it
            assert len(server.asked) == 2


async def test_a_withheld_answer_is_an_error_that_keeps_what_came(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"text": "I can", "tools": [use("write", path="x", content="")], "finish": "content_filter"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=ALL)
        result = await run.result()
        assert (result["outcome"], result["error"]["code"]) == ("error", "content_filter")
        assert kinds(at, run) == ["text", "tool", "step"] and "Not started" in tools(at, run)[0]["error"]


async def test_an_empty_answer_and_one_that_was_cut_are_told(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"reasoning": "hm", "text": " \n"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        assert (await run.result())["outcome"] == "done" and parts(at, run)[-1]["code"] == "empty_answer"
        at.models = script([{"text": "and then", "finish": "length"}])
        run = await at.prompt(run.session, "go")
        assert (await run.result())["result"] == "and then" and parts(at, run)[-1]["code"] == "answer_cut"


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
async def test_a_stream_that_breaks_for_good_keeps_its_text_marked_cut(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stead.agent.models import retry

    monkeypatch.setattr(retry, "delay", lambda *args, **more: None)
    folder = project(tmp_path)
    with serving(kind) as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(answer(text("partial text that breaks off"), cut=4))
            run = await at.prompt(None, "go", project=folder, model=model)
            result = await run.result()
            assert (result["outcome"], result["error"]["code"]) == ("error", "stream_cut")
            (part,) = parts(at, run)
            assert part["cut"] is True and part["text"] and "partial text that breaks off".startswith(part["text"])
            assert (await (await at.prompt(run.session, "go on")).result())["outcome"] == "done"
        assert server.refusals == []


async def test_large_output_and_large_prompts_stand_in_blobs_and_events_stay_small(tmp_path: Path) -> None:
    folder = project(tmp_path)
    prompt = "Grüße " * 40_000
    turns = [
        {"tools": [use("bash", command="seq 200000"), use("write", path="big.txt", content="line\n" * 30_000)]},
        {"text": "é" * 100_000, "chunk": 5000},
    ]
    async with house(tmp_path, models=script(turns)) as at:
        given = [{"type": "text", "text": prompt}, *({"type": "text", "text": "x" * 7000} for _ in range(20))]
        run = await at.prompt(None, given, project=folder, model="fake/m", rules=ALL)
        assert (await run.result())["result"] == "é" * 100_000
        with at.store.view() as view:
            assert max(row[0] for row in view.q("SELECT length(data) FROM events")) < 64 << 10
            sent = sessions.message(view, run.session, 1)
        assert at.store.blobs.resolve(sent.parts[0][1])["text"] == prompt
        full = tools(at, run)[0]["full"]
        assert len(at.store.blobs.get(full["blob"])) == full["size"] > 1_200_000
        assert len(tools(at, run)[0]["output"].encode()) <= 48 << 10
        assert (folder / "big.txt").read_text() == "line\n" * 30_000


@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
async def test_files_of_a_prompt_and_images_that_tools_read_reach_the_model(kind: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "dot.png").write_bytes(PNG)
    with serving(kind) as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            made = [
                attachments.add(at.data / "attachments", RandomIds().new(), name, content)
                for name, content in (("note.txt", "Notiz: äöü".encode()), ("dot.png", PNG), ("raw.bin", b"\0\1"))
            ]
            server.say(answer(call("read", {"path": "dot.png"})), answer(text("A dot.")))
            run = await at.prompt(None, [{"type": "text", "text": "see"}, *made], project=folder, model=model)
            assert (await run.result())["outcome"] == "done"
            assert [part["mime"] for part in tools(at, run)[0]["files"]] == ["image/png"]
        async with house(tmp_path) as at:
            assert (await (await at.prompt(run.session, "again")).result())["outcome"] == "done"
            for path in (at.data / "attachments").iterdir():
                path.unlink()  # a lost file does not block the conversation
            assert (await (await at.prompt(run.session, "and again")).result())["outcome"] == "done"
        image = base64.b64encode(PNG).decode()
        assert server.refusals == [] and str(server.asked[0]).count(image) == 1
        assert [str(body).count(image) for body in server.asked[1:]] == [2, 2, 1]
        assert "Notiz: äöü" in str(server.asked[0]) and "raw.bin" in str(server.asked[0])


@pytest.mark.parametrize("given", ["", "  \n", [], [{"type": "tool"}], [{"type": "text"}], [{"type": "text", "text": 5}]])
async def test_a_prompt_without_content_stores_nothing(given: Any, tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(LOOK)) as at:
        with pytest.raises(SteadError) as refused:
            await at.prompt(None, given, project=folder, model="fake/m")
        assert refused.value.code == "usage" and events(at) == []


async def test_odd_bytes_of_a_prompt_and_a_tool_are_sent_as_valid_text(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "odd.bin.txt").write_bytes(b"caf\xe9 \xff and \\u0000 text\n")
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(
                answer(call("read", {"path": "odd.bin.txt"}), call("bash", {"command": "printf 'a\\0b\\377'"})), answer(text("ok"))
            )
            run = await at.prompt(None, "lone \ud800 and nul \0 end", project=folder, model=model, rules=ALL)
            result = await run.result()
            assert result["outcome"] == "done", result
            assert "\\u0000 text" in tools(at, run)[0]["output"]
        assert server.refusals == []
