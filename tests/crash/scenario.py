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

import apsw

from stead.agent.workspace import CallContext
from stead.app import Stead
from stead.app.doctor import examine
from stead.core.clock import ManualClock
from stead.core.parts import NO_TOKENS
from stead.domain import (
    asks,
    attachments,
    changes,
    partials,
    people,
    permissions,
    projects,
    providers,
    queue,
    runs,
    sessions,
    settings,
    todos,
    usage,
)
from stead.store import Store, Tx, safefile

OLD, NEW = b"old content\n" * 300, b"new content, line by line\n" * 400
LONG_TEXT = "an answer with many words \u2028 \0 " * 600


PICTURE = b"\x89PNG\r\n\x1a\n" + LONG_TEXT.encode()
SESSION, WAITS = "session000000001", "session000000002"
PROMPTS = ("stays", "back", "next", "now")
LEFT = ("leftovers", "files")
"""Of the doctor's checks, what a killed process may leave for it to tidy up."""
DO_IT = {"type": "text", "text": "do it"}
KEY = "a-key-for-tests-that-opens-nothing"


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


Job = Callable[[Tx], Any]
Commit = Callable[[Job], Awaitable[Any]]
TERMS: dict[str, Any] = {"agent": "build", "model": "m/x", "max_steps": 9}


def play(data: Path, root: Path, acknowledged: int) -> None:
    """Everything once. What the store acknowledged is told to the descriptor `acknowledged` before the next step: the `seq` of an
    event, or `text N` for N characters of a text that still grows."""
    with_house = open_(data)
    try:
        asyncio.run(_play(with_house, root, lambda word: os.write(acknowledged, f"{word}\n".encode()) and None))
    finally:
        with_house.close()


