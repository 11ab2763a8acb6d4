"""Random things done to a folder, by a command or by somebody in between: the tree and a full copy agree."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stead.agent.tree import Tree
from tests.agent.tree.worlds import OPEN, PATIENT, checked, settled, sh
from tests.support import scale

NAMES = ["a", "b", "A", "d/a", "d/b", "d/e/a", "d/e", "d", "f", "f/g", "f/g/h", "g\n", ".x"]
CONTENTS = [b"", b"one\n", b"two\n", b"three\n", bytes(3000)]
paths = st.sampled_from(NAMES)
actions = st.one_of(
    st.tuples(st.just("write"), paths, st.sampled_from(CONTENTS)),
    st.tuples(st.just("append"), paths, st.sampled_from(CONTENTS)),
    st.tuples(st.just("replace"), paths, st.sampled_from(CONTENTS)),
    st.tuples(st.just("remove"), paths, st.just("")),
    st.tuples(st.just("folder"), paths, st.just("")),
    st.tuples(st.just("chmod"), paths, st.sampled_from([0o600, 0o755, 0o700])),
    st.tuples(st.just("touch"), paths, st.just("")),
    st.tuples(st.just("move"), paths, paths),
    st.tuples(st.just("link"), paths, paths),
    st.tuples(st.just("hard"), paths, paths),
    st.tuples(st.just("copy"), paths, paths),
)
Action = tuple[str, str, object]


def act(root: Path, action: Action) -> None:
    """Do it, as far as it can be done."""
    what, name, other = action
    path = root / name
    with suppress(OSError, shutil.Error):
        if what == "write":
            path.write_bytes(other)  # type: ignore[arg-type]
        elif what == "append":
            with path.open("ab") as file:
                file.write(other)  # type: ignore[arg-type]
        elif what == "replace":
            (path.parent / ".tmp").write_bytes(other)  # type: ignore[arg-type]
            try:
                os.replace(path.parent / ".tmp", path)
            finally:
                (path.parent / ".tmp").unlink(missing_ok=True)
        elif what == "remove":
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        elif what == "folder":
            path.mkdir(parents=True)
        elif what == "chmod":
            path.chmod(other)  # type: ignore[arg-type]
        elif what == "touch":
            os.utime(path)
        else:
            {"move": os.rename, "link": symlink, "hard": os.link, "copy": copy}[what](path, root / str(other))


def symlink(path: Path, other: Path) -> None:
    os.symlink(path.name, other)


def copy(path: Path, other: Path) -> None:
    if path.is_dir():
        if not other.is_relative_to(path):
            shutil.copytree(path, other, symlinks=True)
    else:
        shutil.copy2(path, other, follow_symlinks=False)


def all_of(root: Path, some: list[Action]) -> Callable[[], None]:
    return lambda: [act(root, action) for action in some] and None


@pytest.mark.parametrize("events", [True, False])
@pytest.mark.parametrize("git", [True, False])
@settings(max_examples=scale(3_000))
@given(
    begin=st.lists(actions, max_size=15),
    turns=st.lists(st.tuples(st.lists(actions, max_size=4), st.lists(actions, min_size=1, max_size=6)), min_size=1, max_size=4),
)
def test_random_changes(events: bool, git: bool, begin: list[Action], turns: list[tuple[list[Action], list[Action]]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        root = Path(place).resolve() / "project"
        (root / "d" / "e").mkdir(parents=True)
        all_of(root, begin)()
        if git:
            sh("git init -q . && git add -A && git commit -q --allow-empty -m one", root)
        tree = settled(Tree(root, home=Path(place) / "home", events=events, limits=PATIENT))
        try:
            for others, command in turns:
                all_of(root, others)()
                checked(tree, all_of(root, command))
        finally:
            tree.close()
            OPEN.remove(tree)
