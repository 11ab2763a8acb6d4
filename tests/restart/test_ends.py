"""Ends that could not be stored at once, were too large, or belonged to somebody else by then."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from stead.agent import closing
from stead.agent.gate import parse
from stead.agent.tools.output import Output
from stead.app import Stead
from stead.app.doctor import examine
from stead.core.errors import SteadError
from stead.domain import queue, runs, sessions
from tests.agent.house import Child, events, house, project, script, status, tools, until, use

ANYTHING = [parse("bash", "allow", "flag"), parse("edit", "allow", "flag")]


def ended(at: Stead, session: str) -> list[tuple[str, str | None]]:
    return [(one.data.outcome, (one.data.error or {}).get("code")) for one in events(at, session, "run.ended")]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "abort"])
async def test_a_step_that_changed_very_many_files_can_be_closed(how: str, tmp_path: Path) -> None:
    """The list of what it changed is larger than an event."""
    folder = project(tmp_path)
    writes = [use("write", path=f"{'long-name-' * 12}{n}.txt", content="x") for n in range(420)]
    turns = [{"tools": [*writes, use("bash", command="touch here; sleep 60")]}, {"text": "ok"}]
    if how == "abort":
        async with house(tmp_path, models=script(turns)) as at:
            run = await at.prompt(None, "go", project=folder, model="fake/m", rules=ANYTHING)
            session = run.session
            await until((folder / "here").exists, 25)
            run.abort()
            assert (await run.result())["outcome"] == "aborted"
    else:
        program = (
            f"at.models = script({turns!r})\nfrom stead.agent.gate import parse\n"
            'rules = [parse("bash", "allow", "flag"), parse("edit", "allow", "flag")]\n'
            'run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=rules)\n'
            "tell(run.session)\nawait run.ended()"
        )
        child = Child(tmp_path, program)
        session = await child.told()
        await until((folder / "here").exists, 25)
        child.kill()
    async with house(tmp_path, models=script([{"text": "here"}])) as at:
        assert [one for one, _ in ended(at, session)] == ["aborted" if how == "abort" else "interrupted"]
        with at.store.view() as view:
            parts = [part for one in sessions.messages(view, session) for _, part in one.parts if part["type"] == "patch"]
        assert [len(at.store.blobs.resolve(part)["files"]) for part in parts] == [
            421 if how == "abort" else 420
        ]  # of what is killed nobody knows what it changed
        assert (await (await at.prompt(session, "there?")).result())["result"] == "here"
        assert examine(at)["ok"]


async def test_a_run_that_cannot_be_closed_as_it_was_keeps_nobody_from_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project(tmp_path)
    program = (
        'at.models = script([{"text": "x" * 9999, "delay_ms": 20, "chunk": 1}])\n'
        'one = await at.prompt(None, "go", project=tmp / "project", model="fake/m")\n'
        'two = await at.prompt(None, "go", project=tmp / "project", model="fake/m")\n'
        "tell([one.session, two.session])\nawait one.ended()"
    )
    child = Child(tmp_path, program)
    broken, sound = await child.told()
    child.kill()
    look = closing.look

    def odd(store: Any, run: runs.Run, **more: Any) -> closing.Left:
        if run.session == broken:
            raise SteadError("bad_value", "an event over the limit")
        return look(store, run, **more)

    with monkeypatch.context() as patch:
        patch.setattr(closing, "look", odd)
        house(tmp_path).close()
    async with house(tmp_path) as at:
        assert ended(at, broken) == ended(at, sound) == [("interrupted", "run_interrupted")]
        assert status(at, broken) == status(at, sound) == "idle"


def full(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on no run's end can be stored."""

    def refused(*_: Any, **__: Any) -> None:
        raise SteadError("disk_full", "There is no space left.")

    monkeypatch.setattr(closing, "end", refused)


async def test_b001_an_end_that_the_disk_did_not_take_is_stored_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        with monkeypatch.context() as patch:
            full(patch)
            run = await at.prompt(None, "go", project=folder, model="fake/m")
            with pytest.raises(SteadError) as failed:
                await run.ended()
            assert failed.value.code == "disk_full" and status(at, run.session) == "running"
            more = await at.prompt(run.session, "more")
            assert more.run is None
        assert (await asyncio.wait_for(more.result(), 8))["outcome"] in ("done", "waiting")
        assert ended(at, run.session)[0] == ("done", None)
        await until(lambda: status(at, run.session) == "idle")


