"""Network file systems: recognised, and worked on without a write-ahead log by one process at a time, or refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

from stead.core.errors import SteadError
from stead.store import Store, alone, filesystem, open_store, sqlite
from stead.store.filesystem import FileSystem, below
from tests.store.children import Child, Gate, as_nobody
from tests.store.notes import NOTES, write

MOUNTS = rb"""22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:40 / /home rw shared:2 - nfs4 server:/home rw,vers=4.2
31 30 0:41 / /home/me/local\040disk rw - xfs /dev/vdb rw
32 22 0:42 / /mnt/c rw - 9p drvfs rw,aname=drvfs
33 22 0:43 / /mnt/far rw - fuse.sshfs me@there: rw
34 22 0:44 / /mnt/ntfs rw - fuseblk /dev/vdc rw
35 22 0:45 / /mnt/new rw - fuse.somethingnew x rw
36 22 0:46 / /mnt/over rw - ext4 /dev/vdd rw
37 36 0:47 / /mnt/over rw - cifs //there/share rw
38 22 0:48 / /var/lib/docker rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("path", "name", "network"),
    [
        ("/work/x", "ext4", False),
        ("/home", "nfs4", True),
        ("/home/me/.local", "nfs4", True),
        ("/home/me/local disk/data", "xfs", False),
        ("/homeward", "ext4", False),
        ("/mnt/c/Users", "9p", True),
        ("/mnt/far/x", "fuse.sshfs", True),
        ("/mnt/ntfs/x", "fuseblk", False),
        ("/mnt/new/x", "fuse.somethingnew", True),  # unknown FUSE may be anything
        ("/mnt/over/x", "cifs", True),  # what was mounted last over the same place
        ("/var/lib/docker/x", "overlay", False),
    ],
)
def test_b025_the_deepest_mount_that_holds_a_path_says_what_it_lies_on(
    path: str, name: str, network: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = tmp_path / "mountinfo"
    table.write_bytes(MOUNTS)
    monkeypatch.setattr(filesystem, "_MOUNTS", table)
    monkeypatch.setattr(filesystem.sys, "platform", "linux")
    assert below(Path(path)) == FileSystem(name, network)


def test_this_machine_tells_its_file_systems_and_a_system_that_tells_nothing_counts_as_local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = below(tmp_path / "not" / "there")
    assert found.name and not found.network
    monkeypatch.setattr(filesystem, "_MOUNTS", tmp_path / "nothing")
    assert below(tmp_path) == FileSystem("", False)


@pytest.mark.parametrize(
    ("named", "network"),
    [
        *(("local", False), ("ext4", False), ("tmpfs", False), ("fuseblk", False)),
        *(("network", True), ("NFS", True), ("drvfs", True), ("smb", True), ("fuse", True), ("fuse.any", True)),
    ],
)
def test_the_variable_has_the_last_word(named: str, network: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEAD_FILESYSTEM", named)
    assert below(tmp_path) == FileSystem(named.lower(), network)


@pytest.mark.parametrize("named", ["netwrok", "safe", "1", "nfs,local", "fusebkl"])
def test_a_variable_that_names_no_file_system_decides_nothing(named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEAD_FILESYSTEM", named)
    error = fails(tmp_path / "house")
    assert error.code == "usage" and "STEAD_FILESYSTEM" in error.message and named in error.message
    assert "network" in str(error.hint) and not (tmp_path / "house").exists()


@pytest.mark.parametrize(("flags", "name", "network"), [(0x1000, b"apfs", False), (0, b"smbfs", True), (0x1000, b"osxfs", True)])
def test_what_macos_says_of_a_mount(flags: int, name: bytes, network: bool) -> None:
    raw = bytes(64) + flags.to_bytes(4, "little") + bytes(4) + name.ljust(16, b"\0") + bytes(2000)
    assert filesystem._told(raw) == FileSystem(name.decode(), network)


# --- the safe mode ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def house(tmp_path: Path) -> Path:
    return tmp_path / "house"


@pytest.fixture
def nfs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("STEAD_FILESYSTEM", "nfs")
    yield
    assert alone._mine == {}, "a store was not given back"


def pragma(store: Store, name: str) -> object:
    return store.write(lambda tx: tx.q(f"PRAGMA {name}"))[0][0]


def texts(house: Path) -> list[str]:
    with open_store(house, [NOTES]) as store, store.view() as view:
        return [event.data.text for event in view.events()]


def fails(house: Path) -> SteadError:
    with pytest.raises(SteadError) as failed:
        open_store(house, [NOTES]).close()
    return failed.value


@pytest.mark.usefixtures("nfs")
def test_b025_no_write_ahead_log_is_ever_made_there_and_the_store_says_so(house: Path) -> None:
    with open_store(house, [NOTES]) as store:
        assert store.caution and "network file system (nfs)" in store.caution and "STEAD_DATA" in store.caution
        assert (pragma(store, "journal_mode"), pragma(store, "synchronous"), pragma(store, "busy_timeout")) == ("delete", 3, 5000)
        for n in range(5):
            store.write(write("a", str(n)))
            with store.view() as view:
                assert len(view.events()) == n + 1
        live = store.dump()
        store.rebuild()
        assert store.dump() == live
        assert {path.name for path in house.glob("stead.db*")} == {"stead.db", "stead.db-lock"}
        assert (house / "stead.db-lock").stat().st_mode & 0o777 == 0o600
    assert (house / "stead.db-lock").read_bytes() == b""
    assert texts(house) == ["0", "1", "2", "3", "4"]


def test_on_a_local_disk_nothing_is_said(house: Path) -> None:
    with open_store(house, [NOTES]) as store:
        assert store.caution is None and pragma(store, "journal_mode") == "wal"
        assert not (house / "stead.db-lock").exists()


def killed_with(house: Path, *notes: str) -> None:
    """A process writes these notes into the store and is killed: they stand in its log alone."""

    def work() -> None:
        store = open_store(house, [NOTES])
        for text in notes:
            store.write(write("a", text))
        os.kill(os.getpid(), signal.SIGKILL)

    assert Child(work).killed()


def test_b025_a_store_with_a_log_is_brought_over_whole_and_back_again(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    killed_with(house, "one", "two")
    assert (house / "stead.db-wal").stat().st_size > 0
    monkeypatch.setenv("STEAD_FILESYSTEM", "smb3")
    with open_store(house, [NOTES]) as store:
        assert not list(house.glob("stead.db-[ws]*"))
        store.write(write("a", "three"))
        assert pragma(store, "journal_mode") == "delete"
    monkeypatch.setenv("STEAD_FILESYSTEM", "local")
    with open_store(house, [NOTES]) as store:
        store.write(write("a", "four"))
        assert pragma(store, "journal_mode") == "wal"
    assert texts(house) == ["one", "two", "three", "four"]


def test_b025_a_log_that_another_process_uses_is_not_taken_away(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MS", 100)
    gate = Gate()
    told, say = os.pipe()

    def use() -> None:
        with open_store(house, [NOTES]) as store:
            store.write(write("a", "theirs"))
            os.write(say, b".")
            gate.wait()
            store.write(write("a", "still theirs"))

    child = Child(use)
    assert os.read(told, 1)
    monkeypatch.setenv("STEAD_FILESYSTEM", "nfs")
    assert fails(house).code == "store_busy"
    gate.open()
    child.result()
    assert texts(house) == ["theirs", "still theirs"]


@pytest.mark.usefixtures("nfs")
def test_b025_a_second_process_is_refused_with_the_name_of_the_first(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alone, "WAIT_SECONDS", 0.1)
    with open_store(house, [NOTES]) as store:
        store.write(write("a", "mine"))
        error = Child(lambda: fails(house).to_json()).result()
        assert error["code"] == "store_busy" and "STEAD_DATA" in error["details"]["hint"]
        for part in (f"process {os.getpid()} on {os.uname().nodename}", "stead 0.", "since 20"):
            assert part in error["message"]
        with open_store(house, [NOTES]) as second:  # in the same process they share it
            second.write(write("a", "mine too"))
        store.write(write("a", "and again"))
        assert Child(lambda: fails(house).code).result() == "store_busy"  # the first still has it
    assert Child(lambda: texts(house)).result() == ["mine", "mine too", "and again"]


@pytest.mark.usefixtures("nfs")
def test_b025_who_takes_the_place_for_local_does_not_come_in_beside_the_holder(
    house: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alone, "WAIT_SECONDS", 0.1)

    def elsewhere() -> str:
        monkeypatch.setenv("STEAD_FILESYSTEM", "local")
        return fails(house).code

    with open_store(house, [NOTES]) as store:
        store.write(write("a", "mine"))
        assert Child(elsewhere).result() == "store_busy"
    monkeypatch.setenv("STEAD_FILESYSTEM", "local")
    assert Child(lambda: texts(house)).result() == ["mine"]


@pytest.mark.usefixtures("nfs")
def test_b025_a_process_killed_in_a_commit_leaves_a_store_that_opens_as_it_was(house: Path) -> None:
    from stead.store import faults

    def die() -> None:
        store = open_store(house, [NOTES])
        store.write(write("a", "kept"))
        store.write(lambda tx: [write("a", "x" * 2000)(tx) for _ in range(3000)] and faults.kill(""))

    assert Child(die).killed()
    assert json.loads((house / "stead.db-lock").read_bytes())["host"] == os.uname().nodename  # ours, so its lock decides
    assert (house / "stead.db-journal").stat().st_size > 0  # more than the cache holds: it was in the file already
    assert texts(house) == ["kept"]
    assert not (house / "stead.db-journal").exists()


@pytest.mark.usefixtures("nfs")
def test_b025_what_a_process_on_another_machine_left_is_not_taken_for_dead(house: Path) -> None:
    open_store(house, [NOTES]).close()
    lock = house / "stead.db-lock"
    lock.write_text('{"pid":7,"host":"elsewhere","boot":"other","version":"0.1.0","started":"2026-01-01T00:00:00.000Z"}')
    before = (house / "stead.db").read_bytes()
    for _ in range(2):
        error = fails(house)
        assert error.code == "store_busy" and "process 7 on elsewhere (stead 0.1.0, since 2026-" in error.message
        assert str(lock) in str(error.hint) and "STEAD_DATA" in str(error.hint)
    assert (house / "stead.db").read_bytes() == before
    lock.unlink()
    assert texts(house) == []
    lock.write_bytes(b'{"pid"' + b"\0" * 1206)  # torn by a power cut: says nothing, and nobody holds it
    assert texts(house) == []


@pytest.mark.usefixtures("nfs")
def test_b025_a_file_system_without_locks_is_refused(house: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(fd: int, kind: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(alone.fcntl, "flock", no_locks)
    error = fails(house)
    assert error.code == "read_only" and "No locks available" in error.message and "STEAD_DATA" in str(error.hint)


def test_b025_a_log_that_cannot_be_brought_over_is_refused_and_nothing_changes(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = open_folder / "house"
    as_nobody(lambda: killed_with(house, "in the log"))
    for path in (*house.rglob("*"), house):
        path.chmod(0o500 if path.is_dir() else 0o400)
    before = {path: path.read_bytes() for path in house.glob("stead.db*")}
    monkeypatch.setenv("STEAD_FILESYSTEM", "nfs")
    code, hint = as_nobody(lambda: (error := fails(house)) and (error.code, error.hint))
    assert code == "read_only" and "STEAD_DATA" in hint
    assert {path: path.read_bytes() for path in house.glob("stead.db*")} == before


# --- what such file systems do to SQLite --------------------------------------------------------------------------------------


class File(apsw.VFSFile):
    """A file that asks `trouble` before it locks or reads."""

    def __init__(self, trouble: Trouble, name: Any, flags: list[int]) -> None:
        super().__init__("", name, flags)
        self._trouble = trouble
        self._log = bool(flags[0] & apsw.SQLITE_OPEN_WAL)

    def xLock(self, level: int) -> None:
        if self._trouble.locks > 0:
            self._trouble.locks -= 1
            raise apsw.exception_for(apsw.SQLITE_PROTOCOL)
        super().xLock(level)

    def xRead(self, amount: int, offset: int) -> bytes:
        read = super().xRead(amount, offset)
        return read[: self._trouble.ends - offset] if self._log and offset + amount > self._trouble.ends else read


class Trouble(apsw.VFS):
    """A file system that misunderstands the next `locks` locks, and gives of a log nothing behind the byte `ends`."""

    def __init__(self) -> None:
        super().__init__("trouble", "")
        self.locks, self.ends = 0, 1 << 60

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        return File(self, name, flags)


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Iterator[Trouble]:
    vfs = Trouble()
    made: Callable[..., None] = sqlite.SQLite.__init__
    monkeypatch.setattr(sqlite.SQLite, "__init__", lambda self, path: made(self, path, vfs="trouble"))
    monkeypatch.setattr(sqlite, "PROTOCOL_SECONDS", 0.3)
    yield vfs
    vfs.unregister()


@pytest.mark.parametrize("refused", [1, 3])
def test_b027_a_lock_that_is_misunderstood_is_asked_for_again(house: Path, trouble: Trouble, refused: int) -> None:
    trouble.locks = refused
    with open_store(house, [NOTES]) as store:  # a new one
        store.write(write("a", "first"))
    trouble.locks = refused
    with open_store(house, [NOTES]) as store:  # and one that is there
        store.write(write("a", "second"))
        with store.view() as view:
            assert [event.data.text for event in view.events()] == ["first", "second"]
    assert trouble.locks == 0


def test_b027_a_lock_that_is_never_understood_ends_with_advice(house: Path, trouble: Trouble) -> None:
    killed_with(house, "kept")
    trouble.locks = 1 << 30
    error = fails(house)
    assert error.code == "store_busy" and "locking protocol" in error.message and "stead.db" in error.message
    assert "WSL 1" in str(error.hint) and "STEAD_FILESYSTEM" in str(error.hint) and "STEAD_DATA" in str(error.hint)
    assert (1 << 30) - trouble.locks < 20  # tried again with pauses, not in a circle
    trouble.locks = 0
    assert texts(house) == ["kept"]


@pytest.mark.parametrize("safe", [False, True])
def test_b027_a_connection_that_has_long_been_open_asks_again_as_well(
    house: Path, safe: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_with(house, "kept")
    database = sqlite.SQLite(house / "stead.db")
    database.safe = safe
    writer = database.writer()
    reader = database.reader()
    for conn in (writer, reader):
        at, refused, run = conn._since + 3600, 2, conn._run
        monkeypatch.setattr(sqlite, "_monotonic", lambda at=at: at)

        def refuse(sql: str, *args: Any, run: Callable[..., Any] = run) -> Any:
            nonlocal refused
            if sql != "BEGIN" and refused:
                refused -= 1
                raise apsw.exception_for(apsw.SQLITE_PROTOCOL)
            return run(sql, *args)

        conn._run = refuse
        if conn is writer:
            conn.begin()
        else:
            conn.begin_read()
        assert conn.q("SELECT count(*) FROM events") == [(1,)] and refused == 0
        conn.rollback()
        conn.close()


def test_b027_who_waited_for_sqlite_itself_is_not_made_to_wait_again(
    house: Path, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed_with(house, "kept")
    with open_store(house, [NOTES]) as store:
        ticks = iter(range(0, 1 << 20, 10))  # ten seconds go by whenever somebody looks at the clock
        monkeypatch.setattr(sqlite, "_monotonic", lambda: next(ticks))
        trouble.locks = 1 << 30
        for ask in (lambda: store.write(write("a", "lost")), lambda: texts(house)):
            before = trouble.locks
            with pytest.raises(SteadError, match="locking protocol"):
                ask()
            assert before - trouble.locks == 1
        trouble.locks = 0


@pytest.mark.parametrize("ends", [0, 16, 32, 40, 1000, 5000])
def test_b026_a_log_shorter_than_it_claims_is_said_and_nothing_is_rewritten(house: Path, trouble: Trouble, ends: int) -> None:
    killed_with(house, *(f"note {n}" for n in range(20)))
    files = [house / "stead.db", house / "stead.db-wal"]
    before = [path.read_bytes() for path in files]
    assert len(before[1]) > 5000
    trouble.ends = ends
    for _ in range(3):
        error = fails(house)
        assert error.code == "store_damaged" and str(house / "stead.db") in error.message and "SQLite code 522" in error.message
        assert "stead.db-wal is shorter than it claims" in error.message and "STEAD_DATA" in str(error.hint)
    assert [path.read_bytes() for path in files] == before
    trouble.ends = 1 << 60
    assert texts(house) == [f"note {n}" for n in range(20)]
