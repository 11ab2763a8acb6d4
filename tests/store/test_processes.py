"""Several processes on one store: one order, no gap that matters, nothing lost. On both databases."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from time import sleep

import pytest

from stead import __version__
from stead.core.errors import SteadError
from stead.store import Store, faults, lock, open_store, postgres, sqlite
from stead.store.database import Conn
from stead.store.holders import Sign
from stead.store.kernel import MIGRATIONS
from stead.store.lock import using
from tests.store.children import Child, Gate, Other
from tests.store.notes import NOTES, Written, write
from tests.support import scale

Opener = Callable[..., Store]


@pytest.fixture
def folder(where: str, tmp_path: Path) -> Path | None:
    return None if where.startswith("/") else tmp_path / "house"


def test_seq_grows_in_the_order_of_commits_across_processes(opener: Opener, where: str, folder: Path | None) -> None:
    opener().close()
    gate = Gate()

    def work(n: int) -> list[int]:
        gate.wait()
        with open_store(where, [NOTES], folder=folder) as store:
            return [store.write(write(f"s{n}", str(k))) for k in range(50)]

    def watch() -> bool:
        """What is visible is always a prefix: behind the highest seq seen, nothing appears later below it (I3)."""
        gate.wait()
        with open_store(where, [NOTES], folder=folder) as store:
            seen: list[int] = []
            while len(seen) < 200:
                with store.view() as view:
                    now = [row[0] for row in view.q("SELECT seq FROM events ORDER BY seq")]
                if now[: len(seen)] != seen:
                    return False
                seen = now
        return True

    workers = [Child(lambda n=n: work(n)) for n in range(4)]  # type: ignore[misc]
    watcher = Child(watch)
    gate.open()
    got = [child.result() for child in workers]
    assert watcher.result() is True
    assert sorted(seq for mine in got for seq in mine) == list(range(1, 201))  # I14, F365
    assert all(mine == sorted(mine) for mine in got)
    store = opener()
    with store.view() as view:
        for n in range(4):
            assert [event.data.text for event in view.events(stream=f"s{n}")] == [str(k) for k in range(50)]


def test_of_two_processes_that_expect_the_same_one_wins(opener: Opener, where: str, folder: Path | None) -> None:
    opener().close()
    gate = Gate()

    def work() -> int:
        gate.wait()
        won = 0
        with open_store(where, [NOTES], folder=folder) as store:
            for _ in range(40):
                with store.view() as view:
                    last = (view.one("SELECT max(seq) FROM events WHERE stream='a'") or (0,))[0] or 0
                try:
                    store.write(write("a", expect=last))
                    won += 1
                except SteadError as error:
                    assert error.code == "conflict"
        return won

    children = [Child(work) for _ in range(3)]
    gate.open()
    won = sum(child.result() for child in children)
    store = opener()
    with store.view() as view:
        assert view.q("SELECT count(*) FROM events") == [(won,)]


@pytest.mark.parametrize("point", ["writer.begun", "log.appended", "log.projected", "writer.before_commit", "writer.after_commit"])
def test_a_process_killed_at_any_point_of_a_commit_blocks_nobody(
    opener: Opener, where: str, folder: Path | None, point: str
) -> None:
    first = opener()
    first.write(write("a", "before"))
    first.close()

    def die() -> None:
        store = open_store(where, [NOTES], folder=folder)
        store.write(write("a", "warm"))
        faults.arm(point)
        store.write(lambda tx: [tx.append("a", Written(text=str(n))) for n in range(3)])

    assert Child(die).killed()
    store = opener()
    assert store.write(write("a", "after"))
    with store.view() as view:
        texts = [event.data.text for event in view.events()]
    survived = ["0", "1", "2"] if point == "writer.after_commit" else []
    assert texts == ["before", "warm", *survived, "after"]
    live = store.dump()
    store.rebuild()
    assert store.dump() == live


# --- waiting for one another --------------------------------------------------------------------------------------------------


def test_who_writes_without_a_pause_lets_others_in(opener: Opener, where: str, folder: Path | None) -> None:
    """Counted in commits: with SQLite's own waiting it is between 100 and 400, in the queue fewer than 20."""
    opener().close()
    last, say = os.pipe()

    def greedy() -> int:
        commits = 0
        os.set_blocking(last, False)
        with open_store(where, [NOTES], folder=folder) as store:
            while True:
                store.write(lambda tx: (sleep(0.002), write("greedy")(tx)))
                commits += 1
                try:
                    os.read(last, 1)
                    return commits
                except BlockingIOError:
                    continue

    child = Child(greedy)
    with open_store(where, [NOTES], folder=folder) as store:
        while not _count(store, "greedy"):
            sleep(0.01)
        before = _count(store, "greedy")
        for _ in range(30):
            store.write(write("modest"))
        between = _count(store, "greedy") - before
    os.write(say, b".")
    child.result()
    assert between <= 30 * 2


