"""At a terminal, and with signals: the real program as a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead
from stead.core.errors import SteadError
from stead.interfaces.cli import chat
from stead.interfaces.cli.turn import Wanted
from tests.cli.door import EDIT, project, script, stead, use
from tests.cli.terminal import Terminal

pytestmark = [pytest.mark.usefixtures("data_dir"), pytest.mark.slow]
SLOW = {"text": "one two three four five six seven eight nine ten", "chunk": 4, "delay_ms": 300}
COMMAND = [sys.executable, "-m", "stead"]


@pytest.fixture
def proj(tmp_path: Path) -> Path:
    return project(tmp_path)


def last(proj: Path) -> dict[str, object]:
    """The session last used, as it is listed."""
    found: dict[str, object] = stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]
    return found


def test_approving_once_shows_the_whole_change(proj: Path) -> None:
    model = script(proj, {"text": "I mend it.", **EDIT}, {"text": "Mended."})
    with Terminal("run", "-m", model, "go", cwd=proj) as at:
        at.until("I mend it.")
        shown = at.until("[n] no > ")
        assert "-    return a - b" in shown and "+    return a + b" in shown
        at.send("y\n")
        at.until("Mended.")
        assert at.end() == 0
        assert at.shown.count("Mended.") == 1  # shown as it came, not a second time at the end
    assert "a + b" in (proj / "calc.py").read_text()


def test_refusing_with_a_reason(proj: Path) -> None:
    with Terminal("run", "-m", script(proj, EDIT, {"text": "Then not."}), "go", cwd=proj) as at:
        at.until("[n] no > ")
        at.send("n\n")
        at.until("no reason) > ")
        at.send("not today\n")
        at.until("not today")
        assert at.end() == 0
    assert "a - b" in (proj / "calc.py").read_text()


def test_a_rule_for_the_session_is_asked_for_once(proj: Path) -> None:
    model = script(proj, use("bash", command="echo one"), use("bash", command="echo two"), {"text": "Done."})
    with Terminal("run", "-m", model, "go", cwd=proj) as at:
        at.until("[n] no > ")
        at.send("a\n")
        at.until("(Enter: 1) > ")
        at.send("nonsense(\n")
        at.until("(usage)")
        at.until("(Enter: 1) > ")
        at.send("bash(echo *)\n")
        at.until("Done.")
        assert at.end() == 0
        assert "[n] no" not in at.shown[at.shown.index("echo two") :]


def test_a_question_is_answered_by_number_or_text(proj: Path) -> None:
    model = script(proj, use("ask", question="Which?", options=["red", "blue"]), {"text": "Thanks."})
    with Terminal("run", "-m", model, "go", cwd=proj) as at:
        at.until("text > ")
        at.send("2\n")
        at.until("Thanks.")
        assert at.end() == 0
    messages = stead("sessions", "show", str(last(proj)["id"]), "--json").json["messages"]
    assert messages[1]["parts"][0]["output"] == "blue"


def test_ctrl_c_while_a_person_is_asked(proj: Path) -> None:
    with Terminal("run", "-m", script(proj, EDIT, {"text": "Done."}), "go", cwd=proj) as at:
        at.until("[n] no > ")
        at.send("\x03")
        at.until("aborted")
        assert at.end() == 130
    assert last(proj)["status"] == "aborted"


def test_colours_at_a_terminal_and_none_with_no_color(proj: Path) -> None:
    stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "a title")
    for environ, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        with Terminal("sessions", "list", cwd=proj, **environ) as at:
            assert at.end() == 0
            assert "a title" in at.shown and ("\x1b" in at.shown) == coloured
    with Terminal("run", "--help", cwd=proj, NO_COLOR="1") as at:
        assert at.end() == 0 and "\x1b" not in at.shown


def test_chat(proj: Path) -> None:
    model = script(proj, {"text": "I only know edits."}, prompts=[{"match": "edit", "turns": [EDIT, {"text": "Edited."}]}])
    with Terminal("chat", "-m", model, cwd=proj) as at:
        at.until("> ")
        at.send("hello\n")
        at.until("I only know edits.")
        at.until("> ")
        at.send("please edit\n")
        at.until("[n] no > ")
        at.send("y\n")
        at.until("Edited.")
        at.until("> ")
        at.send("/diff\n")
        at.until("calc.py")
        at.send("/undo\n")
        at.until("Undo this? [y/N] > ")
        at.send("\n")
        at.until("Nothing was done.")
        assert "a + b" in (proj / "calc.py").read_text()
        at.send("/undo\n")
        at.until("Undo this? [y/N] > ")
        at.send("y\n")
        at.until("Taken back: 1 file and 2 messages.")
        assert "a - b" in (proj / "calc.py").read_text()
        at.send("/redo\n")
        at.until("Redo this? [y/N] > ")
        at.send("y\n")
        at.until("Brought back")
        at.send("/fork\n")
        at.until("In session ")
        at.send("/nosuch\n")
        at.until("(usage)")
        at.until("> ")
        at.send("\x04")
        at.until("stead chat ")
        assert at.end() == 0
    assert last(proj)["messages"] == 4


def test_chat_outlives_an_aborted_run(proj: Path) -> None:
    with Terminal("chat", "-m", script(proj, SLOW), cwd=proj) as at:
        at.until("> ")
        at.send("go\n")
        at.until("one two")
        at.send("\x03")
        at.until("aborted")
        at.until("> ")
        at.send("/exit\n")
        assert at.end() == 0


def test_chat_goes_on_in_its_session_when_its_first_turn_ends_in_a_fault(proj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with asyncio.Runner() as runner:
        at = Stead.open()
        wanted = Wanted(
            session=None, parts=[{"type": "text", "text": "hello"}], project=str(proj), model=script(proj, {"text": "ok"})
        )

        async def full(*_: Any) -> AsyncGenerator[Any]:
            raise SteadError("disk_full", "The disk is full.")
            yield

        try:
            with monkeypatch.context() as broken:
                broken.setattr(at, "follow", full)
                with pytest.raises(SteadError):
                    chat._turn(at, wanted, wanted.send, runner)
            session = wanted.session
            assert session is not None and wanted.model is None
            chat._turn(at, wanted, wanted.send, runner)
            assert wanted.session == session
        finally:
            at.close()
    assert (last(proj)["id"], last(proj)["messages"], last(proj)["status"]) == (session, 4, "idle")


def test_stead_alone_at_a_terminal_is_chat(proj: Path) -> None:
    with Terminal(cwd=proj) as at:
        at.until("/help lists the commands")
        at.until("> ")
        at.send("\x04")
        assert at.end() == 0


@pytest.mark.parametrize(
    "number, code, times",
    [(signal.SIGINT, 130, 1), (signal.SIGINT, 130, 3), (signal.SIGTERM, 143, 1), (signal.SIGHUP, 129, 1)],
)
def test_a_signal_aborts_the_run_and_keeps_the_session(proj: Path, number: int, code: int, times: int) -> None:
    command = [
        *COMMAND,
        "run",
        "-m",
        script(proj, {"text": "Before.", **use("bash", command="sleep 20")}),
        "--allow",
        "bash",
        "--json",
        "go",
    ]
    process = subprocess.Popen(
        command,
        cwd=proj,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # the tests themselves may run under nohup
    )
    until_running(proj)
    for _ in range(times):
        process.send_signal(number)
        time.sleep(0.02)
    out, err = process.communicate(timeout=15)
    found = json.loads(out)
    assert (process.returncode, found["outcome"], found["result"]) == (code, "aborted", "Before."), err
    assert f"stead run -r {found['session']}" in err
    assert last(proj)["status"] == "aborted"


def until_running(proj: Path) -> None:
    """Wait until the bash call of the newest session is at work."""
    for _ in range(200):
        if sessions := stead("sessions", "list", "--json", cwd=proj).json["sessions"]:
            parts = stead("sessions", "show", sessions[0]["id"], "--json").json["messages"][-1]["parts"]
            if any(part.get("status") == "running" for part in parts):
                return
        time.sleep(0.05)
    raise AssertionError("the run did not begin")


def test_stopping_the_run_of_another_process(proj: Path) -> None:
    command = [*COMMAND, "run", "-m", script(proj, use("bash", command="sleep 20")), "--allow", "bash", "--json", "go"]
    process = subprocess.Popen(command, cwd=proj, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    until_running(proj)
    assert stead("sessions", "stop", str(last(proj)["id"]), "--json").json["stopped"] is True
    process.communicate(timeout=15)
    assert process.returncode == 130


def test_a_pipe_that_nobody_reads_is_no_noise(proj: Path) -> None:
    stead("run", "-C", str(proj), "-m", script(proj, {"text": "x" * 500_000}), "go")
    session = str(last(proj)["id"])
    process = subprocess.Popen(
        [*COMMAND, "sessions", "show", session, "--full"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert process.stdout is not None and process.stderr is not None
    os.read(process.stdout.fileno(), 10)
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=15) == 141


def full(*arguments: str, cwd: Path, out: bool = False, err: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `stead ARGUMENTS` with outputs that take nothing, as a file on a full disk does."""
    with open("/dev/full", "w") as nothing:
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=nothing if out else subprocess.PIPE,
            stderr=nothing if err else subprocess.PIPE,
            text=True,
            timeout=30,
        )


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_stderr_that_takes_nothing_does_not_end_the_run(proj: Path) -> None:
    model = script(proj, EDIT, {"text": "Mended."})
    done = full("run", "-m", model, "--allow", "edit", "-v", "go", cwd=proj, err=True)
    assert (done.returncode, done.stdout) == (0, "Mended.\n")
    assert last(proj)["last_run"] == "done"
    assert full("nosuch", cwd=proj, err=True).returncode == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize("arguments", [["--version"], ["sessions", "list", "--json"], ["run", "--stream-json", "go"], ["--help"]])
