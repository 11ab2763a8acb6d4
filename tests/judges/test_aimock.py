"""aimock plays a model that looks, edits and answers: the whole loop in each format, against a server that nobody here wrote.

It needs node 20, and where that is missing these tests are skipped and say so. What it plays stands in aimock.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.judges.door import add_provider, prompt
from tests.judges.servers import asked

pytestmark = [pytest.mark.judges, pytest.mark.slow]

KINDS = {"openai": "/v1", "openrouter": "/api/v1", "anthropic": "", "gemini": ""}
MODELS = {"openai": "gpt-5", "openrouter": "openai/gpt-5", "anthropic": "claude-sonnet-4-5", "gemini": "gemini-2.5-pro"}
AFTERWARDS = 'def add(a, b):\n    """Add – naïvely."""\n    return a + b\n'
ANSWER = "Added a docstring – and nothing else. ✓"


@pytest.mark.parametrize("kind", KINDS)
def test_a_scripted_model_changes_a_file_over_several_turns(aimock: str, proj: Path, kind: str) -> None:
    asked(f"{aimock}/__aimock/reset/journal", "POST")
    add_provider(kind, aimock + KINDS[kind])
    seen = prompt(proj, MODELS[kind], "add a docstring to add()", "--allow", "edit")
    assert (seen.code, seen.run["outcome"], seen.run["result"]) == (0, "done", ANSWER), seen.err
    assert (proj / "calc.py").read_text() == AFTERWARDS
    assert seen.run["changes"] == [{"path": "calc.py", "status": "modified", "additions": 1, "deletions": 0}]
    assert [(part["tool"], part["status"]) for part in seen.tools] == [("read", "done"), ("edit", "done"), ("list", "done")]
    assert "".join(seen.each("reasoning")) == "First I look at what there is."
    again = prompt(proj, MODELS[kind], "thank you", "-r", seen.run["session"])
    assert (again.code, again.run["result"]) == (0, "You are welcome."), again.err
    assert [message["role"] for message in again.messages] == ["user", "assistant"] * 2
    answered = [entry["response"]["status"] for entry in journal(aimock)]
    assert answered == [200] * 4  # a fixture fitted each request: in --strict nothing else is answered


def test_without_the_rule_the_file_stays_and_the_model_is_told(aimock: str, proj: Path) -> None:
    asked(f"{aimock}/__aimock/reset/journal", "POST")
    add_provider("openai", aimock + KINDS["openai"])
    before = (proj / "calc.py").read_text()
    seen = prompt(proj, MODELS["openai"], "add a docstring to add()")
    assert (seen.code, seen.run["outcome"], seen.run["changes"]) == (5, "denied", [])
    assert (proj / "calc.py").read_text() == before and "--allow edit" in seen.err
    told = [message["content"] for message in journal(aimock)[-1]["body"]["messages"] if message["role"] == "tool"]
    assert len(told) == 3 and "nobody could be asked" in told[1]


def journal(aimock: str) -> list[dict[str, Any]]:
    """The requests that it was sent, in order."""
    return [entry for entry in asked(f"{aimock}/__aimock/journal") if entry["method"] == "POST"]
