"""Several processes share the prompts of a store: each is worked on once, in the order of its session, though one is killed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stead.domain import queue, runs
from tests.agent.house import events, project, script, until
from tests.restart.crew import again, check, crew, queued, started
from tests.support import scale

pytestmark = pytest.mark.slow
SESSIONS = 8
WORKER = """
import json
turns = [{"text": "word " * 4, "chunk": 5, "delay_ms": 10, "tools": [use("bash", command="echo x >> log")]}, {"text": "ok"}]
at.models = script(turns)
tell(at.owner())
await at.work(most=2)
"""


@pytest.mark.parametrize("killed", [False, True])
async def test_workers_share_the_prompts_and_each_is_worked_on_once(killed: bool, tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    each = max(2, scale(5))
    async with again(tmp_path, url, models=script([{"text": "ok"}])) as at:
        wanted: dict[str, list[str]] = {}
        for n in range(SESSIONS):
            first = await at.enqueue(None, f"{n}", project=folder, model="fake/m", on_ask="allow")
            session = next(one.session for one in queued(at) if one.id == first)
            wanted[session] = [first]
        for session, prompts in wanted.items():
            for n in range(1, each):
                prompts.append(await at.enqueue(session, f"{n}", on_ask="allow"))
        children = [crew(tmp_path, WORKER, url) for _ in range(3)]
        interrupted: set[str] = set()
        try:
            owners = [await child.told() for child in children]
            if killed:
                with_work = lambda: owners[0] in _at_work(at)  # noqa: E731
                await until(with_work, 20)
                children[0].kill()
            while _left(at):
                await asyncio.sleep(0.05)
        finally:
            for child in children:
                child.close()
        ends = {event.data.run: event.data.outcome for event in events(at, kind="run.ended")}
        interrupted = {run for run, outcome in ends.items() if outcome != "done"}
        held = {one.session for one in queued(at)}
        hit = {session for session, prompts in wanted.items() if interrupted & set(prompts)}
        assert all(one.held for one in queued(at)) and held <= hit
        assert {ends[run] for run in interrupted} <= {"interrupted"} and len(interrupted) <= (2 if killed else 0)
        assert all(len(interrupted & set(prompts)) <= 1 for prompts in wanted.values())
        for session, prompts in wanted.items():
            begun = started(at, session)
            assert begun == prompts[: len(begun)] and (len(begun) == each or session in hit)
        # A person lets what was held go on, and everything has been worked on once.
        for session in sorted(held):
            ids = [one.id for one in queued(at, session)]
            at.store.write(lambda tx, ids=ids: queue.resume(tx, ids, None))  # type: ignore[misc]
        await at.work(idle=lambda: True)
        assert {session: started(at, session) for session in wanted} == wanted and queued(at) == []
        check(at)


def _at_work(at: object) -> set[str]:
    with at.store.view() as view:  # type: ignore[attr-defined]
        return runs.owners(view)


def _left(at: object) -> bool:
    """Whether there is something that a worker can do, or does."""
    with at.store.view() as view:  # type: ignore[attr-defined]
        return bool(runs.owners(view)) or any(one.held is None for one in queue.waiting(view))
