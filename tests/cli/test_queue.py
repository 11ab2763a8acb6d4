"""`stead queue`: see, change and let go on the prompts that wait."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead
from tests.cli.door import EDIT, project, script, stead, use
from tests.cli.terminal import Terminal
from tests.support import stead_command

pytestmark = pytest.mark.usefixtures("data_dir")


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


def waiting(proj: Path, *texts: str) -> tuple[str, list[str]]:
    """A session whose run waits for a person, and prompts that are held behind it: its id and theirs."""
    turns = [{"match": f"^{text}$", "turns": [{"text": f"said {text}"}]} for text in texts]
    model = script(proj, EDIT, {"text": "ok"}, prompts=turns)
    session = stead("run", "-C", str(proj), "-m", model, "--on-ask", "wait", "--json", "go").json["session"]
    held = [stead("run", "-r", session, "--json", text).json for text in texts]
    assert {(one["outcome"], one["queued"]["state"]) for one in held} == {("waiting", "held")}
    return session, [one["run"] for one in held]


def listed() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stead("queue", "list", "--json").json["prompts"]
    return found


def test_the_list_in_its_three_shapes(proj: Path) -> None:
    assert stead("queue", "--json").json == {"prompts": []}
    assert stead("queue", "list").out == "id\tstate\ttext\ttitle\tsession\n"
    session, (one, two) = waiting(proj, "first\twords", "second")
    found = listed()
    assert [prompt["id"] for prompt in found] == [one, two]
    assert set(found[0]) == {"id", "session", "state", "held", "now", "run", "queued", "text", "title"}
    held = (found[0]["session"], found[0]["state"], found[0]["now"], found[0]["run"], found[0]["text"], found[0]["title"])
    assert held == (session, "held", False, None, "first\twords", "go") and "waits for a person" in found[0]["held"]
    assert found[0]["queued"].endswith("Z") and stead("queue", "--json").json["prompts"] == found
    lines = stead("queue", "list", "--session", session).lines
    assert lines == [
        "id\tstate\ttext\ttitle\tsession",
        f"{one}\theld\tfirst words\tgo\t{session}",
        f"{two}\theld\tsecond\tgo\t{session}",
    ]
    other = stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}, name="b.yaml"), "--json", "go").json["session"]
    assert stead("queue", "list", "--session", other, "--json").json == {"prompts": []}


@pytest.mark.slow
def test_the_list_at_a_terminal(proj: Path) -> None:
    with Terminal("queue", cwd=proj) as at:
        assert at.end() == 0 and "No prompt waits." in at.shown
    _, (one,) = waiting(proj, "first")
    with Terminal("queue", cwd=proj) as at:
        assert at.end() == 0
        assert one in at.shown and "first" in at.shown and "\t" not in at.shown


def test_edit_move_and_remove(proj: Path) -> None:
    _, (one, two, three) = waiting(proj, "1", "2", "3")
    edited = stead("queue", "edit", two, "other words", "--json")
    assert edited.code == 0 and (edited.json["prompt"]["id"], edited.json["prompt"]["text"]) == (two, "other words")
    assert stead("queue", "move", three, "1", "--json").json["prompt"]["id"] == three
    assert [(prompt["id"], prompt["text"]) for prompt in listed()] == [(three, "3"), (one, "1"), (two, "other words")]
    told = stead("queue", "remove", one)
    assert (told.code, told.out, told.err) == (0, "", f"Taken back 1 ({one}).\n")
    assert [prompt["id"] for prompt in listed()] == [three, two]
    for command in (["remove", one], ["edit", one, "x"], ["move", one, "1"], ["send", one]):
        late = stead("queue", *command, "--json")
        assert (late.code, late.json["error"]["code"]) == (1, "conflict") and late.json["error"]["details"]["state"] == "retracted"
    assert stead("queue", "edit", two, "  ", "--json").json["error"]["code"] == "usage"
    assert stead("queue", "move", two, "0", "--json").code == 2


def test_an_edit_keeps_the_files(proj: Path) -> None:
    model = script(proj, EDIT, {"text": "ok"})
    session = stead("run", "-C", str(proj), "-m", model, "--on-ask", "wait", "--json", "go").json["session"]
    held = stead("run", "-r", session, "-f", str(proj / "calc.py"), "--json", "look").json["run"]
    stead("queue", "edit", held, "look again")
    stead("sessions", "stop", session)
    assert stead("queue", "send", held, "--json").json["runs"][0]["run"] == held
    said = stead("sessions", "show", session, "--json").json["messages"][-2]["parts"]
    assert [(part["type"], part.get("text") or part["name"]) for part in said] == [("text", "look again"), ("file", "calc.py")]


def test_names_that_are_none_or_more_than_one(proj: Path, data_dir: Path) -> None:
    model = script(proj, {"text": "ok"})

    async def fill() -> None:
        async with Stead.open(ids=Alike()) as house:
            for text in ("one", "two"):
                await house.enqueue(None, text, project=proj, model=model)

    asyncio.run(fill())
    ids = [prompt["id"] for prompt in listed()]
    start = ids[0][:6]
    assert ids[1].startswith(start)
    found = stead("queue", "remove", start, "--json").json["error"]
    assert found["code"] == "ambiguous" and [one["id"] for one in found["details"]["candidates"]] == ids
    for text in ("nosuch", "", "%"):
        assert stead("queue", "remove", text, "--json").json["error"]["code"] == "not_found"
    assert stead("queue", "remove", ids[0]).code == 0 and stead("queue", "remove", start).code == 0
    assert listed() == []


def test_resume_lets_them_go_on_in_their_order(proj: Path) -> None:
    session, (one, two) = waiting(proj, "first", "second")
    stead("sessions", "stop", session)
    done = stead("queue", "resume", session, "--json")
    runs = done.json["runs"]
    assert (done.code, [(run["run"], run["result"]) for run in runs]) == (0, [(one, "said first"), (two, "said second")])
    nothing = stead("queue", "resume", session, "--json")
    assert (nothing.code, nothing.json) == (0, {"runs": []}) and "No prompt waits" in nothing.err
    assert stead("queue", "resume", "nosuchsession", "--json").json["error"]["code"] == "not_found"


def test_resume_stops_at_the_first_that_fails_and_holds_the_rest(proj: Path) -> None:
    turns = [{"match": "^second$", "turns": [use("read", path="calc.py"), {"text": "never said"}]}]
    model = script(proj, {"text": "ok"}, prompts=[*turns, {"match": "^wait$", "turns": [EDIT]}])
    session = stead("run", "-C", str(proj), "-m", model, "--on-ask", "wait", "--json", "wait").json["session"]
    _, two, three = (stead("run", "-r", session, "--max-steps", "1", "--json", text).json["run"] for text in ("1", "second", "3"))
    stead("sessions", "stop", session)
    done = stead("queue", "resume", session)
    assert done.code == 6 and done.out == "ok\n"
    (left,) = listed()
    assert (left["id"], left["state"]) == (three, "held") and "good end" in left["held"]
    assert stead("sessions", "show", session, "--json").json["session"]["last_run"] == "limit"
    assert stead("queue", "remove", two, "--json").json["error"]["details"]["state"] == "begun"


def test_send_behind_a_run_that_waits_is_heard_when_that_goes_on(proj: Path) -> None:
    session, (one, two) = waiting(proj, "first", "second")
    for _ in range(2):
        sent = stead("queue", "send", two, "--json").json["prompt"]
        assert (sent["id"], sent["now"], sent["state"], sent["held"]) == (two, True, "queued", None)
    (ask,) = stead("inbox", "--json").json["asks"]
    stead("inbox", "answer", ask["id"], "--allow")
    on = stead("run", "-r", session, "--json")
    assert on.code == 0 and (on.json["run"], on.json["result"]) == (ask["run"], "ok")
    shown = stead("sessions", "show", session, "--json").json["messages"]
    assert [(one["role"], [part.get("text") for part in one["parts"] if part["type"] == "text"]) for one in shown[-2:]] == [
        ("user", ["second"]),
        ("assistant", ["ok"]),
    ]
    assert [prompt["id"] for prompt in listed()] == [one]


@pytest.mark.slow
def test_a_killed_program_leaves_its_prompts_held_and_send_lets_one_go(proj: Path) -> None:
    import json
    import subprocess
    import time

    model = script(
        proj, {"text": "word " * 400, "chunk": 5, "delay_ms": 20}, prompts=[{"match": "^more$", "turns": [{"text": "ok"}]}]
    )
    options = ["--stream-json", "-m", model]
    first = subprocess.Popen(stead_command("run", *options, "go"), stdout=subprocess.PIPE, text=True, cwd=proj)
    assert first.stdout is not None
    session = json.loads(first.stdout.readline())["session"]
    second = subprocess.Popen(stead_command("run", "-r", session, "--json", "more"), stdout=subprocess.PIPE, text=True, cwd=proj)
    deadline = time.monotonic() + 15
    while not listed() and time.monotonic() < deadline:
        time.sleep(0.1)
    (prompt,) = listed()
    assert prompt["state"] == "queued"
    first.send_signal(signal.SIGKILL)
    out, _ = second.communicate(timeout=15)
    first.communicate()
    assert json.loads(out)["outcome"] == "waiting" and "interrupted" in json.loads(out)["queued"]["held"]
    assert second.returncode == 5 and listed()[0]["state"] == "held"
    sent = stead("queue", "send", prompt["id"], "--json", cwd=proj)
    assert (sent.code, sent.json["runs"][0]["result"]) == (0, "ok") and listed() == []
