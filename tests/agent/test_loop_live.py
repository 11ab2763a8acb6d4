"""What is told while a run works: every committed event once and in order, with frames between them that add up to the parts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stead.agent.frames import Frame
from stead.agent.gate import parse
from stead.agent.models.answer import Answer as Growing
from stead.agent.models.answer import reasoning_part, text_part, tool_part
from stead.agent.models.base import Closed, Finished, Request
from stead.core.events import Event
from stead.core.parts import NO_TOKENS, Part
from tests.agent.house import Child, events, house, kinds, parts, project, script, tools, until, use

BASH = [parse("bash", "allow", "flag")]


async def follow(at: Any, into: list[Any], stream: str | None = None, after: int = 0) -> None:
    async for item in at.watch(after=after, stream=stream):
        into.append(item)


def added_up(items: list[Any], frame: str) -> dict[str, str]:
    """The text of each part that its frames give; checks that every offset is the number of code points before it."""
    texts: dict[str, str] = {}
    for item in items:
        if isinstance(item, Frame) and item.frame == frame:
            assert item.offset == len(texts.get(item.part, ""))
            texts[item.part] = texts.get(item.part, "") + item.text
    return texts


async def test_watch_tells_every_event_once_in_order_with_the_frames_between(tmp_path: Path) -> None:
    folder = project(tmp_path)
    words = "Grüße 👩‍👩‍👧 an 𝔸lle: " * 20
    turns = [
        {"reasoning": "thinking " * 30, "text": words, "tools": [use("bash", command="echo live")], "chunk": 5},
        {"text": "end"},
    ]
    async with house(tmp_path, models=script(turns)) as at:
        early: list[Any] = []
        late: list[Any] = []
        first = asyncio.create_task(follow(at, early))
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH)
        second = asyncio.create_task(follow(at, late))  # joins in the middle
        await run.ended()
        log = events(at)
        await until(lambda: all(items and getattr(items[-1], "kind", "") == "run.ended" for items in (early, late)))
        for task in (first, second):
            task.cancel()
        for items in (early, late):
            assert [item for item in items if isinstance(item, Event)] == log
        stored = {f"{run.session}.2.{n}": part for n, part in enumerate(parts(at, run))}
        for frame in ("text", "reasoning"):
            assert added_up(early, frame) == {id: part["text"] for id, part in stored.items() if part["type"] == frame}
        (output,) = added_up(early, "tool_output").values()
        assert output == "live\n"
        for number, id in enumerate(stored):  # all frames of a part come before the event that closes it
            closing = [n for n, item in enumerate(early) if isinstance(item, Event) and getattr(item.data, "n", None) == number]
            growing = [n for n, item in enumerate(early) if isinstance(item, Frame) and item.part == id]
            assert not growing or max(growing) < max(closing)


async def test_watch_gives_one_streams_items_only(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "words"}])) as at:
        one = await at.prompt(None, "go", project=folder, model="fake/m")
        await one.ended()
        seen: list[Any] = []
        task = asyncio.create_task(follow(at, seen, stream=one.session))
        other = await at.prompt(None, "go", project=folder, model="fake/m")
        await other.ended()
        again = await at.prompt(one.session, "go")
        await again.ended()
        await until(lambda: [item.kind for item in seen if isinstance(item, Event)].count("run.ended") == 2)
        task.cancel()
        assert {getattr(item, "stream", None) or item.session for item in seen} == {one.session}
        assert [item for item in seen if isinstance(item, Event)] == events(at, one.session)


async def test_watch_tells_what_other_processes_commit_in_the_order_of_the_log(tmp_path: Path) -> None:
    folder = project(tmp_path)
    slow = [{"text": "word " * 8, "chunk": 5, "delay_ms": 5, "tools": [use("list")]} for _ in range(8)]
    program = f"""
at.models = script({slow!r})
tell("up")
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m")
await run.ended()
"""
    async with house(tmp_path, models=script(slow)) as at:
        seen: list[Any] = []
        task = asyncio.create_task(follow(at, seen))
        child = Child(tmp_path, program)
        try:
            await child.told()
            run = await at.prompt(None, "go", project=folder, model="fake/m")
            await run.ended()
            await asyncio.to_thread(child.process.wait)
            await until(lambda: [item for item in seen if isinstance(item, Event)] == events(at))
        finally:
            task.cancel()
            child.close()
        assert len({event.stream for event in events(at, kind="run.ended")}) == 2


class Interleaved:
    """A model that opens all parts first, grows them in turns and closes them in the order it is told."""

    family = "fake"

    def __init__(self, order: tuple[str, ...], closing: tuple[int, ...]) -> None:
        self.order, self.closing = order, closing

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        answer = Growing()
        if request.step:
            yield Finished("stop", NO_TOKENS)
            return
        made = {"text": text_part(), "reasoning": reasoning_part(), "tool": tool_part("call_x", "list")}
        grown = []
        for kind in self.order:
            part: Part = made[kind]
            growing, opened = answer.begin(part)
            grown.append(growing)
            yield opened
        for piece in ("ab", "cd"):
            for growing in grown:
                for item in answer.grow(growing, piece if growing.kind != "tool" else {"ab": "{", "cd": "}"}[piece]):
                    yield item
        for at in self.closing:
            for item in answer.close(grown[at]):
                assert isinstance(item, Closed)
                yield item
        yield Finished("tool_calls", NO_TOKENS)

    async def aclose(self) -> None:
        pass


@pytest.mark.parametrize("order", list(itertools.permutations(("text", "reasoning", "tool"))))
async def test_parts_are_stored_in_the_order_in_which_they_began(order: tuple[str, ...], tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path) as at:
        for closing in itertools.permutations(range(3)):
            at.models = {"fake": Interleaved(order, closing)}  # type: ignore[dict-item]
            seen: list[Any] = []
            stop = at.on_frame(seen.append)
            run = await at.prompt(None, "go", project=folder, model="fake/m")
            assert (await run.result())["outcome"] == "done"
            stop()
            assert kinds(at, run)[:4] == [*order, "step"]
            assert tools(at, run)[0]["arguments"] == "{}" and tools(at, run)[0]["status"] == "done"
            assert list(added_up(seen, "text").values()) == ["abcd"]
            assert list(added_up(seen, "reasoning").values()) == ["abcd"]
            request = at.models["fake"]
            assert isinstance(request, Interleaved)
