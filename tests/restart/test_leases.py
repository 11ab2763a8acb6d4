"""Leases: who lost a run writes nothing more into it, and no run is worked on twice."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead
from stead.domain import runs
from tests.agent.house import Child, events, parts, project, script, status, tools, until, use
from tests.restart.crew import SLOW, again, check, crew, open_asks, queued, run_of, started

pytestmark = pytest.mark.slow
LEASE_MS = 1500
WORKS = """
async def never(_): await asyncio.sleep(60)
at.models = script({turns!r})
rules = [parse("bash", "allow", "flag"), *([] if {ask} else [parse("write", "allow", "flag")])]
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=rules, on_ask=never)
tell([run.session, run.id])
{more}
tell((await run.result())["outcome"])
await asyncio.sleep(60)
"""


def frozen(tmp_path: Path, url: str | None, turns: Any, *, ask: bool = False, more: str = "") -> Child:
    return crew(tmp_path, WORKS.format(turns=turns, ask=ask, more=more), url, lease_ms=LEASE_MS)


def freeze(child: Child) -> None:
    child.process.send_signal(signal.SIGSTOP)


def thaw(child: Child) -> None:
    child.process.send_signal(signal.SIGCONT)


async def expired(at: Stead, run: str) -> None:
    """Wait until the owner of the run is taken for dead."""
    owner = run_of(at, run).owner
    await until(lambda: not at.alive(owner), 10)


@pytest.mark.postgres
@pytest.mark.parametrize("work", ["stream", "tool"])
async def test_a_process_that_stood_still_too_long_has_lost_its_run_and_writes_nothing_more(
    work: str, tmp_path: Path, postgres_url: str
) -> None:
    folder = project(tmp_path)
    tool = [{"text": "now", "tools": [use("bash", command="echo x >> log; sleep 2; echo y >> log"), use("list")]}, {"text": "end"}]
    child = frozen(tmp_path, postgres_url, SLOW if work == "stream" else tool)
    try:
        session, run = await child.told()
        async with again(tmp_path, postgres_url, models=script([{"text": "here"}]), lease_ms=LEASE_MS) as at:
            if work == "tool":
                await until(lambda: (folder / "log").exists(), 10)
            else:
                await asyncio.sleep(0.3)
            freeze(child)
            await expired(at, run)
            await asyncio.to_thread(at.recover)
            assert at.run_json(run)["outcome"] == "interrupted" and status(at, session) == "idle"
            before, stored = events(at, session), parts(at, run)
            thaw(child)
            assert await child.told() == "interrupted"  # and it says so
            assert events(at, session) == before and parts(at, run) == stored
            if work == "tool":
                assert (folder / "log").read_text() == "x\n" and [part["status"] for part in tools(at, run)] == ["error"] * 2
            assert (await (await at.prompt(session, "there?")).result())["outcome"] == "done"
            check(at)
    finally:
        child.close()


@pytest.mark.postgres
async def test_a_process_that_stands_still_in_the_middle_of_a_commit_keeps_nobody_from_writing(
    tmp_path: Path, postgres_url: str
) -> None:
    project(tmp_path)
    stop = "import os, signal, time\nat.store.submit(lambda tx: (os.kill(os.getpid(), signal.SIGSTOP), time.sleep(1)))"
    child = frozen(tmp_path, postgres_url, SLOW, more=stop)
    try:
        session, run = await child.told()
        async with again(tmp_path, postgres_url, models=script([{"text": "here"}]), lease_ms=LEASE_MS) as at:
            await expired(at, run)
            await asyncio.to_thread(at.recover)
            assert at.run_json(run)["outcome"] == "interrupted"
            before = events(at, session)
            assert (await (await at.prompt(None, "other", project=tmp_path / "project", model="fake/m")).result())[
                "outcome"
            ] == "done"
            thaw(child)
            assert await child.told() == "interrupted"
            assert events(at, session) == before
            check(at)
    finally:
        child.close()


@pytest.mark.postgres
async def test_a_process_that_stood_still_before_it_wrote_a_file_leaves_the_file_alone(tmp_path: Path, postgres_url: str) -> None:
    folder = project(tmp_path)
    stop = """
