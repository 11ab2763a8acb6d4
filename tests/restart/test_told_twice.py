"""What a stranger met: things that were told, done or taken away twice or not at all."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.app import shown
from stead.core.errors import SteadError
from stead.domain import attachments, queue, runs, sessions
from tests.agent.house import Child, events, house, project, script, tools, use

EDIT = [parse("edit", "allow", "flag"), parse("bash", "allow", "flag")]

STEERED = """
slow = {"text": "word " * 2000, "chunk": 5, "delay_ms": 10}
from stead.agent.gate import parse
at.models = script([{"tools": [use("write", path="a.txt", content="x")], "delay_ms": 200, "text": "w" * 40, "chunk": 4}, slow])
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m", rules=[parse("edit", "allow", "flag")])
said = await at.enqueue(run.session, "and this")
from stead.domain import queue
at.store.write(lambda tx: queue.send(tx, said))
tell(run.session)
await until(lambda: events(at, run.session, "run.steered"), 10)
tell("steered")
await run.ended()
"""


async def test_what_a_steered_run_changed_is_told_once_also_when_it_dies(tmp_path: Path) -> None:
    project(tmp_path)
    child = Child(tmp_path, STEERED)
    session = await child.told()
    assert await child.told() == "steered"
    child.kill()
    async with house(tmp_path) as at:
        told = [event.data.part for event in events(at, session, "part.added") if event.data.part.get("type") == "patch"]
        assert [part["files"][0]["path"] for part in told] == ["a.txt"]


async def test_a_run_that_is_taken_twice_is_worked_on_once(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command="echo x >> count")]}, {"text": "ok"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=EDIT)
        assert run.run is not None
        again = at.take(run.run)
        assert again is run
        assert (await again.result())["outcome"] == "done" and len(tools(at, run)) == 1
        assert (folder / "count").read_text() == "x\n"


async def test_deleting_a_session_leaves_files_that_another_refers_to(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        where = at.data / "attachments"
        part: Any = attachments.add(where, "shared0000000001", "a.txt", b"content")
        text = {"type": "text", "text": "look"}
        one = await at.prompt(None, [text, part], project=folder, model="fake/m")
        two = await at.prompt(None, [text, part], project=folder, model="fake/m")
        await asyncio.gather(one.ended(), two.ended())
        await asyncio.to_thread(at.delete, one.session)
        assert attachments.load(where, "shared0000000001") == b"content"
        await asyncio.to_thread(at.delete, two.session)
        with pytest.raises(SteadError):
            attachments.load(where, "shared0000000001")


async def test_a_session_in_the_trash_takes_no_prompt_from_any_surface(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        await run.ended()
        at.store.write(lambda tx: sessions.change(tx, run.session, trashed=True))
        for send in (at.prompt, at.enqueue):
            with pytest.raises(SteadError) as refused:
                await send(run.session, "more")
            assert refused.value.code == "usage" and "restore" in str(refused.value.hint)


async def test_only_a_session_is_deleted(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        await run.ended()
        with at.store.view() as view:
            of = sessions.get(view, run.session).project
        rows = at.store.dump()
        for wrong in ("system", of, "nope", "", run.id):
            with pytest.raises(SteadError) as refused:
                await asyncio.to_thread(at.delete, wrong)
            assert refused.value.code == "not_found"
        assert at.store.dump() == rows and events(at, "system") and events(at, of)
        assert await asyncio.to_thread(at.delete, run.session) == [run.session]
        with pytest.raises(SteadError) as refused:
            await asyncio.to_thread(at.delete, run.session)
        assert refused.value.code == "not_found" and len(events(at, kind="session.deleted")) == 1


async def test_a_deletion_that_gives_up_lets_go_what_it_held_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stead.app.deletion._WAITS", 2)
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "word " * 200, "chunk": 5, "delay_ms": 20}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        held, waits, mine = [await at.enqueue(run.session, text) for text in ("held", "waits", "mine")]
        at.store.write(lambda tx: queue.hold(tx, queue.get(tx, held), "by a person"))
        monkeypatch.setattr(at, "stop", lambda session, by: False)
        with pytest.raises(SteadError) as refused:
            await asyncio.to_thread(at.delete, run.session)
        assert refused.value.code == "conflict"
        with at.store.view() as view:
            assert [(one.id, one.held) for one in queue.waiting(view)] == [(held, "by a person"), (waits, None), (mine, None)]
        run.abort()
        await run.ended()
        assert await asyncio.to_thread(at.delete, run.session) == [run.session]


async def test_of_a_run_in_a_deleted_session_it_is_said_that_there_is_none(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        await run.ended()
        await asyncio.to_thread(at.delete, run.session)
        for ask in (run.result(), asyncio.to_thread(at.run_json, "nope")):
            with pytest.raises(SteadError) as refused:
                await ask
            assert refused.value.code == "not_found" and refused.value.message.startswith("There is no run ")


async def test_what_waits_for_a_person_in_the_trash_is_restored_first(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"tools": [use("write", path="x", content="")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        ask = (await run.result())["asks"][0]["id"]
        waits = await at.enqueue(run.session, "more")
        at.store.write(lambda tx: sessions.change(tx, run.session, trashed=True))
        with pytest.raises(SteadError) as refused:
            at.answer(ask, {"allow": True})
        assert refused.value.code == "usage" and run.session in str(refused.value.hint)
        for attempt in (at.resume(run.session, on_ask=_allow), at.begin(waits), at.begin(waits, now=True)):
            with pytest.raises(SteadError) as refused:
                await attempt
            assert refused.value.code == "usage" and run.session in str(refused.value.hint)
        at.stop(run.session)
        with at.store.view() as view:
            assert queue.free(view) is None and queue.get(view, waits).state == "queued"
        at.store.write(lambda tx: sessions.change(tx, run.session, trashed=False))
        assert (await (await at.begin(waits, on_ask=_allow)).result())["outcome"] == "done"


async def _allow(_: Any) -> dict[str, Any]:
    return {"allow": True}


@pytest.mark.parametrize("wrong", [5, [5], None, b"go", {"type": "text", "text": "go"}, ["go"], [None], [[]]])
async def test_what_is_no_prompt_is_refused_in_words(tmp_path: Path, wrong: Any) -> None:
    folder = project(tmp_path)
    async with house(tmp_path, models=script([{"text": "ok"}])) as at:
        for send in (at.prompt, at.enqueue):
            with pytest.raises(SteadError) as refused:
                await send(None, wrong, project=folder, model="fake/m")
            assert refused.value.code == "usage"
        assert events(at, kind="session.created") == []


async def test_an_answer_of_another_shape_is_refused_whoever_gives_it(tmp_path: Path) -> None:
    folder = project(tmp_path)

    async def odd(_: Any) -> dict[str, Any]:
        return {"yes": 1}

    async with house(tmp_path, models=script([{"tools": [use("write", path="x", content="")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=odd)
        result = await run.result()
        assert (result["outcome"], result["error"]["code"]) == ("error", "usage") and not (folder / "x").exists()
        with at.store.view() as view:
            assert runs.get(view, run.id).status == "ended"


async def test_a_long_answer_is_heard_whole_wherever_it_is_given(tmp_path: Path) -> None:
    folder, long = project(tmp_path), "no \0\ud83d" + "x" * 70_000
    turns = [{"tools": [use("ask", question="Which?")]}, {"tools": [use("write", path="x", content="")]}, {"text": "ok"}]

    async def here(ask: Any) -> dict[str, Any]:
        return {"text": long} if ask.kind == "question" else {"allow": False, "reason": long}

    async with house(tmp_path, models=script(turns)) as at:
        asked_here = await at.prompt(None, "go", project=folder, model="fake/m", on_ask=here)
        await asked_here.ended()
        later = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        for answer in ({"text": long}, {"allow": False, "reason": long}):
            (ask,) = (await later.result())["asks"]
            answered = at.answer(ask["id"], answer)
            assert shown.ask_json(answered, at.store.blobs)["answer"] == answer
            later = await at.resume(later.session)
        assert (await later.result())["outcome"] == "done"
        for run in (asked_here, later):
            heard, denied = tools(at, run)
            assert "xxx" in heard["output"] and denied["status"] == "denied" and denied["error"].endswith(long)
        told = [shown.event_json(event, at.store.blobs)["data"]["answer"] for event in events(at, kind="ask.answered")]
        assert told == [{"text": long}, {"allow": False, "reason": long}] * 2


@pytest.mark.parametrize("odd", [None, "yes", 5, [], {"text": "x"}, {"allow": "yes"}, {"allow": True, "rules": 5}])
async def test_what_is_no_answer_is_refused_in_words_whoever_gives_it(tmp_path: Path, odd: Any) -> None:
    folder = project(tmp_path)

    async def here(_: Any) -> Any:
        return odd

    async with house(tmp_path, models=script([{"tools": [use("write", path="x", content="")]}, {"text": "ok"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        ask = (await run.result())["asks"][0]["id"]
        with pytest.raises(SteadError) as refused:
            at.answer(ask, odd)
        assert refused.value.code == "usage"
        result = await (await at.prompt(None, "go", project=folder, model="fake/m", on_ask=here)).result()
        assert (result["error"] or {}).get("code") == (None if odd is None else "usage")


async def test_who_watches_too_slowly_misses_nothing_and_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stead.app.watching._MOST_WAITING", 20)
    folder = project(tmp_path)
    turns = [{"text": "word " * 200, "chunk": 5, "tools": [use("list")]} for _ in range(4)] + [
        {"text": "the end " * 100, "chunk": 7}
    ]
    async with house(tmp_path, models=script(turns)) as at:
        watching = at.watch()
        first = asyncio.ensure_future(anext(watching))
        await asyncio.sleep(0)
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        seen = [await first]
        await run.ended()  # nobody reads meanwhile
        newest = events(at)[-1].seq
        async for item in watching:
            seen.append(item)
            if getattr(item, "seq", 0) == newest:
                break
        await watching.aclose()
        assert [item.seq for item in seen if hasattr(item, "seq")] == [event.seq for event in events(at)]
        assert sum(hasattr(item, "offset") for item in seen) <= 25