async def test_b001_how_a_run_ended_on_a_full_disk_is_not_lost_with_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)
    at = house(tmp_path, models=script([{"fault": {"after": 0, "kind": "disconnect", "times": 99}, "text": "x"}]))
    with monkeypatch.context() as patch:
        full(patch)
        patch.setattr("stead.agent.models.retry.delay", lambda *_, **__: None)
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        with pytest.raises(SteadError):
            await run.ended()
        at.close()
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        ((outcome, code),) = ended(at, run.session)
        assert outcome == "error" and code not in (None, "run_interrupted")
        assert (await (await at.prompt(run.session, "more")).result())["outcome"] == "done"


async def test_b001_a_command_whose_output_the_disk_did_not_take_keeps_its_result_and_hears_an_abort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)

    class Full:
        """A file that a full disk does not take."""

        def close(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        def __getattr__(self, name: str) -> Any:
            def refuse(*_: Any) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

            return refuse

    made = Output.__init__

    def init(self: Output, *args: Any, **more: Any) -> None:
        made(self, *args, **more)
        self._spool = Full()  # type: ignore[assignment]

    monkeypatch.setattr(Output, "__init__", init)
    said = [
        use("bash", command="echo said"),
        use("bash", command="echo here > here; sleep 60"),
        use("bash", command="touch behind"),
    ]
    async with house(tmp_path, models=script([{"tools": said}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=ANYTHING)
        await until((folder / "here").exists)
        assert "said" in tools(at, run)[0]["output"]
        run.abort()
        assert (await run.result())["outcome"] == "aborted" and not (folder / "behind").exists()
        assert [one["status"] for one in tools(at, run)] == ["done", "error", "error"]


async def test_b087_a_tool_that_fails_while_it_is_being_stopped_does_not_swallow_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)

    async def stubborn(*_: Any) -> None:
        (folder / "here").write_text("")
        try:
            await asyncio.sleep(30)
        finally:
            raise OSError(errno.ENOSPC, "no space")

    from stead.agent import tools as known

    monkeypatch.setitem(known.TOOLS, "list", known.TOOLS["list"].__class__(**{**_fields(known.TOOLS["list"]), "run": stubborn}))
    async with house(tmp_path, models=script([{"tools": [use("list"), use("write", path="b", content="")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=ANYTHING)
        await until((folder / "here").exists)
        run.abort()
        assert (await run.result())["outcome"] == "aborted" and not (folder / "b").exists()


def _fields(tool: Any) -> dict[str, Any]:
    return {name: getattr(tool, name) for name in tool.__dataclass_fields__}


async def test_a_prompt_that_nobody_may_wait_for_is_held_when_the_run_before_it_begins_to_wait(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"text": "w" * 60, "chunk": 2, "delay_ms": 10, "tools": [use("write", path="x", content="")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        hurried, patient = await at.prompt(run.session, "one"), await at.prompt(run.session, "two")
        hurried.patient = False
        assert (await run.result())["outcome"] == "waiting"
        found = await asyncio.wait_for(hurried.result(), 5)
        assert found["outcome"] == "waiting" and found["queued"]["state"] == "held" and "person" in found["queued"]["held"]
        with at.store.view() as view:
            assert queue.get(view, patient.id).held is None
        patient.abort()


async def test_a_run_that_was_taken_from_a_process_ends_its_tool_there(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command="echo $$ > pid; sleep 60")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=ANYTHING)
        await until(lambda: (folder / "pid").exists() and (folder / "pid").read_text().strip())
        with at.store.view() as view:
            left = closing.look(at.store, runs.get(view, run.id))
        at.store.write(lambda tx: closing.interrupt(tx, left))  # as another machine does that took this process for dead
        await asyncio.wait_for(run.ended(), 4)
        pid = int((folder / "pid").read_text())
        assert not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        assert ended(at, run.session) == [("interrupted", "run_interrupted")]


async def test_leaving_does_not_hold_a_prompt_that_another_process_waits_for(tmp_path: Path) -> None:
    folder = project(tmp_path)
    slow = [{"text": "word " * 2000, "chunk": 5, "delay_ms": 10}]
    async with house(tmp_path, models=script(slow)) as one, house(tmp_path, models=script(slow)) as two:
        run = await one.prompt(None, "go", project=folder, model="fake/m")
        here = await one.prompt(run.session, "more")
        there = await two.begin(here.id)
        here.abort()
        await until(lambda: not one.running() or one.running() == [run])
        with one.store.view() as view:
            assert queue.get(view, here.id).held is None
        there.abort()
        run.abort()