import os, signal, time
at.store.listen(
    lambda log: [(os.kill(os.getpid(), signal.SIGSTOP), time.sleep(1)) for event in log if event.kind == "change.captured"]
)
"""
    turns = [
        {"text": "word " * 40, "chunk": 5, "delay_ms": 5, "tools": [use("write", path="calc.py", content="mine\n")]},
        {"text": "e"},
    ]
    child = frozen(tmp_path, postgres_url, turns, more=stop)
    try:
        session, run = await child.told()
        async with again(tmp_path, postgres_url, lease_ms=LEASE_MS) as at:
            await until(lambda: events(at, session, "change.captured"), 10)
            await expired(at, run)
            await asyncio.to_thread(at.recover)
            (folder / "calc.py").write_text("the person's\n")
            before = events(at, session)
            assert [event.kind for event in before if event.kind.startswith("change.")] == ["change.captured", "change.failed"]
            thaw(child)
            assert await child.told() == "interrupted"
            assert (folder / "calc.py").read_text() == "the person's\n" and events(at, session) == before
            check(at)
    finally:
        child.close()


@pytest.mark.postgres
async def test_a_run_that_asked_when_its_process_stood_still_waits_and_goes_on_elsewhere_once(
    tmp_path: Path, postgres_url: str
) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("write", path="new.txt", content="hi\n"), use("bash", command="echo x >> log")]}, {"text": "end"}]
    child = frozen(tmp_path, postgres_url, turns, ask=True)
    try:
        session, run = await child.told()
        async with again(tmp_path, postgres_url, models=script(turns), lease_ms=LEASE_MS) as at:
            await until(lambda: open_asks(at), 10)
            (ask,) = open_asks(at)
            freeze(child)
            await expired(at, run)
            await asyncio.to_thread(at.recover)
            assert status(at, session) == "waiting" and [one.id for one in open_asks(at)] == [ask.id]
            at.answer(ask.id, {"allow": True})
            on = await at.resume(session)
            assert (await on.result())["outcome"] == "done" and run_of(at, run).epoch == 2
            before = events(at, session)
            thaw(child)
            assert await child.told() == "done"  # what became of the run, elsewhere
            assert events(at, session) == before and (folder / "log").read_text() == "x\n"
            check(at)
    finally:
        child.close()


@pytest.mark.postgres
async def test_a_prompt_whose_process_stood_still_is_held_and_does_not_begin_when_it_goes_on(
    tmp_path: Path, postgres_url: str
) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, postgres_url, models=script(SLOW), lease_ms=LEASE_MS) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        waits = f"""
at.models = script([{{"text": "ok"}}])
more = await at.prompt({run.session!r}, "more")
tell(more.id)
tell((await more.result())["queued"]["held"])
await asyncio.sleep(60)
"""
        child = crew(tmp_path, waits, postgres_url, lease_ms=LEASE_MS)
        try:
            more = await child.told()
            freeze(child)
            owner = queued(at)[0].owner
            assert owner is not None
            await until(lambda: not at.alive(owner), 10)
            await asyncio.to_thread(at.recover)
            thaw(child)
            assert "ended before its turn" in await child.told()
            run.abort()
            await run.ended()
            await asyncio.sleep(0.3)
            assert started(at) == [run.id] and [one.id for one in queued(at)] == [more]
            check(at)
        finally:
            child.close()


async def test_on_one_machine_a_process_that_is_stopped_lives(tmp_path: Path) -> None:
    folder = project(tmp_path)
    child = frozen(tmp_path, None, SLOW)
    try:
        session, run = await child.told()
        async with again(tmp_path, None, models=script([{"text": "here"}]), lease_ms=200) as at:
            freeze(child)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(at.recover)
            assert at.alive(run_of(at, run).owner) and status(at, session) == "running"
            more = await at.prompt(session, "more", project=folder)
            assert at.stop(session) is True
            await asyncio.sleep(0.3)
            assert more.run is None and status(at, session) == "running"  # its process will see to it
            thaw(child)
            assert await child.told() == "aborted"
            assert (await more.result())["outcome"] == "done"
            check(at)
    finally:
        child.close()


async def test_who_lost_the_lease_is_refused_by_owner_and_by_epoch(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("write", path="new.txt", content="hi\n")]}, {"text": "word " * 100, "chunk": 5, "delay_ms": 20}]
    async with again(tmp_path, url, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        await run.ended()
        old = run_of(at, run.id)
        at.answer(open_asks(at)[0].id, {"allow": True})
        on = await at.resume(run.session)
        new = run_of(at, run.id)
        assert (new.owner, new.epoch) == (old.owner, old.epoch + 1)  # the same process, another lease
        held = await at.store.commit(lambda tx: (runs.held(tx, old), runs.held(tx, new)))
        assert held == (False, True)
        on.abort()
        await on.ended()
        assert await at.store.commit(lambda tx: runs.held(tx, new)) is False


STREAM = [{"text": "word " * 2000, "chunk": 5, "delay_ms": 10, "tools": [use("bash", command="echo late >> late")]}]
TOOL = [{"tools": [use("bash", command="echo $$ > pid; sleep 60"), use("bash", command="echo late >> late")]}]
ASK = [{"tools": [use("write", path="late", content=""), use("bash", command="echo late >> late")]}]


@pytest.mark.parametrize("work", ["stream", "tool", "ask"])
async def test_a_stop_from_the_command_line_ends_a_run_of_another_process_and_nothing_starts_behind_it(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.cli.door import stead

    folder = project(tmp_path)
    monkeypatch.setenv("STEAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("STEAD_CONFIG", str(tmp_path / "config"))
    waits = "more = await at.prompt(run.session, 'more')\ntell(more.id)"
    child = frozen(tmp_path, None, {"stream": STREAM, "tool": TOOL, "ask": ASK}[work], ask=work == "ask", more=waits)
    try:
        session, run = await child.told()
        more = await child.told()
        async with again(tmp_path, None) as at:
            if work == "tool":
                await until(lambda: (folder / "pid").exists(), 10)
            elif work == "ask":
                await until(lambda: open_asks(at), 10)
            assert stead("queue", "remove", more).code == 0  # what waits is taken out by itself
            assert stead("sessions", "stop", session, "--json").json["stopped"] is True
            assert await child.told() == "aborted" and not (folder / "late").exists()
            assert status(at, session) == "aborted" and open_asks(at) == [] and started(at) == [run]
            if work == "tool":
                await until(lambda: not _lives(int((folder / "pid").read_text())), 6)
            check(at)
    finally:
        child.close()


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
