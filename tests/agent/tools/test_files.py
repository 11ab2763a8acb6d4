"""write, edit and list as a model uses them, on files of every kind, each with its undo."""

from __future__ import annotations

import codecs
import hashlib
import os
import stat
from pathlib import Path

import pytest

from stead.agent.tools import Result
from stead.agent.tools.files import size
from stead.store import safefile
from tests.agent.tools.context import FakeContext


@pytest.fixture
def context(tmp_path: Path) -> FakeContext:
    return FakeContext(tmp_path)


def good(result: Result) -> str:
    assert result.error is None, result.error
    return result.output


def bad(result: Result) -> str:
    assert result.error is not None, result.output
    assert result.output == ""
    return result.error


# ---- edit ----


async def test_an_edit_replaces_the_one_place(context: FakeContext) -> None:
    (context.root / "f").write_text("one\ntwo\nthree\n")
    assert good(await context.use("edit", path="f", old="two", new="2")) == "Edited f at line 2: 1 place, +1 −1 lines."
    assert (context.root / "f").read_text() == "one\n2\nthree\n"
    assert context.before == [(context.root / "f", b"one\ntwo\nthree\n")]
    assert context.digests[context.root / "f"] == hashlib.sha256(b"one\n2\nthree\n").hexdigest()


async def test_edit_wants_exactly_one_place_unless_all(context: FakeContext) -> None:
    (context.root / "f").write_text("x\ny\nx\nx\n")
    error = bad(await context.use("edit", path="f", old="x", new="z"))
    assert "occurs 3 times" in error and "lines 1, 3, 4" in error
    assert context.before == []
    assert "3 places" in good(await context.use("edit", path="f", old="x", new="z", all=True))
    assert (context.root / "f").read_text() == "z\ny\nz\nz\n"
    assert "does not occur" in bad(await context.use("edit", path="f", old="x", new="z", all=True))


async def test_edit_with_empty_old_only_creates(context: FakeContext) -> None:
    assert good(await context.use("edit", path="new/f", old="", new="a\n")).startswith("Created new/f")
    assert (context.root / "new" / "f").read_text() == "a\n"
    assert "exists already" in bad(await context.use("edit", path="new/f", old="", new="b\n"))
    (context.root / "empty").touch()
    assert "exists already" in bad(await context.use("edit", path="empty", old="", new="b\n"))
    assert "does not exist" in bad(await context.use("edit", path="none", old="a", new="b"))


async def test_an_edit_that_changes_nothing_is_an_error(context: FakeContext) -> None:
    (context.root / "f").write_bytes(b"a\r\nb\r\n")
    assert "the same" in bad(await context.use("edit", path="f", old="a", new="a"))
    assert "changes nothing" in bad(await context.use("edit", path="f", old="a\nb", new="a\r\nb"))
    assert context.before == []


async def test_hints_for_what_was_not_found(context: FakeContext) -> None:
    (context.root / "f").write_text("def f():\n\tif x:\n\t\treturn 1\n")
    error = bad(await context.use("edit", path="f", old="    if x:\n        return 1", new="pass"))
    assert "Only spaces or tabs differ from line 2" in error and "\tif x:\n\t\treturn 1" in error
    assert "line numbers" in bad(await context.use("edit", path="f", old="     1\tdef f():", new="x"))
    assert "found at line 1" in bad(await context.use("edit", path="f", old="def f():\nother", new="x"))
    assert "Read the file again" in bad(await context.use("edit", path="f", old="nothing like it", new="x"))


# ---- B065 to B069: content ----

