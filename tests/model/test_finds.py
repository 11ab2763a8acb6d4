"""The random life finds what is planted: without that, it would prove nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.crash.places import quick_folder
from tests.model.planted import FAULTS, Fault
from tests.model.test_life import SMALL, lives_on

IMPATIENT = 1.5


@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found(
    fault: Fault, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setattr(fault.owner, fault.attribute, fault.made(getattr(fault.owner, fault.attribute)))
    small = settings(SMALL, max_examples=fault.examples, phases=[Phase.generate])
    with quick_folder(tmp_path) as memory:
        machine = lives_on("sqlite", memory, request, patience=IMPATIENT)
        with pytest.raises(BaseException) as found:
            run_state_machine_as_test(machine, settings=small)
    assert re.search(fault.tells, _words(found.value)), f"found, but not for what it is: {_words(found.value)}"


def _words(error: BaseException) -> str:
    """What an error says, with those within it: what depends on the moment need not fail again when Hypothesis tries it again."""
    within = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "\n".join([str(error), *map(_words, within)])
