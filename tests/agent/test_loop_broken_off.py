"""Turns that break off: whatever was open has one honest result, and the next request is valid."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.agent import tools as agent_tools
from stead.agent.gate import parse
from stead.agent.live import Live
from stead.app import Stead
from stead.core.errors import SteadError
from tests.agent.house import calls, events, house, kinds, parts, project, provide, script, status, tools, until, use
from tests.agent.servers import answer, call, serving, text

BASH = [parse("bash", "allow", "flag")]


def crash(at: Stead) -> None:
    """What SIGKILL leaves: the store as it is, the lock file without its lock. Nothing is written from here on."""
    at.store.close()
    at.life.end()
    at.life.release(forget=False)
    for run in at.running():
        run.abort()


async def leave(at: Stead) -> None:
    for run in at.running():
        with contextlib.suppress(Exception, asyncio.CancelledError):
            await run.ended()
    at.close()


def around_perform(monkeypatch: pytest.MonkeyPatch, before: Callable[[], None] | None, after: Callable[[], None] | None) -> None:
    """Have something happen right before, or right after, a tool does its work."""
    perform = agent_tools.perform

    async def wrapped(*args: Any) -> Any:
        if before:
            asyncio.get_running_loop().call_later(0.05, before)
        result = await perform(*args)
        if after:
            after()
        return result

    monkeypatch.setattr(agent_tools, "perform", wrapped)


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries as always, without the seconds between them."""
    from stead.agent.models import retry

    rule = retry.delay
    monkeypatch.setattr(retry, "delay", lambda *args, **more: None if rule(*args, **more) is None else 0.0)


@pytest.mark.parametrize("how", ["abort", "crash"])
@pytest.mark.parametrize("when", ["before", "running", "ended"])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
async def test_b073_the_next_request_is_valid_however_a_turn_broke_off(
    kind: str, count: int, when: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)
    with serving(kind) as server:
        at = house(tmp_path)
        model = await provide(at, server)
        command = "true" if when == "ended" else "sleep 30"
        signed = [call("bash", {"command": command}, signature="s1" if n == 0 else None) for n in range(count)]
        server.say(answer(text("I run it."), *signed))

        def stop() -> None:
            crash(at) if how == "crash" else at.running()[0].abort()

        async def never(_: Any) -> None:
            stop()
            await asyncio.sleep(30)

        around_perform(monkeypatch, stop if when == "running" else None, stop if when == "ended" else None)
        run = await at.prompt(None, "run it", project=folder, model=model, rules=[] if when == "before" else BASH, on_ask=never)
        await leave(at)
        monkeypatch.undo()
        waits = how == "crash" and when == "before"  # it had only been waiting for a person: it waits on, and can be ended
        async with house(tmp_path) as at:
            assert not waits or (status(at, run.session) == "waiting" and at.stop(run.session))
            stored = tools(at, run.id)
            assert len(stored) == count and all(one["status"] in ("error", "done") for one in stored)
            assert [event.data.n for event in events(at, run.session, "tool.ended")] == [2 - 1 + n for n in range(count)]
            assert len(events(at, run.session, "run.ended")) == 1
            assert at.run_json(run.id)["outcome"] == ("aborted" if how == "abort" or waits else "interrupted")
            said = [one.get("error", "") for one in stored]
            assert all("Not started" in words and "Nothing was executed" in words for words in said[1:])
            if when == "before":
                assert "Not started" in said[0]
            elif when == "running":
                assert "unknown" in said[0] and "side effects" in said[0]
            result = await (await at.prompt(run.session, "and now?", rules=BASH)).result()
            assert result["outcome"] == "done", result
        assert server.refusals == []


