"""The queue over processes and restarts: in order, once, and held behind a crash."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stead.agent.gate import parse
from stead.app.shown import event_json
from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.domain import queue, runs, sessions
from tests.agent.house import events, project, script, status, tools, until, use
from tests.restart.crew import SLOW, Recorded, again, check, crew, queued, run_of, started

BASH = [parse("bash", "allow", "flag")]
WORDS = [{"text": "word " * 10, "chunk": 5, "delay_ms": 5}]


async def test_prompts_of_two_processes_begin_in_their_order_one_at_a_time(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url, models=script(WORDS)) as one, again(tmp_path, url, models=script(WORDS)) as two:
        first = await one.prompt(None, "0", project=folder, model="fake/m")
        handles = [await (one if n % 2 else two).prompt(first.session, str(n)) for n in range(1, 6)]
        assert [one.run for one in handles] == [None] * 5
        assert [(await handle.result())["outcome"] for handle in handles] == ["done"] * 5
        assert started(one, first.session) == [first.id, *(handle.id for handle in handles)]
        assert {run_of(one, handle.id).owner for handle in handles[::2]} == {one.owner()}
        check(one)


async def test_an_orderly_close_leaves_the_queue_to_whoever_works_next(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url, models=script(SLOW)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        more = [await at.prompt(run.session, text) for text in ("one", "two")]
    async with again(tmp_path, url, models=script([{"text": "ok"}])) as at:
        assert [(one.id, one.held, one.owner) for one in queued(at)] == [(one.id, None, None) for one in more]
        assert at.run_json(run.id)["outcome"] == "aborted" and at.running() == []  # opening begins nothing
        await at.work(idle=lambda: True)
        assert started(at) == [run.id, *(one.id for one in more)]
        assert [at.run_json(one.id)["outcome"] for one in more] == ["done", "done"]
        check(at)


@pytest.mark.slow
async def test_after_sigkill_the_queue_is_held_until_somebody_lets_it_go_on(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    program = f"""
at.models = script({SLOW!r})
run = await at.prompt(None, "go", project=tmp / "project", model="fake/m")
more = [await at.prompt(run.session, text) for text in ("one", "two")]
other = await at.enqueue(None, "other", project=tmp / "project", model="fake/m")
tell([run.session, run.id, *(one.id for one in more), other])
await run.ended()
"""
    child = crew(tmp_path, program, url)
    session, run, one, two, other = await child.told()
    child.kill()
    async with again(tmp_path, url, models=script([{"text": "ok"}])) as at:
        assert at.run_json(run)["outcome"] == "interrupted"
        assert [(prompt.id, bool(prompt.held)) for prompt in queued(at, session)] == [(one, True), (two, True)]
        await at.work(idle=lambda: True)
        assert started(at) == [run, other]  # what waits for nobody's process in another session goes on
        late = await at.prompt(session, "three", project=folder)
        assert (await late.result())["outcome"] == "done" and len(queued(at, session)) == 2
        assert (await (await at.begin(two)).result())["outcome"] == "done"
        assert [prompt.id for prompt in queued(at, session)] == [one]
        assert (await (await at.begin(one)).result())["outcome"] == "done"
        with pytest.raises(SteadError) as failed:
            await at.begin(one)
        assert failed.value.code == "conflict"
        check(at)


async def test_a_prompt_sent_now_stands_between_two_answers_and_the_model_reads_it(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    turns = [{"text": "first", "tools": [use("bash", command="sleep 0.4; echo x >> log")]}, {"text": "second"}]
    model = Recorded(turns)
    async with again(tmp_path, url, models={"fake": model}) as at, again(tmp_path, url) as two:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH, max_steps=7)
        later = await at.prompt(run.session, "later")
        await until(lambda: events(at, run.session, "tool.started"))
        now = await at.prompt(run.session, "look left", max_steps=1)
        two.store.write(lambda tx: queue.send(tx, now.id))
        result = await run.result()
        said = await now.result()
        assert said["run"] == run.id and said == at.run_json(run.id) and result["outcome"] == "done"
        assert (folder / "log").read_text() == "x\n" and (await later.result())["run"] == later.id
        assert model.asked[1] == [("user", "go"), ("assistant", "first"), ("user", "look left")]
        with at.store.view() as view:
            found = sessions.messages(view, run.session, limit=10)
        assert [one.role for one in sorted(found, key=lambda one: one.n)] == ["user", "assistant"] * 3
        steered = run_of(at, run.id)
        assert (steered.epoch, steered.steps, steered.max_steps) == (1, 2, 7) and len(events(at, run.session, "run.steered")) == 1
        with pytest.raises(SteadError) as failed:
            two.store.write(lambda tx: queue.retract(tx, now.id, by="x"))
        assert failed.value.code == "conflict"
        check(at)


async def test_words_for_a_run_that_answers_its_last_step_are_said_in_it_too(tmp_path: Path) -> None:
    folder = project(tmp_path)
    model = Recorded([{"text": "word " * 20, "chunk": 5, "delay_ms": 10}, {"text": "second"}])
    async with again(tmp_path, None, models={"fake": model}) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        for text in ("one", "two"):
            more = await at.prompt(run.session, text)
            at.store.write(lambda tx, more=more: queue.send(tx, more.id))  # type: ignore[misc]
        assert (await run.result())["result"] == "second" and len(model.asked) == 3
        assert [text for role, text in model.asked[2] if role == "user"] == ["go", "one", "two"]
        check(at)


async def test_what_no_step_is_left_for_begins_as_a_run_of_its_own(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"text": "a", "tools": [use("bash", command="sleep 0.3")]}, {"text": "b"}]
    async with again(tmp_path, None, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", rules=BASH, max_steps=1)
        more = await at.prompt(run.session, "more", max_steps=9, rules=BASH)
        at.store.write(lambda tx: queue.send(tx, more.id))
        assert (await run.result())["error"]["code"] == "limit_steps"
        assert (await more.result())["outcome"] == "done" and more.run is not None and more.run.id == more.id
        check(at)


async def test_a_prompt_taken_back_ends_the_wait_of_its_process(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url, models=script(SLOW)) as at, again(tmp_path, url) as two:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        more = await at.prompt(run.session, "more")
        two.store.write(lambda tx: queue.retract(tx, more.id, by="person:p"))
        result = await more.result()
        assert (result["outcome"], result["error"]["code"], result["queued"]["state"]) == ("aborted", "conflict", "retracted")
        run.abort()


WORKER = """
at.models = script([{"text": "ok " * 3, "chunk": 2, "delay_ms": 5}])
tell("up")
await at.work(most=2)
"""


@pytest.mark.slow
async def test_each_of_twenty_prompts_begins_once_though_one_of_two_processes_is_killed(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url) as at:
        at.models = script(WORDS)
        first = await at.enqueue(None, "0", project=folder, model="fake/m")
        session = queued(at)[0].session
        wanted = [first, *[await at.enqueue(session, str(n)) for n in range(1, 20)]]
        children = [crew(tmp_path, WORKER, url) for _ in range(2)]
        try:
            for child in children:
                await child.told()
            await until(lambda: len(started(at)) >= 4, 15)
            children[0].kill()
            going = True
            while going:
                await asyncio.sleep(0.1)
                held = [one.id for one in queued(at) if one.held]
                if held:  # the one that was killed was at work: a person lets the rest go on
                    at.store.write(lambda tx, held=held: queue.resume(tx, held, None))  # type: ignore[misc]
                with at.store.view() as view:
                    going = bool(queue.waiting(view)) or runs.active(view, session) is not None
        finally:
            for child in children:
                child.close()
        assert started(at) == wanted
        outcomes = [event.data.outcome for event in events(at, session, "run.ended")]
        assert outcomes.count("interrupted") <= 1 and set(outcomes) <= {"done", "interrupted"}
        check(at)


async def test_b152_the_same_key_gives_the_first_result_while_it_waits_while_it_runs_and_later(tmp_path: Path) -> None:
    """A key decides nothing but whether it was seen; clocks that are wrong by minutes decide nothing at all."""
    folder = project(tmp_path)
    now = 1_700_000_000_000
    clocks = {"one": ManualClock(now + 600_000), "two": ManualClock(now - 600_000)}
    words = script(WORDS)
    async with again(tmp_path, None, models=words, clock=clocks["one"]) as one:
        async with again(tmp_path, None, models=words, clock=clocks["two"]) as two:
            run = await one.prompt(None, "go", project=folder, model="fake/m")
            key = "01JZZZZZZZ-from-the-future"
            first = await one.prompt(run.session, "first words", key=key)
            assert first.run is None
            same = [await at.prompt(run.session, "other words", key=key) for at in (one, two, one)]
            assert {handle.id for handle in same} == {first.id} and len(queued(one)) == 1
            results = await asyncio.gather(*(handle.result() for handle in (first, *same)))
            assert all(result == results[0] for result in results) and results[0]["outcome"] == "done"
            late = await two.prompt(run.session, "third words", key=key)
            assert late.id == first.id and await late.result() == results[0]
            for at in (two, one, two):
                answered = await (await at.prompt(run.session, "and you?")).result()
                assert answered["outcome"] == "done" and answered["result"]
            assert len(started(one, run.session)) == 5 and len(events(one, run.session, "prompt.queued")) == 1
            with one.store.view() as view:
                found = sorted(sessions.messages(view, run.session, limit=50), key=lambda message: message.n)
            assert [message.role for message in found] == ["user", "assistant"] * 5
            check(one)


async def test_a_known_key_of_words_said_in_another_run_gives_that_run(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, None, models=script([{"text": "word " * 20, "chunk": 5, "delay_ms": 10}, {"text": "b"}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        more = await at.prompt(run.session, "more", key="k")
        at.store.write(lambda tx: queue.send(tx, more.id))
        result = await more.result()
        again_ = await at.prompt(run.session, "more", key="k")
        assert again_.id == more.id and await again_.result() == result and result["run"] == run.id


async def test_a_prompt_edited_in_the_moment_it_begins_is_edited_or_refused(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url, models=script(WORDS)) as one, again(tmp_path, url) as two:
        one.models = script([{"text": "ok"}])
        await one.enqueue(None, "old", project=folder, model="fake/m")
        owner = one.owner()
        met: set[bool] = set()
        for n in range(12):
            prompt = queued(one)[0]
            edit = two.store.commit(lambda tx, id=prompt.id: queue.edit(tx, id, [{"type": "text", "text": "new"}]))  # type: ignore[misc]
            begin = one.store.commit(lambda tx, found=prompt: queue.begin(tx, found, owner))  # type: ignore[misc]
            edited, run = await asyncio.gather(*((edit, begin) if n % 2 else (begin, edit)), return_exceptions=True)
            if not n % 2:
                edited, run = run, edited
            assert isinstance(run, runs.Run)
            assert edited is None or (isinstance(edited, SteadError) and edited.code == "conflict")
            with one.store.view() as view:
                ((_, part),) = sessions.message(view, run.session, run.prompt).parts
            assert part["text"] == ("new" if edited is None else "old")
            met.add(edited is None)
            one.store.write(lambda tx, run=run: runs.end(tx, run.id, "done", steps=0))  # type: ignore[misc]
            await one.enqueue(run.session, "old")
        check(one)


async def test_a_session_is_deleted_with_all_that_waits_in_it(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url, models=script(SLOW)) as one, again(tmp_path, url, models=script(SLOW)) as two:
        run = await one.prompt(None, "go", project=folder, model="fake/m")
        more = [await at.prompt(run.session, "more") for at in (one, two)]
        assert await asyncio.to_thread(two.delete, run.session) == [run.session]
        await asyncio.gather(*(handle.ended() for handle in (run, *more)), return_exceptions=True)
        assert one.running() == two.running() == [] and queued(one) == []
        assert [event.kind for event in events(one, run.session)] == []
        other = await one.prompt(None, "other", project=folder, model="fake/m")
        other.abort()
        assert (await other.result())["outcome"] == "aborted"


@pytest.mark.slow
async def test_a_dead_process_before_it_in_the_queue_keeps_no_prompt_waiting(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url, models=script([{"text": "word " * 100, "chunk": 5, "delay_ms": 20}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        waits = f"""
at.models = script({WORDS!r})
tell((await at.prompt({run.session!r}, "dies")).id)
await asyncio.sleep(60)
"""
        child = crew(tmp_path, waits, url)
        dead = await child.told()
        last = await at.prompt(run.session, "last")
        child.kill()
        run.abort()
        at.models = script([{"text": "ok"}])
        assert (await asyncio.wait_for(last.result(), 10))["outcome"] in ("done", "aborted")
        assert started(at, run.session) == [run.id, last.id]
        assert [(one.id, bool(one.held)) for one in queued(at)] == [(dead, True)]
        check(at)


async def test_a_prompt_behind_one_that_waits_for_any_process_works_on_both(tmp_path: Path, url: str | None) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, url, models=script([{"text": "ok"}])) as at:
        first = await at.enqueue(None, "first", project=folder, model="fake/m")
        session = queued(at)[0].session
        second = await at.prompt(session, "second")
        assert (await asyncio.wait_for(second.result(), 4))["outcome"] == "done"
        assert started(at) == [first, second.id] and at.run_json(first)["outcome"] == "done"
        check(at)


@pytest.mark.parametrize("pause", range(5))
async def test_a_prompt_aborted_at_any_moment_of_its_turn_is_held_or_ends_aborted(pause: int, tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, None, models=script([{"text": "word " * 50, "chunk": 5, "delay_ms": 20}])) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m")
        await at.store.commit(lambda tx: None)
        more = await at.prompt(run.session, "more")
        run.abort()
        await run.ended()
        for _ in range(2000):  # until its begin is on the way
            if not queued(at) or at.store.writer()._queue.qsize():
                break
            await asyncio.sleep(0)
            await asyncio.sleep(0.0005)
        for _ in range(pause):
            await asyncio.sleep(0)
        for _ in range(3):
            more.abort()
            await asyncio.sleep(0)
        result = await more.result()
        assert result["outcome"] == "aborted" or result["queued"]["state"] == "held"
        assert status(at, run.session) != "running" and at.running() == []
        check(at)


async def test_a_run_aborted_before_its_first_moment_ends_aborted(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"tools": [use("bash", command="echo x >> log")]}, {"text": "ok"}]
    async with again(tmp_path, None, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=folder, model="fake/m", on_ask="wait")
        await run.ended()
        (ask,) = run_json_asks(at, run.id)
        at.answer(ask, {"allow": True})
        on = await at.resume(run.session)
        on.abort()
        assert (await asyncio.wait_for(on.result(), 4))["outcome"] == "aborted" and not (folder / "log").exists()
        prompt = await at.enqueue(run.session, "more")
        begun = await at.begin(prompt)
        begun.abort()
        result = await asyncio.wait_for(begun.result(), 4)
        assert result["outcome"] == "aborted" or result["queued"]["state"] == "held"
        assert tools(at, run)[0]["status"] == "error" and at.running() == []
        check(at)


def run_json_asks(at: Any, run: str) -> list[str]:
    return [one["id"] for one in at.run_json(run)["asks"]]


async def test_a_cancelled_worker_leaves_no_run_without_anybody_at_work(tmp_path: Path) -> None:
    folder = project(tmp_path)
    async with again(tmp_path, None, models=script([{"text": "ok"}])) as at:
        await at.enqueue(None, "0", project=folder, model="fake/m")
        session = queued(at)[0].session
        for _ in range(8):
            await at.enqueue(session, "more")
        for pause in range(12):
            work = asyncio.create_task(at.work())
            for _ in range(pause):
                await asyncio.sleep(0)
            work.cancel()
            await asyncio.wait([work])
            for handle in at.running():
                await handle.ended()
            assert status(at, session) in ("idle", "aborted")
        await at.work(idle=lambda: True)
        assert len(started(at)) == 9
        check(at)


async def test_a_long_prompt_is_whole_in_its_events_and_for_the_model(tmp_path: Path) -> None:
    folder = project(tmp_path)
    model = Recorded([{"text": "ok"}])
    long = "a word " * 5000
    async with again(tmp_path, None, models={"fake": model}) as at:
        prompt = await at.enqueue(None, "short", project=folder, model="fake/m")
        packed = at.store.blobs.pack([{"type": "text", "text": long}])
        at.store.write(lambda tx: queue.edit(tx, prompt, tx.unpack(packed)))
        more = await at.enqueue(queued(at)[0].session, long)
        await at.work(idle=lambda: True)
        shown = [event_json(event, at.store.blobs) for event in events(at) if event.kind in ("prompt.queued", "prompt.changed")]
        assert [one["data"]["parts"][0]["text"] for one in shown] == ["short", long, long]
        assert started(at) == [prompt, more] and [asked[-1] for asked in model.asked] == [("user", long)] * 2