def _count(store: Store, stream: str) -> int:
    with store.view() as view:
        return int(view.q("SELECT count(*) FROM events WHERE stream=?", stream)[0][0])


def test_many_writers_all_come_to_their_end(opener: Opener, where: str, folder: Path | None) -> None:
    opener().close()
    gate, each = Gate(), scale(400)

    def work(n: int) -> int:
        gate.wait()
        with open_store(where, [NOTES], folder=folder) as store:
            for k in range(each):
                store.write(write(f"s{n}", str(k)))
        return each

    children = [Child(lambda n=n: work(n)) for n in range(8)]  # type: ignore[misc]
    gate.open()
    assert [child.result() for child in children] == [each] * 8
    store = opener()
    assert [_count(store, f"s{n}") for n in range(8)] == [each] * 8


def test_b020_a_reader_that_stops_in_the_middle_holds_up_nobody(opener: Opener, where: str, folder: Path | None) -> None:
    first = opener()
    first.write(lambda tx: [write("long", str(n))(tx) for n in range(500)])
    first.close()

    def read(meet: Callable[[str], str]) -> int:
        with open_store(where, [NOTES], folder=folder) as store, store.view() as view:
            page = view.events(stream="long", limit=100)
            meet("reading")
            return len(page) + len(view.events(stream="long", after=page[-1].seq)) + _count(store, "other")

    reader = Other(read)
    assert reader.met() == "r"
    reader.stop()
    with open_store(where, [NOTES], folder=folder) as store:
        for n in range(scale(10_000)):
            store.write(write("other", str(n)))
    reader.go_on()
    reader.go()
    assert reader.child.result() == 500 + scale(10_000)  # its page is of one moment, and nothing is missing


def test_b022_two_writers_and_a_backup_loop_lose_nothing(opener: Opener, where: str, folder: Path | None, tmp_path: Path) -> None:
    opener().close()
    each = scale(500) * 10

    def work(n: int) -> list[int]:
        with open_store(where, [NOTES], folder=folder) as store:
            return [store.write(write(f"s{n}", str(k))) for k in range(each)]

    children = [Child(lambda n=n: work(n)) for n in range(2)]  # type: ignore[misc]
    backups = []
    with open_store(where, [NOTES], folder=folder) as store:
        while _count(store, "s0") < each or _count(store, "s1") < each:
            kept = tmp_path / f"kept{len(backups)}" / "stead.db"
            kept.parent.mkdir(exist_ok=True)
            if store.database.backup(kept) is not None:
                backups.append(kept)
            sleep(0.02)
        for n, child in enumerate(children):
            seqs = child.result()
            with store.view() as view:
                assert [event.seq for event in view.events(stream=f"s{n}", limit=each + 1)] == seqs
    for kept in backups[-3:]:  # each is one moment: whole, and a prefix
        with open_store(kept.parent, [NOTES]) as copy, copy.view() as view:
            seqs = [event.seq for event in view.events(limit=3 * each)]
            assert seqs == list(range(1, len(seqs) + 1))
            assert view.q("SELECT count(*) FROM notes") == [(len(seqs),)]


def test_b017_a_frozen_writer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_MS", 300)
    house = tmp_path / "house"
    open_store(house, [NOTES]).close()

    def hold(meet: Callable[[str], str]) -> None:
        with open_store(house, [NOTES]) as store:
            store.write(lambda tx: (write("a", "theirs")(tx), meet("writing")))

    holder = Other(hold)
    assert holder.met() == "w"
    holder.stop()
    with open_store(house, [NOTES]) as store:
        with store.view() as view:  # reading waits for nobody
            assert view.events() == []
        for _ in range(2):
            with pytest.raises(SteadError) as failed:
                store.write(write("a", "mine"))
            error = failed.value
            assert error.code == "store_busy" and str(house / "stead.db") in error.message
            assert f"held by process {holder.child.pid} (stead {__version__}, since 20" in error.message
            assert ("stopped" in error.message) == (sys.platform == "linux")
        holder.go_on()
        holder.go()
        holder.child.result()
        store.write(write("a", "mine"))
        with store.view() as view:
            assert [event.data.text for event in view.events()] == ["theirs", "mine"]


