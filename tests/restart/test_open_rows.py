"""The rows of what is on the screen: they go with what they stand for, whatever way an answer ends, and hold exactly what came."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.agent.loop import Loop
from stead.agent.models.base import Closed, Delta, Finished, Item, Opened
from stead.app import Stead
from stead.app.shown import with_open
from stead.core.errors import SteadError
from stead.core.parts import NO_TOKENS
from stead.domain import partials, runs, sessions
from tests.agent.house import calls, events, house, parts, project, provide, until
from tests.agent.servers import Answer, answer, call, text, thinking
from tests.agent.test_loop_broken_off import crash, leave
from tests.restart.slow import Slowly, Stamping, slow, words
from tests.support import scale

BASH = [parse("bash", "allow", "flag"), parse("write", "allow", "flag")]
TALK = [thinking(words("r", 10)), text(words("t", 60))]


def rows(at: Stead) -> dict[str, int]:
    """How many rows there are of what is on the screen only, by table; none are left out but empty tables."""
    with at.store.view() as view:
        found = {table: view.q(f"SELECT count(*) FROM {table}")[0][0] for table in partials.FEATURE.kept}
    return {table: count for table, count in found.items() if count}


def heard(kind: str) -> Callable[[Stamping], bool]:
    return lambda server: sum(sent.kind == kind and bool(sent.text) for sent in server.sent) >= 12


@pytest.fixture
def no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    from stead.agent.models import retry

    rule = retry.delay
    monkeypatch.setattr(retry, "delay", lambda *args, **more: None if rule(*args, **more) is None else 0.0)


WRITE = call("write", {"path": "new.txt", "content": words("a", 60)})
SLEEP = call("bash", {"command": "echo begun; sleep 20"})
WAYS: dict[str, tuple[list[Answer], Callable[[Stamping], bool] | None, str, dict[str, int]]] = {
    "done": ([Slowly(TALK, delay=0.002)], None, "done", {"failed": 0, "aborted": 0}),
    "aborted in reasoning": ([Slowly([thinking(words("r", 60))])], heard("reasoning"), "aborted", {"aborted": 1}),
    "aborted in text": ([Slowly(TALK)], heard("text"), "aborted", {"aborted": 1}),
    "aborted in arguments": ([Slowly([text("I write. "), WRITE])], heard("arguments"), "aborted", {"aborted": 1}),
    "aborted before the first byte": ([Slowly(TALK, silent=9)], lambda server: len(server.asked) == 1, "aborted", {"aborted": 1}),
    "tried again": ([Slowly(TALK, cut=30), Slowly(TALK, cut=50), answer(text("end"))], None, "done", {"failed": 2}),
    "given up": ([Slowly(TALK, delay=0.004, cut=40) for _ in range(5)], None, "error", {"failed": 5}),
    "withheld": ([Slowly(TALK, delay=0.004, finish="content_filter")], None, "error", {}),
    "a length": ([Slowly([*TALK, WRITE], delay=0.004, finish="length")], None, "done", {}),
    "waits for a person": ([Slowly([*TALK, call("bash", {"command": "true"})], delay=0.004)], None, "waiting", {}),
}


@pytest.mark.parametrize("way", WAYS)
async def test_nothing_is_left_of_an_answer_however_it_ended(way: str, url: str | None, tmp_path: Path, no_waits: None) -> None:
    answers, moment, outcome, purposes = WAYS[way]
    with slow() as server:
        async with house(tmp_path, database_url=url) as at:
            model = await provide(at, server)
            server.say(*(type(one)(**vars(one)) for one in answers))
            rules: Any = {"on_ask": "wait"} if outcome == "waiting" else {"rules": BASH}
            run = await at.prompt(None, "go", project=project(tmp_path), model=model, **rules)
            if moment is not None:
                await until(lambda: moment(server))
                run.abort()
            result = await run.result()
            assert result["outcome"] == outcome, result
            assert rows(at) == {}
            found = Counter(row["purpose"] for row in calls(at, run.id))
            assert {purpose: found[purpose] for purpose in purposes} == purposes
            assert found.total() == len(server.asked)
            kept = parts(at, run)
    if way in ("aborted in text", "given up"):
        (said,) = [part for part in kept if part["type"] == "text"]
        assert said["cut"] is True and said["text"].startswith("t0000 t0001 ")
        assert len([part for part in kept if part["type"] == "reasoning"]) == 1


async def test_a_session_deleted_while_it_talks_leaves_nothing(url: str | None, tmp_path: Path) -> None:
    with slow() as server:
        async with house(tmp_path, database_url=url) as at:
            model = await provide(at, server)
            server.say(Slowly(TALK))
            run = await at.prompt(None, "go", project=project(tmp_path), model=model)
            await until(lambda: "partials" in rows(at))
            await asyncio.to_thread(at.delete, run.session)
            await until(lambda: not at.running())
            assert rows(at) == {}


class Played:
    """A model that gives these items; a number is a pause in seconds."""

    family = "fake"

    def __init__(self, *items: Item | float) -> None:
        self.items = items

    async def stream(self, request: Any) -> AsyncIterator[Any]:
        for item in self.items:
            if isinstance(item, float):
                await asyncio.sleep(item)
            else:
                yield item

    async def aclose(self) -> None:
        pass


def said(words: str) -> Any:
    return {"type": "text", "text": words}


async def test_a_part_that_is_stored_stands_once_while_the_answer_goes_on(
    url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last words come due for their row in the very moment in which it is stored."""
    model = Played(Opened(0, said("")), Delta(0, "some words"), Closed(0, said("some words")), 0.4, Finished("stop", NO_TOKENS))
    add = Loop.add

    async def slow_disk(self: Loop, n: int, part: Any) -> None:
        await add(self, n, part)
        await asyncio.sleep(0.2)  # the commit is done, and its caller does not know yet

    monkeypatch.setattr(Loop, "add", slow_disk)
    async with house(tmp_path, database_url=url, models={"fake": model}) as at:
        run = await at.prompt(None, "go", project=project(tmp_path), model="fake/m")
        await until(lambda: len(events(at, run.session, "part.added")) == 2)
        for _ in range(20):
            with at.store.view() as view:
                (answered,) = with_open(view, sessions.messages(view, run.session, limit=1))
            assert [part["text"] for _, part in answered.parts if part["type"] == "text"] == ["some words"]
            assert "partials" not in rows(at)
            await asyncio.sleep(0.02)
        assert (await run.result())["outcome"] == "done"


