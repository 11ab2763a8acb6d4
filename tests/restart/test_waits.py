"""Durable waits: an approval or a question outlives its process, is answered once from anywhere, and the run goes on from there."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.app import RunHandle, Stead
from stead.app.shown import ask_json, event_json
from stead.core.errors import SteadError
from stead.domain import asks
from tests.agent.house import events, house, kinds, parts, project, script, status, tools, until, use
from tests.restart.crew import again, check, crew, open_asks, queued, run_of

BASH = [parse("bash", "allow", "flag")]
APPROVAL = [
    {"tools": [use("bash", command="echo one >> log")]},
    {
        "tools": [
            use("edit", path="calc.py", old="a + b", new="b + a"),
            use("write", path="new.txt", content="hi\n"),
            use("bash", command="echo two >> log"),
        ]
    },
    {"text": "end"},
]
QUESTION = [
    {"tools": [use("bash", command="echo one >> log"), use("ask", question="Which?", options=["a", "b"])]},
    {"text": "end"},
]
DIES = """
async def never(_): await asyncio.sleep(60)
at.models = script({turns!r})
rules = [parse("bash", "allow", "flag"), parse("edit(calc.py)", "allow", "flag")]
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=rules, on_ask={policy})
tell([run.session, run.id])
tell((await run.result())["outcome"])
await asyncio.sleep(60)
"""


async def code(attempt: Any) -> str:
    with pytest.raises(SteadError) as failed:
        await attempt
    return failed.value.code


def late(at: Stead, ask: str) -> str:
    with pytest.raises(SteadError) as failed:
        at.answer(ask, {"allow": True})
    return failed.value.code


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["never", "'wait'"])
async def test_b090_an_approval_outlives_its_process_and_the_run_goes_on_behind_it(
    policy: str, tmp_path: Path, url: str | None
) -> None:
    """The same id on every surface and over two restarts, one answer, and no tool that ran is run again."""
    folder = project(tmp_path)
    child = crew(tmp_path, DIES.format(turns=APPROVAL, policy=policy), url)
    session, run = await child.told()
    async with again(tmp_path, url) as at:
        await until(lambda: open_asks(at), 10)
        (ask,) = open_asks(at)
        assert status(at, session) in ("running", "waiting")
        child.kill()
    for _ in range(2):
        async with again(tmp_path, url) as at:
            assert [one.id for one in open_asks(at)] == [ask.id] and status(at, session) == "waiting"
            assert at.run_json(run)["outcome"] == "waiting" and at.run_json(run)["asks"][0]["id"] == ask.id
            assert events(at, session, "run.ended") == [] and (folder / "log").read_text() == "one\n"
            assert await code(at.resume(session)) == "conflict"
    async with again(tmp_path, url, models=script(APPROVAL)) as at, again(tmp_path, url) as phone:
        assert phone.answer(ask.id, {"allow": True}, by="person:phone").status == "answered"
        assert late(at, ask.id) == late(phone, ask.id) == "ask_closed"
        on = await at.resume(session)
        assert await code(phone.resume(session)) == "not_found"
        result = await on.result()
        assert (on.id, result["outcome"], result["result"]) == (run, "done", "end")
        assert (folder / "log").read_text() == "one\ntwo\n" and (folder / "new.txt").read_text() == "hi\n"
        assert [part["status"] for part in tools(at, run)] == ["done"] * 4
        patches = [sorted(one["path"] for one in part["files"]) for part in parts(at, run) if part["type"] == "patch"]
        assert patches == [["log"], ["calc.py", "log", "new.txt"]]  # of the second step whole, both sides of the wait
        assert run_of(at, run).epoch == 2
        check(at)


@pytest.mark.slow
async def test_a_question_outlives_its_process_and_its_call_is_not_asked_twice(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    child = crew(tmp_path, DIES.format(turns=QUESTION, policy="never"), url)
    session, run = await child.told()
    async with again(tmp_path, url) as at:
        await until(lambda: open_asks(at), 10)
        (ask,) = open_asks(at)
        child.kill()
    async with again(tmp_path, url, models=script(QUESTION)) as at:
        at.answer(ask.id, {"text": "b"})
        result = await (await at.resume(session)).result()
        assert result["outcome"] == "done" and tools(at, run)[1]["output"] == "b"
        assert (folder / "log").read_text() == "one\n" and len(events(at, session, "ask.opened")) == 1
        check(at)


@pytest.mark.slow
async def test_an_answer_from_another_process_lets_a_living_run_go_on_by_itself(tmp_path: Path, url: str | None) -> None:
    project(tmp_path)
    child = crew(tmp_path, DIES.format(turns=APPROVAL, policy="never"), url)
    try:
        session, run = await child.told()
        async with again(tmp_path, url) as at:
            await until(lambda: open_asks(at), 10)
            assert await code(at.resume(session)) == "not_found"  # somebody is at work on it
            at.answer(open_asks(at)[0].id, {"allow": True}, by="person:phone")
            assert await child.told() == "done"
            assert run_of(at, run).epoch == 1
            assert [event.data.by for event in events(at, session, "permission.decided")].count("person:phone") == 1
            check(at)
    finally:
        child.close()


async def test_two_surfaces_that_answer_at_once_do_not_both_win(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("write", path=f"{n}.txt", content="x") for n in range(6)]}, {"text": "end"}]
    async with again(tmp_path, url, models=script(turns)) as one, again(tmp_path, url) as two:
        run = await one.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        await run.ended()
        for n in range(6):
            (ask,) = open_asks(one)
            given = [
                asyncio.to_thread(at.answer, ask.id, {"allow": allow}, by=by)
                for at, allow, by in ((one, True, "person:here"), (two, False, "person:phone"))
            ]
            here, phone = await asyncio.gather(*given, return_exceptions=True)
            lost = phone if isinstance(here, asks.Ask) else here
            assert (
                isinstance(lost, SteadError)
                and lost.code == "ask_closed"
                and isinstance(here, asks.Ask) != isinstance(phone, asks.Ask)
            )
            on = await one.resume(run.session)
            await on.ended()
            assert (folder / f"{n}.txt").exists() == isinstance(here, asks.Ask)
        assert one.run_json(run.id)["outcome"] == "done" and len(events(one, run.session, "ask.answered")) == 6
        check(one)


async def test_an_answer_in_the_moment_the_run_begins_to_wait_is_not_lost(tmp_path: Path) -> None:
    """The ask is seen and answered before its run waits: the run goes on with the answer, and does not wait for ever."""
    folder = project(tmp_path)
    turns = [{"tools": [use("write", path="new.txt", content="hi\n")]}, {"text": "end"}]
    async with again(tmp_path, None, models=script(turns)) as at:

        def heard(log: Any) -> None:
            for ask in [event.data.ask for event in log if event.kind == "ask.opened"]:
                # On the writer's thread: this job is before the next of the run's.
                at.store.submit(lambda tx, ask=ask: asks.answer(tx, ask, {"allow": True}, by="person:phone"))  # type: ignore[misc]

        at.store.listen(heard)
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        assert (await run.result())["outcome"] == "done" and (folder / "new.txt").read_text() == "hi\n"
        check(at)


async def test_a_refusal_with_its_reason_reaches_the_model(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, None, models=script(APPROVAL)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH, on_ask="wait")
        await run.ended()
        at.answer(open_asks(at)[0].id, {"allow": False, "reason": "not that file"})
        await (await at.resume(run.session, on_ask="wait")).ended()
        edit = next(part for part in tools(at, run) if part["tool"] == "edit")
        assert edit["status"] == "denied" and "not that file" in edit["error"]
        at.answer(open_asks(at)[0].id, {"allow": True})
        assert (await (await at.resume(run.session)).result())["outcome"] == "done"
        assert [one["path"] for one in at.run_json(run.id)["changes"]] == ["log", "new.txt"]


async def test_b093_a_grant_for_the_session_ends_with_its_process_and_never_widens(tmp_path: Path) -> None:
    """It holds over a change of the model in its process; no other process goes by it, not even for the run it was given in. What
    was agreed by a flag is the run's, and stays with it."""
    folder = project(tmp_path)
    turns = [
        {"tools": [use("bash", command="echo one"), use("write", path="a.txt", content="x")]},
        {"tools": [use("bash", command="echo two"), use("bash", command="rm a.txt")]},
        {"text": "end"},
    ]
    granted = parse("bash(echo *)", "allow", "session", "approval")
    flag = parse("write", "allow", "flag", "--allow")
    models = {name: script(turns)["fake"] for name in ("fake", "other")}

    def states(at: Stead, run: RunHandle) -> list[str]:
        return [part["status"] for part in tools(at, run)]

    async with again(tmp_path, None, models=models) as at:
        for model in ("fake/m", "other/m"):
            run = await at.prompt(None, "go", project=folder, model=model, rules=[granted, flag], on_ask="wait")
            await run.ended()
            assert states(at, run) == ["done", "done", "done", "pending"]  # never wider than what was granted
            at.answer(open_asks(at)[-1].id, {"allow": False})
            await (await at.resume(run.session)).ended()
        assert "bash(echo *)" not in str(events(at, kind="run.started")) and "--allow" in str(events(at, kind="run.started"))
        first = [{"tools": [use("write", path="b.txt", content="x"), use("list"), use("bash", command="rm b.txt")]}, *turns[1:]]
        at.models = {"fake": script(first)["fake"]}
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=[granted, flag], on_ask="wait")
        await run.ended()
        waiting = await at.prompt(run.session, "more", rules=[granted, flag], on_ask="wait")
    async with again(tmp_path, None, models={"fake": script(first)["fake"]}) as at:
        at.answer(open_asks(at)[0].id, {"allow": True})
        await (await at.resume(run.session)).ended()
        assert states(at, run) == ["done", "done", "done", "pending", "pending"]  # the echo is asked for again
        at.stop(run.session)
        await at.work(idle=lambda: True)
        assert states(at, waiting) == ["done", "done", "pending"] and queued(at) == []


