"""Large stores: a list and the end of a long session are read without a walk, and finished runs leave nothing in memory."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from stead.agent.live import Live
from stead.agent.loop import Loop
from stead.app import FEATURES, RunHandle
from stead.app.shown import message_json, session_json, sessions_json, with_open
from stead.core.clock import ManualClock
from stead.domain import people, projects, runs, sessions
from stead.store import Store, Tx, open_store
from stead.store.reader import View
from tests.agent.house import Child, house, project, script, use
from tests.store.counting import Counting, counted
from tests.support import run_stead, scale

PROJECT = "project000000001"
BODY = {"type": "text", "text": "a line of an old answer, as they are " * 10}


def fill(folder: Path, root: Path, count: int) -> None:
    """A store with so many sessions of one message each, all in one project."""
    root.mkdir(exist_ok=True)
    clock = ManualClock()
    with open_store(folder, FEATURES, clock=clock) as store:
        store.write(lambda tx: _project(tx, root))
        for begin in range(0, count, 100):
            clock.advance(1_000)
            store.write(lambda tx, begin=begin: [_session(tx, n) for n in range(begin, min(begin + 100, count))])


def _project(tx: Tx, root: Path) -> None:
    owner = people.local_person(tx).id
    projects.open_project(tx, projects.identify(root), id=PROJECT, owner=owner, instructions=[])


def _session(tx: Tx, n: int) -> None:
    name = f"session{n:09d}"
    sessions.create(tx, name, PROJECT, title=f"title {n}", agent="build", model="m/x")
    about: dict[str, Any] = {"agent": "build", "model": "m/x", "owner": "o", "project": PROJECT, "max_steps": 9}
    run = runs.start(tx, f"run{n}", name, [BODY], **about)
    sessions.add_part(tx, name, run.message, 0, BODY, run=run.id)
    runs.end(tx, run.id, "done", steps=0)


def reading(folder: Path, monkeypatch: pytest.MonkeyPatch, work: Any) -> tuple[int, list[str], Counting]:
    """Run `work(view)` on a store: how many rows it was given, what it asked, what was read of the files."""
    rows, asked = 0, []

    def q(self: View, sql: str, *args: Any) -> Any:
        nonlocal rows
        asked.append(sql)
        found = self._conn.q(sql, args)
        rows += len(found)
        return found

    with counted(monkeypatch) as counting, open_store(folder, FEATURES) as store:
        with monkeypatch.context() as patch:
            patch.setattr(View, "q", q)
            patch.setattr(View, "one", lambda self, sql, *args: next(iter(q(self, sql, *args)), None))
            with store.view() as view:
                view.q("SELECT 1")
                counting.clear()
                rows, asked[:] = 0, []
                work(store, view)
        read = dict(counting.read)
        plans = [detail for sql in set(asked) for detail in plan(store, sql)]
    assert not [one for one in plans if "TEMP B-TREE" in one and "ORDER BY" in one], plans
    counting.read.update(read)
    return rows, asked, counting


def plan(store: Store, sql: str) -> list[str]:
    with store.view() as view:
        return [str(row[3]) for row in view.q(f"EXPLAIN QUERY PLAN {sql}", *[None] * sql.count("?"))]


def first_page(store: Store, view: View) -> None:
    found = sessions.page(view, PROJECT, limit=50)
    assert len(sessions_json(view, found)) == 50


@pytest.mark.slow
def test_b034_the_first_page_of_a_list_reads_no_message_and_costs_the_same_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, large = max(scale(5_000), 100), max(scale(20_000), 400)
    found = []
    for count in (small, large):
        fill(tmp_path / str(count), tmp_path / "root", count)
        found.append(reading(tmp_path / str(count), monkeypatch, first_page))
    (rows, asked, before), (rows_large, asked_large, after) = found
    assert rows == rows_large <= 200 and len(asked) == len(asked_large)
    assert not any("events" in sql or "parts" in sql for sql in asked), asked
    assert after.read["db"] <= before.read["db"] * 1.5 + (32 << 10)  # a level more of a tree here and there


@pytest.mark.slow
def test_b034_the_memory_of_a_list_does_not_grow_with_the_store(tmp_path: Path) -> None:
    peaks = []
    for count in (max(scale(5_000), 100), max(scale(20_000), 400)):
        fill(tmp_path / str(count), tmp_path / "root", count)
        program = (
            "import resource, sys\nfrom stead.__main__ import main\n"
            "sys.argv = ['stead', 'sessions', 'list', '--all', '--json']\n"
            "try:\n    main()\nexcept SystemExit:\n    pass\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "STEAD_DATA": str(tmp_path / str(count))},
            capture_output=True,
            check=True,
        )
        assert len(json.loads(done.stdout)["sessions"]) == 50
        peaks.append(int(done.stderr.split()[-1]))
    assert peaks[1] <= peaks[0] * 1.1, peaks


def long_session(folder: Path, root: Path, messages: int) -> None:
    """A session of so many messages: three events and one part each, but for the bookkeeping around them."""
    root.mkdir(exist_ok=True)
    with open_store(folder, FEATURES, clock=ManualClock()) as store:
        store.write(lambda tx: _project(tx, root))
        store.write(lambda tx: _session(tx, 0))

        def more(tx: Tx, count: int) -> None:
            for _ in range(count):
                n = sessions.add_message(tx, "session000000000", "assistant", model="m/x")
                sessions.add_part(tx, "session000000000", n, 0, BODY)

        for begin in range(0, messages, 200):
            store.write(lambda tx, begin=begin: more(tx, min(200, messages - begin)))


def last_screen(store: Store, view: View) -> None:
    found = with_open(view, sessions.messages(view, "session000000000", limit=50))
    assert len(found) == 50 and session_json(view, sessions.get(view, "session000000000"))["head"] == found[-1].id
    assert all(message_json(one, store.blobs)["parts"] for one in found)


@pytest.mark.slow
def test_b035_the_end_of_a_very_long_session_is_read_without_its_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for count in (max(scale(50_000), 300), max(scale(100_000), 600)):
        long_session(tmp_path / str(count), tmp_path / "root", count)
        found.append(reading(tmp_path / str(count), monkeypatch, last_screen))
    (rows, asked, before), (rows_large, asked_large, after) = found
    assert rows == rows_large and len(asked) == len(asked_large)
    assert after.read["db"] <= before.read["db"] * 1.5 + (32 << 10)


@pytest.mark.slow
def test_b035_the_command_line_shows_the_last_screen_and_older_ones_when_asked(tmp_path: Path) -> None:
    count = max(scale(20_000), 200)
    long_session(tmp_path / "data", tmp_path / "root", count)
    env = {"STEAD_DATA": str(tmp_path / "data")}
    last = json.loads(run_stead("sessions", "show", "session000000000", "--limit", "20", "--json", env=env).stdout)["messages"]
    assert [one["id"] for one in last] == [f"session000000000.{n}" for n in range(count - 17, count + 3)]
    older = run_stead("sessions", "show", "session000000000", "--limit", "20", "--before", last[0]["id"], "--json", env=env)
    assert json.loads(older.stdout)["messages"][-1]["id"] == f"session000000000.{count - 18}"


@pytest.mark.slow
async def test_b038_finished_child_runs_leave_nothing_in_memory(tmp_path: Path) -> None:
    folder = project(tmp_path)
    turns = [{"text": "x" * 2_000, "tools": [use("read", path="calc.py")]}, {"text": "y" * 2_000}]
    some, many = 50, 300
    async with house(tmp_path, models=script(turns)) as at:
        parent = await at.prompt(None, "go", project=folder, model="fake/m")
        await parent.ended()

        async def child(n: int) -> None:
            with at.store.view() as view:
                about = sessions.get(view, parent.session)
            await at.store.commit(
                lambda tx: sessions.create(
                    tx, f"child{n:011d}", about.project, title="a part", agent="build", model="fake/m", parent=parent.session
                )
            )
            assert (await (await at.prompt(f"child{n:011d}", "go")).result())["outcome"] == "done"

        for n in range(some):
            await child(n)
        gc.collect()
        tracemalloc.start()
        try:
            await child(some)
            gc.collect()
            before = tracemalloc.get_traced_memory()[0]
            for n in range(some + 1, many):
                await child(n)
            await asyncio.sleep(0.3)  # timers that were taken back stand a moment longer in the event loop's list
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        left = [one for one in gc.get_objects() if isinstance(one, Loop | Live | RunHandle)]
        assert [type(one) for one in left] == [RunHandle], left  # the parent's, which this test holds
        assert grown < 400_000, grown  # 249 bodies of 4 KB: they did not stay


RUNS = """
import gc, random, resource
folder, some, many = project(tmp), {some}, {many}

