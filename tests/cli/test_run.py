"""`stead run`: what goes in, what comes out, and where."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from tests.cli.door import EDIT, kinds, project, script, stead, use
from tests.cli.small_server import serving

pytestmark = pytest.mark.usefixtures("data_dir")


@pytest.fixture
def proj(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_allowed_work_is_done_and_stdout_holds_the_answer_alone(proj: Path) -> None:
    model = script(proj, {"text": "Let me see.", **use("read", path="calc.py")}, EDIT, {"text": "Mended."})
    done = stead("run", "-C", str(proj), "-m", model, "--allow", "edit", "mend add")
    assert (done.code, done.out) == (0, "Mended.\n")
    assert "a + b" in (proj / "calc.py").read_text()
    for said in ("read calc.py", "edit calc.py", "changed calc.py +1 -1", "done, 3 steps", "session "):
        assert said in done.err
    assert "Let me see." not in done.err  # only with -v
    assert "\x1b" not in done.out + done.err


def test_the_same_without_a_rule_changes_nothing_and_names_the_flag(proj: Path) -> None:
    model = script(proj, EDIT, {"text": "I could not."})
    done = stead("run", "-C", str(proj), "-m", model, "--json", stdin=b"add a docstring to add()")
    assert done.code == 5
    assert "a - b" in (proj / "calc.py").read_text()
    found = done.json
    assert (found["outcome"], found["result"], found["changes"]) == ("denied", "I could not.", [])
    assert f"stead run -r {found['session']} --allow edit PROMPT" in done.err


def test_json_is_one_object_with_the_whole_run(proj: Path) -> None:
    model = script(proj, EDIT, {"text": "Mended.", "usage": {"input": 100, "output": 7, "cache_read": 3}})
    done = stead("run", "-C", str(proj), "-m", model, "--allow", "edit", "--json", "-q", stdin=b"mend it\n")
    found = done.json
    assert set(found) == {"session", "run", "outcome", "result", "error", "usage", "cost", "changes", "asks"}
    assert (found["outcome"], found["result"], found["error"], found["asks"]) == ("done", "Mended.", None, [])
    assert set(found["usage"]) == {"input", "cache_read", "cache_write", "output", "reasoning"}
    assert found["changes"] == [{"path": "calc.py", "status": "modified", "additions": 1, "deletions": 1}]
    assert done.err == ""


def test_stream_json_goes_from_run_started_to_run_ended(proj: Path) -> None:
    model = script(proj, {"reasoning": "Hm.", **EDIT}, {"text": "Mended.", "chunk": 3})
    done = stead("run", "-C", str(proj), "-m", model, "--allow", "edit", "--stream-json", "mend add")
    values = [json.loads(line) for line in done.lines]
    assert values[0]["kind"] == "run.started" and values[-1]["kind"] == "run.ended"
    assert {value["run"] for value in values} == {values[0]["data"]["run"]}
    events = [value for value in values if "kind" in value]
    assert all(set(value) == {"seq", "kind", "session", "run", "time", "data"} for value in events)
    assert [value["seq"] for value in events] == sorted(value["seq"] for value in events)
    frames = [value for value in values if value.get("frame") == "text"]
    assert "".join(frame["text"] for frame in frames) == "Mended." and [frame["offset"] for frame in frames] == [0, 3, 6]
    parts = {value["data"]["part"]["id"]: value["data"]["part"] for value in events if value["kind"] == "part.added"}
    assert parts[frames[0]["part"]]["text"] == "Mended."
    tool = next(part for part in parts.values() if part["type"] == "tool")
    assert tool["input"] == {"path": "calc.py", "old": "a - b", "new": "a + b"}
    assert {"tool.started", "change.captured", "change.applied", "tool.ended", "step.ended"} <= set(kinds(done.lines))


def test_a_long_text_stands_whole_in_its_event(proj: Path) -> None:
    text = "x" * 20_000
    done = stead("run", "-C", str(proj), "-m", script(proj, {"text": text}), "--stream-json", "go")
    parts = [json.loads(line) for line in done.lines]
    assert [value["data"]["part"]["text"] for value in parts if value.get("kind") == "part.added"] == [text]


@pytest.mark.parametrize(
    "argument, stdin, sent",
    [
        ("do it", None, ["do it"]),
        ("do it", b"", ["do it"]),
        ("do it", b" \n", ["do it"]),
        ("do it", b"a\nb\n", ["do it", "<stdin>\na\nb\n</stdin>"]),
        (None, b"do it\n", ["do it"]),
        (None, b"\xef\xbb\xbfna\xc3\xafve \xff\n", ["naïve �"]),
    ],
)
def test_the_prompt_comes_from_the_argument_from_stdin_or_from_both(
    proj: Path, argument: str | None, stdin: bytes | None, sent: list[str]
) -> None:
    arguments = ["run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "--json", *([argument] if argument else [])]
    session = stead(*arguments, stdin=stdin).json["session"]
    messages = stead("sessions", "show", session, "--json").json["messages"]
    assert [part["text"] for part in messages[0]["parts"]] == sent


@pytest.mark.parametrize("argument, stdin", [(None, None), (None, b""), (None, b" \n\t"), ("", b"text"), ("  ", None)])
def test_an_empty_prompt_is_a_usage_error(proj: Path, argument: str | None, stdin: bytes | None) -> None:
    done = stead("run", "-C", str(proj), "--json", *([argument] if argument is not None else []), stdin=stdin)
    assert (done.code, done.json["error"]["code"]) == (2, "usage")


def test_files_go_along_and_stdin_may_be_one(proj: Path, data_dir: Path) -> None:
    (proj / "notes.txt").write_text("hello")
    model = script(proj, {"text": "ok"})
    files = ("-f", str(proj / "notes.txt"), "-f", "-")
    session = stead("run", "-C", str(proj), "-m", model, *files, "--json", "look", stdin=b"\x89PNG\r\n\x1a\n123").json["session"]
    parts = stead("sessions", "show", session, "--json").json["messages"][0]["parts"]
    assert [(part["type"], part.get("name"), part.get("kind"), part.get("size")) for part in parts] == [
        ("text", None, None, None),
        ("file", "notes.txt", "text", 5),
        ("file", "stdin", "image", 11),
    ]
    stored = sorted((data_dir / "attachments").iterdir())
    assert len(stored) == 2 and all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in stored)


def test_the_answer_goes_into_a_file_too(proj: Path, tmp_path: Path) -> None:
    target = tmp_path / "answer.txt"
    done = stead("run", "-C", str(proj), "-m", script(proj, {"text": "Yes."}), "-o", str(target), "-q", "well?")
    assert (done.out, target.read_text(), done.err) == ("Yes.\n", "Yes.\n", "")


def test_what_a_model_writes_does_not_steer_the_terminal(proj: Path, tmp_path: Path) -> None:
    text = "a\x1b[31mred\x1b[0m\x1b]0;title\x07b\x07\x9b2Jc\u202ed\r\ne"
    model = script(proj, {"text": text, **use("read", path="x\x1b[2J.py")}, {"text": text})
    done = stead("run", "-C", str(proj), "-m", model, "-v", "go")
    assert done.out == "aredbcd\ne\n"
    assert not set(done.err) & set("\x1b\x07\x9b\u202e")
    assert stead("run", "-C", str(proj), "-m", model, "--json", "go").json["result"] == text


def test_going_on(proj: Path) -> None:
    model = script(proj, {"text": "ok"})
    first = stead("run", "-C", str(proj), "-m", model, "--json", "first words").json["session"]
    again = stead("run", "-C", str(proj), "-c", "--json", "more").json
    assert (again["session"], again["outcome"]) == (first, "done")  # the model is the session's
    for name in (first, first[:8], "first words"):
        assert stead("run", "-C", str(proj), "-r", name, "--json", "more").json["session"] == first
    assert stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]["messages"] == 10


def test_going_on_where_nothing_is(proj: Path) -> None:
    for arguments in (["-c"], ["-r", "nosuchthing"]):
        done = stead("run", "-C", str(proj), *arguments, "--json", "more")
        assert (done.code, done.json["error"]["code"]) == (3, "not_found")


def test_archived_and_trashed_sessions_are_not_gone_on_with_by_chance(proj: Path) -> None:
    session = stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "--json", "one").json["session"]
    stead("sessions", "archive", session)
    assert stead("run", "-C", str(proj), "-c", "more").code == 3
    stead("sessions", "delete", session)
    done = stead("run", "-C", str(proj), "-r", session, "more")
    assert done.code == 2 and f"stead sessions restore {session}" in done.err


def test_a_subfolder_is_a_project_of_its_own(proj: Path) -> None:
    session = stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "--json", "one").json["session"]
    (proj / "deep").mkdir()
    assert stead("run", "-C", str(proj / "deep"), "-c", "--json", "two").code == 3
    assert stead("run", "-C", str(proj), "-c", "--json", "two").json["session"] == session


def test_the_key_of_the_environment_is_taken_for_a_provider_added_without_one(proj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value-1234")
    with serving() as server:
        stead("provider", "add", "openai", "--url", server.url)
        done = stead("run", "-C", str(proj), "-m", "openai/gpt", "hello")
    assert (done.code, done.out, server.keys) == (0, "hi\n", ["Bearer sk-secret-value-1234"])
    assert "sk-secret-value-1234" not in done.err + stead("provider", "list", "--json").out


def test_a_key_that_is_only_in_the_environment_is_named(proj: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.models import retry

    monkeypatch.setattr(retry, "delay", lambda *_, **__: None)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-value-1234")
    done = stead("run", "-C", str(proj), "-m", "openai/gpt", "hello")  # api.openai.com is out of reach here
    assert "using the key in OPENAI_API_KEY" in done.err and done.code == 1


def test_big_integers_are_printed_exactly(proj: Path) -> None:
    (proj / "big.yaml").write_text(
        "turns:\n  - tools: [{tool: read, input: {path: calc.py, limit: 123456789012345678901234567890}}]\n  - text: ok\n"
    )
    done = stead("run", "-C", str(proj), "-m", "script/big.yaml", "--stream-json", "go")
    assert "123456789012345678901234567890" in done.out


def test_nothing_of_a_run_is_left_open(proj: Path, data_dir: Path) -> None:
    stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "go")
    assert [name for name in os.listdir(data_dir / "locks") if name != "maintenance" and not name.startswith(".")] == []
