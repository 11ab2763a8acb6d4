"""Folders to work in, and an oracle that knows what changed because it copies everything."""

from __future__ import annotations

import os
import stat
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stead.agent.tree import Found, Limits, Seen, Tree

GIT = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    **{f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}

PATIENT = Limits(fresh_seconds=10)
"""A busy machine must not decide what a test sees."""

State = tuple[str, int, bytes]
"""Kind, permission bits, content (of a link: its target)."""


def sh(command: str, cwd: Path) -> None:
    """Run a shell command; it must succeed."""
    done = subprocess.run(["bash", "-ec", command], cwd=cwd, env=GIT, capture_output=True)
    assert done.returncode == 0, (command, done.stderr)


def picture(root: Path) -> dict[str, State]:
    """Everything below `root` but what `.git` holds."""
    found: dict[str, State] = {}
    for top, folders, files in os.walk(os.fsencode(root)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in folders + [name for name in files if name != b".git"]:
            path = os.path.join(top, name)
            about = os.lstat(path)
            content = b""
            if stat.S_ISLNK(about.st_mode):
                kind, content = "symlink", os.readlink(path)
            elif stat.S_ISREG(about.st_mode):
                kind, content = "file", Path(os.fsdecode(path)).read_bytes()
            else:
                kind = "directory" if stat.S_ISDIR(about.st_mode) else "other"
            found[os.fsdecode(os.path.relpath(path, os.fsencode(root)))] = (kind, stat.S_IMODE(about.st_mode), content)
    return found


ABSENT: State = ("absent", 0, b"")
UNKNOWN = b"<unknown>"


def states(one: Seen) -> tuple[State, State]:
    """Before and after, with their contents loaded."""
    before, after = (
        (shot.kind, shot.mode, b"" if shot.kind in ("absent", "directory", "other") else shot.load() if shot.load else UNKNOWN)
        for shot in (one.before, one.after)
    )
    return before, after


def differences(before: dict[str, State], after: dict[str, State]) -> dict[str, tuple[State, State]]:
    """What changed between two pictures."""
    return {
        path: (before.get(path, ABSENT), after.get(path, ABSENT))
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path)
    }


def observed(tree: Tree, work: Callable[[], None]) -> tuple[Found, dict[str, tuple[State, State]]]:
    """Do it between `before` and `after`; gives what the tree found, and what the oracle did."""
    old = picture(tree.root)
    mark = tree.before()
    work()
    found = tree.after(mark)
    return found, differences(old, picture(tree.root))


def checked(tree: Tree, work: Callable[[], None]) -> Found:
    """The same; the tree must have found exactly what the oracle did, with every content."""
    found, wanted = observed(tree, work)
    seen = {one.path: states(one) for one in found.seen}
    wrong = {path: (seen.get(path), wanted.get(path)) for path in seen.keys() | wanted.keys() if seen.get(path) != wanted.get(path)}
    assert not wrong, f"path: (found, really) {wrong}"
    assert not found.not_covered, found.not_covered
    return found


def renames(found: Found) -> dict[str, str]:
    """New path by old path."""
    return {one.renamed_from: one.path for one in found.seen if one.renamed_from is not None}


@dataclass
class World:
    """A project folder, and where its git answers from (None: no git)."""

    root: Path
    has_commit: bool
    git: bool = True


def fill(root: Path) -> None:
    """The files that every world has. `.gitignore` stands for those that git is not told of."""
    root.mkdir(parents=True, exist_ok=True)
    files = {
        "a.txt": "one\ntwo\nthree\n",
        "Readme.md": "# hello\n",
        "src/app.py": "print(1)\n",
        "src/deep/er/x.py": "x = 1\n" * 300,
        "src/deep/y.py": "y = 2\n",
        "name with space.txt": "s\n",
        "app/[locale]/page.tsx": "page\n",
        "new\nline.txt": "n\n",
        "emp": "",
        ".gitignore": ".env\nbuild/\n",
        "run.sh": "#!/bin/sh\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / "run.sh").chmod(0o755)
    Path(os.fsdecode(os.fsencode(root) + b"/latin-\xe9.txt")).write_bytes(b"\xe9\n")
    (root / "link").symlink_to("a.txt")
    (root / "to-src").symlink_to("src")


def untracked(root: Path) -> None:
    """What git is not told of: an untracked, an ignored and a built file, and one that is dirty."""
    (root / ".env").write_text("KEY=secret\n")
    (root / "notes.txt").write_text("mine\n")
    (root / "build").mkdir(exist_ok=True)
    (root / "build" / "out.o").write_bytes(bytes(range(256)))
    (root / "src" / "deep" / "y.py").write_text("y = 3  # not committed\n")


def make(kind: str, place: Path) -> World:
    """A world of a kind: plain, git, empty (no commit), worktree, submodule, nested, below (a folder of a repository)."""
    root = place / "project"
    if kind == "plain":
        fill(root)
    elif kind in ("git", "empty", "below", "nested"):
        top = place if kind == "below" else root
        fill(root)
        sh("git init -q . && git add -A", top)
        if kind != "empty":
            sh("git commit -qm one", top)
        if kind == "nested":
            fill(root / "sub")
            sh("git init -q . && git add -A && git commit -qm one", root / "sub")
            untracked(root / "sub")
    elif kind == "worktree":
        fill(place / "main")
        sh("git init -q . && git add -A && git commit -qm one && git worktree add -q ../project", place / "main")
    else:
        fill(place / "other")
        sh("git init -q . && git add -A && git commit -qm one", place / "other")
        root.mkdir()
        sh("git init -q . && git -c protocol.file.allow=always submodule --quiet add ../other sub && git commit -qm one", root)
        root = root / "sub"
    untracked(root)
    return World(root, has_commit=kind not in ("plain", "empty"), git=kind != "plain")


KINDS = ("plain", "git", "empty", "worktree", "submodule", "nested", "below")


def until(true: Callable[[], bool], seconds: float = 5) -> None:
    """Wait for it."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)


def settled(tree: Tree, seconds: float = 20) -> Tree:
    """Wait until the tree is known and the copies are made; a tree that does not come so far is closed."""
    try:
        assert tree.wait_ready(seconds) in (None, "limited")
        until(lambda: tree.coverage().copied, seconds)
    except BaseException:
        tree.close()
        raise
    OPEN.append(tree)
    return tree


OPEN: list[Tree] = []
"""The trees of a test; conftest.py closes them."""
