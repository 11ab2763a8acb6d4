"""What a dead process's commands left running: found by mark and session, ended or told of, and nobody else's process touched."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from stead.agent import orphans
from tests.support import ROOT

STUBBORN = "trap '' TERM INT; while :; do sleep 0.05; done"


class Machine:
    """Starts commands as the tool does, and knows by a variable what of them still runs."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started: list[subprocess.Popen[bytes]] = []

    def run(self, command: str, mark: str | None) -> int:
        """The pid of a shell that leads a session of its own."""
        env = {"PATH": os.environ["PATH"], "TEST_ORPHANS": self.name, **({orphans.MARK: mark} if mark is not None else {})}
        self.started.append(subprocess.Popen(["/bin/bash", "-c", command], env=env, start_new_session=True))
        return self.started[-1].pid

    def mark(self, n: int) -> str:
        """The mark of call `n` of this test: other tests run at the same time."""
        return f"{self.name}.{n}"

    def running(self) -> dict[int, str]:
        """The processes that this started and that still run: pid and name."""
        found = {}
        for process in psutil.process_iter():
            try:
                mine = process.environ().get("TEST_ORPHANS") == self.name or os.getsid(process.pid) in self.sessions
                if mine and process.status() != psutil.STATUS_ZOMBIE:
                    found[process.pid] = process.name()
            except (psutil.Error, OSError):
                continue
        return found

    @property
    def sessions(self) -> set[int]:
        return {process.pid for process in self.started}

    def until(self, true: Callable[[dict[int, str]], bool]) -> dict[int, str]:
        end = time.monotonic() + 5
        while not true(running := self.running()):
            assert time.monotonic() < end, running
            time.sleep(0.02)
        return running

    def close(self) -> None:
        for _ in range(3):
            for pid in self.running():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.started:
            process.wait()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(str(tmp_path))
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_GRACE", 0.4)


def names(running: dict[int, str]) -> list[str]:
    return sorted(running.values())


