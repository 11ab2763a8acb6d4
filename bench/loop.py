"""CPU that the loop adds to a step, beside the model and the tools. Target: 5 ms.

A scripted model without delays plays runs of many steps; the same requests are then played through the model alone, and through
the tool alone where there is one. What is left, divided by the steps, is the loop with the store's writer. Measured on a fresh
session and at the end of one of 200 turns, so that growth shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

from common import Figures, Table

from stead.agent.models.base import Item, Request
from stead.agent.models.script import ScriptModel
from stead.agent.models.script_file import parse
from stead.app import Stead

STEPS = 200
TURNS = 200
ROUNDS = 5

TEXT = "The function adds two numbers and gives the sum back to whoever asked for it. "
PLAIN = [{"text": TEXT, "tools": [{"tool": "no_tool", "input": {}}]} for _ in range(STEPS)]
TODO = [
    {"text": TEXT, "tools": [{"tool": "todo_write", "input": {"todos": [{"text": "look", "status": "doing"}]}}]}
    for _ in range(STEPS)
]


class Noting:
    """The scripted model, with every request kept, so that the model's own share can be measured afterwards."""

    family = "script"

    def __init__(self, turns: Any) -> None:
        self.model = ScriptModel(parse(json.dumps({"turns": [*turns, {"text": "end"}]})))
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        self.requests.append(request)
        async for item in self.model.stream(request):
            yield item

    async def aclose(self) -> None:
        pass


async def alone(noted: Noting) -> float:
    """Seconds of CPU that the model takes for the same requests."""
    began = time.process_time()
    for request in noted.requests:
        async for _ in noted.model.stream(request):
            pass
    return time.process_time() - began


async def run(house: Stead, folder: Path, session: str | None, turns: Any) -> tuple[str, float]:
    """One run; gives its session and the milliseconds of CPU a step beside the model."""
    noted = Noting(turns)
    house.models = {"bench": noted}
    began = time.process_time()
    handle = await house.prompt(session, "go", project=folder, model="bench/m", max_steps=STEPS + 10)
    await handle.ended()
    spent = time.process_time() - began
    assert len(noted.requests) == len(turns) + 1
    return handle.session, 1000 * (spent - await alone(noted)) / len(noted.requests)


def tables(quick: bool) -> Iterator[Table]:
    """The one job of the loop."""
    yield asyncio.run(_measure(1 if quick else ROUNDS, 10 if quick else TURNS))


async def _measure(rounds: int, turns: int) -> Table:
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as place:
        folder = Path(place) / "project"
        folder.mkdir()
        environ = {"PATH": os.environ["PATH"]}
        async with Stead.open(Path(place) / "data", config_dir=Path(place) / "config", environ=environ) as house:
            await run(house, folder, None, PLAIN[:20])  # imports and caches
            fresh = min([(await run(house, folder, None, PLAIN))[1] for _ in range(rounds)])
            todo = min([(await run(house, folder, None, TODO))[1] for _ in range(rounds)])
            session = None
            for _ in range(turns):
                session, _ms = await run(house, folder, session, PLAIN[:2])
            late = min([(await run(house, folder, session, PLAIN))[1] for _ in range(rounds)])
    rows: dict[str, Figures] = {
        "a step": {"CPU ms": fresh},
        "with a tool and its permission": {"CPU ms": todo},
        f"after {turns} turns": {"CPU ms": late},
    }
    return Table("What the loop adds to a step", "CPU ms", rows, "beside the model and the tools; the best of the rounds")
