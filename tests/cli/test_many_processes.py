"""Several programs on one data folder: all come to their end, none is lost, and who must refuse says who holds what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.door import EDIT, project, script, stead, use
from tests.cli.terminal import Terminal
from tests.store.children import Other
from tests.support import run_stead, scale, stead_command

pytestmark = [pytest.mark.usefixtures("data_dir"), pytest.mark.slow]


@pytest.fixture
def proj(tmp_path: Path) -> Path:
    return project(tmp_path)


def together(proj: Path, commands: list[list[str]], **environ: str) -> list[tuple[int, bytes, bytes]]:
    """Run these commands at the same time; the exit code and both outputs of each."""
    running = [
        subprocess.Popen(
            stead_command(*arguments),
            cwd=proj,
            env={**os.environ, **environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        for arguments in commands
    ]
    done = [process.communicate(timeout=60) for process in running]
    return [(process.returncode, *texts) for process, texts in zip(running, done, strict=True)]


def sessions(proj: Path) -> set[str]:
    """The sessions as they are listed."""
    return {one["id"] for one in stead("sessions", "list", "--json", cwd=proj).json["sessions"]}


def logged(data: Path) -> dict[str, list[str]]:
    """The kinds of the events of each session, from the log itself."""
    from stead.store import open_store

    kinds: dict[str, list[str]] = {}
    with open_store(data) as store, store.view() as view:
        for stream, kind in view.q("SELECT stream, kind FROM events ORDER BY seq"):
            kinds.setdefault(stream, []).append(kind)
    return {stream: found for stream, found in kinds.items() if "session.created" in found}


def test_b011_eight_runs_at_once_all_come_to_their_end(proj: Path, data_dir: Path) -> None:
    model = script(
        proj,
        use("read", path="calc.py"),
        use("write", path="new.txt", content="x"),
        use("bash", command="echo from a shell"),
        use("read", path="calc.py"),
        {"text": "All four done."},
    )
    done = together(proj, [["run", "-m", model, "--allow", "write", "--allow", "bash", "--json", f"go {n}"] for n in range(8)])
    assert [(code, json.loads(out)["outcome"], json.loads(out)["result"]) for code, out, _ in done] == [
        (0, "done", "All four done.")
    ] * 8, [err for _, _, err in done]
    found = logged(data_dir)
    assert sessions(proj) == set(found) == {json.loads(out)["session"] for _, out, _ in done}
    for kinds in found.values():
        assert (kinds.count("tool.ended"), kinds.count("run.started"), kinds.count("run.ended")) == (4, 1, 1)


def test_b014_six_first_prompts_on_a_new_folder_are_six_sessions(proj: Path, tmp_path: Path) -> None:
    model = script(proj, {"text": "Answered."})
    for attempt in range(scale(20)):
        data = tmp_path / f"new{attempt}"
        done = together(proj, [["run", "-m", model, "--json", f"go {n}"] for n in range(6)], STEAD_DATA=str(data))
        assert [code for code, _, _ in done] == [0] * 6, [err for _, _, err in done]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("STEAD_DATA", str(data))
            listed, log = sessions(proj), logged(data)
            shown = {stead("sessions", "show", one, "--json").json["messages"][1]["parts"][0]["text"] for one in listed}
        assert listed == set(log) == {json.loads(out)["session"] for _, out, _ in done} and len(listed) == 6
        assert shown == {"Answered."}


def test_b015_two_programs_in_one_project_live_side_by_side_over_a_restart_of_one(proj: Path, data_dir: Path) -> None:
    model = script(proj, {"text": "Heard you."})
    turns = scale(200)
    with Terminal("chat", "-m", model, cwd=proj) as one:
        two = Terminal("chat", "-m", model, cwd=proj)
        for at in (one, two):
            at.until("> ")
        for half in range(2):
            for n in range(turns):
                for at in (one, two):
                    at.send(f"turn {half} {n}\n")
                    at.until("Heard you.")
                    at.until("> ")
            if half == 0:
                (mine,) = [id for id, kinds in logged(data_dir).items() if kinds.count("run.ended") == turns][-1:]
                two.process.send_signal(signal.SIGKILL)
                two.end()
                two = Terminal("chat", "-m", model, mine, cwd=proj)
                two.until("> ")
        for at in (one, two):
            at.send("\x04")
            assert at.end() == 0
    found = logged(data_dir)
    assert sorted(kinds.count("run.ended") for kinds in found.values()) == [2 * turns, 2 * turns]
    assert sessions(proj) == set(found) and len(found) == 2


def test_b016_a_second_terminal_gets_a_session_of_its_own_unless_it_asks_to_join(proj: Path, data_dir: Path) -> None:
    model = script(proj, {"text": "Heard you."})
    with Terminal("chat", "-m", model, cwd=proj) as one, Terminal("chat", "-m", model, cwd=proj) as two:
        for at in (one, two):
            assert "a new session" in at.until("> ")
        one.send("in the first\n")
        one.until("Heard you.")
        two.send("in the second\n")
        two.until("Heard you.")
        assert "in the first" not in two.shown
        (first, second) = logged(data_dir)  # one each
        with Terminal("chat", "-m", model, first, cwd=proj) as three:
            assert f"session {first}" in three.until("> ")
            three.send("joined\n")
            three.until("Heard you.")
    prompts = {one: json.dumps(stead("sessions", "show", one, "--json").json) for one in (first, second)}
    assert "joined" in prompts[first] and "in the first" in prompts[first] and "joined" not in prompts[second]


def holding(data: Path, how: str) -> Other:
    """A process that has stood still in the middle of a write transaction, or while it holds the store for maintenance."""

    def write(meet: Callable[[str], str]) -> None:
        from stead.app import Stead

        with Stead.open(data).store as store:
            store.write(lambda tx: (tx.q("UPDATE kernel SET seq=seq"), meet("held")))

    def maintain(meet: Callable[[str], str]) -> None:
        from stead.store.holders import Sign
        from stead.store.lock import using

        Sign(data / "locks", {"version": "0.0.9", "started": "2026-01-01T00:00:00.000Z"})
        with using(data / "locks", alone=True):
            meet("held")

    other = Other(write if how == "write" else maintain)
    assert other.met() == "h"
    other.stop()
    return other


@pytest.mark.parametrize("how", ["write", "maintain"])
def test_b017_a_frozen_holder_is_named_in_time(proj: Path, data_dir: Path, how: str) -> None:
    model = script(proj, {"text": "Answered."})
    assert stead("run", "-m", model, "first", cwd=proj).code == 0
    other = holding(data_dir, how)
    done = run_stead("run", "-m", model, "--json", "second", cwd=proj, timeout=15)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == 1 and error["code"] == "store_busy" and b"Traceback" not in done.stderr
    assert f"process {other.child.pid} (stead 0.{'' if how == 'write' else '0.9, since 2026-01-01'}" in error["message"]
    assert "since 20" in error["message"]
    if how == "write":  # nobody waits for a writer to read
        assert len(sessions(proj)) == 1
    other.go_on()
    other.go()
    other.child.result()
    assert stead("run", "-m", model, "third", cwd=proj).code == 0


def test_b025_on_a_network_file_system_it_is_said_once_and_a_second_program_is_refused(
    proj: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STEAD_FILESYSTEM", "nfs")
    model = script(proj, use("read", path="calc.py"), EDIT, {"text": "Mended."})
    done = stead("run", "-m", model, "--allow", "edit", "go", cwd=proj)
    assert done.code == 0 and done.out == "Mended.\n" and done.err.count("network file system (nfs)") == 1
    assert not list(data_dir.glob("stead.db-[ws]*"))
    with Terminal("chat", "-m", model, cwd=proj) as at:
        at.until("> ")
        refused = run_stead("sessions", "list", "--json", cwd=proj)
        error = json.loads(refused.stdout)["error"]
        assert refused.returncode == 1 and error["code"] == "store_busy"
        assert f"process {at.process.pid} on " in error["message"] and "STEAD_DATA" in error["details"]["hint"]
    assert len(sessions(proj)) == 1
