"""What was told as finished is there a moment later; a program that was quit while the model thought opens again everywhere."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.agent.house import house
from tests.agent.servers import answer, call, text, thinking
from tests.restart.outside import Place, Process, stored
from tests.restart.slow import Slowly, slow, words
from tests.support import scale

FINISHED = ["part.added", "step.ended", "tool.ended", "part.added", "run.ended"]


def heard(process: Process, kind: str, times: int) -> bool:
    return sum(event["kind"] == kind for event in process.events) >= times


@pytest.mark.slow
def test_b006_what_a_client_was_told_is_finished_outlives_a_kill_a_moment_later(tmp_path: Path) -> None:
    """One session, killed again and again: each time a moment after another thing was told to be finished."""
    place, dice = Place(tmp_path), random.Random("finished")
    told, robbed = [], 0
    with slow() as server:
        model = place.provide(server)
        for n in range(max(len(FINISHED), scale(1_500))):
            kind = FINISHED[n % len(FINISHED)]
            server.answers.clear()  # a killed process may have asked without being answered yet: that takes one of the next away
            server.say(
                Slowly([thinking(words("r", 6)), text(words("t", 6)), call("bash", {"command": "echo hi"})], delay=0.01),
                Slowly([text(words("u", 20))], delay=0.01),
            )
            process = place.start("run", *(["-c"] if n else []), "--stream-json", "--allow", "bash", "-m", model, f"go {n}")
            try:
                wanted = 4 if n % len(FINISHED) == 3 else 1
                process.until(lambda: heard(process, kind, wanted) or process.process.poll() is not None)  # noqa: B023
                robbed += not heard(process, kind, wanted)
                time.sleep(dice.uniform(0, 0.02))
            finally:
                process.kill()
            told += process.events
        (listed,) = place.sessions()
        found = stored(place, listed["id"])
        assert all("char 0" in why for why in server.refusals)  # cut off in the middle of a request
    assert robbed <= n // 100
    log = {event["seq"]: event for event in found.events}
    assert all(log[event["seq"]] == event for event in told)
    assert {"part.added", "step.ended", "tool.ended", "run.ended"} <= {event["kind"] for event in told}
    started = len(found.of("run.started"))
    assert Counter(event["data"]["run"] for event in found.of("run.ended")) == {
        event["data"]["run"]: 1 for event in found.of("run.started")
    }
    assert started == n + 1 and found.left == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_b007_a_session_that_was_quit_while_the_model_thought_opens_everywhere(number: int, tmp_path: Path) -> None:
    """SIGTERM, and SIGKILL a tenth of a second later: whichever of them came first, one turn that was cut."""
    place, dice = Place(tmp_path), random.Random(f"quit {number}")
    with slow() as server:
        model = place.provide(server)
        server.say(Slowly([thinking(words("r", 200)), text("never said")]))
        process = place.start("run", "--stream-json", "-m", model, "go")
        try:
            process.until(lambda: sum(sent.kind == "reasoning" for sent in server.sent) > 5)
            time.sleep(dice.uniform(0, 0.6))
            at = time.monotonic()
            process.process.send_signal(signal.SIGTERM)
            time.sleep((0.1, 0.01, 0.0)[number])
        finally:
            process.kill()
        due = "".join(sent.text for sent in server.sent if sent.kind == "reasoning" and sent.at <= at - 0.4)

        (listed,) = place.sessions()
        assert listed["last_run"] in ("interrupted", "aborted") and listed["status"] in ("idle", "aborted")
        found = stored(place, listed["id"])
        (end,) = found.of("run.ended")
        assert end["data"]["outcome"] == listed["last_run"]
        assert [part["type"] for part in found.parts if part["type"] != "notice"] in (["reasoning"], [])
        assert found.text("reasoning").startswith(due) and all(
            part.get("cut") for part in found.parts if part["type"] == "reasoning"
        )
        assert found.left == 0
        for line in (["sessions", "show", listed["id"]], ["sessions", "list"], ["inbox"], ["storage"], ["doctor"]):
            done = place.stead(*line)
            assert done.code == 0, done
        at_home = house(tmp_path)
        try:
            (run,) = (event["data"]["run"] for event in found.of("run.started"))
            assert at_home.run_json(run)["outcome"] == listed["last_run"]
        finally:
            at_home.close()
        for way in (["-c"], ["-r", listed["id"]], ["-r", listed["id"][:8]]):
            server.say(answer(text("here")))
            done = place.stead("run", *way, "-m", model, "--json", "and now?")
            assert done.code == 0 and done.json["session"] == listed["id"] and done.json["result"] == "here", done
        assert server.refusals == [] and len(place.sessions()) == 1
