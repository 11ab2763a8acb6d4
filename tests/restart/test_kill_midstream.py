"""kill -9 of `stead run` while a slow model answers: what was on the screen is there, the turn is closed once, work goes on."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agent.servers import Answer, answer, call, text, thinking
from tests.restart.outside import Place, Process, Stored, stored
from tests.restart.slow import Slowly, Stamping, slow, words
from tests.support import scale

SEEN = 0.4
"""What went out so many seconds before a kill must be there afterwards."""
TALK = [thinking(words("r", 60)), text(words("t", 120))]
COUNT = call("bash", {"command": "for n in $(seq 200); do echo line $n; sleep 0.05; done"})
HI = call("bash", {"command": "echo hi"})
FILE = call("write", {"path": "new.txt", "content": words("a", 300)})


@dataclass
class Moment:
    """When to kill: the answers of the model, what must have come about first, and how long (seconds) it may be after that."""

    answers: list[Answer]
    then: Callable[[Process, Stamping], Any]
    within: tuple[float, float]
    recoveries: int = 0
    """How many of the restarts behind it are killed as well."""
    steps: int = 0
    """Calls of the model that ended in the log before."""


def says(kind: str) -> Callable[[Process, Stamping], bool]:
    return lambda process, server: any(sent.kind == kind and sent.text for sent in server.sent)


def told(kind: str) -> Callable[[Process, Stamping], bool]:
    return lambda process, server: process.told(kind)


def asked(count: int) -> Callable[[Process, Stamping], bool]:
    return lambda process, server: len(server.asked) >= count


def moments() -> dict[str, Moment]:
    """Fresh ones: a server takes the answers out of the list."""
    slowly = Slowly(TALK)
    return {
        "nothing came": Moment([Slowly(TALK, silent=9)], asked(1), (0.0, 0.6)),
        "the first byte": Moment([slowly], lambda process, server: server.first_byte.is_set(), (0.0, 0.01)),
        "reasoning": Moment([slowly], says("reasoning"), (0.1, 1.2)),
        "text": Moment([slowly], says("text"), (0.1, 2.0)),
        "arguments": Moment([Slowly([text(words("t", 20)), FILE])], says("arguments"), (0.0, 1.0)),
        "arguments alone": Moment([Slowly([FILE])], says("arguments"), (0.3, 1.0)),
        "a tool": Moment([Slowly([text("I count. "), COUNT], delay=0)], told("tool_output"), (0.3, 1.2), steps=1),
        "a result": Moment([answer(HI), Slowly(TALK, silent=9)], told("tool.ended"), (0.0, 0.02), steps=1),
        "the second step": Moment([Slowly([text("First. "), HI], delay=0), slowly], says("reasoning"), (0.3, 3.0), steps=1),
        "a refusal": Moment([Answer(status=429, headers={"retry-after": "30"})], asked(1), (0.2, 0.8)),
        "a broken stream": Moment([Slowly(TALK, cut=40)], told("step.retracted"), (0.0, 0.4)),
        "the recovery": Moment([slowly], says("text"), (0.1, 1.5), recoveries=3),
    }


OTHERS = [("anthropic", "reasoning"), ("gemini", "text"), ("anthropic", "text"), ("gemini", "reasoning")]
PLAN = [("openai", moment) for moment in moments() if moment not in ("reasoning", "text")] + OTHERS[:2]
KILLS = PLAN if scale(100) == 1 else [*PLAN, *OTHERS[2:], *(("openai", moment) for moment in [*moments()] * 3)]


def test_there_are_as_many_kills_as_promised() -> None:
    assert len(KILLS) >= (12 if scale(100) == 1 else 50)
    assert {moment for _, moment in KILLS} == set(moments())


@pytest.mark.slow
@pytest.mark.parametrize(("number", "kind", "moment"), [(n, *kill) for n, kill in enumerate(KILLS)])
def test_what_was_on_the_screen_outlives_a_kill(number: int, kind: str, moment: str, tmp_path: Path) -> None:
    killed(tmp_path, kind, moment, random.Random(f"kill {number}"), resumes=1)


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["the first byte", "arguments", "a result"])
def test_b008_every_resume_takes_a_prompt_and_the_turn_is_closed_once(moment: str, tmp_path: Path) -> None:
    killed(tmp_path, "openai", moment, random.Random(f"resumed {moment}"), resumes=3)


def killed(root: Path, kind: str, name: str, dice: random.Random, resumes: int) -> None:
    """Kill a run at this moment, and look at everything from outside."""
    place, moment = Place(root), moments()[name]
    with slow(kind) as server:
        model = place.provide(server)
        server.say(*moment.answers)
        process = place.start("run", "--stream-json", "--allow", "bash", "--allow", "write", "-m", model, "go")
        try:
            process.until(lambda: moment.then(process, server))
            time.sleep(dice.uniform(*moment.within))
        finally:
            at = process.kill()
        time.sleep(0.05)  # a request may have gone out in the very last moment
        requests = len(server.asked)
        for _ in range(moment.recoveries):
            recovery = place.start("sessions", "list", "--json")
            time.sleep(dice.uniform(0.15, 0.6))
            recovery.kill()

        (listed,) = place.sessions()
        assert (listed["status"], listed["last_run"]) == ("idle", "interrupted")
        found = stored(place, listed["id"])
        check_text(found, server, at, retracted=name == "a broken stream")
        check_closed(found, process)
        check_told(found, process)
        check_calls(found, process, at)
        check_ledger(found, server, at, moment.steps, name)

        assert len(server.asked) == requests, "a restart asks no model"

        for n in range(resumes):
            server.answers.clear()
            done = place.stead("run", "-c", "-m", model, "--json", f"and now? {n}")
            assert done.code == 0 and done.json["outcome"] == "done" and done.json["result"] == "done", done
            assert done.json["session"] == found.session
            assert "interrupted" in json.dumps(server.asked[-1])
        assert server.refusals == []
        again = stored(place, found.session)
        assert again.parts == found.parts and again.ledger == found.ledger
        assert Counter(event["data"]["outcome"] for event in again.of("run.ended")) == {"interrupted": 1, "done": resumes}
        (listed,) = place.sessions()
        assert (listed["status"], listed["last_run"]) == ("idle", "done")
        assert place.stead("doctor").code == 0


def check_text(found: Stored, server: Stamping, at: float, *, retracted: bool) -> None:
    """All that went out long enough before is there, and nothing that did not; what is not whole is marked as cut."""
    for kind in ("reasoning", "text"):
        sent = [] if retracted else [one for one in server.sent if one.kind == kind]
        due = "".join(one.text for one in sent if one.at <= at - SEEN)
        kept = found.text(kind)
        assert kept.startswith(due), f"{len(due) - len(kept)} characters of {kind} are lost"
        assert "".join(one.text for one in sent).startswith(kept)
    growing = [part for part in found.parts if part["type"] in ("text", "reasoning") and part.get("cut")]
    whole = {text(words("t", 120)).text, thinking(words("r", 60)).text, words("t", 20), "I count. ", "First. "}
    for part in found.parts:
        if part["type"] in ("text", "reasoning") and part["text"] not in whole:
            assert part in growing, part
    assert not any("open" in part for part in found.parts)


def check_closed(found: Stored, process: Process) -> None:
    """The turn has one end, the person is told once, nothing is left of what was only on the screen."""
    (end,) = found.of("run.ended")
    assert end["data"]["outcome"] == "interrupted" and end["data"]["error"]["code"] == "run_interrupted"
    assert [part["code"] for part in found.parts if part["type"] == "notice"] == ["run_interrupted"]
    assert found.left == 0
    numbers = [int(part["id"].rpartition(".")[2]) for part in found.parts]
    assert numbers == sorted(set(numbers))
    assert found.parts[-1]["type"] == "notice"


def check_told(found: Stored, process: Process) -> None:
    """What it told as a fact is a fact; what it showed is the beginning of what is kept."""
    log = {event["seq"]: event for event in found.events}
    for event in process.events:
        assert log[event["seq"]] == event


def check_calls(found: Stored, process: Process, at: float) -> None:
    """Each tool call has one result, and it says what is known."""
    calls = [part for part in found.parts if part["type"] == "tool"]
    ended = Counter(event["data"]["call"] for event in found.of("tool.ended"))
    assert ended == {part["call"]: 1 for part in calls}
    begun = Counter(event["data"]["call"] for event in found.of("tool.started"))
    assert set(begun.values()) <= {1}
    for part in calls:
        assert part["status"] in ("done", "error")
        if part["call"] not in begun:
            assert "Nothing was executed" in part["error"], part
        elif part["status"] == "error":
            assert "side effects" in part["error"], part
            seen = [value["text"] for when, value in process.lines if value.get("frame") == "tool_output" and when <= at - SEEN]
            assert part.get("output", "").startswith("".join(seen))


def check_ledger(found: Stored, server: Stamping, at: float, steps: int, moment: str) -> None:
    """Every call of the model that may have cost something is accounted for, once; the one that was killed as an estimate."""
    purposes = Counter(row["purpose"] for row in found.ledger)
    if moment in ("a refusal", "a broken stream"):
        assert purposes == {"failed": 1}, found.ledger
        return
    cut = [row for row in found.ledger if row["purpose"] == "aborted"]
    if len(server.times) > steps and server.times[steps] <= at - SEEN:
        assert cut, "a call of the model is not accounted for"
    assert all(row["estimated"] and row["input"] > 0 and row["nano"] > 0 for row in cut), found.ledger
    assert len(cut) <= 1 and len(found.ledger) == len(cut) + steps, found.ledger
    if found.text("text") and any(part.get("cut") for part in found.parts if part["type"] == "text"):
        assert cut and cut[0]["output"] > 0
