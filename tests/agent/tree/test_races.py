"""What others do at the same time, lost events, and a tree that is not known yet: nothing is missed, and nothing is made up."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stead.agent.tree import Limits, NotCovered, Seen, Tree
from stead.agent.tree.inotify import Inotify
from stead.core.errors import SteadError
from tests.agent.tree.worlds import OPEN, PATIENT, checked, differences, make, observed, picture, settled, sh, states, until


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make("git", tmp_path).root


@pytest.fixture
def tree(root: Path, tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(root, home=tmp_path / "home", limits=PATIENT)
    yield settled(tree)
    tree.close()


def change(found: list[Seen]) -> dict[str, object]:
    return {one.path: states(one) for one in found}


# ---- who did it ----


def test_what_others_did_before_is_not_the_commands_and_is_what_it_found(tree: Tree, root: Path) -> None:
    checked(tree, lambda: sh("echo 1 >> a.txt", root))
    (root / "a.txt").write_text("by hand\n")
    (root / "hand.txt").write_text("mine\n")
    (root / "folder").mkdir()
    (root / "folder" / "f").write_text("in it\n")
    (root / "notes.txt").unlink()
    checked(tree, lambda: sh("true", root))
    checked(tree, lambda: sh("rm a.txt hand.txt folder/f; echo again > notes.txt", root))


def test_an_edit_of_the_same_size_within_one_tick_is_noticed(tree: Tree, root: Path) -> None:
    for n in range(30):
        (root / "notes.txt").write_text(f"{n:04}\n")
        found = checked(tree, lambda n=n: (root / "notes.txt").write_text(f"{n:04}!\n"[1:]) and None)  # type: ignore[misc]
        assert [one.path for one in found.seen] == ["notes.txt"]


def test_what_there_was_no_time_for_is_said(root: Path, tmp_path: Path) -> None:
    """So much happened just before the command that it was not looked at: whose a later change is cannot be said."""
    tree = settled(Tree(root, home=tmp_path / "home", limits=Limits(fresh_files=2)))
    with tree._watched.lock:  # the thread has no chance
        sh("for f in a.txt Readme.md run.sh src/app.py notes.txt; do echo hand >> $f; done; mkdir z; echo hand > z/f", root)
        mark = tree.before()
    sh("echo x >> notes.txt; echo x >> src/deep/er/x.py; echo x >> z/f", root)
    found = tree.after(mark)
    assert [one.path for one in found.seen] == ["src/deep/er/x.py"]
    assert found.not_covered == [NotCovered("notes.txt", "index_not_ready"), NotCovered("z", "index_not_ready")]
    settled(tree)
    found, wanted = observed(tree, lambda: sh("rm run.sh notes.txt z/f", root))
    assert {one.path: states(one) for one in found.seen} == wanted
    tree.close()


def test_files_with_several_names(tree: Tree, root: Path) -> None:
    """An event speaks of one of them; the number of names is part of no event."""
    checked(tree, lambda: sh("mkdir l && echo 1 > l/one && ln l/one two && ln a.txt l/three", root))
    sh("rm l/three", root)
    checked(tree, lambda: sh("touch src", root))
    checked(tree, lambda: sh("echo 2 >> two", root))
    checked(tree, lambda: sh("echo 3 >> l/one && rm -r l", root))
    sh("ln two four", root)
    checked(tree, lambda: sh("echo 5 > four", root))


def test_nothing_is_found_where_a_file_was_only_opened(tree: Tree, root: Path) -> None:
    def work() -> None:
        with open(root / "a.txt", "r+"), open(root / "notes.txt", "a"):
            pass

    assert checked(tree, work).seen == []


def test_our_own_write_is_nobodys(tree: Tree, root: Path) -> None:
    mark = tree.before()
    sh("echo x >> Readme.md", root)
    (root / "new/er").mkdir(parents=True)
    (root / "new/er/tool.txt").write_text("by a tool\n")
    tree.note(root / "new/er/tool.txt")
    (root / "a.txt").write_text("by a tool\n")
    tree.note("a.txt")
    tree.note(root.parent / "elsewhere")
    assert [one.path for one in tree.after(mark).seen] == ["Readme.md"]
    checked(tree, lambda: sh("echo x >> a.txt; echo y >> new/er/tool.txt", root))


def test_two_commands_at_once_each_find_what_changed_in_their_time(tree: Tree, root: Path) -> None:
    first = tree.before()
    sh("echo 1 >> a.txt", root)
    second = tree.before()
    sh("echo 2 >> a.txt; echo 2 >> Readme.md", root)
    inner = tree.after(second)
    sh("echo 3 >> run.sh", root)
    outer = tree.after(first)
    assert [one.path for one in inner.seen] == ["Readme.md", "a.txt"]
    assert states(inner.seen[1]) == (("file", 0o644, b"one\ntwo\nthree\n1\n"), ("file", 0o644, b"one\ntwo\nthree\n1\n2\n"))
    assert [one.path for one in outer.seen] == ["Readme.md", "a.txt", "run.sh"]
    assert states(outer.seen[1])[0] == ("file", 0o644, b"one\ntwo\nthree\n")


def test_a_mark_that_was_dropped_or_used_finds_nothing(tree: Tree, root: Path) -> None:
    mark = tree.before()
    sh("echo x >> a.txt", root)
    tree.drop(mark)
    tree.drop(mark)
    assert tree.after(mark).seen == []
    used = tree.before()
    tree.after(used)
    assert tree.after(used).seen == []


# ---- contents that others hold ----


def test_content_that_the_store_holds_is_named_and_not_copied(root: Path, tmp_path: Path) -> None:
    blobs: dict[str, bytes] = {}
    tree = settled(Tree(root, home=tmp_path / "home", blob_of=blobs.__getitem__, limits=replace(PATIENT, off=True)))
    found, _ = observed(tree, lambda: sh("echo first > new", root))
    for one in found.seen:
        assert one.after.load is not None and one.after.digest is not None
        blobs[one.after.digest] = one.after.load()
    tree.keep(found.seen)
    (root / "tool").write_text("by a tool\n")
    blobs[hashlib.sha256(b"by a tool\n").hexdigest()] = b"by a tool\n"
    tree.note("tool", hashlib.sha256(b"by a tool\n").hexdigest())
    found = checked(tree, lambda: sh("echo second >> new; rm tool", root))
    assert [one.before.stored for one in found.seen] == [True, True]
    tree.close()


def test_a_kept_state_that_somebody_changed_is_not_taken_for_it(root: Path, tmp_path: Path) -> None:
    blobs: dict[str, bytes] = {}
    tree = settled(Tree(root, home=tmp_path / "home", blob_of=blobs.__getitem__, limits=PATIENT))
    for n in range(10):
        found, _ = observed(tree, lambda n=n: sh(f"echo {n:03} > new", root))  # type: ignore[misc]
        blobs |= {one.after.digest: one.after.load() for one in found.seen if one.after.digest and one.after.load}
        tree.keep(found.seen)
        (root / "new").write_text(f"{n:03}\n"[::-1])
        checked(tree, lambda: sh("rm new", root))
    tree.close()


def test_what_is_there_after_is_not_given_when_it_changed_since(root: Path, tmp_path: Path) -> None:
    tree = settled(Tree(root, home=tmp_path / "home", limits=replace(PATIENT, file_bytes=100)))
    found, _ = observed(tree, lambda: sh("head -c 1000 /dev/zero > new", root))
    assert found.seen[0].after.load is not None
    assert found.seen[0].after.load() == bytes(1000)
    (root / "new").write_bytes(b"x" * 1000)
    with pytest.raises(SteadError) as told:
        found.seen[0].after.load()
    assert told.value.code == "conflict"
    tree.close()


def test_content_that_git_lost_is_named(tree: Tree, root: Path) -> None:
    mark = tree.before()
    sh("rm a.txt notes.txt && rm -rf .git", root)
    found = tree.after(mark)
    assert [one.path for one in found.seen] == ["a.txt", "notes.txt"]
    assert found.not_covered == [NotCovered("a.txt", "budget")]
    assert states(found.seen[1])[0] == ("file", 0o644, b"mine\n")


def test_a_repository_that_begins_is_used(tmp_path: Path) -> None:
    root = make("plain", tmp_path).root
    tree = settled(Tree(root, home=tmp_path / "home", limits=replace(PATIENT, off=True)))
    checked(tree, lambda: sh("sleep 0.03; git init -q . && git add -A && git commit -qm one", root))
    sh("touch hand", root)  # the thread wakes up, and looks at git's index again
    until(lambda: tree._watched.repositories is not None and len(tree._watched.repositories.paths()) > 5)
    checked(tree, lambda: sh("rm a.txt", root))
    tree.close()


# ---- lost events ----


def with_lost_events(tree: Tree, work: Callable[[], None]) -> Callable[[], None]:
    """Do it so that the system says that it lost what it had to tell."""

    def lost() -> None:
        watched = tree._watched
        with watched.lock:
            work()
            assert watched.index.watch is not None
            watched.index.watch.read()
            watched.overflow = True

    return lost


@pytest.mark.parametrize("command", ["rm -r src && mkdir src", "mv src lib; echo x >> a.txt", "chmod 600 run.sh", "mv a.txt b.txt"])
def test_after_an_overflow_everything_is_compared(tree: Tree, root: Path, command: str) -> None:
    found = checked(tree, with_lost_events(tree, lambda: sh(command, root)))
    assert found.overflowed and tree.counts.overflows == 1
    found = checked(tree, lambda: sh("mkdir -p one/two && echo x > one/two/three", root))
    assert not found.overflowed


def test_more_events_than_the_queue_holds(tree: Tree, root: Path) -> None:
    """A real overflow: nobody takes events while more come than the kernel keeps."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    assert most <= 20_000, "this system's queue is too long for this test"

    def work() -> None:
        with tree._watched.lock:
            for n in range(most + 100):  # one after the other would be one event
                os.utime(root / ("a.txt", "run.sh")[n % 2])
            (root / "a.txt").write_text("late\n")
            (root / "src/late.py").write_text("late\n")

    found = checked(tree, work)
    assert found.overflowed
    assert [one.path for one in found.seen] == ["a.txt", "src/late.py"]