def text(size):
    return "\\n".join("".join(random.choices("abcdefghijklm nopqrstuvwxyz", k=99)) for _ in range(size // 100))

async def measured(session):
    views = [at.store.view() for _ in range(4)]  # as many as are kept when they are idle
    for view in [one.__enter__() for one in views]:
        sessions.messages(view, session)
        view.q("SELECT sum(length(data)) FROM events"), view.q("SELECT sum(length(data)) FROM blobs")
    for one in views:
        one.__exit__(None, None, None)
    await asyncio.sleep(0.1)
    gc.collect()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

peaks = []
for n in range(1, many + 1):
    (folder / "big.txt").write_text(text(39_000))
    model = write_script(folder, [{{"text": text(7_000), "tools": [use("read", path="big.txt")]}}, {{"text": text(8_000)}}])
    run = await at.prompt(None, "go", project=folder, model=model)
    assert (await run.result())["outcome"] == "done" and len(tools(at, run)[0]["output"]) > 39_000
    if n in (some, many):
        peaks.append(await measured(run.session))
tell(peaks)
"""


@pytest.mark.slow
def test_b038_what_a_process_takes_does_not_grow_with_the_runs_that_it_has_seen_end(tmp_path: Path) -> None:
    """The whole process, with the page caches of its connections, which no tracing of Python's memory sees."""
    child = Child(tmp_path, RUNS.format(some=50, many=max(300, scale(1_000))))
    before, after = child.line()
    child.close()
    assert after <= before * 1.1, (before, after)
