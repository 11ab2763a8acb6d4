"""What holds for the store in a file: its settings, its rights, its locks, and what it calls its troubles."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from stead.core.errors import SteadError
from stead.store import Store, open_store
from stead.store.sqlite import SQLite, SQLiteConn, translate
from tests.store.children import Child
from tests.store.notes import NOTES, write


@pytest.fixture
def house(tmp_path: Path) -> Path:
    return tmp_path / "house"


@pytest.fixture
def store(house: Path) -> Iterator[Store]:
    with open_store(house, [NOTES]) as opened:
        yield opened


def pragma(store: Store, name: str) -> object:
    conn = store.writer()._conn
    assert isinstance(conn, SQLiteConn)
    return store.write(lambda tx: tx.q(f"PRAGMA {name}"))[0][0]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("foreign_keys", 1),
        ("journal_mode", "wal"),
        ("synchronous", 2),
        ("busy_timeout", 5000),
        ("auto_vacuum", 2),
        ("secure_delete", 1),
        ("page_size", 2048),
        ("fullfsync", 1),
        ("checkpoint_fullfsync", 1),
        ("journal_size_limit", 16 << 20),
        ("wal_autocheckpoint", 4000),
    ],
)
def test_f364_settings_measured_on_the_open_store(store: Store, name: str, value: object) -> None:
    assert pragma(store, name) == value


def test_a_reader_syncs_what_it_checkpoints_when_it_is_the_last_to_close(house: Path, store: Store) -> None:
    with store.view() as view:
        assert view.q("PRAGMA synchronous") == [(2,)] and view.q("PRAGMA query_only") == [(1,)]


def modes(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}


def test_f397_everything_is_private_also_with_umask_000(house: Path, store: Store) -> None:
    from stead.domain import attachments
    from stead.store.lock import ProcessLock

    store.close()
    for path in sorted(house.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    house.rmdir()
    before = os.umask(0)
    try:
        with open_store(house, [NOTES]) as opened:
            opened.write(write("a"))
            prepared = opened.blobs.prepare(os.urandom(200_000))
            opened.write(lambda tx: tx.put(prepared))
            attachments.add(house / "attachments", "0123456789abcdef", "x.txt", b"x")
            opened._back_up(1)
            lock = ProcessLock(house / "locks", "owner", {})
            with opened.view() as view:
                view.events()
            found = modes(house)
            lock.release()
    finally:
        os.umask(before)
    assert {"stead.db", "stead.db-wal", "stead.db-shm", "locks/owner", "locks/maintenance", "blobs", "backups"} <= set(found)
    assert stat.S_IMODE(house.stat().st_mode) == 0o700
    for name, mode in found.items():
        assert mode == (0o700 if (house / name).is_dir() else 0o600), name


def test_f397_a_store_that_was_opened_to_others_is_closed_to_them_again(house: Path, store: Store) -> None:
    store.write(write("a"))
    store.close()
    house.chmod(0o755)
    (house / "stead.db").chmod(0o644)
    with open_store(house, [NOTES]) as opened:
        opened.write(write("a"))
        found = {name: mode for name, mode in modes(house).items() if name.startswith("stead.db")}
    assert stat.S_IMODE(house.stat().st_mode) == 0o700 and set(found.values()) == {0o600}


def test_a_backup_is_whole_private_and_opens(house: Path, store: Store) -> None:
    store.write(lambda tx: [write("a", str(n))(tx) for n in range(100)])
    backup = store._back_up(1)
    assert backup is not None and os.listdir(backup.parent) == [backup.name]
    other = house.parent / "restored"
    other.mkdir()
    (other / "stead.db").write_bytes(backup.read_bytes())
    with open_store(other, [NOTES]) as restored:
        assert restored.dump() == store.dump()


def test_a_killed_backup_leaves_nothing_that_looks_like_one(house: Path, store: Store) -> None:
    from stead.store import faults

    def fail(name: str) -> None:
        raise OSError(28, "full", name)

    faults.arm("sqlite.backup_written", fail)
    with pytest.raises(OSError):
        store._back_up(1)
    assert os.listdir(house / "backups") == []


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/locks")
def test_starting_to_write_does_not_take_away_the_locks_of_our_readers(house: Path, store: Store) -> None:
    """Closing any descriptor of the file would drop them all, and another process could remove the log under our feet."""
    inode = f":{(house / 'stead.db').stat().st_ino}"

    def held() -> list[str]:
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return [line[3] for line in lines if line[1] == "POSIX" and line[4] == str(os.getpid()) and line[5].endswith(inode)]

    store.write(write("a"))
    store.close()
    with open_store(house, [NOTES]) as opened:
        with opened.view() as view:
            view.events()
        assert held() == ["READ"]
        opened.write(write("a"))
        assert held() == ["READ"]


def test_a_process_that_comes_and_goes_does_not_disturb_a_reader_that_begins_to_write(house: Path, store: Store) -> None:
    store.close()
    with open_store(house, [NOTES]) as opened:
        with opened.view() as view:
            view.events()
        opened.write(write("a", "mine"))
        code = "import sys; from stead.store import open_store; from tests.store.notes import NOTES, write\n"
        code += "with open_store(sys.argv[1], [NOTES]) as store: store.write(write('a', 'other'))"
        import subprocess

        root = Path(__file__).resolve().parents[2]
        subprocess.run([sys.executable, "-c", code, str(house)], check=True, cwd=root)
        opened.write(write("a", "mine again"))
    assert Child(lambda: _texts(house)).result() == ["mine", "other", "mine again"]


def test_a_forked_process_may_not_open_what_its_parent_has_open(house: Path, store: Store) -> None:
    store.write(write("a", "1"))

    def attempt() -> str:
        try:
            return str(_texts(house))
        except SteadError as error:
            return error.message

    assert "forked" in Child(attempt).result()
    store.close()
    assert Child(attempt).result() == "['1']"


def _texts(house: Path) -> list[str]:
    with open_store(house, [NOTES]) as opened, opened.view() as view:
        return [event.data.text for event in view.events()]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (apsw.FullError, "disk_full"),
        (apsw.BusyError, "store_busy"),
        (apsw.LockedError, "store_busy"),
        (apsw.ProtocolError, "store_busy"),
        (apsw.ReadOnlyError, "read_only"),
        (apsw.CantOpenError, "read_only"),
        (apsw.CorruptError, "store_damaged"),
        (apsw.NotADBError, "store_damaged"),
        (apsw.IOError, "store_damaged"),
    ],
)
def test_troubles_have_a_stable_code_and_the_path(tmp_path: Path, error: type[apsw.Error], code: str) -> None:
    told = translate(error("what SQLite said"), tmp_path / "stead.db")
    assert isinstance(told, SteadError) and told.code == code and "stead.db" in told.message


def test_b026_a_short_read_is_told_with_the_extended_code_and_the_path(house: Path, store: Store) -> None:
    store.write(write("a"))
    store.close()
    before = (house / "stead.db").read_bytes()

    class ShortFile(apsw.VFSFile):
        def xRead(self, amount: int, offset: int) -> bytes:
            raise apsw.exception_for(apsw.SQLITE_IOERR_SHORT_READ | 0) if offset else apsw.exception_for(apsw.SQLITE_IOERR_READ)

    class ShortVFS(apsw.VFS):
        def __init__(self) -> None:
            super().__init__("short", "")

        def xOpen(self, name: object, flags: list[int]) -> apsw.VFSFile:
            return ShortFile("", name, flags)  # type: ignore[arg-type]

    vfs = ShortVFS()
    with pytest.raises(SteadError) as failed:
        conn = SQLite(house / "stead.db", vfs="short").reader()
        conn.q("SELECT * FROM kernel")
    vfs.unregister()
    assert failed.value.code == "store_damaged"
    assert str(int(apsw.SQLITE_IOERR_READ)) in failed.value.message and "stead.db" in failed.value.message
    assert (house / "stead.db").read_bytes() == before
