"""`stead inbox`: what waits for the person, and the answers; `run -r` goes on behind them."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead
from tests.cli.door import EDIT, project, script, stead, use
from tests.cli.terminal import Terminal

pytestmark = pytest.mark.usefixtures("data_dir")
ASK = use("ask", question="Which\tone?", options=["red", "blue"])


class Alike:
    """Ids that begin alike."""

    def __init__(self) -> None:
        self._made = 0

    def new(self) -> str:
        self._made += 1
        return f"aaaaa{self._made:011d}"


@pytest.fixture
def proj(tmp_path: Path) -> Path:
    return project(tmp_path)


def asks() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stead("inbox", "list", "--json").json["asks"]
    return found


def wait(proj: Path, *turns: Any, more: tuple[str, ...] = (), name: str = "play.yaml") -> dict[str, Any]:
    """A run that waits for a person."""
    model = script(proj, *turns, {"text": "end"}, name=name)
    found: dict[str, Any] = stead("run", "-C", str(proj), "-m", model, "--on-ask", "wait", *more, "--json", "go").json
    assert found["outcome"] == "waiting"
    return found


def refused(code: str, *arguments: str) -> dict[str, Any]:
    error: dict[str, Any] = stead(*arguments, "--json").json["error"]
    assert error["code"] == code
    return error


def test_the_list_in_its_three_shapes(proj: Path) -> None:
    assert stead("inbox", "--json").json == {"asks": []}
    assert stead("inbox").out == "id\tkind\tabout\ttitle\tsession\n"
    one, two = wait(proj, EDIT), wait(proj, ASK, name="ask.yaml")
    approval, question = asks()
    assert approval == {**one["asks"][0], "status": "open"} and approval["kind"] == "approval"
    assert {"id", "session", "run", "kind", "status", "tool", "arguments", "why", "rules"} <= set(approval)
    assert (question["question"], question["options"], question["session"]) == ("Which\tone?", ["red", "blue"], two["session"])
    lines = stead("inbox", "list").lines
    assert lines[0] == "id\tkind\tabout\ttitle\tsession" and lines[1].startswith(f"{approval['id']}\tapproval\t")
    assert "calc.py" in lines[1] and lines[2] == f"{question['id']}\tquestion\tWhich\\tone?\tgo\t{two['session']}"
    assert [ask["id"] for ask in stead("inbox", "list", "--session", two["session"], "--json").json["asks"]] == [question["id"]]
    assert refused("not_found", "inbox", "list", "--session", "nosuchsession")["message"]


def test_the_answer_s_shapes_and_what_is_refused(proj: Path) -> None:
    run = wait(proj, EDIT)
    ask = run["asks"][0]["id"]
    for options in ([], ["--allow", "--deny"], ["--allow", "--text", "x"], ["--text", "x"]):
        refused("usage", "inbox", "answer", ask, *options)
    refused("usage", "inbox", "answer", ask, "--allow", "--rule", "no such rule(")
    assert asks()[0]["status"] == "open"  # none of it was an answer
    done = stead("inbox", "answer", ask, "--deny", "--reason", "not now", "--json").json
    assert done["waiting"] is True
    assert (done["ask"]["status"], done["ask"]["answer"], done["ask"]["by"]) == (
        "answered",
        {"allow": False, "reason": "not now"},
        "person:local",
    )
    late = refused("ask_closed", "inbox", "answer", ask, "--allow")
    assert late["details"]["status"] == "answered" and "answered" in late["message"]
    on = stead("run", "-r", run["session"], "--json")
    assert (on.code, on.json["outcome"], on.json["changes"]) == (0, "done", [])
    shown = stead("sessions", "show", run["session"], "--json").json["messages"][-1]["parts"]
    assert "not now" in next(part["error"] for part in shown if part["type"] == "tool")


def test_an_answer_behind_the_end_of_the_run_is_refused(proj: Path) -> None:
    run = wait(proj, EDIT)
    stead("sessions", "stop", run["session"])
    assert asks() == []
    late = refused("ask_closed", "inbox", "answer", run["asks"][0]["id"], "--allow")
    assert late["details"]["status"] == "closed"
    nothing = refused("not_found", "run", "-r", run["session"])
    assert "waits" in nothing["message"]
    gone = wait(proj, EDIT)
    stead("sessions", "delete", gone["session"], "--now", "-y")
    refused("not_found", "inbox", "answer", gone["asks"][0]["id"], "--allow")


def test_names_that_are_none_or_more_than_one(proj: Path) -> None:
    model = script(proj, ASK, {"text": "end"})

    async def fill() -> None:
        async with Stead.open(ids=Alike()) as house:
            for _ in range(2):
                await (await house.prompt(None, "go", project=proj, model=model, on_ask="wait")).ended()

    asyncio.run(fill())
    ids = [ask["id"] for ask in asks()]
    error = refused("ambiguous", "inbox", "answer", ids[0][:6], "--text", "red")
    assert [one["id"] for one in error["details"]["candidates"]] == ids
    for text in ("nosuch", ""):
        refused("not_found", "inbox", "answer", text, "--text", "red")
    assert stead("inbox", "answer", ids[0], "--text", "red").code == 0
    assert stead("inbox", "answer", ids[1][:6], "--text", "blue").code == 0 and asks() == []


def test_what_waits_in_the_trash_is_not_listed_and_takes_no_answer(proj: Path) -> None:
    run = wait(proj, EDIT)
    ask = run["asks"][0]["id"]
    stead("sessions", "delete", run["session"])
    assert asks() == [] and stead("inbox", "list", "--session", run["session"], "--json").json == {"asks": []}
    for named in (ask, ask[:12]):
        error = refused("usage", "inbox", "answer", named, "--allow")
        assert "trash" in error["message"] and f"sessions restore {run['session']}" in error["details"]["hint"]
    assert "trash" in refused("usage", "run", "-r", run["session"])["message"]
    stead("sessions", "restore", run["session"])
    assert [one["id"] for one in asks()] == [ask]
    stead("inbox", "answer", ask, "--allow")
    assert stead("run", "-r", run["session"], "--json").json["outcome"] == "done"


def test_a_rule_with_the_answer_holds_for_the_rest_and_for_no_later_run(proj: Path) -> None:
    turns = [use("bash", command="echo one"), use("bash", command="echo two"), use("bash", command="rm calc.py")]
    run = wait(proj, *turns)
    stead("inbox", "answer", run["asks"][0]["id"], "--allow", "--rule", "bash(echo *)")
    on = stead("run", "-r", run["session"], "--on-ask", "wait", "--json").json
    assert on["outcome"] == "waiting" and "rm calc.py" in on["asks"][0]["arguments"]
    stead("inbox", "answer", on["asks"][0]["id"], "--deny")
    assert stead("run", "-r", run["session"], "--json").json["outcome"] == "done"
    again = stead("run", "-r", run["session"], "--on-ask", "wait", "--json", "again").json
    assert "echo one" in again["asks"][0]["arguments"]


def test_rules_may_be_added_to_a_run_that_goes_on_and_nothing_else(proj: Path) -> None:
    run = wait(proj, use("bash", command="echo one"), use("bash", command="echo two"), use("bash", command="echo three"))
    stead("inbox", "answer", run["asks"][0]["id"], "--allow")
    for options in (["-m", "script/play.yaml"], ["--max-steps", "3"], ["--max-cost", "1"], ["-a", "build"]):
        assert "goes on" in refused("usage", "run", "-r", run["session"], *options)["message"]
    on = stead("run", "-r", run["session"], "--allow", "bash(echo t*)", "--deny", "bash(echo three)", "--json")
    assert (on.code, on.json["outcome"], on.json["result"]) == (0, "done", "end")
    shown = stead("sessions", "show", run["session"], "--json").json["messages"][-1]["parts"]
    assert [part["status"] for part in shown if part["type"] == "tool"] == ["done", "done", "denied"]


@pytest.mark.slow
def test_what_waits_is_asked_in_place_at_a_terminal_that_was_killed_before(proj: Path) -> None:
    model = script(proj, use("bash", command="echo one >> log"), EDIT, {"text": "Mended."})
    with Terminal("run", "-m", model, "--allow", "bash", "go", cwd=proj) as at:
        at.until("[n] no > ")
        (ask,) = asks()
        at.process.send_signal(signal.SIGKILL)
        at.end()
    assert [one["id"] for one in asks()] == [ask["id"]]
    assert stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]["status"] == "waiting"
    with Terminal("run", "-r", ask["session"], cwd=proj) as at:
        shown = at.until("[n] no > ")
        assert "-    return a - b" in shown and "+    return a + b" in shown
        at.send("y\n")
        at.until("Mended.")
        assert at.end() == 0
    assert (proj / "log").read_text() == "one\n" and "a + b" in (proj / "calc.py").read_text() and asks() == []


@pytest.mark.slow
def test_an_answer_elsewhere_takes_the_question_off_the_terminal(proj: Path) -> None:
    with Terminal("run", "-m", script(proj, EDIT, {"text": "Mended."}), "go", cwd=proj) as at:
        at.until("[n] no > ")
        (ask,) = asks()
        answered = stead("inbox", "answer", ask["id"], "--allow", "--json")
        assert answered.json["waiting"] is False
        at.until("Mended.")
        assert at.end() == 0
    refused("ask_closed", "inbox", "answer", ask["id"], "--deny")
