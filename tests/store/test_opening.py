"""Bad starts: every one is said clearly, with a stable code, and changes nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.store import open_store
from tests.store.children import as_nobody
from tests.store.notes import NOTES, write


def content(folder: Path) -> dict[str, bytes]:
    """Every file of a store but its locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and "locks" not in path.parts
    }


def make(folder: Path, notes: int = 3) -> None:
    with open_store(folder, [NOTES]) as store:
        for n in range(notes):
            store.write(write("a", str(n)))
        prepared = store.blobs.prepare(os.urandom(100_000))
        store.write(lambda tx: tx.put(prepared))


def refusal(folder: Path) -> SteadError:
    with pytest.raises(SteadError) as failed:
        open_store(folder, [NOTES])
    return failed.value


def count(folder: Path) -> int:
    with open_store(folder, [NOTES]) as store, store.view() as view:
        return len(view.events())


@pytest.fixture
def house(tmp_path: Path) -> Path:
    make(tmp_path / "house")
    return tmp_path / "house"


@pytest.mark.parametrize("neighbour", ["blobs/ab/cdef", "attachments/0123456789abcdef.att"])
@pytest.mark.parametrize("gone", ["empty", "missing"])
def test_b005_an_empty_database_beside_what_a_store_left_is_not_taken_for_a_new_one(
    tmp_path: Path, neighbour: str, gone: str
) -> None:
    house = tmp_path / "house"
    (house / neighbour).parent.mkdir(parents=True)
    (house / neighbour).write_bytes(b"something")
    if gone == "empty":
        (house / "stead.db").touch()
    before = content(house)
    for _ in range(3):
        error = refusal(house)
        assert error.code == "store_damaged"
        assert "stead.db" in error.message and neighbour.split("/")[0] in error.message and error.hint and "backup" in error.hint
    assert content(house) == before