async def test_b074_ten_failed_attempts_leave_one_attempt_a_step(tmp_path: Path, no_waits: None) -> None:
    folder = project(tmp_path)
    cut = [answer(text("half"), call("list"), call("read", {"path": "calc.py"}), cut=6) for _ in range(4)]
    with serving("openai") as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(
                *cut, answer(text("one "), call("list")), *cut, answer(text("two "), call("list")), *cut[:2], answer(text("end"))
            )
            run = await at.prompt(None, "look", project=folder, model=model)
            result = await run.result()
            assert result["outcome"] == "done" and result["result"] == "end"
            assert kinds(at, run) == ["text", "tool", "step", "text", "tool", "step", "text", "step"]
            assert [part["text"] for part in parts(at, run) if part["type"] == "text"] == ["one ", "two ", "end"]
            assert len(events(at, run.session, "step.retracted")) == 10
            assert [row["purpose"] for row in calls(at, run.id)].count("failed") == 10
            assert all(row["estimated"] and row["input"] > 0 for row in calls(at, run.id) if row["purpose"] == "failed")
        assert server.refusals == []
        assert str(server.asked[-1]).count("'tool_calls'") == 2
        assert not any("half" in str(one) for one in server.asked)


@pytest.mark.parametrize(("kind", "cuts"), [("anthropic", (4, 8, 12)), ("gemini", (1, 2, 2))])
async def test_b074_calls_that_were_whole_in_a_failed_attempt_are_neither_run_nor_sent(
    kind: str, cuts: tuple[int, ...], tmp_path: Path, no_waits: None
) -> None:
    folder = project(tmp_path)
    whole = answer(text("half"), call("bash", {"command": "touch made"}, signature="s"), call("list"))
    attempts = [dataclasses.replace(whole, cut=pieces) for pieces in cuts]
    with serving(kind) as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(*attempts, answer(text("one "), call("list", signature="s")), answer(text("end")))
            run = await at.prompt(None, "look", project=folder, model=model, rules=BASH)
            assert (await run.result())["outcome"] == "done"
            assert kinds(at, run) == ["text", "tool", "step", "text", "step"]
        assert server.refusals == [] and not (folder / "made").exists()
        assert not any("half" in str(one) or "touch" in str(one) for one in server.asked)


async def test_b076_a_stopped_command_is_told_with_what_it_had_done(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command="echo begun; printf half > out.txt; sleep 30")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        shown: list[str] = []
        at.on_frame(lambda frame: shown.append(frame.text))
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
        await until(lambda: "begun" in "".join(shown) and (folder / "out.txt").exists())
        await until(lambda: (folder / "out.txt").read_text() == "half")
        run.abort()
        await run.ended()
        (tool,) = tools(at, run)
        assert tool["status"] == "error" and tool["cut"] is True and tool["output"] == "begun\n"
        assert "aborted after this call had run for" in tool["error"] and "side effects" in tool["error"]
        assert tool["duration_ms"] > 0 and "Nothing was executed" not in tool["error"]