async def test_a_call_that_failed_is_paid_for_once_when_the_program_dies_before_the_run_ends(
    url: str | None, tmp_path: Path, no_waits: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with slow() as server:
        at = house(tmp_path, database_url=url)
        model = await provide(at, server)
        server.say(*(Slowly(TALK, delay=0.004, cut=40) for _ in range(5)))

        async def never(*_: Any) -> None:
            await asyncio.sleep(20)

        monkeypatch.setattr(Loop, "_end", never)
        run = await at.prompt(None, "go", project=project(tmp_path), model=model)
        await until(lambda: len(events(at, run.session, "call.ended")) == 5)
        crash(at)
        await leave(at)
        async with house(tmp_path, database_url=url) as at:
            assert [row["purpose"] for row in calls(at, run.id)] == ["failed"] * 5
            (cut,) = [part for part in parts(at, run) if part["type"] == "text"]
            assert cut["cut"] is True and cut["text"].startswith("t0000 ")
            assert rows(at) == {}


ODD = ["a\0b", "\ud83d", "\udc00 lone", "👩‍👩‍👧", "\u2028", "ß" * 3000, "\x7f\x1b[31m", "e\u0301"]


@pytest.mark.parametrize("kind", ["text", "reasoning"])
async def test_what_is_odd_comes_back_as_it_was_after_a_crash(kind: str, url: str | None, tmp_path: Path) -> None:
    whole: list[str] = []
    items: list[Item | float] = [Opened(0, {"type": kind, "text": ""})]  # type: ignore[list-item]
    for piece in ODD:
        items += [Delta(0, piece), 0.03]
        whole.append(piece)
    at = house(tmp_path, database_url=url, models={"fake": Played(*items, 9.0)})
    run = await at.prompt(None, "go", project=project(tmp_path), model="fake/m")
    with at.store.view() as view:
        began = runs.get(view, run.id)

    def kept() -> str:
        with at.store.view() as view:
            return "".join(part["text"] for _, part in partials.open_parts(view, began.session, began.message))

    await until(lambda: kept() == "".join(whole))
    crash(at)
    await leave(at)
    async with house(tmp_path, database_url=url) as at:
        cut = parts(at, run)[0]
        assert cut["type"] == kind and cut["cut"] is True
        assert cut["text"].encode("utf-16-le", "surrogatepass") == "".join(whole).encode("utf-16-le", "surrogatepass")
        assert rows(at) == {}


async def test_a_disk_without_room_for_the_rows_ends_the_run_once(
    url: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grow = partials.grow
    tries = []

    def full(*given: Any) -> None:
        tries.append(given)
        if len(tries) == 3:
            raise SteadError("disk_full", "There is no space left.")
        grow(*given)

    monkeypatch.setattr(partials, "grow", full)
    with slow() as server:
        async with house(tmp_path, database_url=url) as at:
            model = await provide(at, server)
            server.say(Slowly([text(words("t", 300))]))
            result = await (await at.prompt(None, "go", project=project(tmp_path), model=model)).result()
            assert (result["outcome"], result["error"]["code"]) == ("error", "disk_full")
            (said,) = [part for part in parts(at, result["run"]) if part["type"] == "text"]
            assert said["cut"] is True and words("t", 300).startswith(said["text"]) and said["text"]
            assert len(events(at, result["session"], "run.ended")) == 1 and rows(at) == {}
            assert [row["purpose"] for row in calls(at, result["run"])] == ["failed"]
            again = await (await at.prompt(result["session"], "and now?")).result()
            assert again["outcome"] == "done" and server.refusals == []


@pytest.mark.slow
async def test_a_very_fast_model_is_kept_in_pieces_and_costs_its_size(tmp_path: Path) -> None:
    """A model that is faster than the disk waits for it: never more than 4 KiB that are shown and not in the rows, and no more
    rows than pieces of 2 KiB, whatever the size of the chunks."""
    for size in (10, 300):
        whole = scale(10_000_000) // size * size
        items: list[Item | float] = [Opened(0, said("")), *[Delta(0, "x" * size)] * (whole // size), 9.0]
        async with house(tmp_path / str(size), models={"fake": Played(*items)}) as at:
            shown: list[int] = [0]
            at.on_frame(lambda frame, shown=shown: shown.__setitem__(0, frame.offset + len(frame.text)))  # type: ignore[misc]
            run = await at.prompt(None, "go", project=project(tmp_path), model="fake/m")
            worst = kept = 0
            while kept < whole:
                told, kept = shown[0], saved(at)
                worst = max(worst, told - kept)
                await asyncio.sleep(0)
            assert worst <= (4 << 10) + size
            assert rows(at)["partials"] <= whole / (2 << 10) + 1
            run.abort()
            await run.ended()
            assert len(parts(at, run)[0]["text"]) == whole and rows(at) == {}


def saved(at: Stead) -> int:
    """How much of the one open part is in its rows."""
    with at.store.view() as view:
        row = view.one("SELECT start + length(text) FROM partials ORDER BY session DESC, message DESC, n DESC, chunk DESC LIMIT 1")
    return int(row[0]) if row else 0
