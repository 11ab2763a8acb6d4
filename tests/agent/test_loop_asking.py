"""Who is asked, what is decided, and how a run that waits for a person ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.app import Stead
from stead.domain import asks
from tests.agent.house import events, house, kinds, project, script, status, tools, use

WRITE = [{"tools": [use("write", path="new.txt", content="hello\n")]}, {"text": "ok"}]


def decided(at: Stead, session: str) -> list[tuple[str, str, str | None]]:
    return [(event.data.action, event.data.by, event.data.rule) for event in events(at, session, "permission.decided")]


async def test_nobody_to_ask_means_denied_with_the_flag_that_would_allow_it(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(WRITE)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        result = await run.result()
        assert result["outcome"] == "denied" and result["result"] == "ok" and result["changes"] == []
        assert run.flags == result["refused"] == ["--allow write"] and not (folder / "new.txt").exists()
        assert tools(at, run)[0]["status"] == "denied" and "nobody could be asked" in tools(at, run)[0]["error"]
        assert decided(at, run.session) == [("deny", "nobody", None)] and status(at, run.session) == "idle"
        assert events(at, run.session, "tool.started") == []


async def test_the_policy_allow_lets_calls_through_but_not_past_a_deny_rule(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("write", path="new.txt", content="x"), use("bash", command="rm calc.py")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        rules = [parse("bash(rm *)", "deny", "flag")]
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="allow", rules=rules)
        result = await run.result()
        assert [tool["status"] for tool in tools(at, run)] == ["done", "denied"]
        assert decided(at, run.session) == [("allow", "flag", None), ("deny", "rule", "bash(rm *)")]
        # Refused by a rule is an ordinary result: the outcome is that of the run.
        assert result["outcome"] == "done" and run.flags == [] and (folder / "calc.py").exists()


async def test_a_person_decides_with_reason_and_rules(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [
        {"tools": [use("bash", command="echo one")]},
        {"tools": [use("bash", command="echo two")]},
        {"tools": [use("write", path="x", content="")]},
        {"text": "ok"},
    ]
    shown: list[asks.Ask] = []

    async def person(ask: asks.Ask) -> dict[str, Any]:
        shown.append(ask)
        if ask.about["tool"] == "bash":
            return {"allow": True, "rules": ["bash(echo *)", "this is no rule"]}
        return {"allow": False, "reason": "not there"}

    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=person)
        result = await run.result()
        assert [ask.about["tool"] for ask in shown] == ["bash", "write"]  # the second echo was covered by the rule
        assert shown[0].kind == "approval" and "bash(echo one)" in shown[0].about["rules"]
        assert [tool["status"] for tool in tools(at, run)] == ["done", "done", "denied"]
        assert "not there" in tools(at, run)[2]["error"] and "Nothing was executed" in tools(at, run)[2]["error"]
        assert decided(at, run.session) == [
            ("allow", "person:local", None),
            ("allow", "rule", "bash(echo *)"),
            ("deny", "person:local", None),
        ]
        assert result["outcome"] == "done" and result["asks"] == []
        with at.store.view() as view:
            assert [asks.get(view, ask.id).status for ask in shown] == ["answered", "answered"]


async def test_the_first_answer_counts_from_whatever_surface_it_came(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(WRITE)) as at:

        async def slow(ask: asks.Ask) -> dict[str, Any]:
            await at.store.commit(lambda tx: asks.answer(tx, ask.id, {"allow": True}, by="person:phone"))
            return {"allow": False}

        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=slow)
        assert (await run.result())["outcome"] == "done"
        assert (folder / "new.txt").read_text() == "hello\n" and len(events(at, run.session, "ask.answered")) == 1


async def test_an_asker_that_gives_up_closes_its_ask(tmp_path: Path) -> None:
    folder = project(tmp_path)

    async def nobody(_: Any) -> None:
        return None

    async with house(tmp_path, models=script(WRITE)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=nobody)
        assert (await run.result())["outcome"] == "denied"
        assert len(events(at, run.session, "ask.closed")) == 1


async def test_the_ask_tool_is_answered_in_words(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("ask", question="Which colour?", options=["red", "blue"])]}, {"text": "ok"}]

    async def person(ask: asks.Ask) -> dict[str, Any]:
        assert ask.kind == "question" and ask.about == {"question": "Which colour?", "options": ["red", "blue"]}
        return {"text": "blue"}

    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=person)
        assert (await run.result())["outcome"] == "done" and tools(at, run)[0]["output"] == "blue"
        again = await at.prompt(run.session, "again", on_ask="allow")  # a question is no approval
        assert (await again.result())["outcome"] == "denied"
        assert "Nobody could be asked" in tools(at, again)[0]["error"]


@pytest.mark.parametrize("turns", [WRITE, [{"tools": [use("ask", question="?")]}, {"text": "ok"}]])
async def test_wait_leaves_the_run_open_and_the_process_free(turns: Any, tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        result = await run.result()
        assert result["outcome"] == "waiting" and len(result["asks"]) == 1 and status(at, run.session) == "waiting"
        assert at.running() == [] and kinds(at, run) == ["tool", "step"]
        more = await at.prompt(run.session, "more")
        assert more.run is None
        more.abort()
        assert (await more.result())["queued"]["state"] == "held"
    async with house(tmp_path, models=script(turns)) as at:  # a restart leaves it waiting
        assert status(at, run.session) == "waiting" and at.run_json(run.id)["asks"] == result["asks"]
        assert at.stop(run.session) is True
        assert at.run_json(run.id)["outcome"] == "aborted" and at.run_json(run.id)["asks"] == []
        assert status(at, run.session) == "aborted" and tools(at, run.id)[0]["status"] == "error"
        assert at.stop(run.session) is False
        assert (await (await at.prompt(run.session, "go on")).result())["outcome"] == "denied"


async def test_a_link_that_is_swapped_while_a_person_thinks_does_not_lead_elsewhere(tmp_path: Path) -> None:
    folder = project(tmp_path)
    secret = tmp_path / "secret.txt"
    secret.write_text("mine")
    (folder / "link").symlink_to(folder / "calc.py")

    async def swap(_: Any) -> dict[str, Any]:
        (folder / "link").unlink()
        (folder / "link").symlink_to(secret)
        return {"allow": True}

    turns = [{"tools": [use("write", path="link", content="gone")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=swap)
        await run.ended()
        assert tools(at, run)[0]["status"] == "error" and "leads to" in tools(at, run)[0]["error"]
    assert secret.read_text() == "mine"


async def test_two_calls_are_asked_one_after_the_other(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("write", path=f"{n}.txt", content="x") for n in range(3)]}, {"text": "ok"}]
    open_now = 0

    async def person(_: Any) -> dict[str, Any]:
        nonlocal open_now
        open_now += 1
        assert open_now == 1
        await asyncio.sleep(0.01)
        open_now -= 1
        return {"allow": True}

    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=person)
        result = await run.result()
        assert [change["path"] for change in result["changes"]] == ["0.txt", "1.txt", "2.txt"]
