"""An abort that aborts: control back, the whole tree of processes gone, nothing started behind it, everything closed."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from stead.agent import orphans
from stead.agent.gate import parse
from stead.app import RunHandle, Stead
from tests.agent.house import ENVIRON, Child, events, house, parts, project, script, status, tools, until, use

BASH = [parse("bash", "allow", "flag")]
QUICK = "echo $EPOCHREALTIME >> starts; sleep 0.02"
COUNT = 60


def marked(tmp_path: Path) -> list[psutil.Process]:
    """What still runs of the commands of this test's house."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("TEST_ABORT") == str(tmp_path) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def opened(tmp_path: Path, turns: list[Any]) -> Stead:
    return house(tmp_path, models=script(turns), environ={**ENVIRON, "TEST_ABORT": str(tmp_path)})


async def test_b086_abort_gives_control_back_and_ends_the_tree_that_ignores_signals(tmp_path: Path) -> None:
    command = "bash -c \"trap '' TERM INT; (while :; do :; done) & sleep 999\"; setsid -w sleep 999"
    turns = [{"tools": [use("bash", command=command), use("list")]}, {"tools": [use("bash", command="echo next")]}, {"text": "end"}]
    async with opened(tmp_path, turns) as at:
        run = await at.prompt(None, "go", project=project(tmp_path), model="fake/m", rules=BASH)
        await until(lambda: len(marked(tmp_path)) >= 4)
        run.abort()
        async with asyncio.timeout(4):  # less than 2 s where the machine has nothing else to do
            assert (await run.result())["outcome"] == "aborted"
        await until(lambda: not marked(tmp_path), 5)
        stopped, never = tools(at, run)
        assert "The run was aborted after this call had run for" in stopped["error"] and stopped["status"] == "error"
        assert never["error"].startswith("Not started: the run was aborted")
        assert len(events(at, run.session, "run.ended")) == 1 and status(at, run.session) == "aborted"
    async with opened(tmp_path, turns[1:]) as at:
        again = await at.prompt(run.session, "and now?", rules=BASH)
        assert (await again.result())["outcome"] == "done"
        assert tools(at, again)[0]["output"] == "next\n[exit code 0]"


def _starts(folder: Path) -> list[float]:
    """When each command of the loop began."""
    path = folder / "starts"
    return [float(line) for line in path.read_text().splitlines()] if path.exists() else []


def _check(at: Stead, run: str, session: str, folder: Path, stopped: float) -> None:
    """No call began behind the abort, and each of them is closed."""
    begun = events(at, session, "tool.started")
    assert 0 < len(begun) < COUNT and len(_starts(folder)) <= len(begun)
    assert all(start <= stopped for start in _starts(folder)), (_starts(folder)[-2:], stopped)
    called = tools(at, run)
    assert len(called) == COUNT and len(events(at, session, "tool.ended")) == COUNT
    (end,) = events(at, session, "run.ended")
    assert end.data.outcome == "aborted" and end.seq == max(event.seq for event in events(at, session))
    assert {one["status"] for one in called[len(begun) :]} == {"error"}
    assert all("Not started" in one["error"] for one in called[len(begun) :])
    assert [part["type"] for part in parts(at, run)].count("step") == 1  # the model was not asked again


@pytest.mark.parametrize("shape", ["one step", "many steps"])
async def test_b087_no_command_starts_behind_the_abort_of_a_loop_of_quick_calls(shape: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    call = use("bash", command=QUICK)
    turns = [{"tools": [call] * COUNT}] if shape == "one step" else [{"tools": [call]} for _ in range(COUNT)]
    async with opened(tmp_path, turns) as at:
        run: RunHandle = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
        await until(lambda: len(_starts(folder)) >= 4)
        run.abort()
        stopped = time.time()
        assert (await run.result())["outcome"] == "aborted"
        if shape == "one step":
            _check(at, run.id, run.session, folder, stopped)
        before = len(_starts(folder))
        await asyncio.sleep(0.3)
        assert len(_starts(folder)) == before and all(start <= stopped for start in _starts(folder))
        assert all(one["status"] in ("done", "error") for one in tools(at, run)) and marked(tmp_path) == []


@pytest.mark.slow
async def test_b087_no_call_begins_behind_the_abort_that_another_process_asked_for(tmp_path: Path) -> None:
    folder = project(tmp_path)
    program = f"""
from stead.agent.gate import parse
at.models = script([{{"tools": [use("bash", command={QUICK!r})] * {COUNT}}}])
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=[parse("bash", "allow", "flag")])
tell([run.session, run.id])
tell((await run.result())["outcome"])
"""
    async with house(tmp_path) as at:
        child = Child(tmp_path, program)
        try:
            session, run = await child.told()
            await until(lambda: len(_starts(folder)) >= 4)
            assert at.stop(session) is True
            assert await child.told() == "aborted"
            assert child.process.wait() == 0
        finally:
            child.close()
        (asked,) = events(at, session, "run.abort_requested")
        assert all(event.seq < asked.seq for event in events(at, session, "tool.started"))
        # A command whose start was stored just before may have come up in the moment behind it, but only that one.
        late = [start for start in _starts(folder) if start * 1000 > asked.ts]
        assert len(late) <= 1
        _check(at, run, session, folder, max(_starts(folder)))


@pytest.mark.slow
async def test_after_sigkill_the_next_start_ends_what_the_command_left_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "_GRACE", 0.4)
    project(tmp_path)
    command = "(setsid sleep 601 &); trap '' TERM; bash -c \"trap '' TERM INT; (while :; do :; done) & sleep 602\""
    program = f"""
at.models = script([{{"tools": [use("bash", command={command!r}), use("list")]}}])
from stead.agent.gate import parse
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=[parse("bash", "allow", "flag")])
tell([run.session, run.id])
await run.ended()
"""
    wrapped = f"at.environ = {{**at.environ, 'TEST_ABORT': {str(tmp_path)!r}}}\n{program}"
    child = Child(tmp_path, wrapped)
    try:
        session, run = await child.told()
        await until(lambda: len(marked(tmp_path)) >= 4)
        await asyncio.sleep(0.3)  # what was told of the shell is kept
        child.kill()
        assert len(marked(tmp_path)) >= 4  # they live on
        async with house(tmp_path, models=script([{"text": "here"}])) as at:
            assert [process.cmdline() for process in marked(tmp_path)] == [["sleep", "601"]]
            said, never = (one["error"] for one in tools(at, run))
            assert "What it had left running was ended: bash (pid" in said and "in a session of its own: sleep (pid" in said
            assert "unknown" in said and never.startswith("Not started")
            assert (await (await at.prompt(session, "there?")).result())["result"] == "here"
    finally:
        child.close()
        for process in marked(tmp_path):
            process.kill()