def test_an_overflow_between_commands_is_no_commands_doing(tree: Tree, root: Path) -> None:
    with_lost_events(tree, lambda: sh("echo hand >> a.txt && mkdir hand && echo x > hand/f", root))()
    assert tree.wait_ready(5) is None
    checked(tree, lambda: sh("echo x >> a.txt && echo y >> hand/f", root))


def test_the_project_folder_itself_may_be_replaced(tree: Tree, root: Path) -> None:
    command = "cp -a project other && rm -r project && mv other project && echo x >> project/a.txt"
    checked(tree, lambda: sh(command, root.parent))
    assert tree.wait_ready(5) is None
    checked(tree, lambda: sh("echo y >> a.txt && mkdir m && echo z > m/n", root))


def test_no_watch_is_left_on_what_left_the_project(tree: Tree, root: Path) -> None:
    checked(tree, lambda: sh("mv src ../src && mkdir src && echo x > src/app.py", root))
    sh("echo x > ../src/app.py && rm -r ../src", root)
    assert checked(tree, lambda: None).seen == []
    checked(tree, lambda: sh("echo y >> src/app.py", root))


def test_without_a_queue_all_is_compared_until_there_is_one(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Inotify.__init__
    monkeypatch.setattr("stead.agent.tree.tree._LISTEN_EVERY", 0)
    monkeypatch.setattr(Inotify, "__init__", refuse)
    tree = settled(Tree(root, home=tmp_path / "home", limits=PATIENT))
    checked(tree, lambda: sh("echo x >> a.txt && rm -r src", root))
    assert not tree._watched.listens
    monkeypatch.setattr(Inotify, "__init__", begin)
    tree._wake()
    until(lambda: tree._watched.listens and tree.coverage().ready)
    read = tree.counts.directories_read
    checked(tree, lambda: sh("echo x >> a.txt", root))
    assert tree.counts.directories_read == read


def refuse(self: Inotify) -> None:
    raise OSError(24, "too many")


# ---- not known yet ----


def held_back(tree: Tree, monkeypatch: pytest.MonkeyPatch, folders: int) -> threading.Event:
    """Start the tree, so that it has looked at so many folders and goes on when the event is set."""
    go, there = threading.Event(), threading.Event()
    piece = tree._piece
    done = 0

    def slow(pieces: Iterator[int]) -> int | None:
        nonlocal done
        if go.is_set():
            return piece(pieces)
        if done < folders:
            done += 1
            next(pieces)
        else:
            there.set()
            tree._pause.wait(0.001)
        return 1

    OPEN.append(tree)
    monkeypatch.setattr(tree, "_piece", slow)
    tree.start()
    assert there.wait(5)
    return go


@pytest.mark.parametrize("folders", [0, 1, 3, 5])
@pytest.mark.parametrize(
    "command",
    [
        "echo x >> a.txt; echo y >> src/deep/y.py; echo z > src/deep/er/new; rm Readme.md",
        "mv src lib; mkdir src; echo x > src/new",
        "rm -r src build",
    ],
)
def test_a_tree_that_is_not_known_yet_says_so_and_makes_nothing_up(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: int, command: str
) -> None:
    tree = Tree(root, home=tmp_path / "home", limits=PATIENT)
    go = held_back(tree, monkeypatch, folders)
    assert tree.wait_ready(0.01) == "index_not_ready"
    old = picture(root)
    mark = tree.before()
    sh(command, root)
    found = tree.after(mark)
    wanted = differences(old, picture(root))
    assert NotCovered("", "index_not_ready") in found.not_covered
    for one in found.seen:  # what is said is true; what is missing was said to be
        before, after = states(one)
        assert after == wanted[one.path][1]
        assert before[:2] == wanted[one.path][0][:2]
        assert one.before.load is None or before == wanted[one.path][0]
    go.set()
    settled(tree)
    checked(tree, lambda: sh("echo later >> notes.txt; rm -rf app", root))
    tree.close()


def test_a_writer_that_never_stops_does_not_keep_it_from_being_ready(root: Path, tmp_path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            (root / f"busy{n % 50}").write_text(str(n))
            (root / f"dir{n % 7}").mkdir(exist_ok=True)
            (root / f"dir{n % 7}" / "f").write_text(str(n))
            sh_free_rename(root / f"dir{n % 7}", root / f"moved{n % 3}")

    writer = threading.Thread(target=write)
    writer.start()
    tree = Tree(root, home=tmp_path / "home", limits=PATIENT)
    try:
        assert tree.wait_ready(10) is None
        for _ in range(5):
            tree.after(tree.before())
    finally:
        stop.set()
        writer.join()
    settled(tree)
    checked(tree, lambda: sh("rm -rf busy* dir*; echo x >> a.txt; for d in moved*; do echo y > $d/f; done", root))
    tree.close()


def sh_free_rename(one: Path, other: Path) -> None:
    """Rename a folder, over another one after emptying it."""
    if other.is_dir():
        for entry in other.iterdir():
            entry.unlink()
    os.rename(one, other)
