"""Every planted fault is caught by the harness that is there for it, for the right reason; without one, nothing is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.mutants import harness
from tests.mutants.planted import MUTANTS, Mutant

pytestmark = pytest.mark.crash
HARNESSES = (harness.crash, harness.power, harness.beside, harness.contract)


@pytest.mark.slow
@pytest.mark.parametrize("look", HARNESSES, ids=lambda look: look.__name__)
def test_without_a_fault_nothing_is_found(look: harness.Harness, place: Path) -> None:
    assert look(place / "sound", harness.sound, "") == ""


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_planted_fault_is_caught(mutant: Mutant, place: Path) -> None:
    found = mutant.catcher(place / "spoiled", mutant.plant, mutant.first)
    assert found, f"nobody noticed: {mutant.why}"
    assert re.search(mutant.tells, found), f"noticed, but not for what it is: {found[-1_500:]}"


def test_each_harness_has_its_faults() -> None:
    assert len(MUTANTS) >= 10 and {mutant.catcher for mutant in MUTANTS} == set(HARNESSES)
    assert all(mutant.why.endswith(".") for mutant in MUTANTS)
