"""The write-ahead log stays within its bound; who keeps it from that is named; afterwards it is short again by itself."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stead.core.clock import ManualClock
from stead.store import Store, check, open_store, sqlite, writer
from tests.store.children import Child
from tests.store.notes import NOTES, write
from tests.support import scale

LIMIT = 256 << 10
TEXT = "x" * 4000


@pytest.fixture
def house(tmp_path: Path) -> Path:
    return tmp_path / "house"


@pytest.fixture
def store(house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(sqlite, "WAL_LIMIT", LIMIT)
    monkeypatch.setattr(sqlite, "_EACH", tuple(line.replace("autocheckpoint=4000", "autocheckpoint=64") for line in sqlite._EACH))
    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.02)
    open_store(house, [NOTES]).close()
    with open_store(house, [NOTES], clock=ManualClock()) as opened:
        yield opened


def wal(house: Path) -> int:
    return (house / "stead.db-wal").stat().st_size


class Reader:
    """A process that begins to read and does not end."""

    def __init__(self, house: Path) -> None:
        self._ready, ready = os.pipe()
        go_on, self._go_on = os.pipe()

        def read() -> int:
            os.close(self._go_on)
            with open_store(house, [NOTES]) as store, store.view() as view:
                before = view.newest()
                os.write(ready, b"!")
                os.read(go_on, 1)
                assert view.newest() == before
                return before

        self.child = Child(read)
        os.close(ready)
        os.close(go_on)
        assert os.read(self._ready, 1) == b"!"

    def end(self) -> int:
        os.close(self._go_on)
        os.close(self._ready)
        return int(self.child.result())


def within(seconds: float, what: str, done: object) -> None:
    for _ in range(round(seconds / 0.02)):
        if done():  # type: ignore[operator]
            return
        time.sleep(0.02)
    raise AssertionError(what)


def test_b031_a_reader_that_never_ends_is_named_and_the_log_is_short_again_after_it(
    house: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The reader is another process, begun before this one opens the store."""
    open_store(house, [NOTES]).close()
    reader = Reader(house)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite, "WAL_LIMIT", LIMIT)
        patch.setattr(writer, "IDLE_SECONDS", 0.02)
        with caplog.at_level(logging.WARNING, "stead.store"), open_store(house, [NOTES]) as store:
            for _ in range(max(scale(2_000), 200)):
                store.write(write("a", TEXT))
            assert wal(house) > 2 * LIMIT  # nothing can be taken out of the log that the reader may still need
            warned = [record.getMessage() for record in caplog.records if "write-ahead log" in record.getMessage()]
            assert len(warned) == 1 and f"process {reader.child.pid}" in warned[0]
            found = check.wal(store)
            assert not found.ok and f"process {reader.child.pid}" in found.detail
            assert reader.end() == 0
            within(20, "the log did not get short by itself", lambda: wal(house) <= LIMIT)
            assert check.wal(store).ok
            store.write(write("a"))


@pytest.mark.slow
def test_the_log_stays_within_its_bound_beside_readers_that_end(house: Path, store: Store) -> None:
    """Short views, as all of ours are, may come at any moment: the log is begun anew between them."""
    over = threading.Event()

    def reading() -> None:
        while not over.is_set():
            with store.view() as view:
                view.events(limit=3)

    threads = [threading.Thread(target=reading) for _ in range(2)]
    for thread in threads:
        thread.start()
    highest = 0
    try:
        for _ in range(max(scale(5_000), 400)):
            store.write(write("a", TEXT))
            highest = max(highest, wal(house))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert LIMIT < highest < 6 * LIMIT  # more than twice as much without
    within(20, "the log did not get short by itself", lambda: wal(house) <= LIMIT)


def test_a_checkpoint_waits_for_nobody(house: Path, store: Store) -> None:
    reader = Reader_in_thread(store)
    store.write(lambda tx: [write("a", TEXT)(tx) for _ in range(8)])
    conn = store.database.writer()
    try:
        started = time.monotonic()
        assert conn.checkpoint() is False
        assert time.monotonic() - started < 2  # the busy timeout is five seconds
        assert conn.q("PRAGMA busy_timeout") == [(sqlite.BUSY_MS,)]
        reader.end()
        assert conn.checkpoint() is True
        assert wal(house) == 0
    finally:
        conn.close()


class Reader_in_thread:
    def __init__(self, store: Store) -> None:
        self._over, begun = threading.Event(), threading.Event()

        def read() -> None:
            with store.view() as view:
                view.newest()
                begun.set()
                self._over.wait(20)

        self._thread = threading.Thread(target=read)
        self._thread.start()
        assert begun.wait(5)

    def end(self) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.slow
def test_b032_backups_in_a_loop_are_each_one_state_and_the_log_shrinks_after_the_storm(
    house: Path, store: Store, tmp_path: Path
) -> None:
    over, errors = threading.Event(), list[BaseException]()
    made: list[Path] = []

    def backing_up() -> None:
        try:
            while not over.is_set():
                target = tmp_path / f"backup-{len(made)}" / "stead.db"
                target.parent.mkdir()
                store.database.backup(target)
                made.append(target)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=backing_up)
    thread.start()
    try:
        for n in range(max(scale(1_500), 500)):
            store.write(lambda tx, n=n: [write(f"s{n % 7}", TEXT)(tx) for _ in range(3)])  # three notes or none
    finally:
        over.set()
        thread.join()
    assert errors == [] and len(made) >= 3
    within(60, "the log did not get short by itself", lambda: wal(house) <= LIMIT)
    for path in made[:: len(made) // 5 + 1]:
        with open_store(path.parent, [NOTES]) as copy:
            assert check.database(copy).ok
            rows = copy.dump()
            with copy.view() as view:
                count = view.q("SELECT count(*), max(seq) FROM events")[0]
            assert len(rows["notes"]) == count[0] == (count[1] or 0) and count[0] % 3 == 0
            copy.rebuild()
            assert copy.dump() == rows
