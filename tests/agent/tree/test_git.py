"""git's index is understood as git understands it, and git is neither changed nor trusted with what it does not hold."""

from __future__ import annotations

import os
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from stead.agent.tree import Tree
from stead.agent.tree.gitindex import GitIndex
from stead.agent.tree.objects import Objects
from stead.agent.tree.stamps import packed, unpacked
from tests.agent.tree.worlds import GIT, PATIENT, checked, fill, make, settled, sh, until


def git(root: Path, *arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=root, env=GIT, capture_output=True, check=True).stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository whose files are older than its index, so that git trusts them."""
    root = tmp_path / "project"
    fill(root)
    sh("git init -q . && find . -path ./.git -prune -o -type f -print0 | xargs -0 touch -d '2 minutes ago'", root)
    sh("git add -A && git commit -qm one", root)
    return root


def index_of(root: Path, hash_bytes: int = 20) -> GitIndex:
    path = root / ".git/index"
    return GitIndex(path.read_bytes(), path.stat().st_mtime_ns, hash_bytes)


def listed(root: Path) -> dict[bytes, bytes]:
    """Path to object, as git says."""
    lines = git(root, "ls-files", "-s", "-z").split(b"\0")[:-1]
    return {line.partition(b"\t")[2]: bytes.fromhex(line.split()[1].decode()) for line in lines if line.split()[2] == b"0"}


@pytest.mark.parametrize("version", [2, 3, 4])
def test_the_index_says_what_git_says(root: Path, version: int) -> None:
    (root / "long").mkdir()
    (root / "long" / ("x" * 250)).write_text("long")
    deep = root / "/".join(["y" * 200] * 10)
    deep.mkdir(parents=True)
    (deep / ("z" * 200)).write_text("path of more than 4095 bytes is not possible, this is what there is")
    sh(f"git add -A && git update-index --index-version {version}", root)
    if version == 3:
        sh("echo later > later && git add -N later && git update-index --skip-worktree a.txt", root)
    found = index_of(root)
    wanted = listed(root)
    assert (root / ".git/index").read_bytes()[7] == version
    assert sorted(found.paths()) == sorted(wanted)
    assert {path: found.object(path) for path in wanted} == wanted


def test_clean_is_what_git_calls_clean(root: Path) -> None:
    sh("echo more >> a.txt && chmod 644 run.sh && touch Readme.md && rm emp", root)
    index = index_of(root)
    clean = set()
    for path, name in listed(root).items():
        full = os.path.join(os.fsencode(root), path)
        if os.path.lexists(full) and index.clean(path, unpacked(packed(os.lstat(full)))) == name:
            clean.add(path)
    files = {path for path in listed(root) if not os.path.islink(os.path.join(os.fsencode(root), path))}
    assert clean == files - {b"a.txt", b"run.sh", b"Readme.md", b"emp"}  # of a mode the index knows the time of the change


def test_a_file_that_is_not_older_than_the_index_is_not_trusted(root: Path) -> None:
    """It may have been written to right after git looked, within the same tick."""
    state = unpacked(packed(os.lstat(root / "a.txt")))
    raw = (root / ".git/index").read_bytes()
    assert GitIndex(raw, state.mtime + 1).clean(b"a.txt", state) is not None
    assert GitIndex(raw, state.mtime).clean(b"a.txt", state) is None


@pytest.mark.parametrize("raw", [b"", b"DIRC", b"DIRC\0\0\0\5\0\0\0\1" + bytes(200), b"DIRC\0\0\0\2\0\0\0\7" + bytes(70)])
def test_an_index_that_is_not_understood_says_nothing(raw: bytes) -> None:
    assert GitIndex(raw, 0).paths() == []


def test_a_cut_index_says_nothing(root: Path) -> None:
    raw = (root / ".git/index").read_bytes()
    for length in range(0, len(raw) - 200, 37):
        assert GitIndex(raw[:length], 1 << 62).object(b"a.txt") is None


def test_a_split_index_says_nothing(root: Path) -> None:
    sh("git update-index --split-index && echo x > new && git add new", root)
    assert index_of(root).paths() == []


def test_conflicts_and_submodules_are_not_files(root: Path) -> None:
    sh("git checkout -q -b other && echo o > a.txt && git commit -qam o", root)
    sh("git checkout -q - && echo m > a.txt && git commit -qam m", root)
    sh("git merge -q other || true; git update-index --add --cacheinfo 160000,$(git rev-parse HEAD),sub", root)
    paths = index_of(root).paths()
    assert b"a.txt" not in paths and b"sub" not in paths and b"Readme.md" in paths


def test_a_repository_with_long_hashes(tmp_path: Path) -> None:
    root = tmp_path / "project"
    fill(root)
    sh("touch -d '2 minutes ago' a.txt && git init -q --object-format=sha256 . && git add -A && git commit -qm one", root)
    assert index_of(root, 32).object(b"a.txt") == listed(root)[b"a.txt"]
    tree = settled(Tree(root, home=tmp_path / "home", limits=replace(PATIENT, off=True)))
    checked(tree, lambda: sh("echo x >> a.txt", root))
    tree.close()


# ---- what lies in git ----


def test_clean_files_are_not_copied(root: Path, tmp_path: Path) -> None:
    tree = settled(Tree(root, home=tmp_path / "home", limits=PATIENT))
    assert tree.counts.files_read == 0
    checked(tree, lambda: sh("rm -r src a.txt; sed -i s/hello/bye/ Readme.md; touch run.sh; chmod 600 emp", root))
    tree.close()


def test_objects_by_the_hundred(root: Path) -> None:
    sh("mkdir many && for i in $(seq 900); do echo $i > many/$i; done && git add -A && git gc -q", root)
    names = listed(root)
    objects = Objects(str(root / ".git"))
    paths = sorted(names)
    sizes = objects.sizes([names[path] for path in paths] + [bytes(20)])
    assert sizes[:-1] == [os.lstat(os.path.join(os.fsencode(root), path)).st_size for path in paths]
    assert sizes[-1] is None
    for path in (b"many/7", b"emp", b"src/deep/er/x.py"):
        assert objects.load(names[path]) == (root / os.fsdecode(path)).read_bytes()
    assert objects.load(bytes(20)) is None
    assert objects.load(bytes.fromhex(git(root, "rev-parse", "HEAD^{tree}").decode())) is None
    assert objects.load(names[b"a.txt"]) == b"one\ntwo\nthree\n"
    objects.close()
    assert objects.load(names[b"a.txt"]) == b"one\ntwo\nthree\n"
    objects.close()


def test_large_objects_come_whole(root: Path) -> None:
    content = os.urandom(3_000_000) + b"\n\n"
    (root / "large").write_bytes(content)
    sh("git add large", root)
    objects = Objects(str(root / ".git"))
    name = listed(root)[b"large"]
    assert objects.sizes([name]) == [len(content)]
    assert objects.load(name) == content
    assert objects.load(name) == content
    objects.close()


def test_without_git_there_is_no_content_of_git(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    objects = Objects(str(root / ".git"))
    assert objects.sizes([bytes(20), bytes(20)]) == [None, None]
    assert objects.load(bytes(20)) is None


def test_a_git_that_dies_is_begun_again(root: Path) -> None:
    objects = Objects(str(root / ".git"))
    name = listed(root)[b"a.txt"]
    for _ in range(2):
        assert objects.load(name) == b"one\ntwo\nthree\n"
        assert objects._load is not None
        objects._load.kill()
        objects._load.wait()
        assert objects.load(name) is None
    assert objects.load(name) == b"one\ntwo\nthree\n"
    objects.close()


@pytest.mark.parametrize(
    "setting",
    [
        "git config core.autocrlf true && printf 'x\\r\\ny\\r\\n' > crlf.txt",
        "printf '*.txt text eol=crlf\\n' > .gitattributes && printf 'x\\r\\ny\\r\\n' > crlf.txt",
        "echo '*.txt ident' > .gitattributes && echo '$Id$' > crlf.txt && git add -A && rm crlf.txt && git checkout -q crlf.txt",
        "echo '*.txt filter=r' > .gitattributes && git config filter.r.clean 'tr a b' && git config filter.r.smudge 'tr b a'"
        " && echo abc > crlf.txt",
        "printf '*.txt working-tree-encoding=UTF-16LE\\n' > .gitattributes && printf 'a\\0b\\0' > crlf.txt",
    ],
)
def test_where_git_converts_a_files_own_content_is_kept(root: Path, tmp_path: Path, setting: str) -> None:
    sh(setting, root)
    sh("touch -d '2 minutes ago' crlf.txt && git add crlf.txt .gitignore && git update-index --refresh", root)
    tree = settled(Tree(root, home=tmp_path / "home", limits=PATIENT))
    checked(tree, lambda: sh("echo more >> crlf.txt", root))
    tree.close()


def test_b050_git_is_never_touched(tmp_path: Path) -> None:
    root = make("nested", tmp_path).root
    sh("touch a.txt sub/a.txt && chmod -R a-w .git/objects", root)  # a status would write the index anew

    def all_of_git() -> dict[str, tuple[int, int, int, int]]:
        found = {}
        for folder in (root / ".git", root / "sub/.git"):
            for path in [folder, *folder.rglob("*")]:
                about = path.lstat()
                found[str(path)] = (about.st_mtime_ns, about.st_ctime_ns, about.st_size, stat.S_IMODE(about.st_mode))
        return found

    before = all_of_git()
    tree = settled(Tree(root, home=tmp_path / "home", limits=PATIENT))
    checked(tree, lambda: sh("echo x >> a.txt; rm sub/Readme.md; mv src lib; touch run.sh", root))
    tree.close()
    assert all_of_git() == before


def test_no_program_of_the_project_is_run(root: Path, tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    for name in ("core.fsmonitor", "core.sshCommand", "core.pager", "diff.external", "filter.x.smudge", "filter.x.clean"):
        git(root, "config", name, f"touch {trap}; true")
    git(root, "config", "extensions.partialClone", "origin")
    git(root, "config", "core.repositoryFormatVersion", "1")
    git(root, "config", "remote.origin.promisor", "true")
    git(root, "config", "remote.origin.url", f"ext::sh -c 'touch {trap}'")
    git(root, "config", "protocol.ext.allow", "always")
    for hook in ("post-index-change", "reference-transaction", "post-checkout"):
        (root / ".git/hooks" / hook).write_text(f"#!/bin/sh\ntouch {trap}\n")
        (root / ".git/hooks" / hook).chmod(0o755)
    name = listed(root)[b"a.txt"].hex()
    (root / ".git/objects" / name[:2] / name[2:]).unlink()  # git would like to fetch it
    trap.unlink(missing_ok=True)
    tree = settled(Tree(root, home=tmp_path / "home", limits=PATIENT))
    (root / ".gitattributes").write_text("*.md filter=x\n")
    until(lambda: tree.counts.files_read > 3)  # git is not relied on any more
    settled(tree)
    mark = tree.before()
    (root / "a.txt").unlink()
    (root / "Readme.md").unlink()
    found = tree.after(mark)
    contents = {one.path: one.before.load() for one in found.seen if one.before.load}
    assert contents == {"a.txt": b"one\ntwo\nthree\n", "Readme.md": b"# hello\n"}
    tree.close()
    assert not trap.exists()
