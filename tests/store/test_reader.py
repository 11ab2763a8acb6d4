"""Views: one moment of the store, whatever is written meanwhile. On both databases."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.store import Store
from tests.store.children import Child
from tests.store.notes import write


def test_a_view_sees_one_moment(store: Store) -> None:
    store.write(write("a", "1"))
    with store.view() as view:
        before = view.q("SELECT count(*) FROM events")
        store.write(write("a", "2"))
        assert view.q("SELECT count(*) FROM events") == before == [(1,)]
        assert len(view.events()) == 1 and view.newest() == 1
    with store.view() as view:
        assert len(view.events()) == 2


def test_a_view_never_sees_half_of_a_job_or_of_a_commit(store: Store) -> None:
    stop = threading.Event()
    wrong: list[Any] = []

    def look() -> None:
        while not stop.is_set():
            with store.view() as view:
                events = view.q("SELECT count(*) FROM events")[0][0]
                notes = view.q("SELECT count(*) FROM notes")[0][0]
                newest = (view.one("SELECT max(seq) FROM events") or (0,))[0] or 0
                if events != notes or events % 3 or newest != view.newest():
                    wrong.append((events, notes, newest))

    threads = [threading.Thread(target=look) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(60):
        store.write(lambda tx: [write("a", str(n))(tx) for n in range(3)])
    stop.set()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_reader_cannot_write(store: Store) -> None:
    for statement in ("INSERT INTO projections(name, version) VALUES('x', 1)", "UPDATE kernel SET seq=99", "DROP TABLE notes"):
        with store.view() as view, pytest.raises(SteadError) as failed:
            view.q(statement)
        assert failed.value.code == "read_only"


def test_views_inside_of_views_and_in_many_threads(store: Store) -> None:
    store.write(write("a"))

    def nest(depth: int) -> int:
        with store.view() as view:
            return len(view.events()) + (nest(depth - 1) if depth else 0)

    got: list[int] = []
    threads = [threading.Thread(target=lambda: got.append(nest(7))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [8] * 4


def test_an_error_inside_of_a_view_does_not_reach_the_next_one(store: Store) -> None:
    store.write(write("a"))
    for _ in range(10):
        with pytest.raises(ValueError), store.view() as view:
            view.q("SELECT 1")
            raise ValueError
        with pytest.raises(Exception, match="no_such"), store.view() as view:
            view.q("SELECT * FROM no_such_table")
    with store.view() as view:
        assert len(view.events()) == 1


def test_a_forked_process_is_refused_and_does_no_harm(store: Store) -> None:
    store.write(write("a"))
    with store.view() as view:
        view.events()

    def use_it() -> list[str]:
        said = []

        def read() -> None:
            with store.view():
                pass

        for attempt in (lambda: store.write(write("a")), lambda: store.submit(write("a")), read, store.rebuild):
            try:
                attempt()
            except SteadError as error:
                said.append(error.message)
        store.close()  # and this closes nothing of the parent's
        return said

    said = Child(use_it).result()
    assert len(said) == 4 and all("forked" in text for text in said)
    assert store.write(write("a")) and os.getpid() == store._pid
    with store.view() as view:
        assert len(view.events()) == 2