def test_b017_a_frozen_writer_on_a_server_is_named(postgres_empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "WAIT_MS", 200)
    open_store(postgres_empty, [NOTES]).close()

    def hold(meet: Callable[[str], str]) -> None:
        with open_store(postgres_empty, [NOTES]) as store:
            store.write(lambda tx: (write("a", "theirs")(tx), meet("writing")))

    holder = Other(hold)
    assert holder.met() == "w"
    holder.stop()
    with open_store(postgres_empty, [NOTES]) as store:
        for _ in range(2):
            with pytest.raises(SteadError) as failed:
                store.write(write("a", "mine"))
            assert failed.value.code == "store_busy"
            assert f"held by process {holder.child.pid} on " in failed.value.message
            assert f"stead {__version__} (since 20" in failed.value.message
        holder.go_on()
        holder.go()
        holder.child.result()
        store.write(write("a", "mine"))
        with store.view() as view:
            assert [event.data.text for event in view.events()] == ["theirs", "mine"]


def test_b017_a_frozen_maintainer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.3)
    house = tmp_path / "house"
    open_store(house, [NOTES]).close()

    def maintain(meet: Callable[[str], str]) -> None:
        sign = Sign(house / "locks", {"version": "0.0.9", "started": "2026-01-01T00:00:00.000Z"})
        with using(house / "locks", alone=True):
            meet("maintaining")
        sign.leave()

    holder = Other(maintain)
    assert holder.met() == "m"
    holder.stop()
    with pytest.raises(SteadError) as failed:
        open_store(house, [NOTES])
    assert failed.value.code == "store_busy"
    assert f"process {holder.child.pid} (stead 0.0.9, since 2026-01-01T00:00:00.000Z" in failed.value.message
    holder.go_on()
    holder.go()
    holder.child.result()
    open_store(house, [NOTES]).close()


def _more(conn: Conn, types: dict[str, str]) -> None:
    conn.q("CREATE TABLE more(id TEXT PRIMARY KEY)")


NEWER = (*MIGRATIONS, _more)


def test_b018_an_older_program_on_the_store_is_named_and_nothing_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.2)
    house = tmp_path / "house"

    def old(meet: Callable[[str], str]) -> None:
        with open_store(house, [NOTES]) as store:
            store.write(write("a", "kept"))
            meet("open")

    other = Other(old)
    assert other.met() == "o"
    for _ in range(2):
        with pytest.raises(SteadError) as failed:
            open_store(house, [NOTES], migrations=NEWER)
        error = failed.value
        assert error.code == "store_busy" and f"process {other.child.pid} (stead {__version__}, since 20" in error.message
        assert "rebuild" not in f"{error.message} {error.hint}" and not list(house.glob("backups/*"))
    other.go()
    other.child.result()
    with open_store(house, [NOTES], migrations=NEWER) as store, store.view() as view:
        assert [event.data.text for event in view.events()] == ["kept"]


def test_b018_an_older_program_is_refused_by_a_newer_store_and_told_who_has_it_open(tmp_path: Path) -> None:
    house = tmp_path / "house"

    def newer(meet: Callable[[str], str]) -> None:
        with open_store(house, [NOTES], migrations=NEWER) as store:
            store.write(write("a", "kept"))
            meet("open")
            store.write(write("a", "and more"))

    other = Other(newer)
    assert other.met() == "o"
    before = (house / "stead.db").read_bytes()
    for _ in range(2):
        with pytest.raises(SteadError) as failed:
            open_store(house, [NOTES])
        error = failed.value
        assert error.code == "store_newer" and f"process {other.child.pid} (stead {__version__}, since 20" in error.message
        assert "Nothing is wrong with the store" in str(error.hint) and "rebuil" not in f"{error.message} {error.hint}"
    assert (house / "stead.db").read_bytes() == before and not list(house.glob("backups/*"))
    other.go()
    other.child.result()
    with pytest.raises(SteadError) as failed:
        open_store(house, [NOTES])
    assert failed.value.code == "store_newer" and "process" not in failed.value.message  # nobody has it open any more
    with open_store(house, [NOTES], migrations=NEWER) as store:
        assert _count(store, "a") == 2
