"""What somebody who wanted to break undo found."""

from __future__ import annotations

import os
from pathlib import Path

from tests.undo.room import bash, edit, ready, room, tree


async def test_b072_a_link_that_a_command_made_does_not_lead_an_undo_to_another_file(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("mine\n")
    async with room(tmp_path) as here:
        (here.folder / "b").write_text("ho\n")
        (here.folder / "a").write_text("hi\n")
        (here.folder / "c").write_text("cc\n")
        await ready(here)
        before = tree(here.folder)
        await here.turn(bash(f"ln -f {out} b; rm c; ln a c"))
        done = await here.undo()
        assert done.restored == ["b", "c"] and out.read_text() == "mine\n" and tree(here.folder) == before
        assert (await here.redo()).conflicts == [] and out.read_text() == "mine\n"
        assert (here.folder / "b").read_text() == "mine\n" and (here.folder / "a").read_text() == "hi\n"


async def test_b072_links_that_were_there_before_an_edit_stay_one_file(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        (here.folder / "a").write_text("old\n")
        os.link(here.folder / "a", here.folder / "twin")
        await here.turn(edit("a", "old", "new"))
        assert (await here.undo()).restored == ["a"]
        assert (here.folder / "twin").read_text() == "old\n" and (here.folder / "a").samefile(here.folder / "twin")


async def test_folders_that_became_files_or_links_come_back_with_what_was_in_them(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        for name in ("d/b/c", "e/x", "o/k"):
            (here.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (here.folder / name).write_text(f"{name}\n")
        (here.folder / "l").symlink_to("o")
        await ready(here)
        before = tree(here.folder)
        await here.turn(bash("rm -r d; echo f > d; rm -r e; ln -s o e; rm l; mkdir -p l/m/n; echo z > l/m/n/q"))
        after = tree(here.folder)
        assert (await here.undo()).conflicts == [] and tree(here.folder) == before
        assert (await here.redo()).conflicts == [] and tree(here.folder) == after
        assert (here.folder / "o" / "k").read_text() == "o/k\n"


async def test_what_was_left_alone_can_be_taken_back_later_from_the_same_message_on(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        at = here.folder / "a"
        at.write_text("".join(f"{n}\n" for n in range(20)))
        original = at.read_text()
        first = await here.turn(edit("a", "\n2\n", "\ntwo\n"))
        at.write_text(at.read_text().replace("\n15\n", "\nperson\n"))
        await here.turn(edit("a", "\n8\n", "\neight\n"))
        done = await here.undo(to=first)
        assert done.restored == [] and done.conflicts[0]["merge"] is True and here.said() == []
        again = await here.undo(to=first, merge=True)
        assert again.restored == ["a"] and again.messages == []
        assert at.read_text() == original.replace("\n15\n", "\nperson\n")
