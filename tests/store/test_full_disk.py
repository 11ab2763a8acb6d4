"""A full disk: an error with its own code, nothing acknowledged is lost, and the writer works again when there is space."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import apsw
import pytest

from stead.core.errors import SteadError
from stead.store import Store, faults, open_store
from stead.store.database import Conn
from stead.store.sqlite import SQLite
from tests.store.children import Child
from tests.store.notes import NOTES, write


class Disk(apsw.VFS):
    """A disk with `left` bytes; the files are real, the shortage is ours."""

    def __init__(self) -> None:
        self.left = 1 << 40
        super().__init__("small-disk", "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        disk = self

        class File(apsw.VFSFile):
            def xWrite(self, data: bytes, offset: int) -> None:
                more = max(0, offset + len(data) - self.xFileSize())
                if more > disk.left:
                    raise apsw.FullError("no space left on this disk")
                disk.left -= more
                super().xWrite(data, offset)

        return File("", name, flags)  # type: ignore[arg-type]


@pytest.fixture
def disk() -> Iterator[Disk]:
    made = Disk()
    yield made
    made.unregister()


@pytest.fixture
def store(tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    first = SQLite.__init__

    def on_disk(self: SQLite, path: Path, *, vfs: str | None = None) -> None:
        first(self, path, vfs="small-disk")

    monkeypatch.setattr(SQLite, "__init__", on_disk)
    with open_store(tmp_path / "house", [NOTES]) as opened:
        yield opened


def texts(store: Store) -> list[str]:
    with store.view() as view:
        return [event.data.text for event in view.events()]


def fill(store: Store, want: str = "disk_full") -> list[str]:
    """Write until the disk is full; what was acknowledged."""
    acknowledged = texts(store)
    while True:
        text = f"{len(acknowledged)} " + "x" * 3_000
        try:
            store.write(write("a", text))
        except SteadError as error:
            assert error.code == want and error.message
            return acknowledged
        acknowledged.append(text)


def test_a_full_disk_is_said_and_loses_nothing_and_the_writer_goes_on(store: Store, disk: Disk) -> None:
    for space in (40_000, 0, 7_000, 3_333):
        disk.left = space
        kept = fill(store)
        assert texts(store) == kept
    disk.left = 1 << 40
    assert store.write(write("a", "there is space again"))
    assert texts(store) == [*kept, "there is space again"]
    with store.view() as view:
        assert view.q("PRAGMA integrity_check") == [("ok",)]


def test_every_job_of_a_batch_hears_of_the_full_disk(store: Store, disk: Disk) -> None:
    store.write(write("a", "kept"))
    disk.left = 0
    futures = [store.submit(write("a", "y" * 9_000)) for _ in range(20)]
    for future in futures:
        error = future.exception(10)
        assert isinstance(error, SteadError) and error.code == "disk_full"
    assert texts(store) == ["kept"]
    disk.left = 1 << 40
    assert store.write(write("a", "again"))


def test_a_job_larger_than_the_page_cache_fails_alone_or_with_its_batch_but_never_by_halves(store: Store, disk: Disk) -> None:
    store.write(write("a", "kept"))
    disk.left = 100_000

    def large(tx: Any) -> None:
        tx.q("PRAGMA cache_size=5")  # so that it spills before it commits
        for _ in range(60):
            write("a", "z" * 40_000)(tx)

    with pytest.raises(SteadError) as failed:
        store.write(large)
    assert failed.value.code == "disk_full" and texts(store) == ["kept"]
    disk.left = 1 << 40
    assert store.write(write("a", "again")) and texts(store) == ["kept", "again"]


def test_a_store_that_cannot_be_made_for_want_of_space_is_made_later(tmp_path: Path, disk: Disk, store: Store) -> None:
    disk.left = 20_000
    with pytest.raises(SteadError) as failed:
        open_store(tmp_path / "second", [NOTES])
    assert failed.value.code == "disk_full"
    disk.left = 1 << 40
    with open_store(tmp_path / "second", [NOTES]) as second:
        assert second.write(write("a"))


def test_a_migration_without_space_for_its_backup_leaves_all_as_it_was(tmp_path: Path, store: Store, disk: Disk) -> None:
    from stead.store.kernel import MIGRATIONS

    def more(conn: Conn, types: dict[str, str]) -> None:
        conn.q("CREATE TABLE extra(id TEXT)")

    store.write(write("a", "kept"))
    store.close()
    faults.arm("sqlite.backup_written", faults.enospc)
    with pytest.raises((SteadError, OSError)):
        open_store(tmp_path / "house", [NOTES], migrations=[*MIGRATIONS, more])
    assert os.listdir(tmp_path / "house" / "backups") == []
    with open_store(tmp_path / "house", [NOTES]) as again:
        assert texts(again) == ["kept"]


def in_no_room(work: Callable[[], Any]) -> Any:
    """What `work` gives in a process none of whose files may grow: SQLite is told what a full disk would tell it."""

    def limited() -> Any:
        import resource

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3, resource.RLIM_INFINITY))
        return work()

    return Child(limited).result()


def told(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except SteadError as error:
        return error.code


def read_twice_and_write(house: Path) -> list[Any]:
    with open_store(house, [NOTES]) as opened:
        return [told(lambda: texts(opened)), told(lambda: texts(opened)), told(lambda: opened.write(write("a", "lost")))]


def test_a_closed_store_is_read_on_a_disk_without_room_for_shared_memory(tmp_path: Path) -> None:
    house = tmp_path / "house"
    with open_store(house, [NOTES]) as opened:
        opened.write(write("a", "kept"))
    assert not (house / "stead.db-shm").exists()
    for _ in range(2):  # the second time beside what the first could not finish
        assert in_no_room(lambda: read_twice_and_write(house)) == [["kept"], ["kept"], "disk_full"]
    with open_store(house, [NOTES]) as opened:
        assert opened.write(write("a", "more")) and texts(opened) == ["kept", "more"]


def test_what_stands_in_the_log_alone_is_never_passed_over_for_want_of_room(tmp_path: Path) -> None:
    house = tmp_path / "house"
    with open_store(house, [NOTES]) as opened:
        opened.write(write("a", "kept"))

    def work() -> None:
        open_store(house, [NOTES]).write(write("a", "in the log"))
        os.kill(os.getpid(), signal.SIGKILL)

    assert Child(work).killed()
    (house / "stead.db-shm").unlink()
    log = (house / "stead.db-wal").read_bytes()
    assert in_no_room(lambda: told(lambda: read_twice_and_write(house))) == "disk_full"
    assert (house / "stead.db-wal").read_bytes() == log
    with open_store(house, [NOTES]) as opened:
        assert texts(opened) == ["kept", "in the log"]


def test_who_reads_without_shared_memory_sees_what_is_written_when_there_is_room_again(tmp_path: Path) -> None:
    """A view without locks is for itself alone: the next one begins anew."""
    import resource

    house = tmp_path / "house"
    with open_store(house, [NOTES]) as opened:
        opened.write(write("a", "1"))

    def work() -> list[Any]:
        opened = open_store(house, [NOTES])
        found = [texts(opened)]
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        for text in "23":
            opened.write(write("a", text))
            opened.writer()._conn.checkpoint()
            found.append(texts(opened))
        opened.close()
        return found

    assert in_no_room(work) == [["1"], ["1", "2"], ["1", "2", "3"]]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small file system")
def test_a_really_full_file_system(tmp_path: Path) -> None:
    place = tmp_path / "small"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
        pytest.skip("may not mount here")
    try:
        with open_store(place / "house", [NOTES]) as store:
            kept = fill(store)
            assert len(kept) > 20 and texts(store) == kept
            with pytest.raises(SteadError) as failed:
                store.blobs.prepare(os.urandom(900_000))
            assert failed.value.code == "disk_full"
            assert [path for path in (place / "house").rglob("*") if path.name.endswith(".tmp")] == []
            subprocess.run(["mount", "-o", "remount,size=8m", place], check=True, capture_output=True)
            assert store.write(write("a", "again")) and texts(store) == [*kept, "again"]
        with open_store(place / "house", [NOTES]) as store:
            assert texts(store) == [*kept, "again"]
            with store.view() as view:
                assert view.q("PRAGMA integrity_check") == [("ok",)]
        with suppress(OSError), (place / "ballast").open("wb", buffering=0) as ballast:
            while True:
                ballast.write(bytes(4096))
        with open_store(place / "house", [NOTES]) as store:
            assert texts(store) == [*kept, "again"]
    finally:
        subprocess.run(["umount", place], check=True)
