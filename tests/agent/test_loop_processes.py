"""Several runs and several processes on one store; what SIGKILL leaves and the next start closes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from stead.agent.gate import parse
from stead.app import Stead
from stead.core.errors import SteadError
from stead.domain import runs
from tests.agent.house import Child, events, house, kinds, parts, project, script, status, tools, until, use

BASH = [parse("bash", "allow", "flag")]
SLOW = [{"text": "word " * 2000, "chunk": 5, "delay_ms": 10}]


def runs_still(pid: int) -> bool:
    """Whether the process lives; one that nobody has collected yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def shell_is_known(at: Stead) -> bool:
    """Whether it is kept which process the command at work runs in."""
    with at.store.view() as view:
        return view.one("SELECT 1 FROM open_tool_calls WHERE process IS NOT NULL") is not None


async def test_the_same_key_gives_the_same_run_and_stores_nothing(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        first = await at.prompt(None, "go", project=folder, model="fake/m")
        await first.ended()
        one = await at.prompt(first.session, "more", key="k1")
        two = await at.prompt(first.session, "more", key="k1")  # while it runs
        assert two.id == one.id and await two.result() == await one.result()
        before = len(events(at))
        three = await at.prompt(first.session, "other words", key="k1", model="fake/other", agent="build")
        assert three.id == one.id and (await three.result())["result"] == "ok" and len(events(at)) == before
        four = await at.prompt(first.session, "more", key="k2")
        assert four.id != one.id


async def test_a_known_key_is_waited_for_also_when_another_process_works_on_it(tmp_path: Path) -> None:
    folder = project(tmp_path)
    slow = [{"text": "word " * 40, "chunk": 5, "delay_ms": 5}]
    async with house(tmp_path, models=script(slow)) as one, house(tmp_path, models=script(slow)) as two:
        first = await one.prompt(None, "go", project=folder, model="fake/m")
        await first.ended()
        there = await one.prompt(first.session, "go", key="k")
        here = await two.prompt(first.session, "go", key="k")
        assert here.id == there.id and two.running() == []
        assert (await here.result())["outcome"] == "done"


async def test_a_second_prompt_while_one_runs_waits_for_its_turn(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(SLOW)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        before = len(events(at, run.session, "message.added"))
        more = await at.prompt(run.session, "more")
        assert more.run is None and at.run_json(more.id)["outcome"] == "waiting"
        assert len(events(at, run.session, "message.added")) == before
        run.abort()
        run.abort()
        assert (await run.result())["outcome"] == "aborted"
        run.abort()
        await until(lambda: more.run is not None)
        assert len(events(at, run.session, "message.added")) == before + 2
        more.abort()
        assert (await more.result())["outcome"] == "aborted"


async def test_aborting_again_and_again_ends_the_run_once(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(SLOW)) as at:
        for pause in range(12):
            run = await at.prompt(None, "go", project=folder, model="fake/m")
            for _ in range(pause):
                await asyncio.sleep(0)
            while at.running():
                run.abort()
                await asyncio.sleep(0)
            assert (await run.result())["outcome"] == "aborted"
            assert len(events(at, run.session, "run.ended")) == 1


async def test_two_sessions_run_side_by_side(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"text": "a" * 200, "chunk": 20, "delay_ms": 5, "tools": [use("bash", command="echo $PPID")]}, {"text": "end"}]
    async with house(tmp_path, models=script(turns)) as at:
        started = [await at.prompt(None, f"go {n}", project=folder, model="fake/m", rules=BASH) for n in range(4)]
        assert len(at.running()) == 4
        results = await asyncio.gather(*(run.result() for run in started))
        assert [result["result"] for result in results] == ["end"] * 4
        assert all(kinds(at, run) == ["text", "tool", "step", "text", "step"] for run in started)
        log = [event.stream for event in events(at) if event.kind == "part.added"]
        assert len(set(log[:4])) > 1  # they were really interleaved


async def test_a_caller_who_goes_away_leaves_no_prompt_that_nobody_works_on(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        for pause in range(6):
            asking = asyncio.create_task(at.prompt(None, "go", project=folder, model="fake/m"))
            for _ in range(pause):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
        await until(lambda: not at.running() and len(events(at, kind="run.ended")) == len(events(at, kind="run.started")))


async def test_closing_with_a_run_at_work_leaves_it_to_the_next_start(tmp_path: Path) -> None:
    folder = project(tmp_path)
    at = house(tmp_path, models=script(SLOW))
    run = await at.prompt(None, "go", project=folder, model="fake/m")
    (handle,) = at.running()
    at.close()
    handle.abort()
    with pytest.raises(SteadError):
        await handle.ended()
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        assert at.run_json(run.id)["outcome"] == "interrupted"
        assert (await (await at.prompt(run.session, "more")).result())["outcome"] == "done"


TWO = """
turns = [{"text": f"text {n}", "tools": [use("bash", command=f"echo {n}")]} for n in range(6)] + [{"text": "end"}]
at.models = script(turns)
tell("up")
for _ in range(2):
    run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", on_ask="allow")
    tell((await run.result())["outcome"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
async def test_two_processes_work_on_one_store_and_all_their_data_is_complete(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    project(tmp_path)
    url = request.getfixturevalue("postgres_url") if database == "postgres" else None
    program = TWO if url is None else f"at.close(); at = house(tmp, database_url={url!r})\n{TWO}\nat.close()"
    children = [Child(tmp_path, program) for _ in range(2)]
    try:
        for child in children:
            assert [await child.told() for _ in range(3)] == ["up", "done", "done"]
            assert child.process.wait() == 0
    finally:
        for child in children:
            child.close()
    async with house(tmp_path, database_url=url) as at:
        log = events(at)
        assert [event.seq for event in log] == sorted({event.seq for event in log})
        ended = [event for event in log if event.kind == "run.ended"]
        assert len(ended) == 4 and {event.data.outcome for event in ended} == {"done"}
        for event in ended:
            assert kinds(at, event.data.run) == ["text", "tool", "step"] * 6 + ["text", "step"]
        with at.store.view() as view:
            assert view.one("SELECT sum(calls) FROM usage_days") == (28,)


@pytest.mark.parametrize("work", ["stream", "tool", "ask"])
async def test_a_run_of_another_process_is_stopped_within_a_second(work: str, tmp_path: Path) -> None:
    project(tmp_path)
    turns = {
        "stream": SLOW,
        "tool": [{"tools": [use("bash", command="sleep 30")]}],
        "ask": [{"tools": [use("write", path="x", content="")]}],
    }[work]
    program = f"""
async def never(_): await asyncio.sleep(30)
at.models = script({turns!r})
from stead.agent.gate import parse
from stead.app import Stead
rules = [parse("bash", "allow", "flag")]
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=rules, on_ask=never)
tell(run.session)
tell((await run.result())["outcome"])
"""
    async with house(tmp_path) as at:
        child = Child(tmp_path, program)
        try:
            session = await child.told()
            assert status(at, session) == "running"
            since = time.monotonic()
            assert at.stop(session) is True
            assert await child.told() == "aborted" and time.monotonic() - since < 1.5
            assert status(at, session) == "aborted"
            assert child.process.wait() == 0
        finally:
            child.close()


@pytest.mark.parametrize("work", ["stream", "tool"])
async def test_after_sigkill_everything_open_is_closed_once_and_the_session_goes_on(work: str, tmp_path: Path) -> None:
    project(tmp_path)
    tool = [{"tools": [use("bash", command="echo $$ > pid; exec sleep 30"), use("list")]}]
    turns = tool if work == "tool" else [{"text": "done ", "tools": [use("list")]}, *SLOW]
    program = f"""
at.models = script({turns!r})
from stead.agent.gate import parse
from stead.app import Stead
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=[parse("bash", "allow", "flag")])
tell([run.session, run.id])
await run.ended()
"""
    child = Child(tmp_path, program)
    session, run = await child.told()
    async with house(tmp_path) as at:
        if work == "tool":
            pid = tmp_path / "project" / "pid"
            await until(lambda: pid.exists() and pid.read_text().strip() and shell_is_known(at))
        else:
            await until(lambda: len(events(at, session, "step.ended")) == 1)
        child.kill()
        assert status(at, session) == "running"
    for _ in range(2):
        async with house(tmp_path, models=script([{"text": "here"}])) as at:
            (end,) = events(at, session, "run.ended")
            assert end.data.outcome == "interrupted" and status(at, session) == "idle"
            assert len(events(at, session, "tool.ended")) == len(tools(at, run))
            assert parts(at, run)[-1]["code"] == "run_interrupted"
            said = [one.get("error", "") for one in tools(at, run)]
            if work == "tool":
                assert "unknown" in said[0] and "ended" in said[0] and "Not started" in said[1]
                assert not runs_still(int(pid.read_text()))
            assert [one.name for one in (at.data / "locks").iterdir() if not one.name.startswith(".open-")] == ["maintenance"]
    async with house(tmp_path, models=script([{"text": "here"}])) as at:
        assert (await (await at.prompt(session, "there?")).result())["result"] == "here"


async def test_recovery_leaves_the_runs_of_living_processes_alone(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(SLOW)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        child = Child(tmp_path, 'at.models = script([{"text": "x" * 999, "delay_ms": 20, "chunk": 1}])\n'
                                'run = await at.prompt(None, "go", project=tmp / "project", model="fake/m")\n'
                                'tell(run.session)\nawait run.ended()')  # fmt: skip
        session = await child.told()
        child.kill()
        async with house(tmp_path) as other:
            assert status(other, session) == "idle" and status(other, run.session) == "running"
            with other.store.view() as view:
                found = runs.last(view, session)
                assert found is not None and found.outcome == "interrupted"
        run.abort()
        assert (await run.result())["outcome"] == "aborted"


async def test_where_nothing_can_be_written_a_dead_run_is_shown_as_the_recovery_would_leave_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)
    child = Child(tmp_path, 'at.models = script([{"text": "x" * 999, "delay_ms": 20, "chunk": 1}])\n'
                            'run = await at.prompt(None, "go", project=tmp / "project", model="fake/m")\n'
                            'tell(run.session)\nawait run.ended()')  # fmt: skip
    session = await child.told()
    child.kill()

    def full(*_: object, **__: object) -> None:
        raise SteadError("disk_full", "There is no space left.")

    with monkeypatch.context() as patch:
        patch.setattr("stead.store.store.Store.write", full)
        async with house(tmp_path) as at:
            with at.store.view() as view:
                found = runs.last(view, session)
                assert found is not None and (found.status, found.outcome, found.code) == (
                    "ended",
                    "interrupted",
                    "run_interrupted",
                )
                assert runs.active(view, session) is None
            assert status(at, session) == "idle" and not events(at, kind="run.ended")
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        assert len(events(at, kind="run.ended")) == 1  # closed now, where it can be
        run = await at.prompt(session, "more", project=folder)
        assert (await run.result())["outcome"] == "done"
