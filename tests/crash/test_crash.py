"""SIGKILL at every boundary of a prompt's life, and again inside of the recovery. Afterwards every invariant holds.

`make test` kills once at every named point that the scenario passes, and once, seeded, in each recovery. `make crash` kills at
every passing of every point, and at every point of every recovery.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.store import Tx, faults
from tests.crash import scenario
from tests.crash.places import quick_folder
from tests.store.children import Child
from tests.support import scale

pytestmark = pytest.mark.crash
FULL = scale(100) == 100
SLICES = 8
OF_EVENTS = ("log.projected", "writer.after_commit")


def killed_at(work: Callable[[], Any], at: int) -> bool:
    """Run `work` in a child that is killed when it passes its `at`th point; False if it got through."""

    def counted() -> None:
        passed = 0

        def passing(name: str) -> None:
            nonlocal passed
            passed += 1
            if passed == at:
                faults.kill(name)

        faults.watch(passing)
        work()

    return Child(counted).killed()


def points_of(work: Callable[[], Any]) -> list[str]:
    """The names of the points that `work` passes, in order; behind those of the log and its writer, of which event."""

    def watched() -> list[str]:
        names: list[str] = []
        append, last = Tx.append, ""

        def noting(self: Tx, stream: str, fact: Any, **more: Any) -> Any:
            nonlocal last
            which = {"part.added": lambda: fact.part["type"], "change.captured": lambda: fact.path}.get(fact.kind, str)()
            last = f"{fact.kind} {which}".strip()
            return append(self, stream, fact, **more)

        Tx.append = noting  # type: ignore[method-assign]
        faults.watch(lambda name: names.append(f"{name} {last}" if name in OF_EVENTS else name))
        work()
        return names

    names: list[str] = Child(watched).result()
    return names


@pytest.fixture(scope="module")
def passed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The points that a whole scenario passes."""
    with quick_folder(tmp_path_factory.mktemp("whole")) as place:
        return whole(place)


def whole(place: Path, plant: Callable[[], None] = lambda: None) -> list[str]:
    """Play everything once and look at it; the points that are passed."""
    scenario.prepare(place / "project")

    def work() -> None:
        plant()
        scenario.play(place / "data", place / "project", os.open(os.devnull, os.O_WRONLY))

    names = points_of(work)
    Child(lambda: scenario.check(place / "data", place / "project", [])).result()
    return names


class Trial:
    """One fresh project and data folder, killed and recovered."""

    def __init__(self, place: Path, plant: Callable[[], None] = lambda: None) -> None:
        """`plant` spoils the program that lives and recovers here (tests/mutants)."""
        self._plant = plant
        self.data, self.root, self._acks = place / "data", place / "project", place / "acknowledged"
        scenario.prepare(self.root)

    def play(self, at: int) -> bool:
        def work() -> None:
            self._plant()
            scenario.play(self.data, self.root, os.open(self._acks, os.O_CREAT | os.O_WRONLY | os.O_APPEND))

        return killed_at(work, at)

    def recover(self, at: int) -> bool:
        def work() -> None:
            self._plant()
            scenario.recover(self.data)

        return killed_at(work, at)

    def check(self) -> None:
        told = self._acks.read_text().splitlines() if self._acks.exists() else []
        Child(lambda: scenario.check(self.data, self.root, told)).result()


def chosen(passed: list[str]) -> list[int]:
    """At which passings to kill: all, or the first and the last of every name, and a seeded third; of every kind of event one."""
    if FULL:
        return list(range(1, len(passed) + 1))
    rng = random.Random(7)
    picked = set()
    for name in dict.fromkeys(passed):
        places = [n for n, other in enumerate(passed, 1) if other == name]
        picked |= {rng.choice(places)} if " " in name else {places[0], places[-1], rng.choice(places)}
    return sorted(picked)


def test_the_scenario_passes_every_boundary_of_the_store_and_of_a_change(passed: list[str]) -> None:
    assert {
        *("kernel.before_commit", "writer.begun", "writer.before_commit", "writer.after_commit"),
        *("log.appended", "log.projected", "log.blob_put", "blobs.file_durable", "lock.created", "lock.held"),
        *("safefile.created", "safefile.written", "safefile.synced", "safefile.renamed", "safefile.done", "safefile.removed"),
        *("safefile.inplace.opened", "safefile.inplace.half", "safefile.inplace.written", "safefile.inplace.done"),
    } <= {name.partition(" ")[0] for name in passed}


@pytest.mark.slow
@pytest.mark.parametrize("part", range(SLICES))
def test_killed_anywhere_and_again_in_its_recovery_every_invariant_holds(passed: list[str], part: int, place: Path) -> None:
    rng = random.Random(part)
    for at in chosen(passed)[part::SLICES]:
        trial = Trial(place / str(at))
        assert trial.play(at), f"point {at} was not passed"
        trial.recover(rng.randrange(1, 20))
        trial.check()


@pytest.mark.long
@pytest.mark.parametrize("part", range(SLICES))
def test_killed_anywhere_and_everywhere_in_its_recovery_every_invariant_holds(passed: list[str], part: int, place: Path) -> None:
    for at in range(1 + part, len(passed) + 1, SLICES):
        again = 0
        killed = True
        while killed:  # one point further each time, until a recovery gets through
            again += 1
            trial = Trial(place / f"{at}-{again}")
            assert trial.play(at)
            killed = trial.recover(again)
            trial.check()


def test_recovery_may_be_killed_again_and_again(passed: list[str], place: Path) -> None:
    """Each start is killed one point later than the one before, on the same store."""
    trial = Trial(place)
    middle = next(n for n, name in enumerate(passed, 1) if name == "safefile.inplace.half")
    assert trial.play(middle)
    for at in range(1, 60):
        if not trial.recover(at):
            break
    else:
        raise AssertionError("a recovery never got through")
    trial.check()
    assert (trial.root / "linked.txt").read_bytes() == scenario.NEW[: len(scenario.OLD) // 2]  # a torn file is completed


def test_a_recovery_that_got_through_leaves_nothing_for_the_next(passed: list[str], place: Path) -> None:
    trial = Trial(place)
    assert trial.play(len(passed) // 2)
    first = Child(lambda: scenario.dump(trial.data)).result()
    for _ in range(2):
        assert Child(lambda: scenario.dump(trial.data)).result() == first  # I7
