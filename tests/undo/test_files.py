"""What an undo does to files: exactly what the agent changed, and nothing that anybody else did."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from stead.domain import changes
from tests.undo.room import Room, edit, git, room, tree, write


def big(tmp_path: Path) -> Path:
    """A project inside a folder with 200 files of the person's own."""
    for n in range(200):
        at = tmp_path / "parent" / f"d{n % 7}" / f"own {n}"
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_text(f"mine {n}\n")
    folder = tmp_path / "parent" / "project"
    folder.mkdir()
    (folder / "a.txt").write_text("one\ntwo\n")
    (folder / "a.txt").chmod(0o640)
    return folder


async def test_b040_only_the_file_that_the_agent_changed_is_touched(tmp_path: Path, url: str | None) -> None:
    folder = big(tmp_path)
    before = tree(tmp_path / "parent")
    async with room(tmp_path, url, folder) as here:
        await here.turn(edit("a.txt", "two", "2"))
        (folder / "later.txt").write_text("mine too\n")
        done = await here.undo()
        assert (done.restored, done.conflicts) == (["a.txt"], [])
        (folder / "later.txt").unlink()
        assert tree(tmp_path / "parent") == before
        again = await here.redo()
        assert again.restored == ["a.txt"] and (folder / "a.txt").read_text() == "one\n2\n"
        assert tree(tmp_path / "parent") != before


async def test_b041_what_the_store_has_lost_is_an_error_of_that_file_and_never_means_delete(
    tmp_path: Path, url: str | None
) -> None:
    async with room(tmp_path, url) as here:
        (here.folder / "a").write_text("a1\n")
        (here.folder / "b").write_text("b1\n")
        await here.turn(edit("a", "a1", "a2"), edit("b", "b1", "b2"), write("new", "x\n"))
        assert here.session is not None
        with here.at.store.view() as view:
            (lost,) = [row.before_blob for row in changes.listed(view, here.session) if row.path == "a"]
        here.at.store.write(lambda tx: tx.q("DELETE FROM blobs WHERE hash=?", lost))
        done = await here.undo()
        assert sorted(done.restored) == ["b", "new"]
        assert [(one["path"], "missing" in one["why"]) for one in done.conflicts] == [("a", True)]
        assert (here.folder / "a").read_text() == "a2\n" and not (here.folder / "new").exists()