async def test_a_rule_given_with_an_answer_holds_until_the_run_ends_or_waits_again(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [
        {"tools": [use("bash", command="echo one")]},
        {"tools": [use("bash", command="echo two"), use("write", path="a.txt", content="x")]},
        {"tools": [use("bash", command="echo three")]},
        {"text": "end"},
    ]
    async with again(tmp_path, None, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        await run.ended()
        for given, ran in (({"allow": True, "rules": ["bash(echo *)"]}, 2), ({"allow": True}, 3), ({"allow": True}, 4)):
            (ask,) = open_asks(at)
            at.answer(ask.id, given)
            await (await at.resume(run.session)).ended()
            assert sum(part["status"] == "done" for part in tools(at, run)) == ran
        assert at.run_json(run.id)["outcome"] == "done"
        more = await at.prompt(run.session, "more", on_ask="wait")
        await more.ended()
        assert len(open_asks(at)) == 1  # nothing of it holds for the next run


async def test_rules_that_are_added_when_it_goes_on_stay_with_the_run(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command=f"echo {n}"), use("write", path=f"{n}", content="")]} for n in range(3)]
    async with again(tmp_path, None, models=script([*turns, {"text": "end"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        await run.ended()
        at.answer(open_asks(at)[0].id, {"allow": True})
        await (await at.resume(run.session, rules=[*BASH, parse("write(1)", "deny", "flag")])).ended()
        at.answer(open_asks(at)[0].id, {"allow": True})  # the first file
        await (await at.resume(run.session)).ended()
        assert [part["status"] for part in tools(at, run)][:5] == ["done", "done", "done", "denied", "done"]
        check(at)


@pytest.mark.parametrize("how", ["stop", "abort", "delete"])
async def test_b091_an_abort_takes_its_prompts_off_all_screens_and_a_late_answer_is_refused(
    how: str, tmp_path: Path, url: str | None
) -> None:
    """Three sessions ask on two surfaces; each hears by an event that nobody asks any more, and a late click is told so plainly."""
    folder = project(tmp_path)
    turns = [{"tools": [use("write", path="x", content="")]}, {"text": "end"}]
    seen: list[str] = []
    gone: list[str] = []

    async def never(ask: asks.Ask) -> dict[str, Any]:
        seen.append(ask.id)
        try:
            await asyncio.sleep(60)
        finally:
            gone.append(ask.id)
        return {}

    async with again(tmp_path, url, models=script(turns)) as one, again(tmp_path, url) as two:
        handles = [await one.prompt(None, "go", project=folder, model="fake/m", on_ask=never) for _ in range(3)]
        await until(lambda: len(open_asks(two)) == len(seen) == 3)  # stored first, then on the screen
        shown = [ask.id for ask in open_asks(one)]
        assert shown == [ask.id for ask in open_asks(two)]
        for handle in handles:
            if how == "stop":
                two.stop(handle.session)
            elif how == "abort":
                handle.abort()
            else:
                await asyncio.to_thread(two.delete, handle.session)
        await asyncio.gather(*(handle.ended() for handle in handles))
        assert open_asks(one) == open_asks(two) == [] and sorted(gone) == sorted(shown)
        if how == "delete":
            assert {late(at, ask) for ask in shown for at in (one, two)} == {"not_found"}  # nothing of it is left to know
        else:
            assert sorted(event.data.ask for event in events(two, kind="ask.closed")) == sorted(shown)
            assert {late(at, ask) for ask in shown for at in (one, two)} == {"ask_closed"}
            assert events(one, kind="tool.started") == [] and not (folder / "x").exists()
        check(one)


async def test_b092_a_replay_from_zero_shows_what_was_answered_by_whom_and_when(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command="echo one")]}, {"text": "end"}]
    async with again(tmp_path, url, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        await run.ended()
        (ask,) = open_asks(at)
        at.answer(ask.id, {"allow": True, "rules": ["bash"]}, by="person:phone")
        await (await at.resume(run.session)).ended()
    async with again(tmp_path, url) as at:
        replay = [event_json(event, at.store.blobs) for event in events(at, run.session)]
        about = [event for event in replay if event["kind"].startswith("ask.")]
        assert [event["kind"] for event in about] == ["ask.opened", "ask.answered"]
        assert about[1]["data"] == {"ask": ask.id, "answer": {"allow": True, "rules": ["bash"]}, "by": "person:phone"}
        assert about[0]["time"] <= about[1]["time"] and about[1]["time"].endswith("Z")
        with at.store.view() as view:
            assert asks.open_asks(view) == []
            shown = ask_json(asks.get(view, ask.id), None)
        assert (shown["status"], shown["by"], shown["answer"]["allow"]) == ("answered", "person:phone", True)


async def test_nothing_to_go_on_with_is_said_plainly(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, None, models=script([{"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        await run.ended()
        assert await code(at.resume(run.session)) == await code(at.resume("nosession")) == "not_found"


async def test_what_waits_is_put_to_the_person_where_the_run_goes_on(tmp_path: Path) -> None:
    folder = project(tmp_path)
    seen: list[str] = []

    async def person(ask: asks.Ask) -> dict[str, Any]:
        seen.append(ask.id)
        return {"allow": True}

    async with again(tmp_path, None, models=script(APPROVAL)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH, on_ask="wait")
        await run.ended()
        (ask,) = open_asks(at)
        result = await (await at.resume(run.session, on_ask=person)).result()
        assert result["outcome"] == "done" and seen[0] == ask.id and len(seen) == 2
        assert len(events(at, run.session, "ask.opened")) == 2 and kinds(at, run).count("patch") == 2
        check(at)


@pytest.mark.slow
async def test_a_run_that_died_between_the_calls_of_a_step_tells_what_they_changed(tmp_path: Path) -> None:
    project(tmp_path)
    turns = [
        {"tools": [use("edit", path="calc.py", old="a + b", new="b + a"), use("bash", command="echo up > up; sleep 60")]},
        {"text": "end"},
    ]
    child = crew(tmp_path, DIES.format(turns=turns, policy="never"))
    _, run = await child.told()
    await until(lambda: (tmp_path / "project" / "up").exists(), 10)
    child.kill()
    async with house(tmp_path) as at:
        assert at.run_json(run)["outcome"] == "interrupted"
        assert kinds(at, run) == ["tool", "tool", "step", "patch", "notice"]
        check(at)
