"""A judge's slow model: kill -9 in its middle, and all that was on the screen 400 ms before is in the session."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judges.door import NAME, add_provider
from tests.judges.servers import served
from tests.restart.outside import Place

pytestmark = [pytest.mark.judges, pytest.mark.slow]

IN_FOLDER = "import os, runpy, sys; os.chdir(sys.argv[1]); del sys.argv[:2]; runpy.run_path(sys.argv[0], run_name='__main__')"
"""It writes what it was asked into the folder in which it runs."""


@pytest.fixture
def slow_model(shared: Path, tmp_path: Path) -> Iterator[str]:
    script = shared / "judges" / "slow_model.py"
    if not script.is_file():
        pytest.skip(f"there is no {script}")
    folder = tmp_path / "asked"
    folder.mkdir()
    with served(lambda port: [sys.executable, "-c", IN_FOLDER, str(folder), str(script), str(port)], "/", tmp_path / "log") as url:
        yield url


@pytest.mark.parametrize("number", range(3))
def test_what_was_shown_before_a_kill_is_kept(number: int, slow_model: str, data_dir: Path, tmp_path: Path) -> None:
    dice = random.Random(f"judged {number}")
    add_provider("openai", f"{slow_model}/v1")
    place = Place(tmp_path, env={})  # the data folder is that of the fixture
    process = place.start("run", "--stream-json", "-m", f"{NAME}/slow", "SLOW please")
    try:
        process.until(lambda: process.told("text"))
        time.sleep(dice.uniform(0.5, 4))
    finally:
        at = process.kill()
    (session,) = place.sessions()
    assert (session["status"], session["last_run"]) == ("idle", "interrupted")
    (answered,) = [one for one in place.show(session["id"])["messages"] if one["role"] == "assistant"]
    (kept,) = [part for part in answered["parts"] if part["type"] == "text"]
    due = "".join(line["text"] for when, line in process.lines if line.get("frame") == "text" and when <= at - 0.4)
    assert due and kept["text"].startswith(due) and kept["cut"] is True
    assert "".join(f"word{n:03} " for n in range(200)).startswith(kept["text"])
    again = place.start("run", "-c", "--stream-json", "-m", f"{NAME}/slow", "and now?")
    try:
        again.until(lambda: again.told("text"))
    finally:
        again.kill()
    assert again.events[0]["session"] == session["id"]
