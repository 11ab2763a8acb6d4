"""Exit codes, and bad input: one clear error with a stable code, and nothing lost."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stead.core.errors import CODES
from stead.interfaces.cli import codes
from tests.cli.door import EDIT, Done, project, script, stead, use
from tests.cli.small_server import serving

pytestmark = pytest.mark.usefixtures("data_dir")


@pytest.fixture
def proj(tmp_path: Path) -> Path:
    return project(tmp_path)


def refused(done: Done, code: str, exit_code: int) -> str:
    """The error's message: one line on stderr, one object on stdout, both the same."""
    error = done.json["error"]
    assert (error["code"], done.code) == (code, exit_code), done.err
    first = done.err.splitlines()[0]
    assert first.startswith("stead: ") and first.endswith(f"({code})")
    return str(error["message"])


def test_the_table() -> None:
    wanted = {"done": 0, "error": 1, "waiting": 5, "denied": 5, "limit": 6, "interrupted": 7, "aborted": 130}
    assert {outcome: codes.of_run(outcome, None) for outcome in wanted} == wanted
    assert [codes.of_run("error", code) for code in ("no_key", "bad_key", "not_found", "model_unknown", "stream_cut", "usage")] == [
        4, 4, 3, 3, 1, 1,
    ]  # fmt: skip
    known = {"usage": 2, "confirm_required": 2, "not_found": 3, "no_key": 4, "bad_key": 4, "limit_cost": 6, "run_interrupted": 7}
    assert all(codes.of_error(code) == exit_code for code, exit_code in known.items())
    assert {codes.of_error(code) for code in CODES} <= {1, 2, 3, 4, 6, 7}


def test_done(proj: Path) -> None:
    assert stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "go").code == 0


def test_a_call_that_a_rule_denies_is_an_ordinary_result(proj: Path) -> None:
    done = stead("run", "-C", str(proj), "-m", script(proj, EDIT, {"text": "ok"}), "--deny", "edit", "--json", "go")
    assert (done.code, done.json["outcome"]) == (0, "done")


def test_a_limit_of_steps(proj: Path) -> None:
    model = script(proj, use("read", path="calc.py"), use("read", path="calc.py"), {"text": "ok"})
    done = stead("run", "-C", str(proj), "-m", model, "--max-steps", "1", "--json", "go")
    assert (done.code, done.json["outcome"], done.json["error"]["code"]) == (6, "limit", "limit_steps")


def test_waiting_keeps_the_run_open_and_says_how_to_go_on(proj: Path) -> None:
    done = stead("run", "-C", str(proj), "-m", script(proj, EDIT, {"text": "ok"}), "--on-ask", "wait", "--json", "go")
    found = done.json
    assert (done.code, found["outcome"], len(found["asks"])) == (5, "waiting", 1)
    assert f"stead run -r {found['session']}" in done.err
    assert stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]["status"] == "waiting"
    early = stead("run", "-r", found["session"], "--json")
    assert early.json["asks"] == found["asks"] and f"answer {found['asks'][0]['id']} --allow" in early.err and early.code == 5
    again = stead("run", "-r", found["session"], "--json", "more")
    assert again.json["outcome"] == "waiting" and again.json["queued"]["state"] == "held" and again.code == 5
    assert stead("sessions", "stop", found["session"]).code == 0
    assert stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]["status"] == "aborted"
    sent = stead("queue", "send", again.json["run"], "--json", cwd=proj)
    assert (sent.code, sent.json["runs"][0]["run"], sent.json["runs"][0]["outcome"]) == (5, again.json["run"], "denied")


