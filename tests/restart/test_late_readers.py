"""Who joins late sees the text streamed so far and everything before it: a replay is a prefix of what is live."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stead.agent.frames import Frame
from stead.agent.gate import parse
from stead.agent.models.answer import Answer as Growing
from stead.agent.models.answer import reasoning_part, text_part
from stead.agent.models.base import Finished, Request
from stead.app import Stead
from stead.core.events import Event
from stead.core.parts import NO_TOKENS
from tests.agent.house import events, house, project, provide
from tests.agent.servers import call, text, thinking
from tests.restart.outside import Place
from tests.restart.reader import Reader
from tests.restart.slow import Slowly, Stamping, slow, words
from tests.support import scale

HI = call("bash", {"command": "echo hi; sleep 0.7; echo there"})
TURNS = [
    Slowly([thinking(words("b", 20)), text(words("x", 20))], cut=30),
    Slowly([thinking(words("r", 40)), text(words("t", 40)), HI]),
    Slowly([text(words("u", 30)), thinking(words("s", 15)), text("Grüße 👩‍👩‍👧 𝔸lle " * 10)]),
]


@pytest.mark.slow
@pytest.mark.parametrize("end", ["done", "killed"])
def test_show_gives_a_running_session_as_far_as_it_is(end: str, tmp_path: Path) -> None:
    place, dice = Place(tmp_path), random.Random(f"show {end}")
    with slow() as server:
        model = place.provide(server)
        server.say(*TURNS)
        process = place.start("run", "--stream-json", "--allow", "bash", "-m", model, "go")
        looks: list[tuple[float, list[dict[str, Any]]]] = []
        try:
            process.until(lambda: process.told("run.started"))
            (session,) = (event["session"] for event in process.events if event["kind"] == "run.started")
            stop = time.monotonic() + (99 if end == "done" else 4.2)
            while process.process.poll() is None and time.monotonic() < stop:
                time.sleep(dice.uniform(0, 0.3))
                looks.append((time.monotonic(), place.show(session)["messages"][1]["parts"]))
        finally:
            killed = process.kill()
        final = {part["id"]: part for part in place.show(session)["messages"][1]["parts"]}

    retracted = next(when for when, line in process.lines if line.get("kind") == "step.retracted")
    opened = 0
    for at, parts in looks:
        ids = [int(part["id"].rpartition(".")[2]) for part in parts]
        assert ids == sorted(set(ids)), "each part stands once, in order"
        if at <= retracted:
            assert all(part.get("open") or part["type"] == "reasoning" for part in parts)
            continue
        for part in parts:
            if part.get("open") and part["type"] != "tool":
                opened += 1
                assert final[part["id"]]["text"].startswith(part["text"])
            elif at < killed and part["type"] != "tool" and "cut" not in part:
                assert final[part["id"]] == part
        shown = "".join(part["text"] for part in parts if part["type"] in ("text", "reasoning"))
        due = "".join(
            one.text for one in server.sent if one.request > 1 and one.kind in ("text", "reasoning") and one.at <= at - 0.4
        )
        assert shown.startswith(due)
    assert opened >= 5
    assert not any("open" in part for part in final.values())


@pytest.mark.slow
@pytest.mark.parametrize("where", ["here", "elsewhere"])
async def test_a_replay_is_a_prefix_of_what_is_live(where: str, tmp_path: Path) -> None:
    """Readers that join at random moments, in the process of the run and in another one."""
    dice = random.Random(f"join {where}")
    place = Place(tmp_path)
    with slow() as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(*TURNS)
            watchers = [asyncio.create_task(watched(at, server, dice.uniform(0, 4.5))) for _ in range(25)]
            if where == "here":
                run = await at.prompt(None, "go", project=place.folder, model=model, rules=[parse("bash", "allow", "flag")])
                await run.ended()
            else:
                process = place.start("run", "--stream-json", "--allow", "bash", "-m", model, "go")
                await asyncio.to_thread(process.process.wait)
                process.close()
            readers = await asyncio.wait_for(asyncio.gather(*watchers), 10)
            log = events(at)
            shown = {part["id"]: part for part in stored_parts(at, log)}
    for reader in readers:
        assert reader.log == log
        assert {id: part.get("text") for id, part in reader.parts.items()} == {id: part.get("text") for id, part in shown.items()}
    assert {printed for reader in readers for printed in reader.printed.values()} <= {"hi\n", "hi\nthere\n"}
    assert sum(bool(reader.printed) for reader in readers) >= 5, "none of them saw the output of the tool"
    begun = [first for reader in readers for first in reader.firsts if len(first.text) > 60]
    assert len(begun) >= 5, "none of the readers joined in the middle of a part"


async def watched(at: Stead, server: Stamping, join: float) -> Reader:
    """A reader that joins so many seconds after the first byte and stays to the end of the run."""
    while not server.first_byte.is_set():
        await asyncio.sleep(0.01)
    await asyncio.sleep(join)
    reader = Reader()
    async for item in at.watch():
        reader.take(item)
        if isinstance(item, Event) and item.kind == "run.ended":
            return reader
    raise AssertionError("it ended before the run")


def stored_parts(at: Stead, log: list[Event[Any]]) -> list[dict[str, Any]]:
    from stead.app.shown import message_json
    from stead.domain import sessions

    with at.store.view() as view:
        stored = sessions.messages(view, log[-1].stream, limit=None)
    return [part for one in stored for part in message_json(one, at.store.blobs)["parts"]]


class Chatty:
    """A model that closes a short part every moment, so that readers join while one is being stored."""

    family = "fake"

    async def stream(self, request: Request) -> AsyncIterator[Any]:
        saying = Growing()
        for number in range(max(100, scale(1_000))):
            part, opened = saying.begin(text_part() if number % 2 else reasoning_part())
            yield opened
            for piece in ("one ", "two ", "three"):
                for item in saying.grow(part, piece):
                    yield item
                await asyncio.sleep(0)
            for item in saying.close(part):
                yield item
        yield Finished("stop", NO_TOKENS)

    async def aclose(self) -> None:
        pass


@pytest.mark.slow
async def test_who_joins_while_a_part_is_stored_hears_of_it_once(url: str | None, tmp_path: Path) -> None:
    """No frame of a part behind the event that closed it, whatever moment a reader comes and however slowly it reads."""
    dice = random.Random("join")
    async with house(tmp_path, database_url=url, models={"fake": Chatty()}) as at:
        run = await at.prompt(None, "go", project=project(tmp_path), model="fake/m")
        ended = asyncio.ensure_future(run.ended())
        watchers = []
        while not ended.done() and len(watchers) < 60:
            watchers.append(asyncio.create_task(slowly(at, dice.choice((0, 0, 0.001, 0.01)))))
            await asyncio.sleep(dice.uniform(0, 0.01))
        readers = await asyncio.gather(*watchers)
        log = events(at)
    assert len(readers) >= 5
    assert all(reader.log == log for reader in readers)


async def slowly(at: Stead, pause: float) -> Reader:
    """A reader that rests after each item until it has caught up."""
    reader = Reader()
    async for item in at.watch():
        reader.take(item)
        if isinstance(item, Event) and item.kind == "run.ended":
            break
        if len(reader.log) < 60:
            await asyncio.sleep(pause)
    return reader


@pytest.mark.slow
async def test_a_run_that_talks_without_a_pause_does_not_hide_what_others_do(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with slow() as server:
        async with house(tmp_path) as at:
            model = await provide(at, server)
            server.say(Slowly([text(words("t", 4_000))], delay=0.005), Slowly([text(words("u", 40))], delay=0.01))
            run = await at.prompt(None, "talk", project=place.folder, model=model)
            process = place.start("run", "--stream-json", "-m", model, "go")
            seen: list[Event[Any] | Frame] = []
            try:
                async for item in at.watch():
                    seen.append(item)
                    if isinstance(item, Event) and item.kind == "run.ended":
                        break
                assert item.stream != run.session, "the other run was heard of when this one ended"
                assert any(isinstance(one, Frame) and one.session == item.stream for one in seen), "nothing was shown of it"
            finally:
                process.close()
                run.abort()
                await run.ended()