FILES: dict[str, bytes] = {
    "latin-1": "# Größe\nvalue = 1\n# Straße\n".encode("latin-1"),
    "cp1252": "# “Größe” – naïve\nvalue = 1\n".encode("cp1252"),
    "gbk": "# 配置文件说明\nvalue = 1\n".encode("gbk"),
    "shift_jis": "# 設定ファイルの表示\nvalue = 1\n".encode("shift_jis"),
    "utf-16-le-bom": codecs.BOM_UTF16_LE + "# Größe\r\nvalue = 1\r\n".encode("utf-16-le"),
    "utf-16-be-bom": codecs.BOM_UTF16_BE + "# Größe\nvalue = 1\n".encode("utf-16-be"),
    "utf-16-le": "# Größe\nvalue = 1\n".encode("utf-16-le"),
    "utf-16-be": "# Größe\r\nvalue = 1\r\n".encode("utf-16-be"),
    "utf-8-bom": codecs.BOM_UTF8 + "# Größe\r\nvalue = 1\r\n".encode(),
    "one invalid byte": "# Größe\n".encode() + b"\xff\xfe\nvalue = 1\n",
    "only an invalid byte": b"# gr\xf6\xdfer\nvalue = 1\n",
    "crlf with one lf and one cr": b"a\r\nb\nc\rvalue = 1\r\nd\r\n",
    "latin-1 crlf": "# Größe\r\nvalue = 1\r\n".encode("latin-1"),
}


@pytest.mark.parametrize("name", FILES)
async def test_b065_an_edit_changes_no_other_byte_and_its_undo_is_exact(context: FakeContext, name: str) -> None:
    path = context.root / "f.txt"
    path.write_bytes(FILES[name])
    good(await context.use("edit", path="f.txt", old="value = 1", new="value = 2"))
    wide = "utf-16-le" if "16-le" in name else "utf-16-be" if "16-be" in name else "ascii"
    assert path.read_bytes() == FILES[name].replace("value = 1".encode(wide), "value = 2".encode(wide))
    context.undo()
    assert path.read_bytes() == FILES[name]


async def test_b065_a_binary_file_is_refused(context: FakeContext) -> None:
    (context.root / "f").write_bytes(b"value\0\x01\x02")
    assert "binary data" in bad(await context.use("edit", path="f", old="value", new="x"))
    assert context.before == []


async def test_b066_a_bom_survives_edit_rewrite_and_append(context: FakeContext) -> None:
    path = context.root / "f.cs"
    path.write_bytes(codecs.BOM_UTF8 + b"using A;\r\n")
    good(await context.use("edit", path="f.cs", old="A", new="B"))
    assert path.read_bytes() == codecs.BOM_UTF8 + b"using B;\r\n"
    output = good(await context.use("write", path="f.cs", content="using B;\nusing C;\n"))
    assert "BOM, CRLF kept" in output
    assert path.read_bytes() == codecs.BOM_UTF8 + b"using B;\r\nusing C;\r\n"
    context.undo()
    assert path.read_bytes() == codecs.BOM_UTF8 + b"using A;\r\n"


async def test_b066_a_bom_that_the_model_copied_matches_and_is_never_doubled(context: FakeContext) -> None:
    path = context.root / "f.cs"
    for old, new in (("\ufeffusing A;", "\ufeffusing B;"), ("\ufeffusing A;", "using B;"), ("using A;", "\ufeffusing B;")):
        path.write_bytes(codecs.BOM_UTF8 + b"using A;\r\nend\r\n")
        good(await context.use("edit", path="f.cs", old=old, new=new))
        assert path.read_bytes() == codecs.BOM_UTF8 + b"using B;\r\nend\r\n"
    bad(await context.use("edit", path="f.cs", old="\ufeffend", new="x"))  # there is no mark in the middle


async def test_b069_what_read_shows_of_a_crlf_file_can_be_replaced(context: FakeContext) -> None:
    (context.root / "f").write_bytes(b"if x:\r\n  a\r\n  b\r\nend\r\n")
    shown = good(await context.use("read", path="f"))
    block = "\n".join(line.split("\t", 1)[1] for line in shown.split("\n")[:3])
    good(await context.use("edit", path="f", old=block, new="while y:\n  c"))
    assert (context.root / "f").read_bytes() == b"while y:\r\n  c\r\nend\r\n"


