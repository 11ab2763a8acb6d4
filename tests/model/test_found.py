"""What the random life found, each as the shortest sequence that shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.model.homes import PATIENCE_SECONDS, Local, Place


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Local]:
    (tmp_path / "project").mkdir()
    opened = Local(Place(tmp_path, None))
    yield opened
    opened.crash()


def until(found: Callable[[], Any]) -> None:
    end = time.monotonic() + PATIENCE_SECONDS
    while not found():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


def kinds(home: Local) -> list[str]:
    return [kind for _, _, kind, _, _ in home.tell("shown", 0)["events"]]


def test_what_is_sent_now_is_said_behind_the_tool_calls_of_a_step_and_not_only_at_the_end(home: Local) -> None:
    run, session = home.tell("prompt", None, "p1 read 0", "person")
    until(lambda: home.tell("stands")["runs"][run][0] == "gate")
    later, _ = home.tell("prompt", session, "p2 talk 0", "person")
    home.tell("send", later)
    home.tell("let", "p1", 1)  # one call of the model, with its tools
    until(lambda: home.tell("stands")["runs"][run] == ("gate", 1, 0))
    assert kinds(home).count("run.steered") == 1 and "run.ended" not in kinds(home)


def test_two_who_wait_in_one_process_for_one_prompt_share_its_run(home: Local) -> None:
    first, session = home.tell("prompt", None, "p1 talk 0", "person")
    until(lambda: home.tell("stands")["runs"][first][0] == "gate")
    later, _ = home.tell("prompt", session, "p2 ask 1", "wait")
    home.tell("begin", later)  # from now on somebody sits there
    home.tell("stop", session)
    until(lambda: later in home.tell("stands")["runs"])
    until(lambda: home.tell("stands")["runs"][later][0] == "ask")
    assert home.tell("stop", session)
    until(lambda: not home.tell("stands")["runs"])
    assert home.tell("shown", 0)["shown"]["runs"][later][3] == "aborted"
