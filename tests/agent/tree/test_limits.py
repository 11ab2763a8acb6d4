"""Where a tree is not watched as a whole, what is not copied, and that both are said."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from stead.agent.tree import Limits, NotCovered, Tree
from tests.agent.tree.worlds import PATIENT, checked, make, observed, settled, sh, states


def opened(root: Path, home: Path, limits: Limits | None = None) -> Tree:
    return settled(Tree(root, home=home, limits=replace(limits or PATIENT, fresh_seconds=10)))


def test_b060_nothing_is_read_before_the_start(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    tree = Tree(root, home=tmp_path / "home", limits=PATIENT)
    assert not tree.coverage().ready
    found = tree.after(tree.before())
    assert (tree.counts.directories_read, tree.counts.files_read, tree.counts.lstats) == (0, 0, 0)
    assert found.not_covered == [NotCovered("", "index_not_ready")]
    settled(tree)
    assert tree.counts.directories_read > 5
    tree.close()


@pytest.mark.parametrize("home", ["project", "project/in/it"])
def test_b060_the_home_folder_is_not_walked(tmp_path: Path, home: str) -> None:
    root = make("git", tmp_path).root
    (tmp_path / home).mkdir(exist_ok=True, parents=True)
    tree = Tree(root, home=tmp_path / home)
    assert tree.coverage().kind == "limited" and "home" in (tree.coverage().why or "")
    assert tree.wait_ready(5) == "limited"
    settled(tree)
    found, _ = observed(tree, lambda: sh("echo x >> a.txt && rm src/app.py && echo y >> notes.txt && chmod 600 run.sh", root))
    assert tree.counts.directories_read == 0
    assert {one.path: states(one)[0] for one in found.seen} == {
        "a.txt": ("file", 0o644, b"one\ntwo\nthree\n"),
        "src/app.py": ("file", 0o644, b"print(1)\n"),
        "run.sh": ("file", 0o755, b"#!/bin/sh\n"),
    }
    tree.close()


def test_where_coverage_is_limited_a_file_that_was_read_is_covered(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    tree = opened(root, root)
    tree.note(root / "notes.txt")
    tree.note("made.txt")
    found, _ = observed(tree, lambda: sh("echo y >> notes.txt && echo made > made.txt", root))
    assert {one.path: states(one) for one in found.seen} == {
        "notes.txt": (("file", 0o644, b"mine\n"), ("file", 0o644, b"mine\ny\n")),
        "made.txt": (("absent", 0, b""), ("file", 0o644, b"made\n")),
    }
    tree.close()


def test_where_coverage_is_limited_what_a_person_did_before_is_not_the_commands(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    tree = opened(root, root)
    (root / "a.txt").write_text("by hand\n")
    found, _ = observed(tree, lambda: sh("echo x >> Readme.md", root))
    assert [one.path for one in found.seen] == ["Readme.md"]
    found, _ = observed(tree, lambda: sh("echo x >> a.txt", root))
    assert [states(one)[0] for one in found.seen] == [("file", 0o644, b"by hand\n")]
    tree.close()


def test_the_root_of_the_file_system_is_not_walked(tmp_path: Path) -> None:
    tree = Tree(Path("/"), home=tmp_path)
    assert tree.wait_ready(5) == "limited"
    assert tree.counts.directories_read == 0
    tree.close()


def test_a_file_system_that_does_not_tell_is_not_walked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make("git", tmp_path).root
    monkeypatch.setenv("STEAD_FILESYSTEM", "nfs")
    tree = Tree(root, home=tmp_path / "home", limits=PATIENT)
    assert tree.coverage().kind == "limited" and "nfs" in (tree.coverage().why or "")
    assert tree.wait_ready(5) == "limited"
    assert tree.counts.directories_read == 0
    tree.close()


def test_a_tree_of_too_many_folders_is_given_up(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    sh("mkdir -p f/{1..30}", root)
    watches = inotify_watches()
    tree = opened(root, tmp_path / "home", Limits(folders=20))
    assert tree.coverage().kind == "limited" and "20 folders" in (tree.coverage().why or "")
    assert inotify_watches() == watches
    found, _ = observed(tree, lambda: sh("echo x >> a.txt", root))
    assert [one.path for one in found.seen] == ["a.txt"] and not found.not_covered
    tree.close()


def test_a_command_that_makes_too_many_folders_is_told_of(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    tree = opened(root, tmp_path / "home", Limits(folders=20))
    found, _ = observed(tree, lambda: sh("echo x >> a.txt && mkdir -p z/{1..30}", root))
    assert NotCovered("", "budget") in found.not_covered
    assert "a.txt" in [one.path for one in found.seen]
    assert tree.coverage().kind == "limited"
    found, _ = observed(tree, lambda: sh("echo x >> Readme.md", root))
    assert [one.path for one in found.seen] == ["Readme.md"] and not found.not_covered
    tree.close()


def test_more_folders_than_half_of_the_watches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.agent.tree.inotify.most_watches", lambda: 8)
    tree = opened(make("git", tmp_path).root, tmp_path / "home")
    assert tree.coverage().kind == "limited" and "watch" in (tree.coverage().why or "")
    tree.close()


def test_the_count_of_tracked_files_is_limited(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    tree = opened(root, root, Limits(tracked=2))
    assert tree.counts.lstats <= 4
    tree.close()


def test_b064_a_file_over_the_size_is_named_and_the_rest_is_covered(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    (root / "big").write_bytes(bytes(5_000))
    (root / "huge.txt").write_bytes(bytes(9_000))
    tree = opened(root, tmp_path / "home", Limits(file_bytes=4_000, most_bytes=8_000))
    command = "echo x >> big; echo x >> huge.txt; echo x >> notes.txt; head -c 8500 /dev/zero > new"
    found, wanted = observed(tree, lambda: sh(command, root))
    assert [one.path for one in found.seen] == sorted(wanted)
    why = {"big": "budget", "huge.txt": "too_large", "new": "too_large"}  # the one is only too large for a copy
    assert found.not_covered == [NotCovered(path, why[path]) for path in why]  # type: ignore[arg-type]
    by_path = {one.path: one for one in found.seen}
    assert by_path["big"].before.load is None and by_path["big"].after.load is not None
    assert by_path["huge.txt"].after.load is None and by_path["huge.txt"].after.digest is not None
    assert states(by_path["notes.txt"])[0] == ("file", 0o644, b"mine\n")
    tree.close()


def test_mode_and_name_of_a_large_file_can_change(tmp_path: Path) -> None:
    """Its content is where it was, so nothing is missing."""
    root = make("plain", tmp_path).root
    (root / "big").write_bytes(bytes(5_000))
    (root / "other").write_bytes(bytes(range(250)) * 20)
    tree = opened(root, tmp_path / "home", Limits(file_bytes=4_000))
    checked(tree, lambda: sh("chmod 600 big && mv other moved", root))
    tree.close()


def test_copies_are_within_their_budget_newest_first_and_heavy_folders_last(tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "node_modules").mkdir(parents=True)
    names = [f"f{n}" for n in range(6)] + ["node_modules/new"]
    for n, name in enumerate(names):
        (root / name).write_bytes(b"%d" % n * 1000)
        os.utime(root / name, (1_600_000_000 + n, 1_600_000_000 + n))
    for limits in (Limits(all_bytes=3_500), Limits(files=3)):
        tree = opened(root, tmp_path / "home", limits)
        assert tree.counts.files_read <= 4
        found, _ = observed(tree, lambda: sh("rm -r f* node_modules", root))
        assert {one.path: one.why for one in found.not_covered} == dict.fromkeys(("f0", "f1", "f2", "node_modules/new"), "budget")
        tree.close()
        (root / "node_modules").mkdir()
        for n, name in enumerate(names):
            (root / name).write_bytes(b"%d" % n * 1000)
            os.utime(root / name, (1_600_000_000 + n, 1_600_000_000 + n))


def test_what_changes_takes_the_place_of_what_is_older(tmp_path: Path) -> None:
    root = tmp_path / "project"
    root.mkdir()
    for n in range(6):
        (root / f"f{n}").write_bytes(b"%d" % n * 1000)
        os.utime(root / f"f{n}", (1_600_000_000 + n, 1_600_000_000 + n))
    tree = opened(root, tmp_path / "home", Limits(all_bytes=3_000))
    (root / "f0").write_text("by hand")
    settled(tree)
    found, _ = observed(tree, lambda: sh("rm f*", root))
    assert [one.path for one in found.not_covered] == ["f1", "f2", "f3"]
    assert states(found.seen[0])[0] == ("file", 0o644, b"by hand")
    tree.close()


def test_copies_can_be_switched_off_and_narrowed(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    tree = opened(root, tmp_path / "home", Limits(skip=("*.env", "/build/")))
    found, _ = observed(tree, lambda: sh("rm .env build/out.o notes.txt", root))
    assert found.not_covered == [NotCovered(".env", "budget"), NotCovered("build/out.o", "budget")]
    tree.close()
    tree = opened(root, tmp_path / "home", Limits(off=True))
    assert tree.counts.files_read == 0
    found, _ = observed(tree, lambda: sh("rm a.txt; echo 9 > src/deep/y.py", root))
    assert found.not_covered == [NotCovered("src/deep/y.py", "budget")]
    tree.close()


def test_special_files_are_named_and_never_opened(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    os.mkfifo(root / "old")
    tree = opened(root, tmp_path / "home")
    found, _ = observed(tree, lambda: sh("rm old && mkfifo pipe && echo x >> a.txt", root))
    assert [(one.path, one.before.kind, one.after.kind) for one in found.seen if one.path != "a.txt"] == [
        ("old", "other", "absent"),
        ("pipe", "absent", "other"),
    ]
    assert found.not_covered == [NotCovered("old", "special"), NotCovered("pipe", "special")]
    tree.close()


def test_git_and_the_data_folder_are_left_alone(tmp_path: Path) -> None:
    root = make("nested", tmp_path).root
    (root / "data").mkdir()
    tree = settled(Tree(root, home=tmp_path / "home", data_dir=root / "data", limits=PATIENT))
    mark = tree.before()
    sh("echo x > data/f && mkdir data/d && echo x > .git/f && echo y > sub/.git/g && mkdir .stead && echo s > .stead/x", root)
    assert [one.path for one in tree.after(mark).seen] == [".stead", ".stead/x"]
    tree.close()


def inotify_watches() -> int:
    """Watches that this process has."""
    count = 0
    for entry in os.listdir("/proc/self/fdinfo"):
        try:
            count += Path("/proc/self/fdinfo", entry).read_text().count("inotify wd:")
        except OSError:
            continue
    return count


@pytest.mark.parametrize("root_is_home", [False, True])
def test_close_leaves_nothing(tmp_path: Path, root_is_home: bool) -> None:
    import threading

    root = make("nested", tmp_path).root
    before, threads = sorted(os.listdir("/proc/self/fd")), threading.active_count()
    watches = inotify_watches()
    tree = opened(root, root if root_is_home else tmp_path / "home")
    found, _ = observed(tree, lambda: sh("rm a.txt sub/a.txt", root))
    assert [states(one)[0][2] for one in found.seen] == [b"one\ntwo\nthree\n"] * (1 if root_is_home else 2)
    assert len(os.listdir("/proc/self/fd")) > len(before)
    tree.close()
    tree.close()
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert threading.active_count() == threads
    assert inotify_watches() == watches


def test_close_while_it_starts(tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    for _ in range(5):
        tree = Tree(root, home=tmp_path / "home", limits=PATIENT)
        tree.start()
        tree.close()
        assert tree.after(tree.before()).not_covered == [NotCovered("", "index_not_ready")]