def test_b005_an_empty_database_alone_is_a_first_start_that_did_not_come_far(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    (house / "stead.db").touch()
    assert count(house) == 0


def test_b005_empty_files_beside_a_healthy_database_are_no_matter(house: Path) -> None:
    for name in ("stead.db-wal", "stead.db-shm", "locks/0123456789abcdef", "secret.key"):
        (house / name).touch()
    assert count(house) == 3


@pytest.mark.parametrize("head", [b"\0" * 100, b"SQLite format 4\0", os.urandom(512), b"not a database at all, but text" * 9])
def test_a_corrupt_header_is_store_damaged_and_nothing_is_rewritten(house: Path, head: bytes) -> None:
    path = house / "stead.db"
    path.write_bytes(head + path.read_bytes()[len(head) :])
    before = content(house)
    for _ in range(2):
        error = refusal(house)
        assert error.code == "store_damaged" and str(path) in error.message
    assert content(house) == before


def test_a_database_cut_short_is_store_damaged_and_never_an_empty_list(house: Path) -> None:
    path = house / "stead.db"
    path.write_bytes(path.read_bytes()[: 2048 * 3])
    with pytest.raises(SteadError) as failed:
        count(house)
    assert failed.value.code == "store_damaged"


def test_b003_garbage_in_side_files_and_stale_locks_stop_nothing(house: Path) -> None:
    locks = house / "locks"
    (locks / "stale").write_bytes(b'{"pid":1,"boot":"x"}' + b"\0" * 1206)
    (locks / "garbage").write_bytes(os.urandom(300))
    (locks / ".half.1").write_bytes(b"")
    (locks / "folder").mkdir()
    with (locks / "maintenance").open("ab") as file:
        file.write(b"\0" * 1206)
    assert count(house) == 3


def test_b003_a_tail_of_nul_bytes_behind_the_log_is_ignored(tmp_path: Path) -> None:
    from tests.store.children import Child

    house = tmp_path / "house"

    def die() -> None:
        import signal

        store = open_store(house, [NOTES])
        for n in range(3):
            store.write(write("a", str(n)))
        os.kill(os.getpid(), signal.SIGKILL)

    assert Child(die).killed()
    with (house / "stead.db-wal").open("ab") as file:
        file.write(b"\0" * 1206)
    with open_store(house, [NOTES]) as store:
        assert store.write(write("a", "goes on"))
    assert count(house) == 4


def test_a_data_folder_that_is_a_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    path.chmod(0o644)
    assert refusal(path).code == "conflict"
    assert path.read_text() == "mine" and path.stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_in_the_place_of_the_database_is_left_as_it_is(tmp_path: Path, linked: bool) -> None:
    data, theirs = tmp_path / "data", tmp_path / "theirs"
    data.mkdir()
    folder = theirs if linked else data / "stead.db"
    folder.mkdir(mode=0o755)
    if linked:
        (data / "stead.db").symlink_to(theirs)
    assert refusal(data).code == "read_only" and folder.stat().st_mode & 0o777 == 0o755


def test_a_data_folder_whose_name_is_not_utf8_is_refused_and_not_made(tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/d\xff\xfe"))
    assert refusal(path).code == "usage" and not path.exists()


def test_a_server_that_is_not_there_is_store_busy_without_the_password() -> None:
    with pytest.raises(SteadError) as failed:
        open_store("postgresql://user:hunter2@127.0.0.1:1/nothing")
    assert failed.value.code == "store_busy" and "hunter2" not in failed.value.message


# --- without rights -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def theirs(open_folder: Path) -> Iterator[Path]:
    """A store in a folder of a user without power over file modes."""
    house = open_folder / "house"
    as_nobody(lambda: make(house))
    yield house


def told(work: Callable[[], Any]) -> Any:
    """What `work` gives for that user, or the code and message of its error."""

    def tell() -> Any:
        try:
            return work()
        except SteadError as error:
            return error.code, error.message

    return as_nobody(tell)


@pytest.mark.parametrize("name", ["stead.db", "."])
def test_b010_an_unreadable_store_says_so_and_is_never_shown_empty(theirs: Path, name: str) -> None:
    (theirs / name).chmod(0o000)
    code, message = told(lambda: count(theirs))
    assert code in ("read_only", "store_damaged") and str(theirs) in message


def read_and_try_to_write(house: Path) -> tuple[list[str], str]:
    with open_store(house, [NOTES]) as store:
        with store.view() as view:
            texts = [event.data.text for event in view.events()]
            assert view.q("SELECT text FROM notes ORDER BY seq") == [(text,) for text in texts]
        for _ in range(2):
            try:
                store.write(write("a"))
            except SteadError as error:
                code = error.code
            else:
                code = "written"
        return texts, code


def close_off(house: Path) -> None:
    for path in (*house.rglob("*"), house):
        path.chmod(0o500 if path.is_dir() else 0o400)


def test_a_store_that_cannot_be_written_can_be_read(theirs: Path) -> None:
    close_off(theirs)
    assert told(lambda: read_and_try_to_write(theirs)) == (["0", "1", "2"], "read_only")
    assert not (theirs / "stead.db-wal").exists()


def test_a_file_that_cannot_be_written_in_a_folder_that_can_be_read(theirs: Path) -> None:
    (theirs / "stead.db").chmod(0o400)
    assert told(lambda: read_and_try_to_write(theirs)) == (["0", "1", "2"], "read_only")


def test_a_store_that_its_process_left_open_is_read_with_its_log_where_nothing_can_be_written(theirs: Path) -> None:
    def die() -> None:
        import signal

        store = open_store(theirs, [NOTES])
        store.write(write("a", "only in the log"))
        os.kill(os.getpid(), signal.SIGKILL)

    from tests.store.children import Child

    def as_their_owner() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        die()

    assert Child(as_their_owner).killed()
    close_off(theirs)
    assert told(lambda: read_and_try_to_write(theirs)) == (["0", "1", "2", "only in the log"], "read_only")


def test_no_store_where_none_can_be_made(open_folder: Path) -> None:
    open_folder.chmod(0o500)
    assert told(lambda: count(open_folder))[0] == "read_only"
    assert told(lambda: count(open_folder / "house"))[0] == "read_only"
    assert list(open_folder.iterdir()) == []


def test_a_store_whose_tables_are_of_another_version_says_why_it_cannot_be_read_there(theirs: Path) -> None:
    from stead.store import Feature

    newer = Feature("notes", version=2, tables=NOTES.tables, indexes=NOTES.indexes)
    close_off(theirs)
    assert told(lambda: open_store(theirs, [newer]))[0] == "read_only"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_a_read_only_file_system_is_read(house: Path, tmp_path: Path) -> None:
    place = tmp_path / "mounted"
    place.mkdir()
    if subprocess.run(["mount", "--bind", house, place], capture_output=True).returncode:
        pytest.skip("may not mount here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", place], check=True, capture_output=True)
        assert read_and_try_to_write(place) == (["0", "1", "2"], "read_only")
    finally:
        subprocess.run(["umount", place], check=True)
