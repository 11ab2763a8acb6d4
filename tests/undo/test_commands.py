"""What commands changed is found under their call and taken back like what a tool changed, in every kind of folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from stead.app.shown import changed_files, not_covered
from tests.agent.house import until
from tests.restart.crew import crew
from tests.undo.room import Room, bash, edit, git, ready, room, tree, write


def plain(tmp_path: Path) -> Path:
    return tmp_path / "plain"


def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init")
    (folder / "tracked.txt").write_text("tracked\n")
    (folder / ".gitignore").write_text("build/\n.env\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-m", "first")
    return folder


def unborn(tmp_path: Path) -> Path:
    folder = tmp_path / "unborn"
    folder.mkdir()
    git(folder, "init")
    return folder


def worktree(tmp_path: Path) -> Path:
    git(repository(tmp_path), "worktree", "add", str(tmp_path / "tree"))
    return tmp_path / "tree"


def submodule(tmp_path: Path) -> Path:
    inner = repository(tmp_path)
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init")
    git(outer, "-c", "protocol.file.allow=always", "submodule", "add", str(inner), "sub")
    git(outer, "commit", "-m", "outer")
    return outer / "sub"


def subfolder(tmp_path: Path) -> Path:
    folder = repository(tmp_path) / "below"
    folder.mkdir()
    return folder


def stray(tmp_path: Path) -> Path:
    """A folder below one that has a stray .git, as a home folder may."""
    git(tmp_path, "init")
    return tmp_path / "stray"


FOLDERS = [plain, repository, unborn, worktree, submodule, subfolder, stray]


@pytest.mark.parametrize("kind", FOLDERS)
async def test_b045_b046_edits_and_commands_are_taken_back_the_same_in_every_kind_of_folder(kind: object, tmp_path: Path) -> None:
    folder = kind(tmp_path)  # type: ignore[operator]
    async with room(tmp_path / "house" if kind is not stray else tmp_path, None, folder) as here:
        for name, mode in (("kept.txt", 0o644), ("secret.env", 0o600), ("run.sh", 0o755)):
            (folder / name).write_text(f"{name}\n")
            (folder / name).chmod(mode)
        os.symlink("kept.txt", folder / "link")
        await ready(here)
        before = tree(folder)
        status = _status(folder)
        await here.turn(
            edit("kept.txt", "kept", "changed"),
            bash(
                "rm -f secret.env tracked.txt link; chmod -x run.sh; mkdir -p new/deep; echo x > new/deep/file; mv run.sh moved.sh"
            ),
            write("build/out", "made\n"),
        )
        assert not_in(here) == []
        done = await here.undo()
        assert done.conflicts == [] and tree(folder) == before and _status(folder) == status
        assert (await here.redo()).conflicts == []
        assert not (folder / "secret.env").exists() and (folder / "moved.sh").stat().st_mode & 0o111 == 0
        assert (await here.undo()).conflicts == [] and tree(folder) == before


def _status(folder: Path) -> str:
    done = subprocess.run(["git", "status", "--porcelain", "--ignored"], cwd=folder, capture_output=True, check=False)
    return done.stdout.decode()


def not_in(here: Room) -> list[str]:
    assert here.session is not None
    with here.at.store.view() as view:
        return [one["path"] for one in not_covered(view, here.session)]


async def test_b048_a_rename_comes_back_as_one(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        (here.folder / "old name.txt").write_text("content\n" * 5)
        (here.folder / "Readme.md").write_text("readme\n" * 5)
        await ready(here)
        before = tree(here.folder)
        node = (here.folder / "old name.txt").stat().st_ino
        await here.turn(bash("mv 'old name.txt' 'new name.txt'; mv Readme.md README.md"))
        assert here.session is not None
        files = changed_files(here.at.store, here.session)
        assert [(one["status"], one.get("from"), one["path"]) for one in files] == [
            ("renamed", "Readme.md", "README.md"),
            ("renamed", "old name.txt", "new name.txt"),
        ]
        (here.folder / "other.txt").write_text("mine\n")
        assert (await here.undo()).conflicts == []
        assert {name: one for name, one in tree(here.folder).items() if name != "other.txt"} == before
        assert (here.folder / "old name.txt").stat().st_ino == node
        await here.redo()
        assert sorted(os.listdir(here.folder)) == ["README.md", "new name.txt", "other.txt"]
        assert (here.folder / "new name.txt").stat().st_ino == node


async def test_b049_a_rewind_gives_the_tree_that_was_there_folders_and_empty_files_too(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        folder = here.folder
        for name in ("e1", "e2", "d1", "d2"):
            (folder / name).write_text(f"{name}\n")
        (folder / "empty").write_text("")
        (folder / "full").mkdir()
        (folder / "full" / "x").write_text("x\n")
        (folder / "hollow").mkdir()
        await ready(here)
        before = tree(folder)
        await here.turn(
            bash(
                "touch n1 n2 n3; rm d1 d2 empty; echo 2 >> e1; echo 2 >> e2; rm -r full; rmdir hollow;"
                + " mkdir -p made/in; echo > made/in/f"
            )
        )
        (folder / "made" / "mine").write_text("mine\n")
        done = await here.undo()
        assert done.conflicts == []
        after = tree(folder)
        assert after.pop("made/mine")[0] == "file" and after.pop("made")[0] == "folder"  # a person's file is in it
        assert after == before


async def test_b050_git_is_never_touched(tmp_path: Path) -> None:
    folder = submodule(tmp_path).parent
    nested = folder / "nested"
    nested.mkdir()
    git(nested, "init")
    (nested / "f").write_text("nested\n")
    async with room(tmp_path, None, folder) as here:
        await ready(here)
        before = tree(folder)

        def hidden() -> dict[str, tuple[str, int, str]]:
            return {name: one for name, one in tree(folder, leave=()).items() if ".git" in name.split("/")}

        kept = hidden()
        await here.turn(edit("nested/f", "nested", "agent"), bash("echo agent > sub/tracked.txt; echo x > sub/new"))
        status = git(folder, "status", "--porcelain")
        assert "sub" in status and hidden().keys() == kept.keys()
        await here.undo()
        assert tree(folder) == before and git(folder, "fsck") == "" and git(nested, "fsck") == ""


async def test_b052_commands_ignored_files_and_secrets_are_covered(tmp_path: Path) -> None:
    folder = repository(tmp_path)
    for n in range(40):
        (folder / f"src{n}.py").write_text(f"x = {n}\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-m", "sources")
    (folder / "tracked.txt").write_text("dirty work\n")
    (folder / ".env").write_text("KEY=planted-secret-value\n")
    (folder / ".env").chmod(0o600)
    async with room(tmp_path, None, folder) as here:
        await ready(here)
        before = tree(folder)
        await here.turn(
            bash("sed -i 's/x =/y =/' src0.py; for f in src*.py; do echo '# formatted' >> $f; done"),
            bash("git checkout -q ."),
            bash("mkdir build; echo out > build/o; echo KEY=other > .env"),
        )
        assert not_in(here) == []
        assert (folder / "tracked.txt").read_text() == "tracked\n"
        done = await here.undo()
        assert done.conflicts == [] and tree(folder) == before
        assert (folder / "tracked.txt").read_text() == "dirty work\n"
        for path in (tmp_path / "data").rglob("*"):
            if path.is_file():
                assert path.stat().st_mode & 0o077 == 0, path


async def test_a_command_that_comes_before_the_tree_is_known_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.tree import Tree

    monkeypatch.setattr(Tree, "wait_ready", lambda self, seconds: "index_not_ready")
    monkeypatch.setattr(Tree, "start", lambda self: None)
    async with room(tmp_path) as here:
        (here.folder / "a").write_text("a\n")
        await here.turn(bash("echo b > a"), write("c", "c\n"))
        assert here.session is not None
        with here.at.store.view() as view:
            assert [one["why"] for one in not_covered(view, here.session)] == ["index_not_ready"]
        plan = await here.plan()
        assert [one.why for one in plan.not_covered] == ["index_not_ready"]
        assert (await here.at.undo(plan)).restored == ["c"] and (here.folder / "a").read_text() == "b\n"


async def test_what_a_person_writes_between_two_commands_is_not_the_agents(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        (here.folder / "a").write_text("a\n")
        (here.folder / "mine").write_text("mine\n")
        await ready(here)
        await here.turn(bash("echo 1 >> a"))
        (here.folder / "mine").write_text("mine, changed\n")
        (here.folder / "also mine").write_text("x\n")
        await here.turn(bash("echo 2 >> a"))
        assert here.session is not None
        assert [one["path"] for one in changed_files(here.at.store, here.session)] == ["a"]
        await here.undo()
        await here.undo()
        assert (here.folder / "a").read_text() == "a\n"
        assert (here.folder / "mine").read_text() == "mine, changed\n" and (here.folder / "also mine").exists()


async def test_a_command_that_is_killed_with_its_program_is_named_as_not_covered(tmp_path: Path) -> None:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "a").write_text("a\n")
    turns = [{"tools": [bash("echo b > a; touch made; sleep 60")]}, {"text": "end"}]
    child = crew(
        tmp_path,
        f"at.models = script({turns!r})\n"
        "run = await at.prompt(None, 'go', project=tmp / 'project', model='fake/m', rules=[parse('bash', 'allow', 'flag')])\n"
        "tell(run.session)\nawait asyncio.sleep(60)",
    )
    session = await child.told()
    await until(lambda: (folder / "made").exists(), 15)
    child.kill()
    async with room(tmp_path, None, folder, session) as here:
        with here.at.store.view() as view:
            assert not_covered(view, session) == [{"path": ".", "why": "index_not_ready"}]
        assert [one.why for one in (await here.plan()).not_covered] == ["index_not_ready"]
