"""What holds for a run: its mode, its agent, what its configuration says and this version cannot keep."""

from __future__ import annotations

from pathlib import Path

import pytest

from stead.agent.gate import parse
from stead.core.errors import SteadError
from stead.domain import settings
from tests.agent.house import events, house, project, script, tools, use

WORK = [{"tools": [use("read", path="calc.py"), use("edit", path="calc.py", old="a + b", new="b + a")]}, {"text": "ok"}]


async def test_planning_changes_nothing_whatever_else_is_allowed(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(WORK)) as at:
        await at.store.commit(lambda tx: settings.change(tx, values={"mode": "plan"}))
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=[parse("*", "allow", "flag")], on_ask="allow")
        result = await run.result()
        assert result["outcome"] == "done" and result["changes"] == []
        assert [part["status"] for part in tools(at, run)] == ["done", "denied"]


async def test_the_mode_full_asks_nobody_and_is_written_down(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(WORK)) as at:
        await at.store.commit(lambda tx: settings.change(tx, values={"mode": "full"}))
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        result = await run.result()
        assert result["outcome"] == "done" and [one["path"] for one in result["changes"]] == ["calc.py"]
        assert [event.data.by for event in events(at, run.session, "permission.decided")] == ["rule", "mode full"]


async def test_a_deny_rule_holds_in_every_mode(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script(WORK)) as at:
        await at.store.commit(lambda tx: settings.change(tx, values={"mode": "full"}))
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=[parse("edit", "deny", "flag")])
        assert (await run.result())["changes"] == []


async def test_an_agent_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async with house(tmp_path, models=script(WORK)) as at:
        with pytest.raises(SteadError) as caught:
            await at.prompt(None, "go", project=project(tmp_path), model="fake/m", agent="zork")
        assert caught.value.code == "not_found" and "build" in (caught.value.hint or "")
        with at.store.view() as view:
            assert view.one("SELECT count(*) FROM sessions") == (0,)


@pytest.mark.parametrize("text", ['[permissions]\ndeny = ["bash"]\n', "[hooks]\nx = 1\n", 'sandbox = "on"\n'])
async def test_protection_that_cannot_be_kept_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text(text)
    async with house(tmp_path, models=script(WORK)) as at:
        with pytest.raises(SteadError) as caught:
            await at.prompt(None, "go", project=project(tmp_path), model="fake/m")
        assert caught.value.code == "usage"


async def test_a_text_is_no_rule(tmp_path: Path) -> None:
    async with house(tmp_path, models=script(WORK)) as at:
        with pytest.raises(SteadError) as caught:
            await at.prompt(None, "go", project=project(tmp_path), model="fake/m", rules=["edit"])  # type: ignore[list-item]
        assert caught.value.code == "usage"


async def test_b103_a_denied_path_is_not_seen_by_tools_that_walk(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "secret").mkdir()
    (folder / "secret" / "key.txt").write_text("add TOPSECRET\n")
    turns = [{"tools": [use("grep", pattern="add"), use("glob", pattern="**/*"), use("list")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=[parse("read(secret/**)", "deny", "flag")])
        await run.result()
        grep, glob, listed = (part["output"] for part in tools(at, run))
        assert "calc.py:1:" in grep and "TOPSECRET" not in grep and "secret" not in glob and "calc.py" in listed
