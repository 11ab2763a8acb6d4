"""Signs of life: the system frees a lock when its process dies; that decides who is dead, nothing else."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from stead.core.errors import SteadError
from stead.store import faults, lock
from stead.store.holders import Sign
from stead.store.lock import ProcessLock, dead_owners, forget_owner, hold, living, using
from tests.store.children import Child, Gate


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "locks"


def die_holding(folder: Path, owner: str) -> None:
    def work() -> None:
        ProcessLock(folder, owner, {"version": "1"})
        faults.kill("")

    assert Child(work).killed()


def test_a_living_process_is_known_and_not_dead(folder: Path) -> None:
    held = ProcessLock(folder, "mine", {"version": "9", "started": "now"})
    assert dead_owners(folder) == []
    (about,) = living(folder)
    assert (about["id"], about["pid"], about["version"]) == ("mine", os.getpid(), "9")
    held.release()
    assert living(folder) == [] and dead_owners(folder) == []


def test_a_killed_process_is_dead_at_once_and_forgotten_once(folder: Path) -> None:
    alive = ProcessLock(folder, "alive", {})
    die_holding(folder, "dead")
    assert dead_owners(folder) == ["dead"]
    assert [about["id"] for about in living(folder)] == ["alive"]
    for _ in range(2):
        forget_owner(folder, "dead")
        forget_owner(folder, "alive")  # a living one stays
    assert dead_owners(folder) == [] and os.listdir(folder) == ["alive"]
    alive.release()


def test_a_lock_that_was_given_back_without_being_forgotten_counts_as_a_dead_processs(folder: Path) -> None:
    ProcessLock(folder, "left", {}).release(forget=False)
    assert dead_owners(folder) == ["left"]


@pytest.mark.parametrize("point", ["lock.created", "lock.held"])
def test_a_process_killed_while_it_makes_its_lock_leaves_nothing_that_lives(folder: Path, point: str) -> None:
    def work() -> None:
        faults.arm(point)
        ProcessLock(folder, "x", {})

    assert Child(work).killed()
    assert dead_owners(folder) == (["x"] if point == "lock.held" else [])
    forget_owner(folder, "x")
    assert os.listdir(folder) == []


def test_b003_damaged_lock_files_count_by_their_lock_alone(folder: Path) -> None:
    held = ProcessLock(folder, "held", {"version": "9"})
    with (folder / "held").open("ab") as file:
        file.write(b"\0" * 1206)
    assert living(folder)[0]["version"] == "9"  # a tail of NUL bytes hides nothing
    (folder / "held").write_bytes(os.urandom(50))
    assert living(folder) == [{"id": "held"}] and dead_owners(folder) == []
    for name, content in (("empty", b""), ("nul", b"\0" * 99), ("list", b"[1]")):
        (folder / name).write_bytes(content)
    assert dead_owners(folder) == ["empty", "list", "nul"]
    held.release()


def test_nobody_is_taken_for_dead_while_locks_are_being_made(folder: Path) -> None:
    """Processes make their locks while another looks for dead ones and removes them without a pause."""
    folder.mkdir()
    gate = Gate()

    def live(n: int) -> list[str]:
        gate.wait()
        lost = []
        for attempt in range(40):
            held = ProcessLock(folder, f"p{n}x{attempt}", {})
            if not (folder / held.id).exists() or held.id in dead_owners(folder):
                lost.append(held.id)
            held.release()
        return lost

    def hunt() -> list[str]:
        gate.wait()
        dead: list[str] = []
        for _ in range(300):
            found = dead_owners(folder)
            dead += found
            for owner in found:
                forget_owner(folder, owner)
        return dead

    children = [Child(lambda n=n: live(n)) for n in range(3)] + [Child(hunt), Child(hunt)]  # type: ignore[misc]
    gate.open()
    assert [child.result() for child in children] == [[]] * 5
    assert os.listdir(folder) == []


def test_a_forked_child_does_not_give_back_its_parents_lock(folder: Path) -> None:
    held = ProcessLock(folder, "mine", {})
    Child(held.release).result()
    assert (folder / "mine").exists() and dead_owners(folder) == []
    held.release()


def test_many_use_the_store_and_one_maintains_it(folder: Path) -> None:
    first, second = hold(folder), hold(folder)
    waiting = threading.Event()
    done = threading.Event()

    def maintain() -> None:
        waiting.set()
        with using(folder, alone=True):
            done.set()

    thread = threading.Thread(target=maintain)
    thread.start()
    assert waiting.wait(5) and not done.is_set()
    os.close(first)
    os.close(second)
    thread.join(10)
    assert done.is_set()


def test_who_waits_in_vain_is_told_for_whom(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.1)
    fd = hold(folder, alone=True)
    sign = Sign(folder, {"version": "9", "started": "yesterday"})
    with pytest.raises(SteadError) as failed:
        hold(folder)
    assert failed.value.code == "store_busy"
    assert f"process {os.getpid()} (stead 9, since yesterday)" in failed.value.message
    os.close(fd)
    sign.leave()
    assert os.listdir(folder) == ["maintenance"]
    os.close(hold(folder))


def test_who_no_longer_needs_the_lock_stops_waiting(folder: Path) -> None:
    fd = hold(folder)
    other = hold(folder, alone=True, enough=lambda: True)
    os.close(other)
    os.close(fd)


def test_the_lock_of_a_killed_process_is_free(folder: Path) -> None:
    def work() -> None:
        hold(folder, alone=True)
        faults.kill("")

    assert Child(work).killed()
    os.close(hold(folder, alone=True))
