"""Transactional commands: what a command changes on its overlay becomes the project's as a whole, or not at all."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.agent.overlay import layer as layers
from stead.agent.overlay import support as supports
from stead.agent.overlay.support import support
from stead.agent.tree import Coverage, Tree
from stead.app import RunHandle
from stead.app.shown import changed_files, not_covered
from stead.domain import asks, runs, settings
from tests.agent.house import Child, events, house, script, tools, until
from tests.support import ROOT, scale
from tests.undo.room import RULES, Room, bash, git, tree, write

HOME = Path("/nonexistent")
Person = Callable[[asks.Ask], Any]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def url(request: pytest.FixtureRequest) -> str | None:
    return None if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def able(tmp_path: Path) -> None:
    """Skips where this system cannot do it, and says why."""
    (tmp_path / "try").mkdir()
    (tmp_path / "kept").mkdir(mode=0o700)
    found = support(tmp_path / "try", tmp_path / "kept", HOME)
    if found.way is None:
        pytest.skip(found.why)
    shutil.rmtree(tmp_path / "try")
    shutil.rmtree(tmp_path / "kept")


@asynccontextmanager
async def apart(tmp_path: Path, how: str = "apply", url: str | None = None) -> AsyncIterator[Room]:
    """A house in which commands run on overlays."""
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    async with house(tmp_path, database_url=url) as at:
        at.store.write(lambda tx: settings.change(tx, values={"undo.transaction": how}))
        yield Room(at, folder)


async def ask(here: Room, command: str, person: Person | str) -> RunHandle:
    """A turn with one command, whose effect this person is asked about."""
    here.at.models = script([{"tools": [bash(command)]}, {"text": "done"}])
    rules = [parse(rule, "allow", "flag") for rule in RULES]
    more = {"rules": rules, "on_ask": person}
    run = await here.at.prompt(here.session, "go", project=here.folder, model="fake/m", **more)
    here.session = run.session
    return run


def result(here: Room) -> dict[str, Any]:
    """The newest tool call of the session."""
    assert here.session is not None
    with here.at.store.view() as view:
        run = runs.last(view, here.session)
    assert run is not None
    return tools(here.at, run.id)[-1]


def waits(tmp_path: Path) -> str:
    """The end of a command that says that it has done what it does, and goes on when `go` is there."""
    return f"touch {tmp_path}/written; until [ -e {tmp_path}/go ]; do sleep 0.01; done"


def left(tmp_path: Path) -> list[str]:
    """The layers that lie in the data folder."""
    folder = tmp_path / "data" / layers.FOLDER
    return [one.name for one in folder.iterdir() if one.is_dir()] if folder.exists() else []


def files(here: Room) -> dict[str, str]:
    assert here.session is not None
    return {one["path"]: one["status"] for one in changed_files(here.at.store, here.session)}


EVERYTHING = r"""
echo changed >> calc.py
printf '\0\1\2' > binary
rm gone.txt
mv 'old name.txt' 'new name.txt'
rm -r folder && mkdir folder && echo new > folder/new
mkdir -p deep/er && echo x > deep/er/file && mkdir empty && chmod 700 empty
chmod 755 script.sh
ln -s calc.py link
ln -sfn script.sh moved-link
rm -r was-folder && echo file > was-folder
rm was-file && mkdir was-file && echo inside > was-file/inside
rm was-link && echo file > was-link
echo odd > $'a\nb [x] \xff'
mkdir shut && echo s > shut/s && chmod 000 shut/s && chmod 500 shut
"""


def fill(folder: Path) -> None:
    for name in ("calc.py", "gone.txt", "old name.txt", "script.sh", "was-file"):
        (folder / name).write_text(f"{name} of mine\n" * 4)
    for name in ("folder", "was-folder"):
        (folder / name).mkdir()
        (folder / name / "one").write_text("1\n")
        (folder / name / "two").write_text("2\n")
    os.symlink("gone.txt", folder / "moved-link")
    os.symlink("calc.py", folder / "was-link")


@pytest.mark.usefixtures("able")
async def test_every_kind_of_change_is_applied_as_the_command_made_it_and_comes_back_exactly(
    tmp_path: Path, url: str | None
) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    fill(plain)
    subprocess.run(["/bin/bash", "-c", EVERYTHING], cwd=plain, check=True)
    async with apart(tmp_path, url=url) as here:
        fill(here.folder)
        before = tree(here.folder)
        await here.turn(bash(EVERYTHING))
        assert result(here)["output"] == "[exit code 0]" and result(here)["status"] == "done"
        assert tree(here.folder) == tree(plain)
        assert files(here)["new name.txt"] == "renamed" and files(here)["gone.txt"] == "deleted"
        assert here.session is not None
        with here.at.store.view() as view:
            assert not_covered(view, here.session) == []
        after = tree(here.folder)
        for _ in range(2):
            assert (await here.undo()).conflicts == [] and tree(here.folder) == before
            assert (await here.redo()).conflicts == [] and tree(here.folder) == after
    assert left(tmp_path) == []


@pytest.mark.usefixtures("able")
async def test_the_project_is_as_it_was_while_the_command_runs_and_the_command_sees_its_own_path(tmp_path: Path) -> None:
    async with apart(tmp_path) as here:
        (here.folder / "a").write_text("old\n")
        command = f"echo new > a; cat a; pwd; id -u; cat {here.folder}/a; {waits(tmp_path)}"
        turn = asyncio.ensure_future(here.turn(bash(command)))
        await until(lambda: (tmp_path / "written").exists())
        assert (here.folder / "a").read_text() == "old\n" and len(left(tmp_path)) == 1
        assert (tmp_path / "data" / layers.FOLDER / left(tmp_path)[0]).stat().st_mode & 0o777 == 0o700
        (tmp_path / "go").touch()
        await turn
        assert (here.folder / "a").read_text() == "new\n" and left(tmp_path) == []
        assert result(here)["output"].split() == ["new", str(here.folder), str(os.geteuid()), "new", "[exit", "code", "0]"]


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("watched", [True, False])
async def test_what_somebody_changed_meanwhile_is_left_alone_and_the_commands_version_is_kept(
    tmp_path: Path, watched: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with apart(tmp_path) as here:
        await here.turn(bash("true"))
        (known,) = here.at._trees.values()
        assert known.wait_ready(20) is None
        if not watched:  # then it is the files' own times that tell
            monkeypatch.setattr(Tree, "coverage", lambda self: Coverage("limited", "a test", False))
        for name in ("both", "deleted", "removed", "mine", "theirs"):
            (here.folder / name).write_text(f"{name}\n")
        (here.folder / "folder").mkdir()
        (here.folder / "folder" / "old").write_text("old\n")
        command = (
            "echo command >> both; echo command >> deleted; rm removed; echo command >> theirs; echo command > made; rm -r folder;"
            f" {waits(tmp_path)}"
        )
        turn = asyncio.ensure_future(here.turn(bash(command)))
        await until(lambda: (tmp_path / "written").exists())
        (here.folder / "both").write_text("a person's\n")
        (here.folder / "deleted").unlink()
        (here.folder / "removed").write_text("a person wants this\n")
        (here.folder / "mine").write_text("a person's alone\n")
        (here.folder / "made").write_text("a person made this\n")
        (here.folder / "folder" / "new").write_text("a person's new one\n")
        (tmp_path / "go").touch()
        await turn
        names = ("both", "removed", "mine", "made", "theirs", "folder/new")
        after = {name: (here.folder / name).read_text() for name in names}
        assert after == {
            "both": "a person's\n",
            "removed": "a person wants this\n",
            "mine": "a person's alone\n",
            "made": "a person made this\n",
            "theirs": "theirs\ncommand\n",
            "folder/new": "a person's new one\n",
        }
        assert not (here.folder / "deleted").exists() and not (here.folder / "folder" / "old").exists()
        said = result(here)["output"]
        assert "[Not applied: " in said
        for name in ("both", "deleted", "removed", "made", "folder"):
            assert f"{name} (" in said
        assert here.session is not None
        failed = {e.data.captured for e in events(here.at, here.session, "change.failed")}
        kept = {e.data.path: e.data.after for e in events(here.at, here.session, "change.captured") if e.seq in failed}
        assert here.at.store.blobs.get(kept["both"]["blob"]) == b"both\ncommand\n"
        assert kept["both"]["blob"][:12] in said
        # What is taken back is what was applied, and nothing of the person's.
        assert (await here.undo()).conflicts == []
        assert (here.folder / "theirs").read_text() == "theirs\n" and (here.folder / "both").read_text() == "a person's\n"
        assert (here.folder / "folder" / "old").read_text() == "old\n"


@pytest.mark.usefixtures("able")
async def test_a_person_sees_the_diff_and_consents_or_not(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    answers = [{"allow": True}, {"allow": False, "reason": "too much"}]
    async with apart(tmp_path, "ask") as here:
        (here.folder / "a").write_text("old\n")
        (here.folder / "b").write_text("to be moved\n")

        async def person(found: asks.Ask) -> dict[str, Any]:
            shown.append(here.at.store.blobs.resolve(found.about))
            assert (here.folder / "a").read_text() == "old\n"  # asked before anything is done
            return answers[len(shown) - 1]

        assert (await (await ask(here, "echo new > a; mv b c", person)).result())["outcome"] == "done"
        assert (here.folder / "a").read_text() == "new\n" and not (here.folder / "b").exists()
        assert [(one["path"], one["status"]) for one in shown[0]["effect"]] == [("a", "modified"), ("c", "renamed")]
        assert shown[0]["effect"][0]["additions"] == 1 and shown[0]["effect"][1]["from"] == "b"
        patch = json.loads(shown[0]["arguments"])["changes"]
        assert "-old\n+new\n" in patch and "rename from b\nrename to c" in patch
        (here.folder / "a").write_text("old\n")
        before = tree(here.folder)
        await (await ask(here, "echo other > a; rm c; echo said", person)).result()
        assert tree(here.folder) == before and left(tmp_path) == []
        assert result(here)["status"] == "error" and result(here)["output"].startswith("said\n")
        assert "did not agree" in result(here)["error"] and "too much" in result(here)["error"]
        # Nothing was changed: nobody is asked.
        assert (await (await ask(here, "cat a", person)).result())["outcome"] == "done" and len(shown) == 2


@pytest.mark.usefixtures("able")
async def test_without_anybody_to_ask_nothing_is_applied_and_the_policy_allow_agrees(tmp_path: Path) -> None:
    async with apart(tmp_path, "ask") as here:
        run = await ask(here, "echo new > a", "deny")
        assert (await run.result())["outcome"] == "denied"
        assert not (here.folder / "a").exists() and "nobody could be asked" in result(here)["error"]
        await (await ask(here, "echo new > a", "allow")).result()
        assert (here.folder / "a").read_text() == "new\n"
        here.at.store.write(lambda tx: settings.change(tx, values={"mode": "full"}))  # nothing is asked then
        assert (await (await ask(here, "echo full > a", "deny")).result())["outcome"] == "done"
        assert (here.folder / "a").read_text() == "full\n"


@pytest.mark.usefixtures("able")
async def test_every_way_that_the_system_offers_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ways = list(supports._ways())
    for n, way in enumerate(ways):
        where = tmp_path / str(n)
        where.mkdir()
        monkeypatch.setattr(supports, "_tried", {})
        monkeypatch.setattr(supports, "_ways", lambda way=way: iter([way]))
        async with apart(where) as here:
            (here.folder / "gone").write_text("old\n")
            await here.turn(bash("rm gone; echo new > made; id -u; exit 3"))
            said = result(here)["output"]
            if "ran directly" in said:
                print(f"not offered: {way.words}: {said}")
                continue
            assert said == f"{os.geteuid()}\n[exit code 3]"
            assert sorted(tree(here.folder)) == ["made"]
            await here.undo()
            assert sorted(tree(here.folder)) == ["gone"]


@pytest.mark.usefixtures("able")
async def test_an_answer_from_elsewhere_counts_and_a_file_changed_while_the_person_thinks_is_a_conflict(tmp_path: Path) -> None:
    async with apart(tmp_path, "ask") as here:
        (here.folder / "a").write_text("old\n")
        run = await ask(here, "echo new > a; echo new > b", "wait")

        def opened() -> asks.Ask | None:
            with here.at.store.view() as view:
                found = [event.data.ask for event in events(here.at, run.session, "ask.opened")]
                return asks.get(view, found[0]) if found else None

        await until(opened)
        found = opened()
        assert found is not None
        (here.folder / "a").write_text("a person's\n")
        await here.at.store.commit(lambda tx: asks.answer(tx, found.id, {"allow": True}, by="person:local"))
        assert (await run.result())["outcome"] == "done"
        assert (here.folder / "a").read_text() == "a person's\n" and (here.folder / "b").read_text() == "new\n"
        assert "Not applied: a (" in result(here)["output"]


@pytest.mark.usefixtures("able")
async def test_an_abort_leaves_the_project_as_it_was(tmp_path: Path) -> None:
    async with apart(tmp_path) as here:
        (here.folder / "a").write_text("old\n")
        run = await ask(here, f"echo new > a; touch {tmp_path}/written; sleep 30", "allow")
        await until(lambda: (tmp_path / "written").exists())
        run.abort()
        assert (await run.result())["outcome"] == "aborted"
        assert (here.folder / "a").read_text() == "old\n" and left(tmp_path) == []
        assert "Nothing that it changed in the project folder was applied" in result(here)["error"]


@pytest.mark.usefixtures("able")
async def test_an_abort_while_a_person_thinks_leaves_the_project_as_it_was(tmp_path: Path) -> None:
    async with apart(tmp_path, "ask") as here:
        run = await ask(here, "echo new > a; echo said", "wait")
        await until(lambda: events(here.at, run.session, "ask.opened"))
        run.abort()
        assert (await run.result())["outcome"] == "aborted"
        assert not (here.folder / "a").exists() and left(tmp_path) == []
        assert "said" in result(here)["output"] and "Nothing that it changed" in result(here)["error"]


@pytest.mark.usefixtures("able")
async def test_a_commit_is_applied_with_its_files_and_goes_with_them_when_refused(tmp_path: Path) -> None:
    async def no(_: asks.Ask) -> dict[str, Any]:
        return {"allow": False}

    async with apart(tmp_path) as here:
        git(here.folder, "init")
        (here.folder / "a").write_text("one\n")
        git(here.folder, "add", "-A")
        git(here.folder, "commit", "-m", "first")
        commit = "git -c user.email=a@b -c user.name=a commit -qam"
        await here.turn(bash(f"echo two >> a; {commit} second; git status --porcelain"))
        assert result(here)["output"] == "[exit code 0]"
        assert git(here.folder, "log", "--format=%s").split() == ["second", "first"]
        assert git(here.folder, "status", "--porcelain") == "" and git(here.folder, "fsck") == ""
        assert list(files(here)) == ["a"]  # git's own files are not undo's
        await here.undo()
        assert git(here.folder, "status", "--porcelain") == " M a\n"
        git(here.folder, "checkout", "-q", "a")
        here.at.store.write(lambda tx: settings.change(tx, values={"undo.transaction": "ask"}))
        await (await ask(here, f"echo three >> a; {commit} third; git checkout -qb other", no)).result()
        assert git(here.folder, "log", "--format=%s").split() == ["second", "first"]
        assert git(here.folder, "branch", "--show-current") == "main\n" and git(here.folder, "status", "--porcelain") == ""
        # A look of git's at the files writes its index, and nobody is asked for that.
        assert (await (await ask(here, "touch a; git status --short", no)).result())["outcome"] == "done"
        assert result(here)["status"] == "done"


@pytest.mark.usefixtures("able")
async def test_of_a_repository_that_somebody_used_meanwhile_nothing_is_applied(tmp_path: Path) -> None:
    async with apart(tmp_path) as here:
        git(here.folder, "init")
        (here.folder / "a").write_text("one\n")
        git(here.folder, "add", "-A")
        git(here.folder, "commit", "-m", "first")
        commit = "git -c user.email=a@b -c user.name=a commit -qam agent"
        wait = waits(tmp_path)
        turn = asyncio.ensure_future(here.turn(bash(f"echo two >> a; {commit}; {wait}")))
        await until(lambda: (tmp_path / "written").exists())
        (here.folder / "b").write_text("a person's\n")
        git(here.folder, "add", "b")
        git(here.folder, "commit", "-m", "person")
        (tmp_path / "go").touch()
        await turn
        assert git(here.folder, "log", "--format=%s").split() == ["person", "first"]
        assert git(here.folder, "status", "--porcelain") == " M a\n" and git(here.folder, "fsck", "--no-dangling") == ""
        assert ".git (somebody else used the repository while the command ran)" in result(here)["output"]


@pytest.mark.usefixtures("able")
async def test_hard_links_outside_of_the_project_keep_what_they_hold_and_times_stay_in_order(tmp_path: Path) -> None:
    async with apart(tmp_path) as here:
        (tmp_path / "store").write_text("shared\n")
        os.link(tmp_path / "store", here.folder / "linked")
        (here.folder / "stamp").write_text("")
        os.utime(here.folder / "stamp", (1, 1))
        await here.turn(bash("echo more >> linked; echo src > z.c; sleep 0.02; echo obj > a.o; sleep 0.02; touch stamp"))
        assert (tmp_path / "store").read_text() == "shared\n" and (here.folder / "linked").read_text() == "shared\nmore\n"
        times = [(here.folder / name).stat().st_mtime_ns for name in ("z.c", "a.o", "stamp")]
        assert times == sorted(times) and "stamp" not in files(here)


@pytest.mark.usefixtures("able")
async def test_what_cannot_be_carried_over_is_named_and_what_lives_on_is_told_of(tmp_path: Path) -> None:
    async with apart(tmp_path) as here:
        await here.turn(bash(f"mkfifo pipe; echo x > file; (exec sleep 30 >/dev/null 2>&1) & echo $! > {tmp_path}/pid"))
        try:
            said = result(here)["output"]
            assert "Left behind, as a pipe, socket or device cannot be carried over: pipe" in said and "still run" in said
            assert (here.folder / "file").exists() and not (here.folder / "pipe").exists()
            assert here.session is not None
            with here.at.store.view() as view:
                assert ("pipe", "special") in [(one["path"], one["why"]) for one in not_covered(view, here.session)]
            assert len(left(tmp_path)) == 1 and layers.sweep(tmp_path / "data") == 0
        finally:
            os.kill(pid := int((tmp_path / "pid").read_text()), 9)
        await until(lambda: not Path(f"/proc/{pid}").exists() or "Z" in Path(f"/proc/{pid}/stat").read_text())
        await here.turn(bash("true"))  # the next command of whoever it is tidies up
        assert left(tmp_path) == []


async def _ordinary(here: Room, why: str) -> None:
    await here.turn(bash("true"))
    (watched,) = here.at._trees.values()
    assert watched.wait_ready(20) is None
    await here.turn(bash("echo new > made"))
    said = result(here)["output"]
    assert f"This command ran directly in the project. {why}" in said, said
    assert (here.folder / "made").read_text() == "new\n" and files(here)["made"] == "added"
    await here.undo()
    assert not (here.folder / "made").exists()


async def test_where_the_system_cannot_do_it_the_command_runs_as_usual_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supports, "_tried", {})
    monkeypatch.setattr(supports, "_PROGRAMS", ("no-such-unshare", "mount", "umount"))
    async with apart(tmp_path) as here:
        await _ordinary(here, "There is no no-such-unshare here")


@pytest.mark.usefixtures("able")
async def test_a_project_whose_repository_lies_outside_runs_as_usual(tmp_path: Path) -> None:
    git(tmp_path, "init")
    async with apart(tmp_path) as here:
        await _ordinary(here, "Its git repository lies outside of it")


def test_what_stands_in_the_way_is_said_in_a_sentence(tmp_path: Path) -> None:
    root, data = tmp_path / "project", tmp_path / "data"
    root.mkdir()
    assert "home folder" in support(root, data, root).why
    assert "lie in each other" in support(root, root / "data", HOME).why
    assert support(Path("/"), data, HOME).way is None and support(Path("/proc"), data, HOME).way is None
    assert support(root, None, HOME).way is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "s"))
        assert f"A program listens at a socket in it: {root}/s." == support(root, data, HOME).why
    assert supports._mount_below(root) is None and supports._git_outside(root) is None


@pytest.mark.usefixtures("able")
def test_a_mount_below_the_project_is_seen(tmp_path: Path) -> None:
    (tmp_path / "project" / "with blank").mkdir(parents=True)
    project, data = str(tmp_path / "project"), str(tmp_path / "data")
    look = f"from tests.agent.test_overlay import *; print(support(Path({project!r}), Path({data!r}), HOME).why)"
    within = 'mount -t tmpfs none "$1" && exec "$2" -c "$3"'
    words = ["unshare", "-U", "-r", "-m", "sh", "-c", within, "sh", str(tmp_path / "project" / "with blank"), sys.executable, look]
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"Another file system is mounted below it: {tmp_path}/project/with blank."


def test_a_way_that_does_not_work_gives_the_systems_own_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, data = tmp_path / "project", tmp_path / "data"
    root.mkdir()
    data.mkdir(mode=0o700)
    monkeypatch.setattr(supports, "_tried", {})
    monkeypatch.setattr(supports, "_ways", lambda: iter([layers.Way((), (), "/bin/false", "/bin/false")]))
    found = support(root, data, HOME)
    assert found.way is None and "does not let this user mount overlays here" in found.why
    assert [one.name for one in (data / layers.FOLDER).iterdir()] == ["lock"]


@pytest.mark.usefixtures("able")
async def test_off_is_the_default_and_no_overlay_is_made(tmp_path: Path) -> None:
    async with house(tmp_path) as at:
        (tmp_path / "project").mkdir()
        here = Room(at, tmp_path / "project")
        await here.turn(bash("echo x > a"))
        assert not (tmp_path / "data" / layers.FOLDER).exists() and "ran directly" not in result(here)["output"]


PROGRAM = """
from stead.agent.gate import parse
from stead.domain import settings
at.store.write(lambda tx: settings.change(tx, values={"undo.transaction": "apply"}))
folder = tmp / "project"
at.models = script([{"tools": [use("bash", command=command)]}, {"text": "done"}])
run = await at.prompt(None, "go", project=folder, model="fake/m", rules=[parse("bash", "allow", "flag")])
tell(run.session)
await run.result()
tell("done")
"""
POINTS = [
    "overlay.said",
    "overlay.file_done:1",
    "overlay.file_done:13",
    "overlay.file_done:25",
    "overlay.files_done",
    "safefile.written:9",
]


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("point", POINTS)
async def test_killed_in_the_middle_nothing_is_applied_that_the_log_does_not_know(tmp_path: Path, point: str) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    for name in ("f1", "f2", "gone", "mode"):
        (folder / name).write_text(f"{name} was here\n")
        (folder / name).chmod(0o644)
    before = tree(folder)
    command = "for n in $(seq 20); do echo new > f$n; done; rm gone; ln -s f1 link; chmod 755 mode; mkdir d; echo x > d/x"
    child = Child(tmp_path, f"command = {command!r}{PROGRAM}", env={"STEAD_FAULT": point})
    session = await child.told()
    await asyncio.to_thread(child.process.wait)
    assert child.process.returncode == -9
    child.close()
    for path in folder.rglob("*"):  # each file is old or new
        if path.is_file() and not path.name.startswith("."):
            assert path.read_text() in ("new\n", "x\n", f"{path.name} was here\n")
    async with house(tmp_path) as at:
        here = Room(at, folder, session)
        with at.store.view() as view:
            found = view.q("SELECT path FROM changes WHERE state='captured'")
        assert list(found) == []  # what became of each is decided
        await here.undo()
        assert tree(folder) == before
        await here.turn(bash("true"))
        assert left(tmp_path) == []


@pytest.mark.usefixtures("able")
async def test_a_killed_commands_layer_is_removed_and_the_project_is_untouched(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("old\n")
    wait = f"echo new > a; mkdir -p d/e; chmod 000 d/e d; touch {tmp_path}/written; sleep 60"
    child = Child(tmp_path, f"command = {wait!r}{PROGRAM}")
    await child.told()
    await until(lambda: (tmp_path / "written").exists())
    child.kill()
    async with house(tmp_path) as at:  # the restart ends the command
        assert (folder / "a").read_text() == "old\n"
        await until(lambda: not layers._mounted() & set(left(tmp_path)))
        here = Room(at, folder)
        await here.turn(bash("true"))
        assert left(tmp_path) == [] and (folder / "a").read_text() == "old\n"


@pytest.mark.usefixtures("able")
async def test_random_commands_do_the_same_on_an_overlay_as_without_one(tmp_path: Path) -> None:
    chance = random.Random(7)
    names = ["a", "b", "c d", "e/f", "e/g", "h/i/j", "k"]
    plain = tmp_path / "plain"
    plain.mkdir()

    def step() -> str:
        one, two = (f"'{name}'" for name in chance.sample(names, 2))
        return chance.choice(
            [
                f"mkdir -p $(dirname {one}); echo {chance.random()} >> {one}",
                f"rm -rf {one}",
                f"mkdir -p $(dirname {two}); mv -fT {one} {two}",
                f"chmod {chance.choice(['600', '755', '644'])} {one}",
                f"rm -rf {one}; mkdir -p $(dirname {one}); ln -s k {one}",
                f"rm -rf {one}; mkdir -p {one}; echo in > {one}/in",
                "rm -rf e; mkdir e; echo new > e/new",
                "mv h hh; mkdir -p h; echo h > h/h",
            ]
        )

    async with apart(tmp_path) as here:
        states = [tree(here.folder)]
        for _ in range(scale(600)):
            command = "; ".join(f"({step()}) 2>/dev/null" for _ in range(chance.randint(1, 8)))
            subprocess.run(["/bin/bash", "-c", command], cwd=plain, check=False)
            await here.turn(bash(command))
            assert tree(here.folder) == tree(plain), command
            assert "Not applied" not in result(here)["output"], command
            states.append(tree(here.folder))
        for state in reversed(states[:-1]):
            assert (await here.undo()).conflicts == []
            assert tree(here.folder) == state


@pytest.mark.usefixtures("able")
async def test_a_tool_and_a_command_on_the_same_file_are_taken_back_one_by_one(tmp_path: Path) -> None:
    async with apart(tmp_path) as here:
        (here.folder / "a").write_text("one\n")
        await here.turn(write("a", "two\n"), bash("echo three >> a"))  # the first just before the second begins
        await here.turn(bash("echo four >> a"))
        assert (here.folder / "a").read_text() == "two\nthree\nfour\n"
        await here.undo()
        assert (here.folder / "a").read_text() == "two\nthree\n"
        await here.undo()
        assert (here.folder / "a").read_text() == "one\n"