def test_a_stdout_that_takes_nothing_is_one_clear_error(proj: Path, arguments: list[str]) -> None:
    more = ["-m", script(proj, {"text": "ok"})] if "run" in arguments else []
    done = full(*arguments, *more, cwd=proj, out=True)
    assert done.returncode == 1 and "(disk_full)" in done.stderr and "Traceback" not in done.stderr


def test_version() -> None:
    for flag in ("--version", "-V"):
        done = subprocess.run([*COMMAND, flag], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("stead 0.")


def test_the_demo_answers_itself_where_nobody_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = stead("demo", "--keep")
    assert done.code == 0, done.err
    for said in (
        "read tally.py",
        "edit tally.py",
        "May the agent use bash python3 check.py",
        "the demo answers: yes",
        "bash python3 check.py",
    ):
        assert said in done.err
    for said in ("Both faults are mended", "+    return len(text.split())", "What it cost", "How to go on"):
        assert said in done.out
    folder = Path(next(line for line in done.lines if "This demo stays in" in line).partition(" in ")[2].split(". Look")[0])
    check = subprocess.run([sys.executable, "check.py"], cwd=folder / "tally", capture_output=True, text=True)
    assert check.stdout == "2 checks passed\n"


def test_the_demo_leaves_nothing(tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    assert stead("demo").code == 0
    assert list((tmp_path / "tmp").iterdir()) == [] and list(data_dir.iterdir()) == []