def test_an_answer_from_the_inbox_goes_on_where_the_run_stopped(proj: Path) -> None:
    turns = [use("bash", command="echo once >> log"), EDIT, use("ask", question="Which?", options=["a", "b"]), {"text": "end"}]
    options = ["-C", str(proj), "-m", script(proj, *turns), "--allow", "bash", "--on-ask", "wait", "--json"]
    found = stead("run", *options, "go").json
    (approval,) = stead("inbox", "--json").json["asks"]
    assert (approval["id"], approval["kind"], approval["status"]) == (found["asks"][0]["id"], "approval", "open")
    assert stead("inbox", "answer", approval["id"], "--allow", "--json").json["waiting"] is True
    late = stead("inbox", "answer", approval["id"], "--deny", "--json")
    assert late.json["error"]["code"] == "ask_closed" and late.code == 1
    on = stead("run", "-r", found["session"], "--on-ask", "wait", "--json")
    assert (on.code, on.json["run"], on.json["outcome"]) == (5, found["run"], "waiting")
    assert [change["path"] for change in on.json["changes"]] == ["log", "calc.py"]
    question = on.json["asks"][0]
    assert stead("inbox", "answer", question["id"], "--allow", "--json").json["error"]["code"] == "usage"
    assert stead("inbox", "answer", question["id"], "--text", "b").code == 0
    done = stead("run", "-r", found["session"], "--json")
    assert (done.code, done.json["run"], done.json["outcome"], done.json["result"]) == (0, found["run"], "done", "end")
    assert (proj / "log").read_text() == "once\n"
    shown = stead("sessions", "show", found["session"], "--json").json["messages"][-1]["parts"]
    assert [part["output"] for part in shown if part.get("tool") == "ask"] == ["b"]


def test_on_ask_comes_from_the_settings_where_no_flag_says(proj: Path) -> None:
    stead("config", "set", "on_ask", "allow")
    model = script(proj, EDIT, {"text": "ok"})
    assert stead("run", "-C", str(proj), "-m", model, "go").code == 0
    assert stead("run", "-C", str(proj), "-m", model, "--on-ask", "deny", "go").code == 5


@pytest.mark.parametrize(
    "arguments",
    [
        ["--json", "--stream-json", "go"],
        ["-c", "-r", "abcdef", "--json", "go"],
        ["-q", "-v", "--json", "go"],
        ["--fork", "x", "--json", "go"],
        ["--allow", "nosuchtool", "--json", "go"],
        ["--deny", "bash(", "--json", "go"],
        ["--on-ask", "perhaps", "--json", "go"],
        ["--max-steps", "0", "--json", "go"],
        ["--max-cost", "-1", "--json", "go"],
        ["--nosuchoption", "--json", "go"],
        ["-m", "nomodel", "--json", "go"],
        ["-o", "/nosuchfolder/x", "--json", "go"],
        ["--json", "two", "prompts"],
    ],
)
def test_usage_errors(proj: Path, arguments: list[str]) -> None:
    refused(stead("run", "-C", str(proj), *arguments), "usage", 2)
    assert stead("sessions", "list", "--all", "--json").json["sessions"] == []


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    for arguments in (["run", "-C", str(tmp_path / "gone"), "--json", "go"], ["diff", "-C", str(tmp_path / "gone"), "--json"]):
        refused(stead(*arguments), "project_missing", 3)


def test_a_current_folder_that_is_not_there_any_more(tmp_path: Path, proj: Path) -> None:
    gone = tmp_path / "gone"
    for arguments in (["run", "--json", "go"], ["diff", "--json"]):
        before = Path.cwd()
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
        try:
            assert "started in" in refused(stead(*arguments), "project_missing", 3)
            assert stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "go").code == 0
        finally:
            os.chdir(before)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_an_answer_that_cannot_be_written_into_its_file_is_printed_all_the_same(proj: Path) -> None:
    run = ["run", "-C", str(proj), "-m", script(proj, {"text": "The answer."}), "-o", "/dev/full", "go"]
    done = stead(*run)
    assert (done.code, done.out) == (1, "The answer.\n") and "(disk_full)" in done.err
    done = stead(*run, "--json")
    found = done.json
    assert (done.code, found["outcome"], found["result"], found["error"]["code"]) == (1, "done", "The answer.", "disk_full")


def test_a_project_that_went_away(proj: Path) -> None:
    session = stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "--json", "go").json["session"]
    proj.rename(proj.with_name("moved"))
    refused(stead("run", "-r", session, "--json", "more"), "project_missing", 3)


@pytest.mark.parametrize("text", ["turns: [", "turn: []\n", "turns:\n  - txt: hi\n", ""])
def test_a_broken_script(proj: Path, text: str) -> None:
    (proj / "bad.yaml").write_text(text)
    refused(stead("run", "-C", str(proj), "-m", "script/bad.yaml", "--json", "go"), "script_invalid", 1)