async def test_write_keeps_the_manner_of_a_file(context: FakeContext) -> None:
    path = context.root / "f"
    path.write_bytes("Größe\r\n".encode("cp1252"))
    assert "cp1252, CRLF kept" in good(await context.use("write", path="f", content="Maß\n"))
    assert path.read_bytes() == "Maß\r\n".encode("cp1252")
    assert "cannot hold" in bad(await context.use("write", path="f", content="→\n"))
    path.write_bytes(b"a\0b")
    assert "it was binary" in good(await context.use("write", path="f", content="→\r\n"))
    assert path.read_bytes() == "→\r\n".encode()


async def test_write_creates_folders_and_says_when_nothing_changes(context: FakeContext) -> None:
    assert good(await context.use("write", path="a/b/c.txt", content="1\n2")) == "Created a/b/c.txt: 2 lines, 3 bytes."
    assert "exactly this content" in good(await context.use("write", path="a/b/c.txt", content="1\n2"))
    assert len(context.before) == 1
    assert "0 lines, 0 bytes" in good(await context.use("write", path="empty", content=""))


# ---- B070 to B072: links, modes, names ----


async def test_b070_edits_go_through_links(context: FakeContext) -> None:
    root = context.root
    (root / "sub").mkdir()
    (root / "sub" / "t").write_text("v0")
    links = {"relative": "sub/t", "absolute": str(root / "sub" / "t"), "chain": "relative", "folder": "sub"}
    for name, target in links.items():
        (root / name).symlink_to(target)
    for number, name in enumerate(["relative", "absolute", "chain", "folder/t"]):
        good(await context.use("edit", path=name, old=f"v{number}", new=f"v{number + 1}"))
    assert (root / "sub" / "t").read_text() == "v4"
    assert {path for path, _ in context.before} == {root / "sub" / "t"}  # the file that changed is what is recorded
    context.undo()
    assert (root / "sub" / "t").read_text() == "v0"
    assert {name: os.readlink(root / name) for name in links} == links


async def test_b070_dangling_and_looping_links(context: FakeContext) -> None:
    (context.root / "dangling").symlink_to("missing/target")
    (context.root / "loop").symlink_to("loop")
    good(await context.use("write", path="dangling", content="x"))
    assert (context.root / "missing" / "target").read_text() == "x" and (context.root / "dangling").is_symlink()
    for tool, given in (("write", {"content": "x"}), ("edit", {"old": "a", "new": "b"}), ("read", {}), ("list", {})):
        assert "loop of symbolic links" in bad(await context.use(tool, path="loop", **given))


async def test_b100_a_link_swapped_after_the_permission_is_refused(context: FakeContext, tmp_path: Path) -> None:
    (context.root / "f").write_text("a")
    (context.root / "secret").write_text("a")
    context.judged = frozenset({context.root / "f"})
    good(await context.use("edit", path="f", old="a", new="b"))
    (context.root / "f").unlink()
    (context.root / "f").symlink_to("secret")
    for tool, given in (("write", {"content": "x"}), ("edit", {"old": "a", "new": "b"}), ("read", {})):
        assert "when permission was given" in bad(await context.use(tool, path="f", **given))
    assert (context.root / "secret").read_text() == "a"


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o640])
async def test_b071_the_mode_stays(context: FakeContext, mode: int) -> None:
    path = context.root / "f"
    path.write_text("a")
    path.chmod(mode)
    good(await context.use("edit", path="f", old="a", new="b"))
    good(await context.use("write", path="f", content="c"))
    assert stat.S_IMODE(path.stat().st_mode) == mode
    context.undo()
    assert path.read_text() == "a" and stat.S_IMODE(path.stat().st_mode) == mode


async def test_b071_a_read_only_file_is_not_changed_in_passing(context: FakeContext) -> None:
    path = context.root / "f"
    path.write_text("a")
    path.chmod(0o444)
    for tool, given in (("write", {"content": "x"}), ("edit", {"old": "a", "new": "b"})):
        assert "read-only (mode 0444)" in bad(await context.use(tool, path="f", **given))
    good(await context.use("bash", command="chmod u+w f"))
    good(await context.use("edit", path="f", old="a", new="b"))


