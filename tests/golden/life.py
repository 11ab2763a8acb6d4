"""What the golden folder records: every noun in every state that a reader can meet, made with a fixed clock and fixed ids."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stead.app import Stead
from stead.core.clock import ManualClock
from stead.core.ids import CountingIds
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
from stead.domain.projects import Identity
from stead.store import Tx
from stead.store.lock import ProcessLock

KEY = "a-key-for-tests-that-opens-nothing"
STRANGE = (
    "NUL \0, half a pair \ud83d, line \u2028, right to left \u202e, family 👨‍👩‍👧, combining e\u0301,"
    " tag \x1b[31m, \\u0000 \\\\u0000"
)
LONG = "A long answer, with ünïcödé and \U0001f332. " * 240  # moved into a blob
GARDEN = Identity("/golden/garden", False, "~/garden", "1", "11")
ATTIC = Identity("/golden/%FFattic", True, "/golden/\udcffattic", "1", "12")

MAIN, PLAN, WAITS, OLD, GONE, CHILD, CUT, EMPTY, BUSY = (f"golden{n:010}" for n in range(1, 10))
SESSIONS = (MAIN, PLAN, WAITS, OLD, CHILD, EMPTY, BUSY)
IN_FLIGHT = (CUT,)
FILES = ("picture00000001", "notes0000000001")


def content(name: str, size: int) -> bytes:
    """Bytes that do not compress."""
    return b"".join(hashlib.sha256(f"{name}.{n}".encode()).digest() for n in range(size // 32))


class Life:
    """A house being lived in. `runs` are those that ended or wait."""

    def __init__(self, house: Stead, clock: ManualClock) -> None:
        self.house, self.store, self.clock = house, house.store, clock
        self.owner = house.owner()
        self.runs: list[str] = []

    def do(self, job: Callable[[Tx], Any], by: str = people.LOCAL_ACTOR) -> Any:
        self.clock.advance(1_111)
        return self.store.write(job, actor=by)

    # --- words ---

    def begin(self, session: str, text: Any, project: str, *, owner: str | None = None, key: str | None = None) -> runs.Run:
        parts = [self.store.blobs.pack(part) for part in (text if isinstance(text, list) else [{"type": "text", "text": text}])]
        run = f"run{len(self.runs) + 1:013}" if owner is None else "runinflight00001"
        about: dict[str, Any] = {"agent": "build", "model": "acme/large", "owner": owner or self.owner, "project": project}

        def job(tx: Tx) -> runs.Run:
            given = [tx.unpack(part) for part in parts]
            return runs.start(tx, run, session, given, max_steps=9, author=people.LOCAL, key=key, **about)

        if owner is None:
            self.runs.append(run)
        return self.do(job)

    def say(self, run: runs.Run, part: Any) -> int:
        packed = self.store.blobs.pack(part)

        def job(tx: Tx) -> int:
            n = sessions.next_part(tx, run.session, run.message)
            sessions.add_part(tx, run.session, run.message, n, tx.unpack(packed), run=run.id)
            return n

        return self.do(job, by="agent:build")

    def call(self, run: runs.Run, call: str, tool: str, arguments: str, result: Any = None, *, started: bool = True) -> int:
        part = {"type": "tool", "call": call, "tool": tool, "arguments": arguments, "status": "pending"}
        n = self.say(run, part)
        if started:
            self.do(lambda tx: tx.append(run.session, sessions.ToolStarted(message=run.message, n=n, call=call), run=run.id))
        if result is not None:
            packed = self.store.blobs.pack(result)
            self.do(lambda tx: tx.append(run.session, self._end(run, n, call, tx.unpack(packed)), run=run.id))
        return n

    def _end(self, run: runs.Run, n: int, call: str, result: Any) -> sessions.ToolEnded:
        return sessions.ToolEnded(message=run.message, n=n, call=call, result=result)

    def step(self, run: runs.Run, cost: float | None, **more: Any) -> None:
        tokens = {**NO_TOKENS, "input": 1200, "cache_read": 300, "output": 77, "reasoning": 5}
        part = {"type": "step", "model": "large-2026", "tokens": tokens, "cost": cost, "finish": "stop", **more}

        def job(tx: Tx) -> None:
            n = sessions.next_part(tx, run.session, run.message)
            fact = sessions.StepEnded(message=run.message, n=n, part=part, project=run.project, provider="acme", model="large")
            tx.append(run.session, fact, run=run.id)

        self.do(job)

    def failed(self, run: runs.Run, purpose: Any, **more: Any) -> None:
        about: dict[str, Any] = {"tokens": {**NO_TOKENS, "input": 9}, "cost": None, "estimated": True, **more}
        fact = sessions.CallEnded(purpose=purpose, project=run.project, provider="acme", model="large", **about)
        self.do(lambda tx: tx.append(run.session, fact, run=run.id))

    def changed(
        self, run: runs.Run, call: str, path: str, old: bytes | None, new: bytes | None, end: Any = "applied", **more: Any
    ) -> None:
        blobs = [None if one is None else self.store.blobs.prepare(one) for one in (old, new)]

        def state(n: int) -> Any:
            made = blobs[n]
            if made is None:
                return {"kind": "absent"}
            return {"kind": "file", "mode": 0o644, "size": made.size, "blob": made.hash}

        def capture(tx: Tx) -> int:
            for one in blobs:
                if one is not None:
                    tx.put(one)
            fact = changes.ChangeCaptured(call=call, message=run.message, path=path, before=state(0), after=state(1), **more)
            return tx.append(run.session, fact, run=run.id).seq

        seq = self.do(capture)
        if end == "applied":
            lines = [0 if one is None else one.count(b"\n") for one in (new, old)]
            done = changes.ChangeApplied(
                captured=seq, additions=lines[0], deletions=lines[1], mode=0o644 if new is not None else None
            )
            self.do(lambda tx: tx.append(run.session, done, run=run.id))
        elif end is not None:
            self.do(lambda tx: tx.append(run.session, changes.ChangeFailed(captured=seq, reason=end), run=run.id))

    def end(self, run: runs.Run, outcome: runs.Outcome, error: dict[str, Any] | None = None) -> None:
        self.do(lambda tx: runs.end(tx, run.id, outcome, steps=1, error=error))


def live(house: Stead, clock: ManualClock) -> Life:
    """Everything, in order. One run is left running by a process that is dead; the caller dies as well."""
    life = Life(house, clock)
    garden, attic = _places(life)
    _providers_and_settings(life, garden)
    _main(life, garden)
    _plan(life, garden)
    _waiting(life, attic)
    _others(life, garden, attic)
    _queue(life, garden)
    _in_flight(life, garden)
    return life


def _places(life: Life) -> tuple[str, str]:
    note = {"path": "AGENTS.md", "size": 12, "hash": "0" * 64}

    def job(tx: Tx) -> tuple[str, str]:
        people.local_person(tx, name="Ada Ünïcode", login="ada")
        people.add(tx, id="person00000000002", name="Bob", login="bob", by=people.LOCAL)
        garden = projects.open_project(tx, GARDEN, id="garden0000000001", owner=people.LOCAL, instructions=[note])
        attic = projects.open_project(tx, ATTIC, id="attic00000000001", owner=people.LOCAL, instructions=[])
        third = projects.open_project(
            tx, Identity("/golden/old", False, "/golden/old", "1", "13"), id="old0000000000001", instructions=[]
        )
        projects.rename(tx, attic, "The attic")
        projects.relink(tx, attic, Identity("/golden/loft", False, "/golden/loft", "1", "12"))
        projects.relink(tx, garden, Identity("/golden/old", False, "/golden/old", "1", "13"), join=True)
        projects.relink(tx, garden, GARDEN)
        assert projects.get(tx, third).id == garden
        return garden, attic

    made = life.do(job)
    life.do(lambda tx: people.set_password(tx, "person00000000002", people._NOBODY))
    return made


def _providers_and_settings(life: Life, garden: str) -> None:
    with life.store.view() as view:
        key = providers.seal_key(view, life.house.secrets, "acme", KEY)
    life.do(
        lambda tx: providers.save(tx, "acme", kind="openai", url="https://models.example/v1", models=["large", "small"], key=key)
    )
    life.do(lambda tx: providers.save(tx, "near", kind="ollama", models=["tiny"]))
    life.do(lambda tx: providers.save(tx, "named", kind="anthropic", key_env="GOLDEN_KEY", disabled=True))
    life.do(lambda tx: (providers.save(tx, "gone", kind="ollama"), providers.remove(tx, "gone")))
    life.do(lambda tx: providers.see_models(tx, "acme", {"large": {"context": 200_000, "tools": True}, "small": {"free": True}}))
    values = {"model": "acme/large", "max_cost": 2.5, "language": "de", "context_window.near/tiny": 4096}
    life.do(lambda tx: settings.change(tx, values=values))
    life.do(lambda tx: settings.change(tx, removed=["language"]))
    life.do(lambda tx: settings.change(tx, layer="project", id=garden, values={"mode": "full", "timezone": "Europe/Vienna"}))


def _main(life: Life, garden: str) -> None:
    """Every part type, every status of a call, changes of every kind."""
    folder = life.house.data / "attachments"
    files = [attachments.add(folder, FILES[0], "bild „1“.png", b"\x89PNG\r\n\x1a\n" + content("png", 2_000))]
    files.append(attachments.add(folder, FILES[1], "notes.txt", b"a few notes\n"))
    life.do(lambda tx: sessions.create(tx, MAIN, garden, title="Grow " + STRANGE, agent="build", model="acme/large", max_steps=7))
    run = life.begin(MAIN, [{"type": "text", "text": "Make it grow. " + STRANGE}, *files], garden, key="once")
    life.say(run, {"type": "reasoning", "text": "Think.", "meta": {"family": "anthropic", "signature": "c2ln"}})
    life.say(run, {"type": "reasoning", "text": "", "meta": {"family": "anthropic", "redacted": "eHl6"}})
    life.say(run, {"type": "text", "text": LONG})
    done = {"status": "done", "output": STRANGE + "\n" + LONG, "duration_ms": 42}
    life.call(run, "c1", "read", '{"path": "seed.txt", "n": 1e400, "a": 1, "a": 2}', done)
    life.call(run, "c2", "bash", '{"command": "rm -rf /"}', {"status": "denied", "error": "Not allowed."}, started=False)
    decided = permissions.PermissionDecided(
        call="c2", tool="bash", action="deny", by="rule", why="deny bash(rm *)", rule="bash(rm *)"
    )
    life.do(lambda tx: tx.append(MAIN, decided, run=run.id))
    life.call(run, "c3", "write", "{broken", {"status": "error", "error": "The arguments are not valid JSON."}, started=False)
    kept = life.store.blobs.prepare(content("plot", 9_000))
    life.do(lambda tx: tx.put(kept))
    plot = {
        "type": "file",
        "name": "plot.bin",
        "mime": "application/octet-stream",
        "kind": "other",
        "size": kept.size,
        "blob": kept.hash,
    }
    life.call(run, "c4", "bash", '{"command": "plot"}', {"status": "done", "output": "", "files": [plot], "cut": True})
    life.changed(run, "c5", "beds/rose.txt", None, b"rose\n" * 20, folders=("beds",))
    life.changed(run, "c5", "linked.txt", b"one\ntwo\n", b"one\nTWO\nthree\n", in_place=True)
    life.changed(run, "c5", "weeds.bin", content("weeds", 72_000), None)
    life.changed(run, "c5", "%FFodd", b"", b"\0\xff not text", encoded=True)
    life.changed(run, "c5", "locked.txt", b"old\n", b"new\n", end="There is no space to write locked.txt.")
    life.call(run, "c5", "edit", "{}", {"status": "done", "output": "5 files"})
    life.say(run, {"type": "patch", "files": [{"path": "beds/rose.txt", "additions": 20, "deletions": 0}]})
    life.say(run, {"type": "knowledge", "pages": [{"title": "Roses", "url": "https://example.org/roses"}]})
    life.step(run, 0.0123456789, stop_sequence="END")
    life.say(run, {"type": "text", "text": "an attempt that failed"})
    n = 20

    def retract(tx: Tx) -> None:
        at = sessions.next_part(tx, MAIN, run.message) - 1
        tx.append(MAIN, sessions.StepRetracted(message=run.message, n=at, reason="provider_failed"), run=run.id)

    life.do(retract)
    life.failed(run, "failed", code="rate_limited")
    life.say(run, {"type": "notice", "code": "limit", "text": "That is enough."})
    life.say(run, {"type": "hologram", "depth": n, "of": {"$blob": "not a reference", "deep": [1, None, True, 1.5]}})
    life.end(run, "done")
    life.do(lambda tx: sessions.change(tx, MAIN, pinned=True))
    second = life.begin(MAIN, LONG, garden)
    life.say(second, {"type": "compaction", "removed": 2, "summary": "They made it grow."})
    life.say(second, {"type": "text", "text": "half an ans", "cut": True})
    life.failed(second, "aborted", cost=0.001, estimated=False)
    life.do(lambda tx: runs.request_abort(tx, second.id, by=people.LOCAL_ACTOR))
    life.end(second, "aborted")
    life.do(lambda tx: settings.change(tx, layer="session", id=MAIN, values={"max_steps": 3}))


def _plan(life: Life, garden: str) -> None:
    life.do(lambda tx: sessions.create(tx, PLAN, garden, title="Plan", agent="build", model=None))
    life.do(lambda tx: sessions.create(tx, CHILD, garden, title="A child", agent="look", model=None, parent=PLAN, parent_call="c1"))
    run = life.begin(PLAN, "plan it", garden)
    life.do(lambda tx: todos.replace(tx, PLAN, [("dig", "done"), ("water " + STRANGE, "doing")], run.id))
    life.do(lambda tx: todos.replace(tx, PLAN, [("water " + STRANGE, "done"), ("rest", "pending"), ("burn", "dropped")], run.id))
    n = life.call(run, "a1", "ask", '{"question": "Which?"}')
    about = {"question": "Which? " + STRANGE, "options": ["red", "white"], "long": LONG}
    packed = life.store.blobs.pack(about)
    life.do(
        lambda tx: asks.open_ask(
            tx, "ask0000000000001", PLAN, run.id, kind="question", message=run.message, n=n, about=tx.unpack(packed)
        )
    )
    life.do(lambda tx: asks.answer(tx, "ask0000000000001", {"text": "red"}, by=people.LOCAL_ACTOR))
    life.do(lambda tx: tx.append(PLAN, life._end(run, n, "a1", {"status": "done", "output": "red"}), run=run.id))
    life.step(run, None, estimated=True)
    life.end(run, "error", {"code": "provider_failed", "message": "The model said no."})
    life.failed(run, "title", cost=0.0002)


def _waiting(life: Life, attic: str) -> None:
    life.do(lambda tx: sessions.create(tx, WAITS, attic, title="Waits", agent="build", model="acme/large"))
    run = life.begin(WAITS, "may I?", attic)
    for number, state in ((2, "closed"), (3, "open")):
        n = life.call(run, f"w{number}", "bash", '{"command": "ls"}', started=False)
        about = {"tool": "bash", "input": {"command": "ls"}, "why": "no rule", "rules": ["bash(ls *)"]}
        ask = f"ask{number:013}"
        life.do(lambda tx, ask=ask, n=n, about=about: _open(tx, ask, run, n, about))  # type: ignore[misc]
        if state == "closed":
            life.do(lambda tx, ask=ask: asks.close(tx, ask, "The call went away"))  # type: ignore[misc]
            life.do(lambda tx, n=n: tx.append(WAITS, life._end(run, n, "w2", {"status": "denied", "error": "no"}), run=run.id))
    life.do(lambda tx: tx.append(WAITS, runs.RunWaiting(run=run.id, ask="ask0000000000003"), run=run.id))


def _open(tx: Tx, ask: str, run: runs.Run, n: int, about: Any) -> None:
    asks.open_ask(tx, ask, run.session, run.id, kind="approval", message=run.message, n=n, about=about)


def _others(life: Life, garden: str, attic: str) -> None:
    life.do(lambda tx: sessions.create(tx, OLD, attic, title="Old", agent="build", model=None))
    for n in range(4):
        life.clock.advance(86_400_000)
        run = life.begin(OLD, f"day {n}", attic)
        life.say(run, {"type": "text", "text": f"done {n}"})
        life.step(run, 0.1)
        life.end(run, "limit" if n == 3 else "done", {"code": "step_limit", "message": "9 steps"} if n == 3 else None)
    life.do(lambda tx: sessions.change(tx, OLD, archived=True))
    life.do(lambda tx: sessions.create(tx, EMPTY, garden, title="", agent="build", model=None))
    life.do(lambda tx: sessions.change(tx, EMPTY, trashed=True, title="In the bin"))
    life.do(lambda tx: sessions.create(tx, GONE, garden, title="Gone", agent="build", model=None))
    run = life.begin(GONE, "forget me", garden)
    life.step(run, 1.25)
    life.end(run, "done")
    life.runs.remove(run.id)

    def forget(tx: Tx) -> None:
        kept = usage.sums_of(tx, GONE)
        tx.append("system", sessions.SessionDeleted(session=GONE, usage=kept))
        tx.forget_stream(GONE)

    life.do(forget)


def _queue(life: Life, garden: str) -> None:
    """Behind a run that waits for a person: prompts that wait, are held, were taken back, and one that was said in the run."""
    life.do(lambda tx: sessions.create(tx, BUSY, garden, title="Busy", agent="build", model="acme/large"))
    run = life.begin(BUSY, "first", garden)
    life.say(run, {"type": "text", "text": "so far"})
    terms = {"agent": "build", "model": "acme/large", "project": garden, "max_steps": 9, "rules": []}
    for prompt in ("waits", "held", "back", "now"):
        packed = life.store.blobs.pack([{"type": "text", "text": f"{prompt} {STRANGE}"}])
        life.do(lambda tx, prompt=prompt, packed=packed: _wait(tx, prompt, tx.unpack(packed), terms))  # type: ignore[misc]
    life.do(lambda tx: queue.edit(tx, "queuedwaits00001", [{"type": "text", "text": "waits, said better"}]))
    life.do(lambda tx: queue.move(tx, "queuedwaits00001", 2))
    life.do(lambda tx: queue.hold(tx, queue.get(tx, "queuedheld000001"), "The run before it was interrupted."))
    life.do(lambda tx: queue.retract(tx, "queuedback000001", by=people.LOCAL_ACTOR))
    life.do(lambda tx: queue.send(tx, "queuednow0000001"))
    steered: runs.Run = life.do(lambda tx: queue.steer(tx, run))
    n = life.call(steered, "b1", "ask", '{"question": "Go on?"}')
    about = {"question": "Go on?", "options": []}
    life.do(
        lambda tx: asks.open_ask(tx, "ask0000000000004", BUSY, run.id, kind="question", message=steered.message, n=n, about=about)
    )
    life.do(lambda tx: runs.wait(tx, steered, "ask0000000000004"))


def _wait(tx: Tx, prompt: str, parts: Any, terms: dict[str, Any]) -> None:
    queue.add(tx, f"queued{prompt}".ljust(15, "0") + "1", BUSY, parts, terms, owner=None, author=people.LOCAL)


def _in_flight(life: Life, garden: str) -> None:
    """A run in the middle of everything, of a process that is dead: its lock file is still there."""
    dead = ProcessLock(life.house.data / "locks", "deadowner0000001", {"started": "2023-11-14T22:13:20.000Z", "version": "0.1.0"})
    life.do(lambda tx: sessions.create(tx, CUT, garden, title="Cut off", agent="build", model="acme/large"))
    run = life.begin(CUT, "go on", garden, owner="deadowner0000001")
    life.say(run, {"type": "text", "text": LONG})
    life.call(run, "f1", "read", "{}", {"status": "done", "output": "fine"})
    life.call(run, "f2", "bash", '{"command": "make"}')
    life.call(run, "f3", "bash", '{"command": "make test"}', started=False)
    life.changed(run, "f4", "made.txt", None, b"made\n", end=None)
    life.changed(run, "f4", "torn.txt", b"old\n" * 500, b"new\n" * 500, end=None, in_place=True)
    growing = [partials.Growth(7, 0, "text", 0, "text on the scr"), partials.Growth(7, 1, "text", 15, "een " + STRANGE)]
    life.do(lambda tx: partials.grow(tx, run, growing))
    dead.release(forget=False)


def opened(data: Path, clock: ManualClock | None = None) -> Stead:
    """The house in the folder, as the recorder makes it and the tests open it."""
    later = ManualClock(1_800_000_000_000)
    return Stead.open(data, config_dir=data.parent / "config", environ={}, clock=clock or later, ids=CountingIds())