def test_where_nothing_runs_nothing_is_said_and_nothing_is_loaded(tmp_path: Path) -> None:
    program = (
        "import sys; from stead.agent import orphans; assert orphans.end({}) == {};"
        "gone = {'pid': 1, 'started': 1, 'boot': 'another'}; assert orphans.end({'a': gone}) == {'a': ''};"
        "print('psutil' in sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env).stdout == "False\n"
    assert orphans.end({str(tmp_path): None, "never": orphans.describe(2**22 + 1)}) == {str(tmp_path): "", "never": ""}


def test_the_command_and_what_it_started_are_ended_and_a_daemon_is_told_of(machine: Machine) -> None:
    command = f"({STUBBORN}) & setsid sleep 601 & env -i sleep 602 & set -m; sleep 603 & set +m; bash -c 'sleep 604 & {STUBBORN}'"
    shell = orphans.describe(machine.run(command, machine.mark(1)))
    other = machine.run("sleep 605", machine.mark(10))
    machine.until(lambda running: names(running).count("sleep") >= 7)
    ((daemon, _),) = [one for one in machine.running().items() if _arguments(one[0]) == ["sleep", "601"]]
    said = orphans.end({machine.mark(1): shell, machine.mark(2): None})
    assert set(machine.running()) == {daemon, other} and said[machine.mark(2)] == ""
    ended, _, away = said[machine.mark(1)].partition(". ")
    assert ended.startswith(f"What it had left running was ended: bash (pid {shell['pid']}), ") and "sleep" in ended
    assert away == f"Still running, in a session of its own: sleep (pid {daemon})."
    assert orphans.end({machine.mark(1): shell}) == {machine.mark(1): away}
    assert set(machine.running()) == {daemon, other}


def _arguments(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except psutil.Error:
        return []


def test_a_shell_of_which_nothing_was_kept_is_known_by_its_mark(machine: Machine) -> None:
    machine.run("setsid sleep 601 & sleep 602", machine.mark(1))
    machine.until(lambda running: names(running) == ["bash", "sleep", "sleep"])
    said = orphans.end({machine.mark(1): None})[machine.mark(1)]
    assert "ended: bash" in said and "session of its own: sleep" in said
    assert [_arguments(pid) for pid in machine.running()] == [["sleep", "601"]]
    again = orphans.end({machine.mark(1): None})[machine.mark(1)]
    assert again.startswith("Still running, in a session of its own: sleep")  # and it lives on
    assert [_arguments(pid) for pid in machine.running()] == [["sleep", "601"]]


def test_where_the_environment_tells_nothing_the_session_does(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "_mark", lambda pid: "")  # as on macOS
    shell = orphans.describe(machine.run("trap '' TERM; sleep 601 & sleep 602; sleep 603", machine.mark(1)))
    machine.until(lambda running: names(running) == ["bash", "sleep", "sleep"])
    assert "ended: bash" in orphans.end({machine.mark(1): shell})[machine.mark(1)]
    assert machine.running() == {}


@pytest.mark.parametrize("wrong", ["started", "boot", "both"])
def test_another_process_under_the_same_pid_is_left_alone(machine: Machine, wrong: str) -> None:
    shell = orphans.describe(machine.run("sleep 601 & sleep 602", None))
    before = machine.until(lambda running: names(running) == ["bash", "sleep", "sleep"])
    shell |= {"started": shell["started"] - 1} if wrong != "boot" else {}
    shell |= {"boot": "another"} if wrong != "started" else {}
    assert orphans.end({machine.mark(1): shell}) == {machine.mark(1): ""}
    assert machine.running() == before
    assert orphans.end({machine.mark(1): {**shell, "started": 0, "boot": orphans.describe(1)["boot"]}}) == {machine.mark(1): ""}
    assert orphans.end({machine.mark(1): {}}) == {machine.mark(1): ""} and machine.running() == before


def test_who_recovers_inside_of_a_command_does_not_end_itself(machine: Machine) -> None:
    program = (
        "import os; from stead.agent import orphans; print(*orphans.end({os.environ['STEAD_CALL']: None}).values(), flush=True)"
    )
    env = {"PATH": os.environ["PATH"], "TEST_ORPHANS": machine.name, orphans.MARK: machine.mark(1), "PYTHONPATH": str(ROOT / "src")}
    command = f'sleep 601 & {sys.executable} -c "{program}"; echo goes on'
    done = subprocess.run(["/bin/bash", "-c", command], env=env, start_new_session=True, capture_output=True, text=True, timeout=10)
    ended, _, stays = done.stdout.partition(". ")
    assert ended.startswith("What it had left running was ended: sleep (pid ") and "bash" in stays and "goes on" in stays
    assert machine.running() == {}


def test_a_recovery_that_is_killed_is_finished_by_the_next(machine: Machine) -> None:
    shell = orphans.describe(machine.run(f"({STUBBORN}) & sleep 601", machine.mark(1)))
    machine.until(lambda running: len(running) >= 3)
    program = f"from stead.agent import orphans; orphans._GRACE = 60; orphans.end({{{machine.mark(1)!r}: {shell!r}}})"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    recovering = subprocess.Popen([sys.executable, "-c", program], env=env)
    machine.until(lambda running: shell["pid"] not in running)  # it has sent its TERM
    recovering.kill()
    recovering.wait()
    assert machine.running() != {}
    assert "ended: " in orphans.end({machine.mark(1): shell})[machine.mark(1)]
    assert machine.running() == {}


def test_two_recoveries_at_once_do_no_harm(machine: Machine) -> None:
    from concurrent.futures import ThreadPoolExecutor

    calls = {machine.mark(n): orphans.describe(machine.run(f"sleep 601 & {STUBBORN}", machine.mark(n))) for n in range(4)}
    machine.until(lambda running: names(running).count("sleep") >= 8)
    with ThreadPoolExecutor(3) as pool:
        said = list(pool.map(lambda _: orphans.end(calls), range(3)))
    assert machine.running() == {} and all("ended" in sentence for sentence in said[0].values())


TOOL = """
import asyncio, json, sys
from pathlib import Path
from stead.agent import orphans
from tests.agent.tools.context import FakeContext

async def main():
    context = FakeContext(Path(sys.argv[1]))
    context.environ = {**context.environ, orphans.MARK: sys.argv[1] + ".7", "TEST_ORPHANS": sys.argv[1]}
    context.spawned = lambda pid, so_far: print(json.dumps(orphans.describe(pid)), flush=True)
    await context.use("bash", command=sys.argv[2])

asyncio.run(main())
"""


@pytest.mark.slow
def test_after_sigkill_the_tool_s_children_are_found_and_ended(machine: Machine) -> None:
    import json

    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    command = f"(setsid sleep 601 &) ; ({STUBBORN}) & sleep 602"
    with subprocess.Popen([sys.executable, "-c", TOOL, machine.name, command], env=env, stdout=subprocess.PIPE) as tool:
        assert tool.stdout is not None
        shell = json.loads(tool.stdout.readline())
        machine.until(lambda running: names(running).count("sleep") >= 3)
        tool.kill()
    assert shell["pid"] in machine.running()  # it lives on
    said = orphans.end({machine.mark(7): shell})[machine.mark(7)]
    assert "ended: bash" in said and "session of its own: sleep" in said
    assert [_arguments(pid) for pid in machine.running()] == [["sleep", "601"]]