async def test_b072_hard_links_stay_equal(context: FakeContext) -> None:
    (context.root / "one").write_text("a")
    os.link(context.root / "one", context.root / "two")
    good(await context.use("edit", path="one", old="a", new="b"))
    assert (context.root / "two").read_text() == "b"
    context.undo()
    assert (context.root / "two").read_text() == "a"


@pytest.mark.parametrize("name", ["a b.txt", "a\nb.txt", "app/[locale]/page.tsx", "x" * 255, "ünï/設定.txt", "-n", "~"])
async def test_b047_odd_names(context: FakeContext, name: str) -> None:
    given = f"./{name}"
    good(await context.use("write", path=given, content="a\n"))
    good(await context.use("edit", path=given, old="a", new="b"))
    assert "1\tb" in good(await context.use("read", path=given))
    assert (context.root / name).read_text() == "b\n"
    assert all(name not in line.split() or "\n" not in name for line in good(await context.use("list", path=".")).split("\n"))


@pytest.mark.parametrize("path", ["a\0b", "x" * 256, "file/below"])
async def test_impossible_names_are_errors(context: FakeContext, path: str) -> None:
    (context.root / "file").touch()
    bad(await context.use("write", path=path, content="a"))
    assert os.listdir(context.root) == ["file"]


async def test_folders_and_pipes_are_refused(context: FakeContext) -> None:
    (context.root / "folder").mkdir()
    os.mkfifo(context.root / "pipe")
    for name in ("folder", "pipe"):
        for tool, given in (("write", {"content": "x"}), ("edit", {"old": "a", "new": "b"})):
            assert "is not a file" in bad(await context.use(tool, path=name, **given))
    assert context.before == []


async def test_a_file_too_large_to_edit(context: FakeContext) -> None:
    with open(context.root / "big", "wb") as file:
        file.truncate((64 << 20) + 1)
    assert "64 MiB" in bad(await context.use("edit", path="big", old="a", new="b"))


# ---- list ----


async def test_list_shows_folders_first(context: FakeContext) -> None:
    root = context.root
    (root / "zoo").mkdir()
    (root / "a.txt").write_bytes(b"x" * 2048)
    (root / ".hidden").touch()
    (root / "link").symlink_to("zoo")
    os.mkfifo(root / "pipe")
    (root / "new\nline").touch()
    (root / "\udcff").touch()
    assert good(await context.use("list")).split("\n") == [
        "zoo/",
        ".hidden (0 B)",
        "a.txt (2.0 KiB)",
        "link -> zoo",
        '"new\\nline" (0 B)',
        "pipe (special file)",
        '"\\\\xff" (0 B)',
    ]
    assert good(await context.use("list", path="zoo")) == "(the folder is empty)"
    assert "use read" in bad(await context.use("list", path="a.txt"))
    assert "does not exist" in bad(await context.use("list", path="nothing"))


async def test_list_is_capped(context: FakeContext) -> None:
    for number in range(1_010):
        (context.root / f"f{number:04}").touch()
    lines = good(await context.use("list")).split("\n")
    assert len(lines) == 1_001 and "10 more of 1,010 entries" in lines[-1]


async def test_b144_the_data_folder_is_left_out(context: FakeContext) -> None:
    context.data_dir = context.root / "data"
    context.data_dir.mkdir()
    (context.root / "f").touch()
    assert good(await context.use("list")) == "f (0 B)"
    assert "own data folder" in bad(await context.use("list", path="data"))


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 1 << 20, (1 << 40) * 5000)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 MiB",
        "5000.0 TiB",
    ]


async def test_temporary_files_do_not_stay(context: FakeContext) -> None:
    for number in range(5):
        await context.use("write", path="f", content=str(number))
    assert safefile.leftovers(context.root) == [] and os.listdir(context.root) == ["f"]
