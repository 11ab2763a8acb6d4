"""llmock breaks what it serves, watches how stead takes it, and gives a verdict."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stead.agent.models.providers import connect
from stead.app import Stead
from tests.judges.door import KEY, NAME, Seen, add_provider, prompt
from tests.judges.servers import INSTALLED, asked

pytestmark = [pytest.mark.judges, pytest.mark.slow]

KINDS = {"openai": "/v1", "anthropic": "/anthropic", "gemini": "/gemini"}
ANSWER = "The answer has some more words than one, so that a stream of it can be broken in its middle."


@dataclass(frozen=True)
class LLMock:
    url: str

    def plan(self, *behaviors: dict[str, Any], answer: str | None = ANSWER) -> None:
        """What the next requests meet; `answer` is what the model says to all of them."""
        said = [{"type": "reply", "text": answer, "times": None}] if answer else []
        asked(f"{self.url}/_llmock/scenario", "POST", {"behaviors": [*behaviors, *said]})

    def verdict(self, *, faults: int, attempts: int) -> None:
        """It saw what was planned, and finds nothing to blame, not even a warning."""
        seen = asked(f"{self.url}/_llmock/verdict")
        assert (seen["faults_injected"], seen["attempts"]) == (faults, attempts), seen
        program = str(INSTALLED / "bin" / "llmock")
        done = subprocess.run([program, "report", "--strict", "--url", self.url], capture_output=True, text=True, timeout=30)
        assert done.returncode == 0 and "PASS" in done.stdout, done.stdout + done.stderr


@pytest.fixture
def llmock(llmock_server: str) -> Iterator[LLMock]:
    asked(f"{llmock_server}/_llmock/reset", "POST")
    yield LLMock(llmock_server)
    asked(f"{llmock_server}/_llmock/reset", "POST")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, llmock: LLMock, proj: Path) -> str:
    """A format, its provider made known to this test's house."""
    add_provider(request.param, llmock.url + KINDS[request.param])
    return str(request.param)


def well(seen: Seen) -> None:
    assert (seen.code, seen.run["outcome"], seen.run["result"]) == (0, "done", ANSWER), seen.err
    assert seen.texts() == ANSWER  # the attempts that broke off left nothing behind


def test_what_was_asked_to_wait_is_waited(kind: str, llmock: LLMock, proj: Path) -> None:
    llmock.plan({"type": "fail", "status": 429, "retry_after": 1, "times": 2})
    well(prompt(proj, "m", "Say it."))
    llmock.verdict(faults=2, attempts=3)


def test_an_outage_is_sat_through_with_growing_pauses(kind: str, llmock: LLMock, proj: Path) -> None:
    llmock.plan({"type": "fail", "status": 503, "times": 3})
    well(prompt(proj, "m", "Say it."))
    llmock.verdict(faults=3, attempts=4)


@pytest.mark.parametrize("status, code, left", [(400, "provider_error", 1), (401, "bad_key", 4), (404, "model_unknown", 3)])
def test_what_cannot_succeed_is_not_tried_again(kind: str, llmock: LLMock, proj: Path, status: int, code: str, left: int) -> None:
    llmock.plan({"type": "fail", "status": status})
    seen = prompt(proj, "m", "Say it.")
    assert (seen.code, seen.run["error"]["code"], seen.parts) == (left, code, [])
    llmock.verdict(faults=1, attempts=1)


def test_a_prompt_that_is_too_long_has_its_own_code(kind: str, llmock: LLMock, proj: Path) -> None:
    llmock.plan({"type": "fail", "status": 400, "code": "context_length_exceeded", "message": "Over the maximum context length."})
    seen = prompt(proj, "m", "Say it.")
    assert (seen.code, seen.run["error"]["code"]) == (1, "context_full")
    llmock.verdict(faults=1, attempts=1)


@pytest.mark.parametrize("fault", ["truncate", "disconnect", "malformed"])
def test_a_broken_stream_is_noticed_and_asked_for_again(kind: str, llmock: LLMock, proj: Path, fault: str) -> None:
    llmock.plan({"type": "stream_fault", "kind": fault, "after_chunks": 4})
    well(prompt(proj, "m", "Say it."))
    llmock.verdict(faults=1, attempts=2)


def test_a_slow_first_token_is_waited_for(kind: str, llmock: LLMock, proj: Path) -> None:
    llmock.plan({"type": "slow_first_token", "seconds": 2})
    well(prompt(proj, "m", "Say it."))
    llmock.verdict(faults=0, attempts=1)


async def test_a_stall_is_given_up_and_asked_for_again(kind: str, llmock: LLMock, proj: Path) -> None:
    """In Python, as the command line has no setting for how long silence may last."""
    llmock.plan({"type": "stream_fault", "kind": "stall", "after_chunks": 4, "stall_seconds": 20})
    model = connect(kind, llmock.url + KINDS[kind], KEY, idle=3.0)
    async with Stead.open(models={NAME: model}) as house:
        run = await house.prompt(None, "Say it.", project=proj, model=f"{NAME}/m")
        result = await run.result()
    await model.aclose()
    assert (result["outcome"], result["result"]) == ("done", ANSWER)
    llmock.verdict(faults=1, attempts=2)


@pytest.mark.parametrize("fault", ["malformed_arguments", "unknown_tool"])
def test_a_broken_tool_call_does_nothing_and_the_model_is_told(kind: str, llmock: LLMock, proj: Path, fault: str) -> None:
    call = {"type": "reply", "tool_calls": [{"name": "write", "arguments": {"path": "calc.py", "content": "broken"}}]}
    llmock.plan(call, {"type": "tool_fault", "kind": fault})
    before = (proj / "calc.py").read_text()
    well(prompt(proj, "m", "Write it.", "--allow", "write"))
    assert (proj / "calc.py").read_text() == before
    llmock.verdict(faults=0, attempts=2)
