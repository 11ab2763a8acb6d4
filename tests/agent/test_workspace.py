"""What a tool changes is known before it happens, finished once begun, and settled by the disk after a crash."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from stead.agent import changing, workspace
from stead.agent.gate import parse
from stead.app import Stead
from stead.core.errors import SteadError
from stead.domain import changes
from stead.store import safefile
from tests.agent.house import Child, events, house, parts, project, script, tools, use

EDIT = [parse("edit", "allow", "flag")]
OLD, NEW = "old line\n" * 4000, "the new content\n" * 4000


def state_of(at: Stead, path: str) -> str:
    with at.store.view() as view:
        rows = view.q("SELECT state FROM changes WHERE path=? ORDER BY seq", path)
    return str(rows[-1][0]) if rows else "none"


async def killed_at(tmp_path: Path, point: str, *calls: dict[str, Any]) -> str:
    """Run these calls in a process that is killed at the fault point; gives the run."""
    program = f"""
at.models = script([{{"tools": {list(calls)!r}}}, {{"text": "ok"}}])
from stead.agent.gate import parse
from stead.store import faults
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=[parse("edit", "allow", "flag")])
tell(run.id)
faults.arm({point!r}, lambda name: (threading.current_thread().name == "stead-writer") or faults.kill(name))
await run.ended()
tell("not killed")
"""
    child = Child(tmp_path, "import threading\n" + program)
    try:
        run = str(await child.told())
        assert await asyncio.to_thread(child.process.wait) == -9
    finally:
        child.close()
    return run


async def test_a_change_is_in_the_log_before_the_file_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project(tmp_path)
    seen: list[str] = []
    replace = safefile.replace

    async with house(tmp_path, models=script([{"tools": [use("write", path="calc.py", content=NEW)]}, {"text": "ok"}])) as at:

        def looked(path: Path, data: bytes, **more: Any) -> None:
            (captured,) = [event.data for event in events(at) if event.kind == "change.captured"]
            seen.append(captured.path)
            assert at.store.blobs.get(captured.before["blob"]) == path.read_bytes()
            assert at.store.blobs.get(captured.after["blob"]) == data
            replace(path, data, **more)

        monkeypatch.setattr(safefile, "replace", looked)
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
        assert (await run.result())["outcome"] == "done" and seen == ["calc.py"]


async def test_an_abort_in_the_middle_of_a_write_waits_for_it_and_knows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project(tmp_path)
    begun, go_on = threading.Event(), threading.Event()
    apply = changing._apply

    def slow(*args: Any) -> int | None:
        begun.set()
        go_on.wait(3)
        return apply(*args)

    monkeypatch.setattr(changing, "_apply", slow)
    two = [use("write", path="calc.py", content="x\n"), use("write", path="never.txt", content="x")]
    async with house(tmp_path, models=script([{"tools": two}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
        await asyncio.to_thread(begun.wait, 3)
        run.abort()
        await asyncio.sleep(0.02)
        run.abort()
        await asyncio.sleep(0.02)
        assert at.running() == [run]
        go_on.set()
        result = await run.result()
        assert result["outcome"] == "aborted" and (folder / "calc.py").read_text() == "x\n"
        assert result["changes"] == [{"path": "calc.py", "status": "modified", "additions": 1, "deletions": 2}]
        assert state_of(at, "calc.py") == "applied" and not (folder / "never.txt").exists()
        assert [part["files"][0]["path"] for part in parts(at, run) if part["type"] == "patch"] == ["calc.py"]


@pytest.mark.parametrize("point", ["safefile.created", "safefile.written", "safefile.renamed"])
async def test_after_a_kill_in_a_write_the_log_says_what_the_disk_says(point: str, tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "file.txt").write_text(OLD)
    run = await killed_at(tmp_path, point, use("write", path="file.txt", content=NEW))
    for _ in range(2):
        async with house(tmp_path) as at:
            written = (folder / "file.txt").read_text() == NEW
            assert written or (folder / "file.txt").read_text() == OLD
            assert state_of(at, "file.txt") == ("applied" if written else "failed")
            assert [change["path"] for change in at.run_json(run)["changes"]] == ["file.txt"] * written
            assert len(events(at, kind="change.applied")) + len(events(at, kind="change.failed")) == 1


async def test_b072_a_hard_linked_file_that_a_kill_tore_is_completed_at_the_next_start(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "file.txt").write_text(OLD)
    os.link(folder / "file.txt", folder / "twin.txt")
    run = await killed_at(tmp_path, "safefile.inplace.half", use("write", path="file.txt", content=NEW))
    assert (folder / "file.txt").read_text() not in (OLD, NEW)
    async with house(tmp_path) as at:
        assert (folder / "file.txt").read_text() == (folder / "twin.txt").read_text() == NEW
        assert (folder / "file.txt").samefile(folder / "twin.txt") and state_of(at, "file.txt") == "applied"
        assert at.run_json(run)["changes"][0]["status"] == "modified"


async def test_a_file_that_somebody_changed_after_the_crash_is_left_alone(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "file.txt").write_text(OLD)
    os.link(folder / "file.txt", folder / "twin.txt")
    await killed_at(tmp_path, "safefile.inplace.half", use("write", path="file.txt", content=NEW))
    (folder / "file.txt").write_text("mine, written after the crash\n")
    async with house(tmp_path) as at:
        assert (folder / "file.txt").read_text() == "mine, written after the crash\n"
        assert state_of(at, "file.txt") == "failed"


async def test_a_path_that_cannot_be_looked_at_does_not_keep_the_house_closed(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "file.txt").write_text(OLD)
    await killed_at(tmp_path, "safefile.created", use("write", path="file.txt", content=NEW))
    (folder / "file.txt").unlink()
    (folder / "file.txt").mkdir()
    async with house(tmp_path) as at:
        assert state_of(at, "file.txt") == "failed"
    away = tmp_path / "away"
    (tmp_path / "project").rename(away)
    async with house(tmp_path, models=script([{"text": "x"}])) as at:
        with pytest.raises(SteadError) as missing:
            await at.prompt(None, "go", project=folder, model="fake/m")
        assert missing.value.code == "project_missing"


async def test_a_file_that_cannot_be_read_at_the_start_is_settled_at_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project(tmp_path)
    (folder / "file.txt").write_text(OLD)
    run = await killed_at(tmp_path, "safefile.renamed", use("write", path="file.txt", content=NEW))

    def away(path: Path) -> Any:
        raise SteadError("read_only", f"{path} cannot be accessed: the network is down.")

    with monkeypatch.context() as patch:
        patch.setattr(safefile, "state", away)
        async with house(tmp_path) as at:
            assert at.run_json(run)["outcome"] == "interrupted" and state_of(at, "file.txt") == "captured"
    async with house(tmp_path) as at:
        assert state_of(at, "file.txt") == "applied" and len(events(at, kind="run.ended")) == 1
    assert not [path for path in (tmp_path / "data" / "locks").iterdir() if path.name != "maintenance"]


async def test_the_change_of_a_living_process_is_not_settled_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project(tmp_path)
    (folder / "other.txt").write_text(OLD)
    await killed_at(tmp_path, "safefile.created", use("write", path="other.txt", content=NEW))
    dead = tmp_path / "data" / "locks"
    left = [path for path in dead.iterdir() if path.name != "maintenance"]
    begun, go_on = threading.Event(), threading.Event()
    apply = changing._apply

    def slow(*args: Any) -> int | None:
        begun.set()
        go_on.wait(3)
        return apply(*args)

    monkeypatch.setattr(changing, "_apply", slow)
    async with house(tmp_path, models=script([{"tools": [use("write", path="calc.py", content="x\n")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
        await asyncio.to_thread(begun.wait, 3)
        left[0].touch()  # one more dead process to recover from
        async with house(tmp_path) as other:
            assert state_of(other, "calc.py") == "captured"
        go_on.set()
        assert (await run.result())["changes"][0]["path"] == "calc.py"
        assert len(events(at, run.session, "change.failed")) == 0


async def test_a_write_that_fails_is_noted_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project(tmp_path)

    def full(*_: Any) -> None:
        raise SteadError("disk_full", "There is no space to write calc.py.")

    monkeypatch.setattr(changing, "_apply", full)
    async with house(tmp_path, models=script([{"tools": [use("write", path="calc.py", content="x")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
        result = await run.result()
        assert result["changes"] == [] and state_of(at, "calc.py") == "failed"
        assert tools(at, run)[0]["status"] == "error" and "no space" in tools(at, run)[0]["error"]
        assert (folder / "calc.py").read_text().startswith("def add")


async def test_b064_a_file_too_large_to_be_kept_is_changed_and_named_as_not_covered(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "huge").touch()
    os.truncate(folder / "huge", workspace.MOST_BYTES + 1)  # sparse: takes no room
    async with house(tmp_path, models=script([{"tools": [use("write", path="huge", content="x")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
        assert [change["path"] for change in (await run.result())["changes"]] == ["huge"]
        with at.store.view() as view:
            assert [one.to_json() for one in changes.uncovered(view, run.session)] == [{"path": "huge", "why": "too_large"}]
        plan = await at.plan_undo(run.session)
        assert [one.to_json() for one in plan.not_covered] == [{"path": "huge", "why": "too_large"}]
        assert (await at.undo(plan)).restored == []
    assert (folder / "huge").read_text() == "x"


async def test_what_is_noted_of_a_new_file_is_what_stands_on_the_disk(tmp_path: Path) -> None:
    folder = project(tmp_path)
    umask = os.umask(0o077)
    try:
        calls = [use("write", path="a/b/new.txt", content="x"), use("edit", path="calc.py", old="add", new="sum")]
        async with house(tmp_path, models=script([{"tools": calls}, {"text": "ok"}])) as at:
            run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
            await run.ended()
            with at.store.view() as view:
                new, edited = changes.listed(view, run.session)
            assert new.after_mode == (folder / "a/b/new.txt").stat().st_mode & 0o7777 == 0o600
            assert edited.after_mode == edited.before_mode == (folder / "calc.py").stat().st_mode & 0o7777
            (captured, _) = events(at, run.session, "change.captured")
            assert list(captured.data.folders) == ["a", "a/b"]
    finally:
        os.umask(umask)


async def test_one_patch_part_a_step_sums_its_changes_and_the_run_shows_the_net(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [
        {"tools": [use("write", path="x.txt", content="1\n"), use("write", path="x.txt", content="1\n2\n"), use("list")]},
        {"tools": [use("list")]},
        {
            "tools": [
                use("edit", path="x.txt", old="1\n", new=""),
                use("write", path="calc.py", content="def add(a, b):\n    return a + b\n"),
            ]
        },
        {"text": "ok"},
    ]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
        result = await run.result()
        patches = [part["files"] for part in parts(at, run) if part["type"] == "patch"]
        assert patches == [
            [{"path": "x.txt", "additions": 2, "deletions": 0}],
            [{"path": "x.txt", "additions": 0, "deletions": 1}],
        ]
        assert result["changes"] == [{"path": "x.txt", "status": "added", "additions": 1, "deletions": 0}]


@pytest.mark.parametrize(
    ("now", "torn"),
    [
        (b"NEW tail", True),
        (b"NEW \0\0\0\0", True),
        (b"old tail", False),
        (b"NEW DATA", False),
        (b"NEW user", False),
        (b"short", False),
    ],
)
def test_a_torn_file_is_told_from_one_that_somebody_wrote(now: bytes, torn: bool) -> None:
    assert changing.torn(now, b"old tail", b"NEW DATA") is torn


async def test_see_through_ends_what_it_began_and_then_lets_the_cancellation_out() -> None:
    done: list[int] = []

    async def work() -> int:
        for n in range(5):
            await asyncio.sleep(0)
            done.append(n)
        return 7

    assert await changing.see_through(work()) == 7
    done.clear()
    task = asyncio.create_task(changing.see_through(work()))
    for _ in range(3):
        await asyncio.sleep(0)
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert done == [0, 1, 2, 3, 4]

    async def failing() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        await changing.see_through(failing())
