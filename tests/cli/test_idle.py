"""Who only waits costs next to nothing: no timers that burn, no sockets, and nothing left behind."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.door import EDIT, project, script, stead, use
from tests.cli.terminal import Terminal

pytestmark = [pytest.mark.usefixtures("data_dir"), pytest.mark.slow]
SECONDS = 2.0


@pytest.fixture
def proj(tmp_path: Path) -> Path:
    return project(tmp_path)


def wakes(pid: int) -> int:
    """How often the threads of a process have gone to sleep so far: each wake-up of a timer is one."""
    return sum(
        int(line.split()[1])
        for task in Path(f"/proc/{pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


def rate(at: Terminal) -> Iterator[float]:
    """Wake-ups a second of a program that has nothing to do: three looks, for it may have to come to rest first."""
    for _ in range(3):
        before = wakes(at.process.pid)
        time.sleep(SECONDS)
        yield (wakes(at.process.pid) - before) / SECONDS


def test_b039_a_chat_that_waits_for_a_prompt_has_no_timer(proj: Path, data_dir: Path) -> None:
    with Terminal("chat", "-m", script(proj, {"text": "Hello there."}), cwd=proj) as at:
        at.until("> ")
        at.send("go\n")
        at.until("Hello there.")
        at.until("> ")
        assert any(one <= 1 for one in rate(at))
        assert psutil.Process(at.process.pid).net_connections() == []
        at.send("\x04")
        assert at.end() == 0
    assert [path.name for path in (data_dir / "locks").iterdir()] == ["maintenance"]


@pytest.mark.parametrize("work", ["ask", "command"])
def test_b039_a_run_that_waits_looks_a_few_times_a_second_and_no_more(work: str, proj: Path) -> None:
    turn = EDIT if work == "ask" else use("bash", command="echo begun; sleep 600")
    with Terminal("run", "-v", "-m", script(proj, turn, {"text": "x"}), "--allow", "bash", "go", cwd=proj) as at:
        at.until("[n] no > " if work == "ask" else "begun\r\n")
        assert any(one < 100 for one in rate(at))
        assert psutil.Process(at.process.pid).net_connections() == []
        at.send("\x03")
        at.end()
    assert stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]["status"] == "aborted"