def test_a_missing_script(proj: Path) -> None:
    done = stead("run", "-C", str(proj), "-m", "script/none.yaml", "--json", "go")
    assert done.json["error"]["code"] in ("script_invalid", "not_found") and done.code in (1, 3)


def test_without_any_provider(proj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.models import providers

    monkeypatch.setattr(providers, "LOCAL", ())
    for arguments in ([], ["-m", "anthropic/claude"]):
        done = stead("run", "-C", str(proj), *arguments, "--json", "go")
        refused(done, "no_key", 4)
        assert "stead provider add anthropic --key-stdin" in done.err and done.json["error"]["details"]["local"] == []


def test_local_servers_are_found(proj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.models import providers

    with serving() as server:
        monkeypatch.setattr(providers, "LOCAL", (("LM Studio", "openai", server.url),))
        done = stead("run", "-C", str(proj), "--json", "go")
    assert done.code == 4 and done.json["error"]["details"]["local"][0]["models"] == ["small"]
    assert f"stead provider add lmstudio --kind openai --url {server.url} --no-key" in done.err


def test_a_server_that_is_not_there(proj: Path) -> None:
    stead("provider", "add", "local", "--kind", "openai", "--url", "http://127.0.0.1:9/v1", "--no-key")
    stead("config", "set", "max_steps", "3")
    done = stead("provider", "test", "local", "--json")
    refused(done, "provider_unreachable", 1)


def test_a_provider_without_its_key(proj: Path) -> None:
    stead("provider", "add", "openai", "--url", "http://127.0.0.1:9/v1")
    refused(stead("run", "-C", str(proj), "-m", "openai/x", "--json", "go"), "no_key", 4)


def test_an_unknown_provider(proj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stead("provider", "add", "ollama")
    refused(stead("run", "-C", str(proj), "-m", "nobody/x", "--json", "go"), "not_found", 3)


@pytest.mark.parametrize("status, code, exit_code", [(401, "bad_key", 4), (404, "model_unknown", 3)])
def test_what_a_provider_refuses(proj: Path, status: int, code: str, exit_code: int) -> None:
    message = "The model `x` does not exist" if status == 404 else "Incorrect API key"
    with serving(status=status, message=message) as server:
        stead("provider", "add", "openai", "--url", server.url, "--key-stdin", stdin=b"sk-1234567890\n")
        done = stead("run", "-C", str(proj), "-m", "openai/x", "--json", "go")
    assert (done.code, done.json["outcome"], done.json["error"]["code"]) == (exit_code, "error", code)
    assert f"({code})" in done.err


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proj: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEAD_DATA", str(tmp_path / "file" / "data"))
    done = stead("sessions", "list", "--json")
    assert done.code in (1, 3) and "error" in done.json and "Traceback" not in done.err


def test_a_damaged_store(data_dir: Path) -> None:
    (data_dir / "stead.db").write_bytes(b"this is no database at all" * 100)
    refused(stead("sessions", "list", "--json"), "store_damaged", 1)


def test_a_broken_config_file(tmp_path: Path, proj: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "config.toml").write_text("model = \n")
    message = refused(stead("run", "-C", str(proj), "--json", "go"), "usage", 2)
    assert "config.toml:1:" in message


@pytest.mark.parametrize("arguments", [["sessions", "lst"], ["nosuch"], ["sessions", "show"], ["usage", "--by", "year", "--json"]])
def test_unknown_commands_and_missing_arguments(arguments: list[str]) -> None:
    done = stead(*arguments)
    assert done.code == 2 and done.err.startswith("stead: ")


@pytest.mark.parametrize("arguments", [[], ["sessions"], ["config"], ["provider"]])
def test_a_group_alone_gives_its_help_on_stderr(arguments: list[str]) -> None:
    done = stead(*arguments)
    assert (done.code, done.out) == (2, "") and done.err.startswith("Usage: stead")


def test_an_unforeseen_fault_is_one_line_and_logged(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.domain import sessions

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("broken\nin two lines")

    monkeypatch.setattr(sessions, "page", fail)
    done = stead("sessions", "list", "--json")
    refused(done, "internal", 1)
    log = data_dir / "logs" / "stead.log"
    assert str(log) in done.err and "RuntimeError" in log.read_text() and log.stat().st_mode & 0o777 == 0o600