async def test_b041_a_second_house_and_a_crash_take_no_undo_data_away(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        (here.folder / "a").write_text("a1\n")
        await here.turn(edit("a", "a1", "a2"))
        async with room(tmp_path, url) as other:
            await other.turn(write("b", "b\n"))
            assert (await here.undo()).restored == ["a"]
            assert (here.folder / "a").read_text() == "a1\n" and (here.folder / "b").exists()


async def test_b042_what_was_committed_and_pulled_since_is_left_alone(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        folder = here.folder
        git(folder, "init")
        for n in range(20):
            (folder / f"f{n}").write_text(f"{n}\n" * 10)
        git(folder, "add", "-A")
        git(folder, "commit", "-m", "first")
        await here.turn(edit("f0", "0\n0\n0\n0\n0\n0\n0\n0\n0\n0\n", "agent\n"), write("f1", "agent\n"))
        for n in range(20):
            (folder / f"f{n}").write_text(f"pulled {n}\n")
        git(folder, "commit", "-am", "pulled")
        before, head = tree(folder), git(folder, "rev-parse", "HEAD")
        done = await here.undo(what="files")
        assert done.restored == [] and sorted(one["path"] for one in done.conflicts) == ["f0", "f1"]
        assert tree(folder) == before and git(folder, "rev-parse", "HEAD") == head and git(folder, "status", "--porcelain") == ""


async def test_b043_an_answer_that_changed_nothing_undoes_without_touching_a_file(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        git(here.folder, "init")
        (here.folder / "staged").write_text("s\n")
        git(here.folder, "add", "staged")
        (here.folder / "staged").write_text("dirty\n")
        (here.folder / "untracked").write_text("u\n")
        await here.turn(text="first")
        before = {name: os.lstat(here.folder / name) for name in os.listdir(here.folder)}
        index = (here.folder / ".git/index").read_bytes()
        await here.turn(text="second")
        plan = await here.plan()
        assert plan.items == [] and len(plan.messages) == 2
        done = await here.at.undo(plan)
        assert (done.restored, done.messages, here.said()) == ([], [3, 4], [1, 2])
        after = {name: os.lstat(here.folder / name) for name in os.listdir(here.folder)}
        assert {name: (one.st_mtime_ns, one.st_ctime_ns, one.st_ino) for name, one in after.items()} == {
            name: (one.st_mtime_ns, one.st_ctime_ns, one.st_ino) for name, one in before.items()
        }
        assert (here.folder / ".git/index").read_bytes() == index


NAMES = ["a.txt", "app/[locale]/page.tsx", "with space", "with\nnewline", "caf\u00e9", "cafe\u0301", "-dash", "quote'\"", "#x%41"]


async def test_b047_every_step_of_files_with_odd_names_comes_back(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        states, prompts = [tree(here.folder)], []
        for name in NAMES:
            prompts.append(await here.turn(write(name, f"first {name}\n"), edit(name, "first", "second")))
            states.append(tree(here.folder))
        for prompt, state in zip(reversed(prompts), reversed(states[:-1]), strict=True):
            done = await here.undo(to=prompt)
            assert done.conflicts == [] and tree(here.folder) == state
        for state in states[1:]:
            assert (await here.redo()).conflicts == [] and tree(here.folder) == state


@pytest.mark.parametrize("how", ["edited", "deleted", "folder", "link", "mode"])
async def test_b053_what_a_person_did_since_is_never_overwritten_without_consent(how: str, tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        at = here.folder / "f"
        at.write_text("one\ntwo\nthree\n")
        (here.folder / "g").write_text("g\n")
        original = tree(here.folder)
        await here.turn(edit("f", "two", "2"), edit("g", "g", "G"))
        if how == "edited":
            at.write_text("one\ntwo and a half\nthree\n")
        elif how == "mode":
            at.chmod(0o755)
        else:
            at.unlink()
            if how == "folder":
                at.mkdir()
                (at / "mine").write_text("mine\n")
            elif how == "link":
                at.symlink_to("elsewhere")
        mine = {name: one for name, one in tree(here.folder).items() if name != "g"}
        done = await here.undo()
        assert done.restored == ["g"]
        (conflict,) = done.conflicts
        assert conflict["path"] == "f" and here.at.store.blobs.get(conflict["blob"]) == b"one\ntwo\nthree\n"
        assert {name: one for name, one in tree(here.folder).items() if name != "g"} == mine
        forced = await here.undo(message=1, force=["f"])
        if how == "folder":  # a person's files are in it: it is not taken away whatever is said
            assert forced.restored == [] and (at / "mine").read_text() == "mine\n"
            return
        assert forced.restored == ["f"] and tree(here.folder) == original
        assert (await here.redo()).restored == ["f"]
        assert {name: one for name, one in tree(here.folder).items() if name != "g"} == mine


async def test_a_change_in_other_lines_can_be_merged_and_taken_back_again(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        at = here.folder / "f"
        at.write_text("".join(f"line {n}\n" for n in range(20)))
        await here.turn(edit("f", "line 3\n", "agent\n"))
        at.write_text(at.read_text().replace("line 15\n", "person\n"))
        mine = at.read_text()
        done = await here.undo(what="files")
        assert done.restored == [] and done.conflicts[0]["merge"] is True and at.read_text() == mine
        assert (await here.undo(what="files", merge=True)).restored == ["f"]
        assert at.read_text() == mine.replace("agent\n", "line 3\n")
        assert (await here.redo()).restored == ["f"] and at.read_text() == mine


@pytest.mark.parametrize("order", [(2, 1, 0), (1, 2, 0), (0, 1, 2), (1, 0, 2)])
async def test_b059_messages_on_one_file_undone_in_any_order_never_leave_a_mix(
    order: tuple[int, ...], tmp_path: Path, url: str | None
) -> None:
    async with room(tmp_path, url) as here:
        at = here.folder / "f"
        states = ["zero\n", "one\n", "two\n", "three\n"]
        at.write_text(states[0])
        prompts = [await here.turn(edit("f", old.strip(), new.strip())) for old, new in itertools.pairwise(states)]
        undone: set[int] = set()
        for which in order:
            done = await here.undo(message=prompts[which])
            newest = which == max(set(range(3)) - undone)
            assert (done.restored, [one["path"] for one in done.conflicts]) == ((["f"], []) if newest else ([], ["f"]))
            undone |= {which} if newest else set()
            assert at.read_text() == states[max(set(range(3)) - undone, default=-1) + 1]


async def test_b059_undo_all_then_redo_all_is_where_it_began(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        at = here.folder / "f"
        at.write_text("0\n")
        states = [tree(here.folder)]
        for n in range(4):
            await here.turn(edit("f", str(n), str(n + 1)), write(f"new {n}/x", "x"))
            states.append(tree(here.folder))
        for state in reversed(states[:-1]):
            await here.undo()
            assert tree(here.folder) == state
        assert (await here.undo()).restored == [] and here.said() == []
        for n, state in enumerate(states[1:], 1):
            await here.redo()
            assert tree(here.folder) == state and len(here.said()) == 2 * n
        assert (await here.redo()).restored == []


async def test_one_call_alone_is_taken_back(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await here.turn(write("a", "a\n"), write("b", "b\n"))
        await here.turn(write("c", "c\n"))
        with_calls = await here.undo(calls=[f"{here.session}.2.3"])
        assert with_calls.restored == ["b"] and here.said() == [1, 2, 3, 4]
        assert sorted(os.listdir(here.folder)) == ["a", "c"]


async def _three(here: Room) -> None:
    (here.folder / "f").write_text("0\n")
    await here.turn(edit("f", "0", "1"), text="first")
    await here.turn(edit("f", "1", "2"), text="second")


async def test_b056_files_conversation_or_both_and_each_is_told(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        at = here.folder / "f"
        await _three(here)
        assert (await here.undo(what="conversation")).messages == [3, 4]
        assert (at.read_text(), here.said()) == ("2\n", [1, 2])
        assert (await here.redo()).messages == [3, 4] and here.said() == [1, 2, 3, 4]
        assert (await here.undo(what="files")).restored == ["f"]
        assert (at.read_text(), here.said()) == ("1\n", [1, 2, 3, 4])
        assert (await here.undo(what="files")).restored == ["f"] and at.read_text() == "0\n"
        assert (await here.redo()).restored == ["f"] and at.read_text() == "1\n"
        assert (await here.redo()).restored == ["f"] and at.read_text() == "2\n"
        done = await here.undo()
        assert (done.restored, done.messages, at.read_text(), here.said()) == (["f"], [3, 4], "1\n", [1, 2])
        third = await here.turn(edit("f", "1", "3"), text="third")
        assert here.said() == [1, 2, third, third + 1]
        later = await here.redo()  # the conversation went on; what the undo did to the file is behind a change now
        assert later.messages == [] and later.restored == [] and at.read_text() == "3\n"