async def test_b076_output_that_grows_when_it_is_stored_does_not_keep_the_run_from_ending(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [
        {"tools": [use("bash", command="head -c 40000 /dev/zero | tr '\\0' '\"'; echo; touch out.txt; sleep 30")]},
        {"text": "ok"},
    ]
    async with house(tmp_path, models=script(turns)) as at:
        shown: list[str] = []
        at.on_frame(lambda frame: shown.append(frame.text))
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
        await until(lambda: len("".join(shown)) > 40_000)
        run.abort()
        assert (await run.result())["outcome"] == "aborted"
        assert tools(at, run)[0]["output"] == '"' * 40_000 + "\n"


async def test_b076_a_denied_call_says_that_nothing_was_executed(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command="touch made")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        await run.ended()
        (tool,) = tools(at, run)
    assert tool["status"] == "denied" and "Nothing was executed" in tool["error"] and not (folder / "made").exists()


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_b078_tools_that_ran_when_the_process_died_are_closed_and_the_session_answers(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder = project(tmp_path)
    url = request.getfixturevalue("postgres_url") if database == "postgres" else None
    turns = [{"tools": [use("bash", command="true"), use("bash", command="sleep 30"), use("list")]}, {"text": "ok"}]
    at = house(tmp_path, models=script(turns), database_url=url)
    run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
    await until(lambda: len(events(at, run.session, "tool.started")) == 2)
    crash(at)
    await leave(at)
    for _ in range(2):  # the second start finds nothing left to do
        async with house(tmp_path, models=script([{"text": "here"}]), database_url=url) as at:
            assert [tool["status"] for tool in tools(at, run.id)] == ["done", "error", "error"]
            assert parts(at, run.id)[-1] == {
                "type": "notice",
                "code": "run_interrupted",
                "text": "This turn was interrupted: the program ended before it was finished.",
            }
            assert status(at, run.session) == "idle" and len(events(at, run.session, "run.ended")) == 1
    async with house(tmp_path, models=script([{"text": "here"}]), database_url=url) as at:
        assert (await (await at.prompt(run.session, "there?")).result())["result"] == "here"


async def test_b076_a_call_that_died_with_its_process_claims_no_duration_it_cannot_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start may be a day later: how long the call ran, nobody saw."""
    monkeypatch.setattr(Live, "spawned", lambda self, process, so_far: None)  # else the start of the shell is a sign of life
    folder = project(tmp_path)
    at = house(tmp_path, models=script([{"tools": [use("bash", command="sleep 30"), use("list")]}, {"text": "ok"}]))
    run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
    await until(lambda: len(events(at, run.session, "tool.started")) == 1)
    crash(at)
    await leave(at)
    async with house(tmp_path) as at:
        died, never = tools(at, run.id)
    assert "The program ended while this call was running" in died["error"] and "side effects" in died["error"]
    assert died["cut"] is True and "duration_ms" not in died
    assert "Not started" in never["error"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET data=CAST('{\"bro' AS BLOB) WHERE kind='{kind}'",
        "UPDATE events SET data=CAST('[]' AS BLOB) WHERE kind='{kind}'",
        "UPDATE events SET data=CAST(json_set(data, '$.result', NULL, '$.part', NULL) AS BLOB) WHERE kind='{kind}'",
        "UPDATE events SET data=CAST(json_set(data, '$.result.output', 7, '$.part.output', 7) AS BLOB) WHERE kind='{kind}'",
        "UPDATE events SET data=CAST(json_set(data, '$.result.files', 7, '$.part.call', 7) AS BLOB) WHERE kind='{kind}'",
        "UPDATE events SET data=json_set(data, '$.part.call', '') WHERE kind='{kind}'",  # text where bytes were
        "UPDATE events SET data='{\"bro' WHERE kind='{kind}'",
        "DELETE FROM events WHERE kind='{kind}'",
    ],
)
@pytest.mark.parametrize("kind", ["part.added", "tool.ended", "step.ended"])
@pytest.mark.parametrize("wire", ["openai", "anthropic", "gemini"])
async def test_b075_a_damaged_row_costs_its_own_part_and_not_the_conversation(
    wire: str, kind: str, damage: str, tmp_path: Path
) -> None:
    from stead.domain import sessions

    folder = project(tmp_path)
    with serving(wire) as server:
        async with house(tmp_path, models=script([{"text": "see", "tools": [use("list"), use("read", path="calc.py")]}, {}])) as at:
            model = await provide(at, server)
            run = await at.prompt(None, "go", project=folder, model="fake/m")
            await run.result()
            at.store.write(lambda tx: tx.q(damage.replace("{kind}", kind)))
            server.say(answer(text("fine")))
            result = await (await at.prompt(run.session, "and now?", model=model)).result()
            assert (result["outcome"], result["result"]) == ("done", "fine"), result
            with at.store.view() as view:
                assert [sessions.message_json(one) for one in sessions.messages(view, run.session)]
        assert server.refusals == []


async def test_b080_abort_works_while_a_question_is_open_and_nothing_else_is_blocked(tmp_path: Path) -> None:
    from stead.domain import sessions

    folder = project(tmp_path)
    asked = asyncio.Event()

    async def never(_: Any) -> None:
        asked.set()
        await asyncio.sleep(30)

    async with house(tmp_path, models=script([{"tools": [use("ask", question="which?")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=never)
        await asked.wait()
        await at.store.commit(lambda tx: sessions.change(tx, run.session, title="another", archived=True))
        run.abort()
        async with asyncio.timeout(2):
            result = await run.result()
        assert result["outcome"] == "aborted" and result["asks"] == [] and status(at, run.session) == "aborted"
        assert [event.kind for event in events(at, run.session)].count("ask.closed") == 1
        assert (await (await at.prompt(run.session, "go on")).result())["outcome"] == "denied"


async def test_b080_a_session_with_an_open_question_can_be_deleted(tmp_path: Path) -> None:
    folder = project(tmp_path)
    asked = asyncio.Event()

    async def never(_: Any) -> None:
        asked.set()
        await asyncio.sleep(30)

    async with house(tmp_path, models=script([{"tools": [use("ask", question="which?")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=never)
        await asked.wait()
        async with asyncio.timeout(3):
            assert await asyncio.to_thread(at.delete, run.session) == [run.session]
            await run.ended()
        assert events(at, run.session) == []
        with pytest.raises(SteadError) as gone:
            await at.prompt(run.session, "again")
        assert gone.value.code == "not_found"


async def test_b081_a_child_that_holds_the_pipe_does_not_hold_up_the_turn(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command="sleep 30 & echo $! > pid; echo done")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        since = time.monotonic()
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
        await run.ended()
        assert time.monotonic() - since < 3
        (tool,) = tools(at, run)
        pid = int((folder / "pid").read_text())
        os.kill(pid, 9)
        assert tool["status"] == "done" and "done" in tool["output"] and str(pid) in tool["output"]


async def test_b086_abort_ends_the_whole_process_group_within_two_seconds(tmp_path: Path) -> None:
    import psutil

    folder = project(tmp_path)
    stubborn = "trap '' TERM INT; (echo $BASHPID > pid; while :; do sleep 0.05; done) & sleep 99"
    turns = [{"tools": [use("bash", command=stubborn)]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
        await until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip())
        since = time.monotonic()
        run.abort()
        await run.ended()
        assert time.monotonic() - since < 2
        pid = int((folder / "pid").read_text())
        await until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
        following = script([{"tools": [use("bash", command="echo works")]}, {"text": "ok"}])
        at.models = following
        more = await at.prompt(run.session, "again", rules=BASH)
        await more.ended()
        assert tools(at, more)[0]["output"].startswith("works")


@pytest.mark.parametrize("by", ["handle", "event"])
async def test_b087_no_tool_starts_after_an_abort(by: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    quick = [use("bash", command=f"echo {n} >> log") for n in range(40)]
    async with house(tmp_path, models=script([{"tools": quick}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
        await until(lambda: (folder / "log").exists())
        if by == "handle":
            run.abort()
        else:
            at.stop(run.session)
        await run.ended()
        done = (folder / "log").read_text()
        log = [event.kind for event in events(at, run.session)]
        if by == "event":
            assert "tool.started" not in log[log.index("run.abort_requested") :]
        await asyncio.sleep(0.05)
        assert (folder / "log").read_text() == done
        assert len(tools(at, run)) == 40 and all(tool["status"] in ("done", "error") for tool in tools(at, run))
        assert at.run_json(run.id)["outcome"] == "aborted" and log.count("tool.ended") == 40


@pytest.mark.parametrize(
    ("kind", "nth"),
    [("part.added", 1), ("part.added", 2), ("step.ended", 1), ("tool.started", 1), ("tool.ended", 1), ("part.added", 3)],
)
async def test_an_abort_in_the_very_moment_of_a_commit_stores_nothing_twice(kind: str, nth: int, tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"text": "words", "tools": [use("list")], "chunk": 2}, {"text": "end"}]
    async with house(tmp_path, models=script(turns)) as at:
        loop, seen = asyncio.get_running_loop(), 0

        def heard(batch: Any) -> None:
            nonlocal seen
            for event in batch:
                seen += event.kind == kind and event.actor.startswith("run:")
                if seen == nth:
                    seen += 1
                    loop.call_soon_threadsafe(lambda: at.running()[0].abort())  # before the loop hears of its own commit

        stop = at.store.listen(heard)
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        result = await run.result()
        stop()
        assert result["outcome"] == "aborted" and seen == nth + 1, kinds(at, run)
        stored = kinds(at, run)
        assert stored[:2] == ["text", "tool"][: len(stored)] and "cut" not in parts(at, run)[0]
        assert all(tool["status"] in ("done", "error") for tool in tools(at, run))
        assert len(events(at, run.session, "tool.ended")) == stored.count("tool")
        assert len(calls(at, run.id)) == (2 if (kind, nth) == ("part.added", 3) else 1)
        (end,) = events(at, run.session, "run.ended")
        assert end.data.steps == stored.count("step")
        at.models = script([{"text": "ok"}])
        assert (await (await at.prompt(run.session, "more")).result())["outcome"] == "done"
