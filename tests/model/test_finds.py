"""The random life finds what is planted: without that, it would prove nothing."""

from __future__ import annotations

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
    with quick_folder(tmp_path) as memory, pytest.raises(BaseException, match=fault.tells):
        run_state_machine_as_test(lives_on("sqlite", memory, request, patience=IMPATIENT), settings=small)
