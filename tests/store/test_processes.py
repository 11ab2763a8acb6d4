"""Several processes on one store: one order, no gap that matters, nothing lost. On both databases."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stead.core.errors import SteadError
from stead.store import Store, faults, open_store
from tests.store.children import Child, Gate
from tests.store.notes import NOTES, Written, write

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
