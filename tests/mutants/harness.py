"""What has to see a planted fault. A harness gives what it found wrong, empty when all held.

The fault is planted in the children that live, die and recover; what they left is judged by a child without it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stead.agent.closing import Lost
from stead.agent.loop import Loop
from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.domain import runs, sessions
from stead.store import Store, open_store
from tests.crash import scenario
from tests.crash.test_crash import Trial, chosen, whole
from tests.power.test_power import Prompt
from tests.store.children import Child, Gate
from tests.store.notes import NOTES, erase_stream, write

Plant = Callable[[], None]
Harness = Callable[[Path, Plant, str], str]
CUTS = 16
OPERATIONS = 800
"""About so many operations of the disk a prompt makes; cuts that stop short of its writes to files would find nothing there."""


def sound() -> None:
    """No fault at all."""


def crash(place: Path, plant: Plant, first: str = "") -> str:
    """tests/crash at small size, in a shuffled order but at the points named `first` before all others: killed there, and once in
    the recovery. (Without a fault only a fifth of the points: all of them are what tests/crash itself does.)"""
    rng = random.Random(3)
    place.mkdir()
    try:
        passed = whole(place / "whole", plant)
        points = chosen(passed)
        rng.shuffle(points)
        points.sort(key=lambda at: not passed[at - 1].startswith(first))
        points = points if first else points[::5]
        for at in points:
            trial = Trial(place / str(at), plant)
            trial.play(at)
            trial.recover(rng.randrange(1, 20))
            trial.recover(1 << 30)  # whoever looks at it must not be the first who recovers without the fault
            trial.check()
    except AssertionError as error:
        return str(error)
    return ""


def power(place: Path, plant: Plant, first: str = "") -> str:
    """tests/power at small size: the power fails somewhere in a prompt's life."""
    rng = random.Random(5)
    try:
        for seed in range(CUTS):
            prompt = Prompt(place, str(seed))
            prompt.play(plant, cut=rng.randrange(20, OPERATIONS), seed=seed)
            prompt.check()
    except AssertionError as error:
        return str(error)
    return ""


def beside(place: Path, plant: Plant, first: str = "") -> str:
    """A second process opens the house while a run of the first is at work."""
    data, ready, gate = place / "data", place / "ready", Gate()
    place.mkdir()

    def first() -> bool:
        plant()
        house = scenario.open_(data)
        run = _begin(house.store, house.owner())
        ready.touch()
        gate.wait()
        ended = house.store.write(lambda tx: runs.end(tx, run.id, "done", steps=0))
        house.close()
        return ended

    def second() -> None:
        plant()
        scenario.open_(data).close()

    try:
        living = Child(first)
        for _ in range(1_000):
            if ready.exists():
                break
            time.sleep(0.005)
        Child(second).result()
        gate.open()
        assert living.result(), "the run of a living process was closed by another"
    except AssertionError as error:
        return str(error)
    return ""


def contract(place: Path, plant: Plant, first: str = "") -> str:
    """What the store and the runs promise to whoever writes, in a few short lives."""
    place.mkdir()
    for promise in (told_when_durable, a_failing_job_is_undone, two_writers, deleted_is_deleted, ended_once, a_lost_lease):

        def life(promise: Callable[[Path], None] = promise) -> None:
            plant()
            promise(place / promise.__name__)

        try:
            Child(life).result()
        except AssertionError as error:
            return str(error)
    return ""


def _notes(folder: Path) -> Store:
    return open_store(folder, [NOTES], clock=ManualClock())


def told_when_durable(folder: Path) -> None:
    seen = []
    with _notes(folder) as store:

        def hear(events: Any) -> None:
            with store.view() as view:
                seen.append(events[-1].seq <= view.newest())

        store.listen(lambda events: hear(events) if events else None)
        for _ in range(3):
            store.write(write("a"))
    assert seen and all(seen), "somebody was told of what no other connection sees"


def a_failing_job_is_undone(folder: Path) -> None:
    def fails(tx: Any) -> None:
        write("a", "half a job")(tx)
        raise ValueError

    with _notes(folder) as store:
        hold = threading.Event()
        jobs: list[Any] = [lambda tx: hold.wait(), write("a", "one"), fails, write("a", "two")]
        futures = [store.submit(job) for job in jobs]
        hold.set()
        told = [future.exception(10) is None for future in futures]
        with store.view() as view:
            texts = [event.data.text for event in view.events()]
    assert told == [True, True, False, True], "a job failed for another's fault"
    assert texts == ["one", "two"], f"something of the failing job is left: {texts}"


def two_writers(folder: Path) -> None:
    with _notes(folder) as one, _notes(folder) as two:
        told: list[Any] = []
        for n in range(4):
            for store in (one, two):
                try:
                    told.append(store.write(write("a", str(n))))
                except Exception as error:
                    told.append(error)
        with one.view() as view:
            found = [event.seq for event in view.events()]
    assert told == found and found == sorted(set(found)) and len(found) == 8, f"the notes of two writers did not all get in: {told}"


def deleted_is_deleted(folder: Path) -> None:
    with _notes(folder) as store:
        store.write(write("a"))
        store.write(erase_stream("a"))
        try:
            store.write(write("a"))
        except SteadError as error:
            assert error.code == "not_found"
            return
    raise AssertionError("a deleted stream takes writes again")


def _begin(store: Store, owner: str) -> runs.Run:
    about: dict[str, Any] = {"agent": "build", "model": "m/x", "owner": owner, "project": "p", "max_steps": 9}

    def job(tx: Any) -> runs.Run:
        sessions.create(tx, "session000000001", "p", title="A run", agent="build", model="m/x")
        return runs.start(tx, "run1", "session000000001", [scenario.DO_IT], **about)

    return store.write(job)


def ended_once(folder: Path) -> None:
    house = scenario.open_(folder)
    run = _begin(house.store, house.owner())
    told = [house.store.write(lambda tx: runs.end(tx, run.id, "done", steps=0)) for _ in range(2)]
    with house.store.view() as view:
        ends = sum(event.kind == "run.ended" for event in view.events())
    house.close()
    assert told == [True, False] and ends == 1, f"a run ended {ends} times"


def a_lost_lease(folder: Path) -> None:
    """The run waited, and was taken up again: by the same process, but under another lease."""
    house = scenario.open_(folder)
    store = house.store
    run = _begin(store, house.owner())

    def again(tx: Any) -> None:
        runs.wait(tx, run, "ask")
        runs.resume(tx, run.id, house.owner())

    store.write(again)
    late = Loop._ours(SimpleNamespace(run=run), lambda tx: sessions.add_message(tx, run.session, "user"))  # type: ignore[arg-type]
    try:
        store.write(late)
    except Lost:
        return
    finally:
        house.close()
    raise AssertionError("a process wrote under a lease that it had lost")
