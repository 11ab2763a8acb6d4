"""Faults of other systems, as scenarios: each with what is right."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from stead.agent.models.base import Item, Request
from stead.agent.models.script import ScriptModel
from stead.core.errors import SteadError
from stead.domain import runs
from tests.cli.door import EDIT, project, script, stead
from tests.support import scale
from tests.undo.room import bash, edit, git, ready, room, tree, write


async def test_b046_files_that_were_deleted_come_back_by_tool_or_shell_tracked_or_not(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    git(folder, "init")
    (folder / ".gitignore").write_text("ignored*\n")
    for name in ("tracked", "tracked2"):
        (folder / name).write_text(f"{name}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-m", "first")
    for name, mode in (("untracked", 0o640), ("ignored", 0o600), ("ignored bin", 0o755)):
        (folder / name).write_bytes(f"{name}\n".encode() + b"\0\xff")
        (folder / name).chmod(mode)
    async with room(tmp_path, None, folder) as here:
        await ready(here)
        before = tree(folder)
        await here.turn(bash("rm tracked untracked ignored 'ignored bin'; git rm -q tracked2"))
        assert sorted(os.listdir(folder)) == [".git", ".gitignore"]
        done = await here.undo()
        assert done.conflicts == done.not_covered == [] and tree(folder) == before


def test_b055_a_preview_first_no_by_default_and_a_way_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("STEAD_CONFIG", str(tmp_path / "config"))
    proj = project(tmp_path)
    model = script(proj, EDIT, {"text": "done"})
    assert stead("run", "-m", model, "--allow", "edit", "go", cwd=proj).code == 0
    after = tree(proj)
    nobody = stead("undo", cwd=proj)
    assert nobody.code == 2 and "confirm_required" in nobody.err
    assert "calc.py" in nobody.err and "+1 −1" in nobody.err and "2 messages" in nobody.err
    assert tree(proj) == after
    dry = stead("undo", "--dry-run", "--json", cwd=proj)
    assert dry.code == 0 and dry.json["dry_run"] is True and dry.json["restored"] == ["calc.py"] and tree(proj) == after
    done = stead("undo", "-y", "--json", cwd=proj)
    assert done.code == 0 and done.json["restored"] == ["calc.py"] and "a - b" in (proj / "calc.py").read_text()
    assert stead("undo", "-y", cwd=proj).code == 0  # nothing left: no fault
    assert stead("redo", "-y", cwd=proj).code == 0 and tree(proj) == after


async def test_b057_each_turn_is_a_point_to_go_back_to_also_after_restarts(tmp_path: Path, url: str | None) -> None:
    session, states, prompts = None, [], []
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "f").write_text("0\n")
    for n in range(3):
        async with room(tmp_path, url, folder, session) as here:
            states.append(tree(folder))
            prompts.append(await here.turn(edit("f", str(n), str(n + 1)), write(f"new {n}", "x\n"), text=f"turn {n}"))
            session = here.session
    async with room(tmp_path, url, folder, session) as here:
        with here.at.store.view() as view:
            assert [run.prompt for run in (runs.last(view, session or ""),) if run] == prompts[-1:]
        assert (await here.undo(to=prompts[1])).conflicts == []
        assert tree(folder) == states[1] and here.said() == [1, 2]
    async with room(tmp_path, url, folder, session) as here:
        assert (await here.redo()).conflicts == [] and len(here.said()) == 6


async def test_b058_a_session_whose_folder_is_gone_refuses_and_works_nowhere_else(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await here.turn(write("a", "a\n"))
        here.folder.rename(tmp_path / "moved")
        for attempt in (here.turn(write("b", "b\n")), here.undo()):
            with pytest.raises(SteadError) as failed:
                await attempt
            assert failed.value.code == "project_missing" and str(here.folder) in failed.value.message
        assert sorted(os.listdir(tmp_path / "moved")) == ["a"] and not here.folder.exists()
        shutil.move(tmp_path / "moved", here.folder)
        assert (await here.undo()).restored == ["a"]


async def test_b061_nothing_is_read_before_the_model_was_asked_and_little_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project"
    for n in range(scale(200_000) // 100):
        (folder / f"d{n}").mkdir(parents=True)
        for k in range(100):
            (folder / f"d{n}" / f"f{k}").touch()
    with (folder / "media").open("wb") as file:
        file.truncate(20 << 30)  # sparse
    asked: list[tuple[int, int, int]] = []
    stream = ScriptModel.stream

    def watched_stream(self: ScriptModel, request: Request) -> AsyncGenerator[Item, None]:
        (watched,) = here.at._trees.values()
        asked.append((watched.counts.directories_read, watched.counts.lstats, watched.counts.files_read))
        return stream(self, request)

    monkeypatch.setattr(ScriptModel, "stream", watched_stream)
    async with room(tmp_path, None, folder) as here:
        await here.turn(text="no tool")
        assert asked == [(0, 0, 0)]
        await here.turn(write("one", "1\n"))
        (watched,) = here.at._trees.values()
        assert watched.wait_ready(20) is None
        reads = watched.counts.directories_read
        assert (await here.undo()).restored == ["one"]
        assert watched.counts.directories_read == reads  # an undo walks nothing
        taken = sum(path.stat().st_size for path in (tmp_path / "data").rglob("*") if path.is_file())
        assert taken < 3 << 20  # and nothing is copied


async def test_b060_in_a_home_folder_with_a_stray_git_nothing_is_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    for n in range(50):
        (home / f"d{n}").mkdir(parents=True)
        (home / f"d{n}" / "f").write_text("mine\n")
    git(home, "init")
    monkeypatch.setenv("HOME", str(home))
    async with room(tmp_path, None, home) as here:
        before = tree(home)
        await here.turn(write("new", "x\n"), bash("echo y >> d1/f"))
        (watched,) = here.at._trees.values()
        assert watched.coverage().kind == "limited" and watched.counts.directories_read <= 1
        assert (await here.undo()).restored == ["new"]
        after = tree(home)
        assert {name for name in after if after[name] != before.get(name)} == {"d1/f"}  # said beforehand: not covered
