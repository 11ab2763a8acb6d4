"""A prompt's life, written step by step through the real code, in a process that dies where it is told to.

`play` does the work, `recover` is what the next start does, `check` looks whether every invariant holds. Each runs in a forked
child, so that the test process never has a store open.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from stead.agent.workspace import CallContext
from stead.app import Stead
from stead.core.clock import ManualClock
from stead.core.parts import NO_TOKENS
from stead.domain import changes, people, projects, runs, sessions, todos, usage
from stead.store import Store, Tx, safefile

OLD, NEW = b"old content\n" * 300, b"new content, line by line\n" * 400
LONG_TEXT = "an answer with many words \u2028 \0 " * 600


def large(n: int) -> bytes:
    """Content that does not get smaller, so that its blob is a file."""
    return b"".join(hashlib.sha256(f"{n}.{k}".encode()).digest() for k in range(3_000))


def prepare(root: Path) -> None:
    """The project as it was before stead came."""
    root.mkdir(parents=True)
    (root / "edited.txt").write_bytes(OLD)
    (root / "removed.txt").write_bytes(OLD)
    (root / "linked.txt").write_bytes(OLD)
    os.link(root / "linked.txt", root / "second-name.txt")  # written in place
    (root / "mine.txt").write_bytes(b"nobody touches this")


def open_(data: Path) -> Stead:
    return Stead.open(data, config_dir=data.parent / "config", environ={}, clock=ManualClock())


def play(data: Path, root: Path, acknowledged: int) -> None:
    """Everything once. What the store acknowledged is told to the descriptor `acknowledged`, before the next step."""
    with_house = open_(data)
    try:
        asyncio.run(_play(with_house, root, lambda seq: os.write(acknowledged, f"{seq}\n".encode()) and None))
    finally:
        with_house.close()


async def _play(house: Stead, root: Path, told: Callable[[int], Any]) -> None:
    store = house.store
    owner = house.owner()

    async def commit(job: Callable[[Tx], Any]) -> Any:
        def with_seq(tx: Tx) -> tuple[Any, int]:
            return job(tx), tx.next_seq - 1

        result, seq = await store.commit(with_seq)
        told(seq)
        return result

    def begin(tx: Tx) -> runs.Run:
        person = people.local_person(tx)
        project = projects.open_project(tx, projects.identify(root), id="project000000001", owner=person.id, instructions=[])
        sessions.create(tx, "session000000001", project, title="A prompt", agent="build", model="m/x")
        part = {"type": "text", "text": "do it"}
        about: dict[str, Any] = {"agent": "build", "model": "m/x", "owner": owner, "project": project, "max_steps": 9}
        return runs.start(tx, "run1", "session000000001", [part], **about)

    run: runs.Run = await commit(begin)
    packed = store.blobs.pack({"type": "text", "text": LONG_TEXT})
    await commit(lambda tx: sessions.add_part(tx, run.session, run.message, 0, tx.unpack(packed), run=run.id))
    calls: list[Callable[[CallContext], Awaitable[None]]] = [
        lambda at: at.change(root / "edited.txt", NEW),
        lambda at: at.change(root / "deep" / "er" / "made.txt", large(1), mode=0o755),
        lambda at: at.change(root / "linked.txt", NEW[: len(OLD) // 2]),
        lambda at: at.change(root / "removed.txt", None),
    ]
    for n, work in enumerate(calls, 1):
        await _call(store, run, root, n, work, commit)
    await commit(lambda tx: todos.replace(tx, run.session, [("tidy up", "doing")], run.id))
    step = {"type": "step", "model": "x", "tokens": {**NO_TOKENS, "input": 7}, "cost": 0.5, "finish": "stop"}
    ended = sessions.StepEnded(message=run.message, n=9, part=step, project=run.project, provider="m")
    await commit(lambda tx: tx.append(run.session, ended, run=run.id))
    await commit(lambda tx: runs.end(tx, run.id, "done", steps=1))


async def _call(
    store: Store,
    run: runs.Run,
    root: Path,
    n: int,
    work: Callable[[CallContext], Awaitable[None]],
    commit: Callable[[Callable[[Tx], Any]], Awaitable[Any]],
) -> None:
    name = f"call{n}"
    part = {"type": "tool", "call": name, "tool": "write", "arguments": "{}", "status": "pending"}
    await commit(lambda tx: sessions.add_part(tx, run.session, run.message, n, part, run=run.id))
    started = sessions.ToolStarted(message=run.message, n=n, call=name)
    await commit(lambda tx: tx.append(run.session, started, run=run.id))

    async def nobody(question: str, options: list[str] | None) -> str:
        raise AssertionError

    context = CallContext(
        store=store,
        run=run,
        root=root,
        call=name,
        environ={},
        data_dir=None,
        judged=None,
        denied=lambda path: False,
        show=lambda text: None,
        question=nobody,
    )
    await work(context)
    end = sessions.ToolEnded(message=run.message, n=n, call=name, result={"status": "done", "output": "ok"})
    await commit(lambda tx: tx.append(run.session, end, run=run.id))


def recover(data: Path) -> None:
    """What every start does."""
    open_(data).close()


def dump(data: Path) -> Any:
    """Everything that the store shows, and the number of its events."""
    house = open_(data)
    with house.store.view() as view:
        count = view.q("SELECT count(*) FROM events")
    shown = house.store.dump()
    house.close()
    return count, shown


def check(data: Path, root: Path, acknowledged: list[int]) -> None:
    """All invariants that a crash could break."""
    house = open_(data)
    store = house.store
    with store.view() as view:
        events = view.events(limit=10_000)
        assert view.q("PRAGMA integrity_check") == [("ok",)]
        made = changes.listed(view, "session000000001")
        assert changes.unsettled(view) == [], "a change of which nobody knows whether it happened"
        used = usage.report(view, ())["total"]
        found = view.q("SELECT id, status, outcome, owner FROM runs")
    seqs = [event.seq for event in events]
    assert seqs == sorted(set(seqs))  # I3
    assert set(acknowledged) <= set(seqs), "an acknowledged event is gone"  # I2
    ends = Counter(event.data.run for event in events if event.kind == "run.ended")
    for run, status, outcome, _ in found:  # I6
        assert status == "ended" and outcome in ("done", "interrupted") and ends[run] == 1, (run, status, outcome, ends)
    _check_calls(store, events)
    for event in events:  # I4
        for digest in event.data.blobs():
            store.blobs.get(digest)
    assert used["calls"] == sum(event.kind == "step.ended" for event in events)  # I1
    _check_disk(store, root, events, made)
    live = store.dump()
    store.rebuild()
    assert store.dump() == live  # I8
    house.close()
    again = open_(data)
    with again.store.view() as view:
        assert len(view.events(limit=10_000)) == len(events), "recovery did something a second time"  # I7
    assert again.store.write(lambda tx: tx.next_seq) > max(seqs, default=0)
    again.close()


def _check_calls(store: Store, events: list[Any]) -> None:
    results = Counter(event.data.call for event in events if event.kind == "tool.ended")
    with store.view() as view:
        for message in sessions.messages(view, "session000000001"):
            for _, part in message.parts:
                if part.get("type") == "tool":
                    assert part["status"] in ("done", "error") and results[part["call"]] == 1, part  # I13
                elif part.get("type") == "text":
                    assert store.blobs.resolve(part)["text"] in ("do it", LONG_TEXT)


def _check_disk(store: Store, root: Path, events: list[Any], made: list[changes.Change]) -> None:
    """The disk holds what the log knows of each path, and nothing else (I5)."""
    at_first = {"edited.txt": OLD, "removed.txt": OLD, "linked.txt": OLD}
    known: dict[str, bytes | None] = dict(at_first)
    for change in made:
        known[change.path] = None if change.after_blob is None else store.blobs.get(change.after_blob)
    for path, content in known.items():
        now = (root / path).read_bytes() if (root / path).exists() else None
        assert now == content, f"{path} holds what the log does not know"
    captured = {event.data.path for event in events if event.kind == "change.captured"}
    assert (root / "mine.txt").read_bytes() == b"nobody touches this"
    assert (root / "linked.txt").samefile(root / "second-name.txt")
    for path in root.rglob("*"):
        if path.is_file() and path not in safefile.leftovers(path.parent):
            name = path.relative_to(root).as_posix()
            assert name in {*at_first, *captured, "mine.txt", "second-name.txt"}, name
