"""What it costs to know what a shell command changed, in a generated git tree, beside the way of a peer: a shadow git.

The shadow is a second git directory over the same work tree, whose index is taken over from the project's own and whose objects
are found there as well. Its step asks git what differs and what is new, adds that, and writes a tree. Both are measured in turns
around the same command; the command itself is not counted.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

from common import Figures, Table

from stead.agent.tree import Tree

T = TypeVar("T")

ROUNDS = 15
PER_FOLDER = 20
ENVIRON = {
    **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "gc.auto",
    "GIT_CONFIG_VALUE_0": "0",
    "GIT_CONFIG_KEY_1": "maintenance.auto",
    "GIT_CONFIG_VALUE_1": "false",
    **{f"GIT_{who}_{what}": "bench@localhost" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
}
SETTINGS = {
    "core.autocrlf": "false",
    "core.fsmonitor": "false",
    "core.symlinks": "true",
    "core.quotepath": "false",
    "core.untrackedCache": "true",
    "feature.manyFiles": "true",
    "index.version": "4",
    "index.threads": "true",
}


def git(root: Path, *arguments: str, given: bytes | None = None) -> bytes:
    """Run git in a folder; gives what it printed."""
    return subprocess.run(["git", *arguments], cwd=root, env=ENVIRON, input=given, capture_output=True, check=True).stdout


class ShadowGit:
    """The peer's way."""

    def __init__(self, root: Path, place: Path) -> None:
        self.root, self.place = root, place
        self.options = [f"--git-dir={place}", f"--work-tree={root}"]
        git(root, *self.options, "init", "-q")
        for name, value in SETTINGS.items():
            git(root, *self.options, "config", name, value)
        (place / "objects/info").mkdir(exist_ok=True)
        (place / "objects/info/alternates").write_text(f"{root}/.git/objects\n")
        shutil.copy(root / ".git/index", place / "index")
        self.step()

    def step(self) -> None:
        """Take over what changed."""
        git(self.root, "rev-parse", "--path-format=absolute", "--git-path", "info/exclude")
        asked = (["diff-files", "--name-only", "-z"], ["ls-files", "--full-name", "--others", "--exclude-standard", "-z"])
        children = [
            subprocess.Popen(["git", *self.options, *ask, "--", "."], cwd=self.root, env=ENVIRON, stdout=subprocess.PIPE)
            for ask in asked
        ]
        paths = [path for child in children for path in child.communicate()[0].split(b"\0") if path]
        if paths:
            ask = [f"--git-dir={self.root}/.git", f"--work-tree={self.root}", "check-ignore", "--no-index", "--stdin", "-z"]
            subprocess.run(["git", *ask], cwd=self.root, env=ENVIRON, input=b"\0".join(paths) + b"\0", capture_output=True)
            add = ("add", "--all", "--sparse", "--pathspec-from-file=-", "--pathspec-file-nul")
            git(self.root, *self.options, *add, given=b"\0".join(b":(top,literal)" + path for path in paths) + b"\0")
        git(self.root, *self.options, "write-tree")


def generate(root: Path, files: int) -> None:
    """A repository of so many small files, with one commit."""
    for n in range(files):
        if not n % PER_FOLDER:
            folder = root / f"part{n // (PER_FOLDER * 50)}" / f"module{n // PER_FOLDER}"
            folder.mkdir(parents=True)
        (folder / f"file{n % PER_FOLDER}.py").write_text(f"def f{n}():\n    return {n}\n" * 4)
    time.sleep(1.1)  # else git takes the last files for racy
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "all")


def tables(quick: bool) -> Iterator[Table]:
    """The jobs of the tree."""
    yield from measure(2_000 if quick else 100_000, 5 if quick else ROUNDS)


def measure(files: int, rounds: int) -> Iterator[Table]:
    """Both ways in one tree, in turns."""
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as place:
        root = Path(place).resolve() / "project"
        generate(root, files)
        shadow, shadow_start = timed(lambda: ShadowGit(root, Path(place) / "shadow"))
        tree = Tree(root, home=Path(place) / "home")
        start = _start(tree)
        try:
            edited, nothing = _turns(tree, shadow, root, rounds)
        finally:
            tree.close()
    yield Table(f"3 files changed by a shell command, {files:,} files", "p50 ms", edited, "all that is done before and after it")
    yield Table(f"nothing changed, {files:,} files", "p50 ms", nothing)
    rows = {"shadow git": {"ms": shadow_start}, "stead (in the background)": start}
    yield Table(
        f"start, {files:,} files", "ms", rows, "until every state is known; CPU ms: with the copies, without git's processes"
    )


def _start(tree: Tree) -> Figures:
    spent, begin = time.process_time(), time.perf_counter()
    tree.start()
    assert tree.wait_ready(60) is None
    ready = time.perf_counter() - begin
    known = time.process_time() - spent
    while not tree.coverage().copied:
        time.sleep(0.01)
    return {"ms": ready * 1e3, "CPU to ready ms": known * 1e3, "CPU ms": (time.process_time() - spent) * 1e3}


def _turns(tree: Tree, shadow: ShadowGit, root: Path, rounds: int) -> tuple[dict[str, Figures], dict[str, Figures]]:
    names = [root / f"part0/module{n}/file{n}.py" for n in range(3)]
    ours: dict[str, list[float]] = {"edited": [], "nothing": [], "edited shadow": [], "nothing shadow": []}
    edit = f"for f in {' '.join(map(str, names))}; do echo again >> $f; done"
    for _round in range(rounds):
        for what, command in (("edited", edit), ("nothing", "true")):
            mark, before = timed(tree.before)
            subprocess.run(["sh", "-c", command], check=True)
            found, after = timed(lambda mark=mark: tree.after(mark))  # type: ignore[misc]
            _, loaded = timed(lambda found=found: [one.before.load() for one in found.seen if one.before.load])  # type: ignore[misc]
            assert len(found.seen) == (3 if what == "edited" else 0) and not found.not_covered, found
            ours[what].append(before + after + loaded)
            ours[what + " shadow"].append(timed(shadow.step)[1])
            time.sleep(0.1)  # the thread's turn, as between two commands of a model
    return (
        {"shadow git": _figures(ours["edited shadow"]), "stead": _figures(ours["edited"])},
        {"shadow git": _figures(ours["nothing shadow"]), "stead": _figures(ours["nothing"])},
    )


def _figures(each: list[float]) -> Figures:
    return {"p50 ms": statistics.median(each), "worst ms": max(each)}


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """What it gives, and its milliseconds."""
    begin = time.perf_counter()
    value = work()
    return value, (time.perf_counter() - begin) * 1e3
