"""glob and grep: what is found, what is left out, and that both ways of searching agree."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from stead.agent.tools import find, search
from tests.agent.tools.context import FakeContext
from tests.agent.tools.test_files import bad, good

RG = shutil.which("rg", path=f"{os.environ.get('PATH', '')}:{Path(sys.executable).parent}:{os.environ.get('STEAD_RG_FOLDER', '')}")


@pytest.fixture(params=["python", "rg"])
def context(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContext:
    """A project, with a search by ripgrep or by our own code."""
    chosen = RG if request.param == "rg" else None
    assert chosen or request.param == "python", "ripgrep is missing: the extra `test` brings it"
    monkeypatch.setattr(find, "ripgrep", lambda context: chosen)
    return FakeContext(tmp_path)


def fill(root: Path, files: dict[str, str | bytes]) -> None:
    for number, (name, content) in enumerate(files.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.utime(path, (1_000_000 + number, 1_000_000 + number))


TREE: dict[str, str | bytes] = {
    "a.py": "foo\nbar\n",
    "sub/b.py": "x foo\r\ny\r\n",
    "sub/app/[locale]/page.tsx": "foo",
    "build/out.py": "foo",
    "sub/build/deep.py": "foo",
    "keep.log": "foo",
    "sub/x.log": "foo",
    ".gitignore": "build/\n*.log\n",
    "sub/.gitignore": "!x.log\n",
    ".git/config": "foo",
    ".hidden": "foo",
    "bin": b"foo\0",
    "we ird\nname.txt": "foo",
    "utf16.txt": "x\nfoo ü\n".encode("utf-16"),
    "latin.txt": "foo ü".encode("latin-1"),
}


async def found(context: FakeContext, **given: object) -> list[str]:
    return good(await context.use("grep", **given)).split("\n")


# ---- glob ----


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.py", ["sub/b.py", "a.py"]),
        ("**/*.py", ["sub/b.py", "a.py"]),
        ("./*.py", ["a.py"]),
        ("build/*.py", ["build/out.py"]),  # named outright
        ("keep.log", ["keep.log"]),
        ("*.log", ["sub/x.log"]),
        ("sub/{b,c}.py", ["sub/b.py"]),
        ("sub/app/[locale]/*.tsx", ["sub/app/[locale]/page.tsx"]),
        ("**/[locale]/page.tsx", ["sub/app/[locale]/page.tsx"]),
        (".hid*", [".hidden"]),
        ("[ab]*.py", ["sub/b.py", "a.py"]),
        ("**/.git/**", []),
        ("nothing*", []),
    ],
)
async def test_glob(context: FakeContext, pattern: str, names: list[str]) -> None:
    fill(context.root, TREE)
    assert good(await context.use("glob", pattern=pattern)).split("\n") == (names or ["No files found."])


async def test_glob_in_a_folder(context: FakeContext) -> None:
    fill(context.root, TREE)
    assert good(await context.use("glob", pattern="*.py", path="sub")) == "sub/b.py"
    assert good(await context.use("glob", pattern="*.py", path="build")) == "build/out.py"
    assert "not a folder" in bad(await context.use("glob", pattern="*", path="a.py"))
    assert "does not exist" in bad(await context.use("glob", pattern="*", path="none"))
    for pattern in ("/etc/*", "../*", "sub/../../*", "~/*"):
        assert "give the folder" in bad(await context.use("glob", pattern=pattern))


async def test_glob_is_capped_and_sorted_by_time(context: FakeContext) -> None:
    fill(context.root, {f"f{number}": "" for number in range(510)})
    lines = good(await context.use("glob", pattern="f*")).split("\n")
    assert lines[0] == "f509" and len(lines) == 501 and "of 510 files" in lines[-1]


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.py", ["a.py", "x/y/a.py", ".py"], ["a.pyc", "a.py/b"]),
        ("src/**/t?st.py", ["src/test.py", "src/a/b/tast.py"], ["test.py", "src/a/teest.py", "xsrc/test.py"]),
        ("a/**", ["a/b", "a/b/c"], ["a", "ab/c"]),
        ("**/a/**/b", ["a/b", "x/a/y/z/b"], ["ab", "a/c"]),
        ("[!a-c]x", ["dx", "q/dx"], ["ax", "/x"]),
        ("a[b", ["a[b"], ["ab"]),
        ("{a,b{c,d}}.x", ["a.x", "bc.x", "bd.x"], ["b.x", "c.x"]),
        ("a\\*b", ["a*b"], ["axb"]),
        ("*a*b*c", ["xaxbxc", "abc", "aabbcc"], ["acb"]),
        ("a**b", ["ab", "axb"], ["a/b"]),
        ("[]", ["[]"], ["x"]),
        ("[a&&b]", ["&", "a"], ["c"]),
    ],
)
def test_globs(glob: str, yes: Iterable[str], no: Iterable[str]) -> None:
    pattern = search.glob_pattern(glob)
    assert all(pattern.fullmatch(name) for name in yes)
    assert not any(pattern.fullmatch(name) for name in no)


def test_a_hostile_glob_is_quick() -> None:
    assert not search.glob_pattern("*a" * 30 + "b").fullmatch("a" * 250)
    assert not search.glob_pattern("**/" * 30 + "b").fullmatch("a/" * 100)
    assert len(search.glob_pattern("{a,b}" * 20).pattern) < 10_000


# ---- grep ----


async def test_grep_finds_lines_in_a_stable_order(context: FakeContext) -> None:
    fill(context.root, TREE)
    lines = [
        ".hidden:1:foo",
        "a.py:1:foo",
        "latin.txt:1:foo \ufffd",
        "sub/app/[locale]/page.tsx:1:foo",
        "sub/b.py:1:x foo",
        "sub/x.log:1:foo",
        "utf16.txt:2:foo ü",
        '"we ird\\nname.txt":1:foo',
        "[8 matching lines in 8 files]",
    ]
    assert await found(context, pattern="foo") == lines
    assert await found(context, pattern="FOO", ignore_case=True) == lines
    assert await found(context, pattern="FOO") == ["No matches."]


async def test_grep_narrowed(context: FakeContext) -> None:
    fill(context.root, TREE)
    assert (await found(context, pattern="foo", glob="*.py"))[:-1] == ["a.py:1:foo", "sub/b.py:1:x foo"]
    assert (await found(context, pattern="foo", glob="sub/*.py"))[:-1] == ["sub/b.py:1:x foo"]
    assert "sub/b.py:1:x foo" not in await found(context, pattern="foo", glob="!*.py")
    assert (await found(context, pattern="foo$", path="sub", glob="*.{py,tsx}"))[:-1] == [
        "sub/app/[locale]/page.tsx:1:foo",
        "sub/b.py:1:x foo",
    ]
    assert (await found(context, pattern="foo", path="build"))[:-1] == ["build/out.py:1:foo"]
    assert (await found(context, pattern="foo", path="keep.log"))[:-1] == ["keep.log:1:foo"]
    assert await found(context, pattern="foo", path="bin") in (["No matches."], ["bin:1:foo␀", "[1 matching line in 1 file]"])
    assert (await found(context, pattern="^x", path="sub/b.py"))[:-1] == ["sub/b.py:1:x foo"]


async def test_grep_understands_what_python_understands(context: FakeContext) -> None:
    fill(context.root, TREE)
    assert (await found(context, pattern=r"(?<=x )foo"))[:-1] == ["sub/b.py:1:x foo"]
    assert "not valid" in bad(await context.use("grep", pattern="(foo"))
    assert await found(context, pattern="-foo") == ["No matches."]


async def test_grep_errors(context: FakeContext) -> None:
    os.mkfifo(context.root / "pipe")
    assert "does not exist" in bad(await context.use("grep", pattern="x", path="none"))
    assert "neither" in bad(await context.use("grep", pattern="x", path="pipe"))
    assert await found(context, pattern="x") == ["No matches."]  # the pipe did not hold it up


async def test_grep_cuts_long_lines_around_the_match(context: FakeContext) -> None:
    fill(context.root, {"min.js": "a" * 50_000 + "🎉foo🎉" + "b" * 50_000})
    [line, _] = await found(context, pattern="foo")
    assert "🎉foo🎉" in line and len(line) < 400 and line.startswith("min.js:1:…a") and line.endswith("cut]")


async def test_grep_is_capped(context: FakeContext) -> None:
    fill(context.root, {"f": "foo\n" * 1_000})
    lines = await found(context, pattern="foo")
    assert len(lines) == 251 and "the first 250 matching lines" in lines[-1]
    fill(context.root, {"f": ("foo" + "設" * 290 + "\n") * 240})
    result = await context.use("grep", pattern="foo")
    assert "left out here" in good(result) and len(result.output.encode()) <= 48 << 10 and result.full is not None


async def test_b144_the_data_folder_is_never_searched(context: FakeContext) -> None:
    context.data_dir = context.root / "we[ird] data"
    fill(context.root, {"we[ird] data/logs/x.txt": "foo", "f.txt": "foo"})
    assert await found(context, pattern="foo") == ["f.txt:1:foo", "[1 matching line in 1 file]"]
    assert good(await context.use("glob", pattern="*.txt")) == "f.txt"
    assert good(await context.use("glob", pattern="we[ird] data/logs/*.txt")) == "No files found."
    for path in ("we[ird] data", "we[ird] data/logs", "we[ird] data/logs/x.txt"):
        assert "own data folder" in bad(await context.use("grep", pattern="foo", path=path))
    assert "own data folder" in bad(await context.use("glob", pattern="*", path="we[ird] data"))


async def test_a_link_out_of_the_tree_is_not_followed(context: FakeContext, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret.txt").write_text("foo")
    (context.root / "link").symlink_to(outside)
    (context.root / "file").symlink_to(outside / "secret.txt")
    assert await found(context, pattern="foo") == ["No matches."]
    assert good(await context.use("glob", pattern="**/secret.txt")) == "No files found."


async def test_a_search_that_never_ends_is_stopped_and_can_be_cancelled(
    context: FakeContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(find, "ripgrep", lambda context: None)
    fill(context.root, {"f": "a" * 60 + "\n"})
    monkeypatch.setattr(find, "SECONDS", 0.3)
    assert "stopped after 0.3 s" in good(await context.use("grep", pattern="(a+)+$x"))
    monkeypatch.setattr(find, "SECONDS", 60.0)
    task = asyncio.ensure_future(context.use("grep", pattern="(a+)+$x"))
    await asyncio.sleep(0.2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_impossible_rule_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    fill(tmp_path, {".gitignore": "!\nskip/\n", "skip/f": "", "g": ""})
    assert [name for name, _ in search.walk(str(tmp_path), [])] == [".gitignore", "g"]


def test_rules_above_the_start_hold(tmp_path: Path) -> None:
    fill(
        tmp_path,
        {".gitignore": "/a/skip/\n*.tmp\n", "a/.gitignore": "!b/keep.tmp\n", "a/b/keep.tmp": "", "a/b/x.tmp": "", "a/skip/f": ""},
    )
    top, start = str(tmp_path), str(tmp_path / "a" / "b")
    assert [name for name, _ in search.walk(start, search.chain_above(top, start))] == ["keep.tmp"]
    start = str(tmp_path / "a" / "skip")
    assert search.chain_above(top, start) == []
    assert search.chain_above(top, top) == search.chain_above(top, "/elsewhere") == []


# ---- what rules deny ----


async def test_b103_what_a_rule_denies_is_left_out_of_walks(context: FakeContext) -> None:
    fill(context.root, {"a.txt": "needle\n", "secret/key.txt": "needle\n", "sub/.env": "needle\n"})
    context.denied = lambda path: "secret" in path.parts or path.name == ".env"
    assert await found(context, pattern="needle") == ["a.txt:1:needle", "[1 matching line in 1 file]"]
    assert good(await context.use("glob", pattern="**/*")).split("\n") == ["a.txt"]
    assert good(await context.use("glob", pattern="secret/key.txt")) == "No files found."
    assert good(await context.use("list")).split("\n") == ["sub/", "a.txt (7 B)"]
