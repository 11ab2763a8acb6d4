"""Several processes on one store, on either database; models that remember what they were asked."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from stead.agent.models.base import Item, Request
from stead.agent.models.script import ScriptModel
from stead.agent.models.script_file import parse
from stead.app import Stead
from stead.domain import asks, queue, runs
from tests.agent.house import Child, events, house

SLOW = [{"text": "word " * 2000, "chunk": 5, "delay_ms": 10}]


def crew(tmp_path: Path, program: str, url: str | None = None, **more: Any) -> Child:
    """A process of its own with a house `at` on the same store as that of the test."""
    given = ", ".join(f"{name}={value!r}" for name, value in {"database_url": url, **more}.items())
    body = "\n".join(f"    {line}" for line in program.strip("\n").split("\n"))
    before = "from stead.agent.gate import parse\nfrom stead.domain import asks, queue, runs, sessions\nat.close()"
    return Child(tmp_path, f"{before}\nasync with house(tmp, {given}) as at:\n{body}")


class Recorded(ScriptModel):
    """A scripted model that keeps what each call of it was sent: role and texts of every turn."""

    def __init__(self, turns: Any, **more: Any) -> None:
        super().__init__(parse(json.dumps({"turns": turns, **more})))
        self.asked: list[list[tuple[str, str]]] = []

    async def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        self.asked.append([(turn.role, _said(turn.parts)) for turn in request.turns])
        async for item in super().stream(request):
            yield item


def _said(parts: Any) -> str:
    return " ".join(part["text"] for part in parts if part["type"] == "text")


def queued(at: Stead, session: str | None = None) -> list[queue.Prompt]:
    with at.store.view() as view:
        return queue.waiting(view, session)


def run_of(at: Stead, run: str) -> runs.Run:
    with at.store.view() as view:
        return runs.get(view, run)


def open_asks(at: Stead) -> list[asks.Ask]:
    with at.store.view() as view:
        return asks.open_asks(view)


def started(at: Stead, session: str | None = None) -> list[str]:
    """The runs that began, in the order in which they did."""
    return [event.data.run for event in events(at, session, "run.started")]


def check(at: Stead) -> None:
    """What holds whatever happened: each run began once and ended once, in each session one behind the other, nothing of a run
    stands behind its end, no tool starts behind a wish to end it, and a rebuild gives the same rows."""
    log = events(at)
    begun = [event.data.run for event in log if event.kind == "run.started"]
    ended = [event.data.run for event in log if event.kind == "run.ended"]
    assert len(begun) == len(set(begun)) and len(ended) == len(set(ended))
    at_work: dict[str, str] = {}
    over: set[str] = set()
    unwanted: set[str] = set()
    for event in log:
        assert event.run not in over, f"{event.kind} behind the end of its run"
        if event.kind == "run.started":
            assert event.stream not in at_work, "two runs of a session at once"
            at_work[event.stream] = event.data.run
        elif event.kind == "run.ended":
            assert at_work.pop(event.stream) == event.data.run
            over.add(event.data.run)
        elif event.kind == "run.abort_requested":
            unwanted.add(event.data.run)
        elif event.kind == "tool.started":
            assert event.run not in unwanted, "a tool started behind the abort"
    calls = [(event.stream, event.data.message, event.data.n) for event in log if event.kind == "tool.ended"]
    assert len(calls) == len(set(calls)), "a call has two results"
    live = at.store.dump()
    at.store.rebuild()
    assert at.store.dump() == live


def again(tmp_path: Path, url: str | None, **more: Any) -> Stead:
    """The house of the test, on the database of the test."""
    return house(tmp_path, database_url=url, **more)
