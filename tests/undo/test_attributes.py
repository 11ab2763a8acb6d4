"""What an undo gives back of a file beside its lines: bytes in any encoding, modes, links, names of one file, size."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest

from tests.support import scale
from tests.undo.room import bash, edit, git, ready, room, tree, write

MIB = 1 << 20
CONTENTS = {
    "latin-1": "# Größe\nvalue = 1\n".encode("latin-1"),
    "cp1252": "“q” – €\nvalue = 1\n".encode("cp1252"),
    "utf-16-le": codecs.BOM_UTF16_LE + "ä\r\nvalue = 1\r\n".encode("utf-16-le"),
    "utf-16-be": codecs.BOM_UTF16_BE + "ä\nvalue = 1\n".encode("utf-16-be"),
    "bom": codecs.BOM_UTF8 + b"value = 1\r\n",
    "crlf": b"a\r\nvalue = 1\r\nb",
    "mixed": b"a\r\nb\nvalue = 1\r\nc\rd\n",
    "no utf-8": b"caf\xe9 \xff\nvalue = 1\n",
    "no end": b"value = 1",
}


@pytest.mark.slow  # nine files on a loaded machine
async def test_b065_b066_b068_b069_edits_in_any_encoding_go_and_come_back_byte_for_byte(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        for name, content in CONTENTS.items():
            (here.folder / name).write_bytes(content)
        before = tree(here.folder)
        await here.turn(*(edit(name, "value = 1", "value = 2") for name in CONTENTS))
        after = tree(here.folder)
        assert all(after[name] != before[name] for name in CONTENTS)
        assert (await here.undo()).conflicts == [] and tree(here.folder) == before
        assert (await here.redo()).conflicts == [] and tree(here.folder) == after


async def test_b066_a_rewritten_file_with_a_bom_comes_back_with_it(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        at = here.folder / "f.cs"
        at.write_bytes(codecs.BOM_UTF8 + b"using A;\r\n")
        await here.turn(write("f.cs", "using B;\n"), bash("printf 'x\\n' > f.cs"))
        assert at.read_bytes() == b"x\n"
        assert (await here.undo()).restored == ["f.cs"] and at.read_bytes() == codecs.BOM_UTF8 + b"using A;\r\n"


async def test_b070_an_edit_through_links_is_taken_back_in_their_target_and_links_stay_links(
    tmp_path: Path, url: str | None
) -> None:
    async with room(tmp_path, url) as here:
        (here.folder / "sub").mkdir()
        (here.folder / "sub/t").write_text("v0\n")
        for name, target in {"relative": "sub/t", "absolute": str(here.folder / "sub/t"), "chain": "relative"}.items():
            (here.folder / name).symlink_to(target)
        (here.folder / "folder").symlink_to("sub")
        before = tree(here.folder)
        names = ("relative", "absolute", "chain", "folder/t")
        await here.turn(*(edit(name, f"v{n}", f"v{n + 1}") for n, name in enumerate(names)))
        assert (here.folder / "sub/t").read_text() == "v4\n"
        done = await here.undo()
        assert done.restored == ["sub/t"] and tree(here.folder) == before


async def test_b070_what_a_command_does_to_links_is_taken_back(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        (here.folder / "a").write_text("a\n")
        (here.folder / "b").write_text("b\n")
        (here.folder / "link").symlink_to("a")
        (here.folder / "dangling").symlink_to("no where")
        (here.folder / "loop").symlink_to("loop")
        await ready(here)
        before = tree(here.folder)
        await here.turn(
            bash("ln -sfn b link; rm dangling; rm loop; ln -s a new"), bash("rm a; ln -s b a; rm link; echo file > link")
        )
        assert (here.folder / "a").is_symlink() and not (here.folder / "link").is_symlink()
        after = tree(here.folder)
        assert (await here.undo()).conflicts == [] and tree(here.folder) == before
        assert (await here.redo()).conflicts == [] and tree(here.folder) == after


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o640, 0o664])
async def test_b071_the_mode_is_that_of_before(mode: int, tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        at = here.folder / "f"
        at.write_text("a\n")
        at.chmod(mode)
        before = tree(here.folder)
        await here.turn(edit("f", "a", "b"), write("f", "c\n"))
        assert at.stat().st_mode & 0o777 == mode
        assert (await here.undo()).restored == ["f"] and tree(here.folder) == before


async def test_b071_a_read_only_file_that_was_made_writable_is_read_only_again(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        at = here.folder / "f"
        at.write_text("a\n")
        at.chmod(0o444)
        (here.folder / "only mode").write_text("m\n")
        (here.folder / "only mode").chmod(0o444)
        await ready(here)
        before = tree(here.folder)
        await here.turn(bash("chmod u+w f 'only mode'"), edit("f", "a", "b"))
        assert at.read_text() == "b\n" and at.stat().st_mode & 0o200
        after = tree(here.folder)
        assert (await here.undo()).conflicts == [] and tree(here.folder) == before
        assert (await here.redo()).conflicts == [] and tree(here.folder) == after


async def test_b072_both_names_of_one_file_show_one_content_after_edit_undo_and_redo(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        one, two = here.folder / "one", here.folder / "two"
        one.write_text("a\n")
        os.link(one, two)
        await here.turn(edit("one", "a", "b"))
        for again, content in ((here.undo, "a\n"), (here.redo, "b\n"), (here.undo, "a\n")):
            assert (await again()).conflicts == []
            assert one.read_text() == two.read_text() == content and one.samefile(two)


@pytest.mark.slow
async def test_b064_a_large_file_comes_back_whole(tmp_path: Path) -> None:
    """3 MiB always, 60 MiB at full size; a media file of 3 GiB (sparse) stands beside and is left alone."""
    async with room(tmp_path) as here:
        line = b"x" * 63 + b"\n"
        (here.folder / "large").write_bytes(line * (max(3 * MIB, scale(60 * MIB)) // 64) + b"the end\n")
        with (here.folder / "media").open("wb") as file:
            file.truncate(3 << 30)
        before = (here.folder / "large").read_bytes()
        await here.turn(edit("large", "the end", "THE END"), write("small", "s\n"))
        assert (here.folder / "large").read_bytes() == before[:-8] + b"THE END\n"
        done = await here.undo()
        assert done.restored == ["large", "small"] and done.conflicts == done.not_covered == []
        assert (here.folder / "large").read_bytes() == before
        assert (here.folder / "media").stat().st_blocks == 0 and (here.folder / "media").stat().st_size == 3 << 30


async def test_b045_in_a_worktree_of_a_bare_repository(tmp_path: Path) -> None:
    first, bare, folder = tmp_path / "first", tmp_path / "bare.git", tmp_path / "tree"
    first.mkdir()
    git(first, "init")
    (first / "tracked").write_text("tracked\n")
    git(first, "add", "-A")
    git(first, "commit", "-m", "first")
    git(tmp_path, "clone", "--bare", str(first), str(bare))
    git(bare, "worktree", "add", str(folder))
    async with room(tmp_path, None, folder) as here:
        (folder / "mine").write_text("mine\n")
        await ready(here)
        before, refs = tree(folder, leave=()), tree(bare)
        await here.turn(edit("tracked", "tracked", "edited"), bash("rm mine; echo x > new; chmod 755 tracked"))
        assert (await here.undo()).conflicts == []
        assert tree(folder, leave=()) == before and tree(bare) == refs