async def _play(house: Stead, root: Path, told: Callable[[Any], Any]) -> None:
    store = house.store
    owner = house.owner()

    async def commit(job: Job) -> Any:
        def with_seq(tx: Tx) -> tuple[Any, int]:
            return job(tx), tx.next_seq - 1

        result, seq = await store.commit(with_seq)
        told(seq)
        return result

    def begin(tx: Tx) -> runs.Run:
        person = people.local_person(tx)
        project = projects.open_project(tx, projects.identify(root), id="project000000001", owner=person.id, instructions=[])
        sessions.create(tx, SESSION, project, title="A prompt", agent="build", model="m/x")
        return runs.start(tx, "run1", SESSION, [DO_IT], owner=owner, project=project, **TERMS)

    run: runs.Run = await commit(begin)
    await _text(store, run, commit, told)
    calls: list[Callable[[CallContext], Awaitable[None]]] = [
        lambda at: at.change(root / "edited.txt", NEW),
        lambda at: at.change(root / "deep" / "er" / "made.txt", large(1), mode=0o755),
        lambda at: at.change(root / "linked.txt", NEW[: len(OLD) // 2]),
        lambda at: at.change(root / "removed.txt", None),
    ]
    for n, work in enumerate(calls, 1):
        await _call(store, run, root, n, work, commit)
    await commit(lambda tx: todos.replace(tx, run.session, [("tidy up", "doing")], run.id))
    await _besides(house, run, commit)
    run = await _queue(run, owner, commit)
    await _step(run, 1, commit)
    await commit(lambda tx: runs.end(tx, run.id, "done", steps=1))
    await _later(run, owner, commit)


async def _text(store: Store, run: runs.Run, commit: Commit, told: Callable[[Any], Any]) -> None:
    """A text that grows before it is a part, with the model call under way."""
    call = {
        "purpose": "aborted",
        "project": run.project,
        "provider": "m",
        "model": "x",
        "tokens": NO_TOKENS,
        "cost": 0.1,
        "estimated": True,
    }
    pieces = [LONG_TEXT[:700], LONG_TEXT[700:1_500]]
    for chunk, text in enumerate(pieces):
        growth = partials.Growth(0, chunk, "text", sum(map(len, pieces[:chunk])), text)
        await store.commit(lambda tx, growth=growth: (partials.grow(tx, run, [growth]), partials.open_model_call(tx, run, call)))
        told(f"text {growth.start + len(text)}")
    packed = store.blobs.pack({"type": "text", "text": LONG_TEXT})
    await commit(
        lambda tx: (
            sessions.add_part(tx, run.session, run.message, 0, tx.unpack(packed), run=run.id),
            partials.close_answer(tx, run),
        )
    )


async def _step(run: runs.Run, n: int, commit: Commit) -> None:
    step = {"type": "step", "model": "x", "tokens": {**NO_TOKENS, "input": 7}, "cost": 0.5, "finish": "stop"}
    ended = sessions.StepEnded(message=run.message, n=n, part=step, project=run.project, provider="m")
    await commit(lambda tx: tx.append(run.session, ended, run=run.id))


async def _queue(run: runs.Run, owner: str, commit: Commit) -> runs.Run:
    """Prompts that wait, in every way in which one can leave the queue; one is said in the run at work, which it gives back."""
    terms = {**TERMS, "project": run.project}
    for prompt in PROMPTS:
        await commit(
            lambda tx, prompt=prompt: queue.add(tx, prompt, SESSION, [DO_IT], terms, owner=owner if prompt == "stays" else None)
        )
    await commit(lambda tx: queue.edit(tx, "next", [{"type": "text", "text": "do it"}]))
    await commit(lambda tx: queue.move(tx, "next", 1))
    await commit(lambda tx: queue.retract(tx, "back", by="person:local"))
    await commit(lambda tx: queue.send(tx, "now"))
    steered: runs.Run = await commit(lambda tx: queue.steer(tx, run))
    return steered


async def _later(run: runs.Run, owner: str, commit: Commit) -> None:
    """The next prompt begins and ends; a run of another session waits for a person and its process does not stay for that."""
    await commit(lambda tx: queue.begin(tx, queue.get(tx, "next"), owner))
    await commit(lambda tx: runs.end(tx, "next", "done", steps=0))

    def ask(tx: Tx) -> runs.Run:
        sessions.create(tx, WAITS, run.project, title="Waits", agent="build", model="m/x")
        made = runs.start(tx, "waits", WAITS, [DO_IT], owner=owner, project=run.project, **TERMS)
        part = {"type": "tool", "call": "w1", "tool": "ask", "arguments": "{}", "status": "pending"}
        sessions.add_part(tx, WAITS, made.message, 0, part, run=made.id)
        return made

    made: runs.Run = await commit(ask)
    about = {"question": "Which?", "options": ["a", "b"]}
    await commit(lambda tx: asks.open_ask(tx, "which", WAITS, made.id, kind="question", message=made.message, n=0, about=about))
    await commit(lambda tx: runs.wait(tx, made, "which"))


async def _besides(house: Stead, run: runs.Run, commit: Commit) -> None:
    """What lies beside the log: an attachment, the application's secret with a key that it sealed, a backup; and settings."""
    part = attachments.add(house.data / "attachments", "attachment000001", "picture.png", PICTURE)
    await commit(lambda tx: sessions.add_part(tx, run.session, run.message, 5, part, run=run.id))
    with house.store.view() as view:
        key = providers.seal_key(view, house.secrets, "acme", KEY)
    await commit(lambda tx: providers.save(tx, "acme", kind="openai", key=key))
    await commit(lambda tx: settings.change(tx, values={"mode": "full"}))
    assert house.store.database.backup(safefile.private_folder(house.data / "backups") / "before.db")


async def _call(
    store: Store,
    run: runs.Run,
    root: Path,
    n: int,
    work: Callable[[CallContext], Awaitable[None]],
    commit: Commit,
) -> None:
    name = f"call{n}"
    part = {"type": "tool", "call": name, "tool": "write", "arguments": "{}", "status": "pending"}
    await commit(lambda tx: sessions.add_part(tx, run.session, run.message, n, part, run=run.id))
    if n < 3:  # a person is asked: one ask is answered, one is withdrawn
        ask = f"ask{n}"
        about = {"tool": "write", "input": {}, "why": "no rule"}
        await commit(lambda tx: asks.open_ask(tx, ask, run.session, run.id, kind="approval", message=run.message, n=n, about=about))
        answer = {"allow": True}
        await commit(lambda tx: asks.answer(tx, ask, answer, by="person:local") if n == 1 else asks.close(tx, ask, "not needed"))
    decided = permissions.PermissionDecided(call=name, tool="write", action="allow", by="person:local", why="asked")
    started = sessions.ToolStarted(message=run.message, n=n, call=name)
    await commit(lambda tx: (tx.append(run.session, decided, run=run.id), tx.append(run.session, started, run=run.id)))

    seen = partials.ToolCall(n, "so far", None, store.clock.now())
    await store.commit(lambda tx: partials.open_tool_call(tx, run, seen))

    async def nobody(question: str, options: list[str] | None) -> str:
        raise AssertionError

    context = CallContext(
        store=store,
        commit=store.commit,
        run=run,
        root=root,
        call=name,
        environ={},
        data_dir=None,
        judged=None,
        denied=lambda path: False,
        show=lambda text: None,
        started=lambda process: None,
        question=nobody,
    )
    await work(context)
    end = sessions.ToolEnded(message=run.message, n=n, call=name, result={"status": "done", "output": "ok"})
    await commit(lambda tx: (tx.append(run.session, end, run=run.id), partials.close_tool_call(tx, run, n)))


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


def check(data: Path, root: Path, acknowledged: list[str]) -> None:
    """All invariants that a crash could break. `acknowledged` are the lines that `play` told."""
    house = open_(data)
    store = house.store
    with store.view() as view:
        events = view.events(limit=10_000)
        assert view.q("PRAGMA integrity_check") == [("ok",)]
        made = changes.listed(view, SESSION)
        assert changes.unsettled(view) == [], "a change of which nobody knows whether it happened"
        used = usage.report(view, ())["total"]
        assert providers.unreadable(view, house.secrets) == [], "a key was stored before the secret that opens it"
    seqs = [event.seq for event in events]
    assert seqs == sorted(set(seqs))  # I3
    assert {int(line) for line in acknowledged if line.isdigit()} <= set(seqs), "an acknowledged event is gone"  # I2
    _check_runs(store, events)
    _check_queue(store, events)
    _check_parts(store, events, max((int(line[5:]) for line in acknowledged if line.startswith("text")), default=0))
    for event in events:  # I4
        for digest in event.data.blobs():
            store.blobs.get(digest)
    calls = sum(event.kind in ("step.ended", "call.ended") for event in events)
    assert used["calls"] == calls, "the ledger does not hold what the log holds"  # I1
    _check_disk(store, root, events, made)
    _check_beside(house, events)
    live = store.dump()
    store.rebuild()
    assert store.dump() == live, "a rebuild gives other rows"  # I8
    house.close()
    again = open_(data)
    with again.store.view() as view:
        assert len(view.events(limit=10_000)) == len(events), "recovery did something a second time"  # I7
    assert again.store.write(lambda tx: tx.next_seq) > max(seqs, default=0)
    faults = [one for one in examine(again)["checks"] if not one["ok"] and one["name"] not in LEFT]
    assert faults == [], f"the doctor finds something: {faults}"
    again.close()


def _check_runs(store: Store, events: list[Any]) -> None:
    """Each run ended once, or waits for a person who can still answer (I6)."""
    ends = Counter(event.data.run for event in events if event.kind == "run.ended")
    with store.view() as view:
        for run, session, status, outcome in view.q("SELECT id, session, status, outcome FROM runs"):
            if status == "waiting":
                assert asks.resumable(view, session, run) is not None and not ends[run], "a run waits for nothing"
            else:
                assert status == "ended" and outcome in ("done", "interrupted") and ends[run] == 1, (run, status, outcome, ends)
        for ask in asks.open_asks(view):
            assert runs.get(view, ask.run).status == "waiting", "somebody is asked by a run that is over"
        if any(event.kind == "run.waiting" and event.data.run == "waits" for event in events):
            assert [ask.id for ask in asks.open_asks(view, WAITS)] == ["which"]
        for table in ("partials", "open_model_calls", "open_tool_calls"):
            left = view.q(f"SELECT count(*) FROM {table} WHERE run NOT IN (SELECT id FROM runs WHERE status='waiting')")
            assert left == [(0,)], f"{table} holds something of a run that is over"


def _check_queue(store: Store, events: list[Any]) -> None:
    """Every prompt that was queued begins once, or waits where a person finds it, is nobody's who is dead, and does not go on by
    itself after a crash."""
    begun = Counter(event.data.run for event in events if event.kind == "run.started")
    begun.update(event.data.queued for event in events if event.kind == "run.steered")
    taken = {event.data.prompt for event in events if event.kind == "prompt.retracted"}
    with store.view() as view:
        waiting = {one.id for one in queue.waiting(view)}
        for event in events:
            if event.kind == "prompt.queued":
                prompt = event.data.prompt
                assert (prompt in waiting) + begun[prompt] + (prompt in taken) == 1, f"prompt {prompt} is lost, or is there twice"
                assert queue.content(view, queue.get(view, prompt))[0] == [DO_IT]
                assert prompt not in waiting or queue.get(view, prompt).owner is None, "a prompt waits for a dead process"
        last = runs.last(view, SESSION)
        if last is not None and last.outcome == "interrupted":
            assert all(one.held for one in queue.waiting(view, SESSION)), "a prompt goes on by itself after a crash"


def _check_parts(store: Store, events: list[Any], shown: int) -> None:
    """Each call has its one result, each text is whole or a beginning that is marked as cut, and as long as it was kept."""
    results = Counter(event.data.call for event in events if event.kind == "tool.ended")
    with store.view() as view:
        found = [message for session in (SESSION, WAITS) for message in sessions.messages(view, session)]
        waiting = {run for (run,) in view.q("SELECT id FROM runs WHERE status='waiting'")}
    kept = 0
    for message in found:
        for _, part in message.parts:
            if part.get("type") == "tool" and message.run not in waiting:
                assert part["status"] in ("done", "error") and results[part["call"]] == 1, part  # I13
            elif part.get("type") == "text":
                text = store.blobs.resolve(part)["text"]
                assert text in ("do it", LONG_TEXT) or (part["cut"] and LONG_TEXT.startswith(text)), (
                    "a text is neither whole nor cut"
                )
                kept = max(kept, len(text) if text != "do it" else 0)
    assert kept >= shown, f"of {shown} characters that were kept {kept} are left"


def _check_beside(house: Stead, events: list[Any]) -> None:
    """Every attachment that a message names is there; what has the name of a backup is a whole one."""
    for event in events:
        if event.kind == "part.added" and event.data.part.get("type") == "file":
            assert attachments.load(house.data / "attachments", event.data.part["id"]) == PICTURE
    for path in (house.data / "backups").glob("*.db"):
        copy = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        assert copy.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert copy.execute("SELECT count(*) FROM events").fetchall()[0][0] > 0
        copy.close()


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
            assert name in {*at_first, *captured, "mine.txt", "second-name.txt"}, f"{name} holds what the log does not know"
