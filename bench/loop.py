"""CPU that the loop adds to a step, beside the model and the tools: `python bench/loop.py [--json]`.

A scripted model without delays plays runs of many steps; the same requests are then played through the model alone, and through
the tool alone where there is one. What is left, divided by the steps, is the loop with the store's writer. Measured on a fresh
session and at the end of one of 200 turns, so that growth shows.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from stead.agent.models.base import Item, Request
from stead.agent.models.script import ScriptModel
from stead.agent.models.script_file import parse
from stead.app import Stead

STEPS = 200
TURNS = 200
TARGET_MS = 5.0
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


async def main() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "project"
        folder.mkdir()
        environ = {"PATH": os.environ["PATH"]}
        async with Stead.open(Path(place) / "data", config_dir=Path(place) / "config", environ=environ) as house:
            await run(house, folder, None, PLAIN[:20])  # imports and caches
            fresh = min([(await run(house, folder, None, PLAIN))[1] for _ in range(ROUNDS)])
            todo = min([(await run(house, folder, None, TODO))[1] for _ in range(ROUNDS)])
            session = None
            for _ in range(TURNS):
                session, _ms = await run(house, folder, session, PLAIN[:2])
            late = min([(await run(house, folder, session, PLAIN))[1] for _ in range(ROUNDS)])
    return {
        "ms_per_step": round(fresh, 3),
        "ms_per_step_with_a_tool_and_permission": round(todo, 3),
        f"ms_per_step_after_{TURNS}_turns": round(late, 3),
        "growth": round(late / fresh, 2),
        "target_ms": TARGET_MS,
        "ok": max(fresh, todo, late) < TARGET_MS,
    }


if __name__ == "__main__":
    found = asyncio.run(main())
    if "--json" in sys.argv[1:]:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:45} {value}")
    sys.exit(0 if found["ok"] else 1)
