"""`stead diff`, `usage`, `config`, `completion` and help."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cli.door import EDIT, project, script, stead, use


@pytest.fixture
def proj(tmp_path: Path, data_dir: Path) -> Path:
    return project(tmp_path)


def edited(proj: Path) -> str:
    model = script(proj, EDIT, use("write", path="new.txt", content="hello\n"), {"text": "ok"})
    return str(stead("run", "-C", str(proj), "-m", model, "--allow", "edit", "--json", "go").json["session"])


def test_diff(proj: Path) -> None:
    session = edited(proj)
    for arguments, cwd in (([], proj), (["-C", str(proj)], None), ([session], None)):
        found = stead("diff", *arguments, "--json", cwd=cwd).json
        assert [(file["path"], file["status"], file["additions"], file["deletions"]) for file in found["files"]] == [
            ("calc.py", "modified", 1, 1),
            ("new.txt", "added", 1, 0),
        ]
        assert found["not_covered"] == []
        hunk = found["files"][0]["hunks"][0]
        assert set(hunk) == {"id", "old_start", "old_lines", "new_start", "new_lines", "lines", "review"}
    assert stead("diff", cwd=proj).lines == [
        "path\tstatus\tadditions\tdeletions\treview",
        "calc.py\tmodified\t1\t1\tpending",
        "new.txt\tadded\t1\t0\tpending",
    ]


def test_the_patch_is_one_that_git_takes_back(proj: Path) -> None:
    edited(proj)
    patch = stead("diff", "--patch", cwd=proj).out
    assert "-    return a - b" in patch and "+++ b/new.txt" in patch
    subprocess.run(["git", "apply", "-R", "-"], input=patch.encode(), cwd=proj, check=True)
    assert "a - b" in (proj / "calc.py").read_text() and not (proj / "new.txt").exists()


def test_a_session_without_changes(proj: Path) -> None:
    stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "go")
    assert stead("diff", "--json", cwd=proj).json == {"files": [], "not_covered": []}
    assert stead("diff", "--patch", cwd=proj).out == ""


def test_usage(proj: Path) -> None:
    model = script(proj, {"text": "ok", "usage": {"input": 100, "output": 5, "cache_read": 7}})
    session = stead("run", "-C", str(proj), "-m", model, "--json", "go").json["session"]
    stead("run", "-r", session, "more")
    found = stead("usage", "--by", "model,session", "--json").json
    assert [(row["model"], row["session"], row["calls"], row["input"]) for row in found["rows"]] == [(model, session, 2, 200)]
    assert found["total"]["cache_read"] == 14 and found["total"]["unknown_cost_calls"] == 0
    header, row = stead("usage", "--by", "project").lines
    assert header.split("\t")[0] == "project" and dict(zip(header.split("\t"), row.split("\t"), strict=True))["output"] == "10"
    assert stead("usage", "--since", "2999-01-01", "--json").json["rows"] == []
    assert stead("usage", "--project", str(proj), "--json").json["total"]["calls"] == 2
    for wrong in (["--since", "yesterday"], ["--until", "2026-13-01"], ["--by", ""], ["--by", "day,hour"]):
        assert stead("usage", *wrong).code == 2


def test_settings_in_their_layers(proj: Path) -> None:
    assert stead("config", "get", "max_steps").out == "\n"
    assert stead("config", "set", "max_steps", "50", "--json").json == {"key": "max_steps", "value": 50, "origin": "global"}
    assert stead("config", "set", "max_steps", "7", "--project", cwd=proj).code == 0
    assert stead("config", "get", "max_steps").out == "50\n"
    assert stead("config", "get", "max_steps", cwd=proj).out == "7\n"
    session = stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "--json", "go").json["session"]
    stead("config", "set", "max_steps", "3", "--session", session)
    assert stead("config", "get", "max_steps", "--session", session, "--json").json == {
        "key": "max_steps",
        "value": 3,
        "origin": "session",
    }
    stead("config", "unset", "max_steps", "--session", session)
    assert stead("config", "get", "max_steps", "--session", session).out == "7\n"
    assert "max_steps\t7\tproject" in stead("config", "list", "--origin", cwd=proj).lines
    assert {"key": "max_steps", "value": 50, "origin": "global"} in stead("config", "list", "--json").json["settings"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["set", "max_step", "3"],
        ["set", "max_steps", "many"],
        ["set", "on_ask", "perhaps"],
        ["get", "nosuch"],
        ["unset", "nosuch"],
        ["set", "model", "x/y", "--project", "--session", "abcdef"],
    ],
)
def test_wrong_settings(arguments: list[str], data_dir: Path) -> None:
    done = stead("config", *arguments, "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "usage")


def test_reading_writes_nothing(proj: Path, data_dir: Path, tmp_path: Path) -> None:
    from stead.app import Stead

    session = edited(proj)

    def events() -> int:
        with Stead.open(data_dir).store as store, store.view() as view:
            return len(view.events())

    before = events()
    for arguments in (
        ["sessions", "list"],
        ["sessions", "show", session],
        ["diff", session],
        ["usage"],
        ["config", "list"],
        ["config", "get", "model"],
        ["provider", "list"],
    ):
        assert stead(*arguments, cwd=proj).code == 0
    assert events() == before and not (tmp_path / "config").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion(shell: str, data_dir: Path) -> None:
    done = stead("completion", shell)
    assert done.code == 0 and "_STEAD_COMPLETE" in done.out
    assert stead("completion", "nosuchshell").code == 2


def test_a_shell_is_offered_commands_and_options(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    monkeypatch.setenv("_STEAD_COMPLETE", "complete_bash")
    for words, offered in (("stead ses", "sessions"), ("stead sessions sh", "show"), ("stead run --max-s", "--max-steps")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split()) - 1))
        assert stead().lines == [offered]


def test_help_is_plain_where_no_terminal_is(data_dir: Path) -> None:
    done = stead("run", "--help")
    assert done.code == 0 and "\x1b" not in done.out and "--on-ask" in done.out
    assert stead("--help").out.count("\n") > 10
