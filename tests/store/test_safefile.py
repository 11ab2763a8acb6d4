"""Files that a crash leaves old or new, with everything that hangs on them: links, modes, owners, attributes."""

from __future__ import annotations

import errno
import os
import signal
import stat
import struct
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stead.core.errors import SteadError
from stead.store import faults, safefile

OLD, NEW = b"old content\n" * 50, b"new content, longer\n" * 60
NOBODY = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to other users")


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    faults.disarm()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can get at."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o777)
        yield folder


def in_child(work: Callable[[], None], *, user: int | None = None) -> int:
    """Run `work` in a forked child; its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            if user is not None:
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1]


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


# ---- stead's own files ----


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o777])
def test_b107_private_files_and_folders_are_closed_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder = safefile.private_folder(tmp_path / "a" / "b")
        safefile.write_private(folder / "secret.key", b"one")
        safefile.write_private(folder / "secret.key", b"two")
    finally:
        os.umask(before)
    assert (folder / "secret.key").read_bytes() == b"two"
    assert mode_of(folder / "secret.key") == 0o600
    assert mode_of(folder) == mode_of(folder.parent) == 0o700


def test_a_file_where_a_private_folder_belongs_is_a_conflict_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "locks").write_text("mine")
    (tmp_path / "locks").chmod(0o644)
    with pytest.raises(SteadError, match="is not a folder") as failed:
        safefile.private_folder(tmp_path / "locks")
    assert failed.value.code == "conflict" and mode_of(tmp_path / "locks") == 0o644


def test_private_folder_closes_an_open_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o755)
    assert mode_of(safefile.private_folder(tmp_path / "data")) == 0o700


# ---- crashes ----

SWAP = ["safefile.created", "safefile.written", "safefile.synced", "safefile.renamed", "safefile.done"]
IN_PLACE = ["safefile.inplace.opened", "safefile.inplace.half", "safefile.inplace.written", "safefile.inplace.done"]


def _passed(work: Callable[[], None]) -> list[str]:
    names: list[str] = []
    faults.watch(names.append)
    work()
    faults.watch(None)
    return names


def test_the_steps_are_those_that_the_crash_tests_name(tmp_path: Path) -> None:
    path = tmp_path / "f"
    assert _passed(lambda: safefile.replace(path, NEW)) == SWAP
    os.link(path, tmp_path / "g")
    assert _passed(lambda: safefile.replace(path, OLD)) == IN_PLACE


@pytest.mark.crash
@pytest.mark.parametrize("point", SWAP)
@pytest.mark.parametrize("write", [safefile.write_private, safefile.replace])
def test_b004_a_kill_leaves_the_old_or_the_new_file(tmp_path: Path, point: str, write: Callable[[Path, bytes], None]) -> None:
    path = tmp_path / "f.txt"
    path.write_bytes(OLD)

    def work() -> None:
        faults.arm(point)
        write(path, NEW)

    assert os.WTERMSIG(in_child(work)) == signal.SIGKILL
    assert path.read_bytes() == (NEW if point in SWAP[3:] else OLD)
    left = safefile.leftovers(tmp_path)
    assert len(left) == (0 if point in SWAP[3:] else 1)
    for temp in left:
        temp.unlink()
    assert os.listdir(tmp_path) == ["f.txt"]


@pytest.mark.crash
@pytest.mark.parametrize("point", IN_PLACE)
def test_b072_a_kill_in_an_in_place_write_is_known_beforehand_and_can_be_put_right(tmp_path: Path, point: str) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(OLD)
    os.link(one, two)
    assert safefile.in_place(one)  # so the caller has put OLD and NEW into its journal

    def work() -> None:
        faults.arm(point)
        safefile.replace(one, NEW)

    assert os.WTERMSIG(in_child(work)) == signal.SIGKILL
    assert one.read_bytes() == two.read_bytes()  # torn perhaps, but never split
    safefile.replace(one, NEW)  # what the journal does: finish it
    assert one.read_bytes() == two.read_bytes() == NEW
    safefile.replace(two, OLD)  # or take it back
    assert one.read_bytes() == OLD and one.stat().st_ino == two.stat().st_ino


@pytest.mark.parametrize("point", SWAP[:3])
def test_b001_a_full_disk_leaves_the_old_file_and_no_temporary_one(tmp_path: Path, point: str) -> None:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    faults.arm(point, faults.enospc)
    with pytest.raises(SteadError) as caught:
        safefile.replace(path, NEW)
    assert caught.value.code == "disk_full" and str(path) in caught.value.message
    assert path.read_bytes() == OLD and os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize("point", IN_PLACE[:3])
@pytest.mark.parametrize("data", [NEW, b"short"])
def test_b001_a_full_disk_during_an_in_place_write_puts_the_old_content_back(tmp_path: Path, point: str, data: bytes) -> None:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    os.link(path, tmp_path / "g")
    faults.arm(point, faults.enospc)
    with pytest.raises(SteadError, match="no space"):
        safefile.replace(path, data)
    assert path.read_bytes() == OLD


@pytest.mark.parametrize(("number", "code"), [(errno.EROFS, "read_only"), (errno.EACCES, "read_only"), (errno.EDQUOT, "disk_full")])
def test_each_failure_has_a_stable_code_and_the_path(tmp_path: Path, number: int, code: str) -> None:
    def fail(name: str) -> None:
        raise OSError(number, os.strerror(number))

    faults.arm("safefile.created", fail)
    with pytest.raises(SteadError) as caught:
        safefile.replace(tmp_path / "f", NEW)
    assert caught.value.code == code and caught.value.details == {"path": str(tmp_path / "f")}
    assert os.listdir(tmp_path) == []


# ---- links ----


def test_b070_links_are_followed_and_stay(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "target"
    target.write_bytes(OLD)
    (tmp_path / "relative").symlink_to("sub/target")
    (tmp_path / "absolute").symlink_to(target)
    (tmp_path / "chain").symlink_to("relative")
    (tmp_path / "folder").symlink_to("sub", target_is_directory=True)
    for number, name in enumerate(["relative", "absolute", "chain", "folder/target"]):
        safefile.replace(tmp_path / name, b"%d" % number)
        assert target.read_bytes() == b"%d" % number
    assert all((tmp_path / name).is_symlink() for name in ("relative", "absolute", "chain", "folder"))
    assert not target.is_symlink()


def test_b070_a_dangling_link_gets_its_target(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("later/target")
    safefile.replace(tmp_path / "link", NEW)
    assert (tmp_path / "link").is_symlink() and (tmp_path / "later" / "target").read_bytes() == NEW


@pytest.mark.parametrize("name", ["a", "self", "a/below"])
def test_b070_a_loop_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    (tmp_path / "self").symlink_to("self")
    with pytest.raises(SteadError) as caught:
        safefile.replace(tmp_path / name, NEW)
    assert caught.value.code == "not_found" and "loop" in caught.value.message
    with pytest.raises(SteadError):
        safefile.in_place(tmp_path / name)


def test_b100_a_folder_swapped_for_a_link_after_the_check_is_refused(tmp_path: Path) -> None:
    (tmp_path / "good").mkdir()
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "f").write_bytes(OLD)
    judged = safefile.real_path(tmp_path / "good" / "f")
    (tmp_path / "good").rmdir()
    (tmp_path / "good").symlink_to("evil", target_is_directory=True)
    for act in (
        lambda: safefile.replace(judged, NEW, follow=False),
        lambda: safefile.read_bytes(judged, follow=False),
        lambda: safefile.remove(judged, follow=False),
    ):
        with pytest.raises(SteadError) as caught:
            act()
        assert caught.value.code == "conflict"
    assert (tmp_path / "evil" / "f").read_bytes() == OLD


def test_b100_a_file_swapped_for_a_link_after_the_check_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(OLD)
    (tmp_path / "f").symlink_to("target")
    with pytest.raises(SteadError):
        safefile.replace(tmp_path / "f", NEW, follow=False)
    with pytest.raises(SteadError):
        safefile.read_bytes(tmp_path / "f", follow=False)
    assert (tmp_path / "target").read_bytes() == OLD


def test_b072_hard_links_stay_equal(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(OLD)
    os.link(one, two)
    for data in (NEW, b"", OLD):
        safefile.replace(two, data)
        assert one.read_bytes() == two.read_bytes() == data and one.stat().st_ino == two.stat().st_ino


# ---- what hangs on a file ----


@pytest.mark.parametrize("mode", [0o755, 0o600, 0o444, 0o640, 0o4755])
@pytest.mark.parametrize("links", [1, 2])
def test_b071_the_mode_stays(tmp_path: Path, mode: int, links: int) -> None:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    path.chmod(mode)
    if links == 2:
        os.link(path, tmp_path / "g")
    assert safefile.in_place(path) == (links == 2)
    safefile.replace(path, NEW)
    if links == 1:  # the kernel itself takes setuid away on a write in place
        assert mode_of(path) == mode
    else:
        assert mode_of(path) & 0o777 == mode & 0o777
    assert path.read_bytes() == NEW


def test_a_new_file_follows_the_umask_and_a_mode_may_be_asked_for(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        safefile.replace(tmp_path / "plain", NEW)
        safefile.replace(tmp_path / "script", NEW, mode=0o755)
        safefile.replace(tmp_path / "plain2", OLD)
        safefile.replace(tmp_path / "plain2", NEW, mode=0o600)
    finally:
        os.umask(before)
    assert [mode_of(tmp_path / name) for name in ("plain", "script", "plain2")] == [0o640, 0o755, 0o600]


@needs_root
def test_b071_setgid_folders_give_their_group_and_kept_files_keep_theirs(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    os.chown(folder, -1, 4321)
    folder.chmod(0o2775)
    safefile.replace(folder / "new", NEW)
    assert (folder / "new").stat().st_gid == 4321
    os.chown(folder / "new", -1, 77)
    safefile.replace(folder / "new", OLD)
    assert (folder / "new").stat().st_gid == 77
    assert safefile.make_folders(folder / "a" / "b") == [folder / "a", folder / "a" / "b"]
    assert (folder / "a" / "b").stat().st_gid == 4321


@needs_root
def test_b071_root_keeps_the_owner(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(OLD)
    os.chown(path, 1234, 567)
    path.chmod(0o2754)
    safefile.replace(path, NEW)
    found = path.stat()
    assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 567, 0o2754)


@needs_root
def test_b071_a_file_of_another_user_is_written_in_place(open_folder: Path) -> None:
    path = open_folder / "theirs"
    path.write_bytes(OLD)
    os.chown(path, 1234, NOBODY)
    path.chmod(0o664)

    def work() -> None:
        assert safefile.in_place(path)
        safefile.replace(path, NEW)

    assert in_child(work, user=NOBODY) == 0
    assert path.read_bytes() == NEW and path.stat().st_uid == 1234


@needs_root
def test_a_writable_file_in_a_closed_folder_is_written_in_place(open_folder: Path) -> None:
    folder = open_folder / "closed"
    folder.mkdir()
    path = folder / "f"
    path.write_bytes(OLD)
    os.chown(path, NOBODY, NOBODY)
    folder.chmod(0o755)

    def work() -> None:
        assert safefile.in_place(path)
        safefile.replace(path, NEW)
        with pytest.raises(SteadError) as caught:
            safefile.replace(folder / "other", NEW)
        assert caught.value.code == "read_only"

    assert in_child(work, user=NOBODY) == 0
    assert path.read_bytes() == NEW


@needs_root
def test_b071_a_read_only_file_of_our_own_can_be_written_and_stays_read_only(open_folder: Path) -> None:
    for links in (1, 2):
        path = open_folder / f"f{links}"
        path.write_bytes(OLD)
        os.chown(path, NOBODY, NOBODY)
        path.chmod(0o444)
        if links == 2:
            os.link(path, open_folder / "other")
        assert in_child(lambda path=path: safefile.replace(path, NEW), user=NOBODY) == 0
        assert path.read_bytes() == NEW and mode_of(path) == 0o444


def test_b071_extended_attributes_and_acl_stay(tmp_path: Path) -> None:
    if not hasattr(os, "setxattr"):
        pytest.skip("no extended attributes in Python here")
    path = tmp_path / "f"
    path.write_bytes(OLD)
    path.chmod(0o640)
    # version 2; owner rw-, user 4242 r--, group r--, mask r--, others ---
    entries = [(1, 6, -1), (2, 4, 4242), (4, 4, -1), (16, 4, -1), (32, 0, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(path, "user.note", b"kept")
        os.setxattr(path, "system.posix_acl_access", acl)
    except OSError:
        pytest.skip("the file system of the temporary folder has none")
    safefile.replace(path, NEW)
    assert os.getxattr(path, "user.note") == b"kept"
    assert os.getxattr(path, "system.posix_acl_access") == acl


def test_a_default_acl_of_the_folder_is_not_put_on_a_file_that_had_none(tmp_path: Path) -> None:
    if not hasattr(os, "setxattr"):
        pytest.skip("no extended attributes in Python here")
    path = tmp_path / "f"
    path.write_bytes(OLD)
    entries = [(1, 7, -1), (2, 7, 4242), (4, 5, -1), (16, 7, -1), (32, 5, -1)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(tmp_path, "system.posix_acl_default", acl)
    except OSError:
        pytest.skip("the file system of the temporary folder has none")
    mode = mode_of(path)
    safefile.replace(path, NEW)
    assert os.listxattr(path) == [] and mode_of(path) == mode


# ---- names, kinds, the rest ----

ODD_NAMES = ["with space", "line\nbreak", "[locale]", "ü" * 127, "x" * 255, "-rf", "*", "'\"", "\udcff\udcfe"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_b047_every_name_works(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    safefile.replace(path, OLD)
    safefile.replace(path, NEW)
    assert path.read_bytes() == NEW and os.listdir(tmp_path) == [name]
    assert safefile.remove(path) and os.listdir(tmp_path) == []


def test_a_name_that_is_too_long_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SteadError) as caught:
        safefile.replace(tmp_path / ("x" * 256), NEW)
    assert caught.value.code == "bad_value" and os.listdir(tmp_path) == []


def test_leftovers_are_only_ours(tmp_path: Path) -> None:
    ours = f".{'n' * 40}.stead-0123456789abcdef.tmp"
    for name in (ours, ".x.stead-short.tmp", "x.tmp", ".git"):
        (tmp_path / name).touch()
    assert safefile.leftovers(tmp_path) == [tmp_path / ours]


def test_missing_folders_are_made(tmp_path: Path) -> None:
    safefile.replace(tmp_path / "a" / "b" / "f", NEW)
    assert (tmp_path / "a" / "b" / "f").read_bytes() == NEW


def test_folders_pipes_and_files_as_folders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(OLD)
    for name in ("folder", "pipe"):
        with pytest.raises(SteadError) as caught:
            safefile.replace(tmp_path / name, NEW)
        assert caught.value.code == "conflict"
    with pytest.raises(SteadError):
        safefile.replace(tmp_path / "file" / "below", NEW)
    with pytest.raises(SteadError):
        safefile.read_bytes(tmp_path / "pipe")  # and does not hang
    with pytest.raises(SteadError):
        safefile.remove(tmp_path / "folder")


def test_state_tells_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "file").chmod(0o640)
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    file = safefile.state(tmp_path / "file")
    assert (file.kind, file.mode, file.size, file.target) == ("file", 0o640, 3, None)
    assert file.digest == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    link = safefile.state(tmp_path / "link")
    assert (link.kind, link.target, link.digest) == ("symlink", "nowhere", None)
    assert [safefile.state(tmp_path / name).kind for name in ("folder", "pipe", "none", "file/below")] == [
        "directory",
        "other",
        "absent",
        "absent",
    ]


def test_remove_takes_the_link_and_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(OLD)
    (tmp_path / "link").symlink_to("target")
    assert safefile.remove(tmp_path / "link")
    assert not safefile.remove(tmp_path / "link")
    assert not safefile.remove(tmp_path / "none" / "below")
    assert (tmp_path / "target").read_bytes() == OLD


def test_read_bytes_stops_at_its_limit(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"0123456789")
    assert safefile.read_bytes(tmp_path / "f", 4) == b"0123"
    assert safefile.read_bytes(tmp_path / "f") == b"0123456789"
