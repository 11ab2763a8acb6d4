"""A house with an event loop of its own, told what to do one word at a time: in this process, or in a child that can be killed."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from stead.agent import calls
from stead.agent.begin import prompt_parts
from stead.app import Stead, handle, watching, working
from stead.core.clock import SystemClock
from stead.core.errors import SteadError
from stead.domain import asks, queue, runs, sessions, settings
from stead.domain.people import LOCAL_ACTOR
from stead.store import faults
from tests.model import plans

PATIENCE_SECONDS = 8.0
_KEPT = "SELECT coalesce(sum(length(text)), 0) FROM partials WHERE run=?"
_AT_WORK = "SELECT count(*) FROM parts WHERE session=? AND started IS NOT NULL AND ended IS NULL"
POLL_SECONDS = 0.004


@dataclass(frozen=True)
class Place:
    """Where everything of one life lies. `url` None: on SQLite."""

    folder: Path
    url: str | None

    @property
    def root(self) -> Path:
        return self.folder / "project"


class Refused(Exception):
    """The house refused, with this code."""


class Died(Exception):
    """The process of this house was killed."""


class Jumping(SystemClock):
    """The machine's clock, put forward or back by `by` ms."""

    by = 0

    def now(self) -> int:
        return super().now() + self.by


class Inside:
    """The house itself. Every method that does not begin with `_` is a word it can be told; all run on its loop."""

    def __init__(self, place: Place, shift: int) -> None:
        self.place = place
        self.model = plans.Paced()
        self.clock = Jumping()
        self.clock.by = shift
        self.worker: asyncio.Task[None] | None = None
        environ = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
        about: dict[str, Any] = {"config_dir": place.folder / "config", "environ": environ, "clock": self.clock}
        self.at = Stead.open(place.folder / "data", database_url=place.url, models={"play": self.model}, **about)

    # --- what a person does ---------------------------------------------------------------------------------------------------

    async def prompt(self, session: str | None, text: str, policy: str) -> tuple[str, str]:
        run = await self.at.prompt(
            session,
            text,
            project=self.place.root if session is None else None,
            model="play/m",
            key=plans.token_of(text),
            rules=plans.rules_of(plans.kind_of(text)),
            on_ask="wait" if policy == "wait" else _never,
        )
        return run.id, run.session

    async def enqueue(self, session: str, text: str) -> str:
        rules = plans.rules_of(plans.kind_of(text))
        return await self.at.enqueue(session, text, model="play/m", key=plans.token_of(text), rules=rules, on_ask="wait")

    async def edit(self, prompt: str, text: str) -> None:
        packed = self.at.store.blobs.pack(prompt_parts(text))
        await self.at.store.commit(lambda tx: queue.edit(tx, prompt, tx.unpack(packed)), actor=LOCAL_ACTOR)

    async def move(self, prompt: str, place: int) -> None:
        await self.at.store.commit(lambda tx: queue.move(tx, prompt, place), actor=LOCAL_ACTOR)

    async def retract(self, prompt: str) -> None:
        await self.at.store.commit(lambda tx: queue.retract(tx, prompt, by=LOCAL_ACTOR), actor=LOCAL_ACTOR)

    async def send(self, prompt: str) -> None:
        await self.at.store.commit(lambda tx: queue.send(tx, prompt) and None, actor=LOCAL_ACTOR)

    async def begin(self, prompt: str) -> None:
        await self.at.begin(prompt, on_ask=_never)

    async def resume(self, session: str) -> None:
        await self.at.resume(session, on_ask=_never)

    async def answer(self, ask: str, value: dict[str, Any]) -> None:
        self.at.answer(ask, value)

    async def stop(self, session: str) -> bool:
        return await asyncio.to_thread(self.at.stop, session)

    async def abort(self, prompt: str) -> None:
        for one in self.at.running():
            if one.id == prompt:
                one.abort()

    async def change(self, session: str, values: dict[str, Any]) -> None:
        await self.at.store.commit(lambda tx: sessions.change(tx, session, **values), actor=LOCAL_ACTOR)

    async def set(self, values: dict[str, Any]) -> None:
        await self.at.store.commit(lambda tx: settings.change(tx, values=values) and None, actor=LOCAL_ACTOR)

    async def delete(self, session: str) -> None:
        await asyncio.to_thread(self.at.delete, session)

    async def work(self, begins: bool) -> None:
        if begins:
            self.worker = asyncio.create_task(self.at.work(most=99))
        elif self.worker is not None:
            self.worker.cancel()

    async def recover(self) -> None:
        await asyncio.to_thread(self.at.recover)

    # --- what a test does -----------------------------------------------------------------------------------------------------

    async def let(self, token: str, gates: int) -> None:
        self.model.let(token, gates)

    async def jump(self, ms: int) -> None:
        self.clock.by += ms

    async def arm(self, name: str, count: int) -> None:
        faults.arm(name, count=count)

    async def owner(self) -> str | None:
        return self.at.life.id

    async def rebuilt(self) -> dict[str, Any]:
        """The rows that a rebuild took away and brought, by table."""
        return await asyncio.to_thread(self._rebuilt)

    def _rebuilt(self) -> dict[str, Any]:
        live = self.at.store.dump()
        self.at.store.rebuild()
        now = self.at.store.dump()
        return {
            table: (set(live[table]) - set(now[table]), set(now[table]) - set(live[table]))
            for table in live
            if live[table] != now[table]
        }

    async def stands(self) -> dict[str, Any]:
        """Where this house's runs stand still (run: stop, gates passed, gates it may still pass; `going` where it does not), which
        prompts wait here for their turn, and whether a worker is at work."""
        found, waits = {}, []
        with self.at.store.view() as view:
            for one in self.at.running():
                if one.run is None:
                    waits.append(one.id)
                    continue
                run = runs.get(view, one.run.id)
                found[run.id] = self._stop(view, run)
        return {"runs": found, "waits": sorted(waits), "works": self.worker is not None and not self.worker.done()}

    def _stop(self, view: Any, run: runs.Run) -> tuple[str, int, int]:
        text = sessions.message(view, run.session, run.prompt).parts[0][1]["text"]
        token = plans.token_of(text)
        passed, left = self.model.passed.get(token, 0), self.model.left(text)
        stop = "going"
        if run.status != "running" or runs.abort_requested(view, run.id):
            pass
        elif token in self.model.at:
            stop = self.model.at[token]
            if stop == "middle" and view.q(_KEPT, run.id)[0][0] < plans.TEXT_AT_MIDDLE:
                stop = "going"  # what is on the screen is about to be kept
        elif any(ask.run == run.id for ask in asks.open_asks(view, run.session, trashed=True)):
            stop = "ask"
        elif plans.kind_of(text) == "hang" and view.q(_AT_WORK, run.session) != [(0,)]:
            ran = self.place.root / plans.RAN
            stop = "hang" if ran.exists() and token in ran.read_text().split() else "going"
        return stop, passed, left

    async def shown(self, after: int) -> dict[str, Any]:
        """What the house shows, and the events behind `after`."""
        from tests.model.looking import look

        return await asyncio.to_thread(look, self.at.store, after)

    # --- the end --------------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        if self.worker is not None:
            self.worker.cancel()
        await self.at.__aexit__()

    async def crash(self) -> None:
        """What SIGKILL leaves: the store as it is, the lock file without its lock. Nothing is written from here on."""
        self.at.store.close()
        self.at.life.end()
        self.at.life.release(forget=False)
        if self.worker is not None:
            self.worker.cancel()
        for run in self.at.running():
            run.abort()
        for run in self.at.running():
            if run._task is not None:
                await asyncio.wait([run._task])
                if not run._task.cancelled():
                    run._task.exception()
        self.at.close_trees()


async def _never(ask: Any) -> None:
    """The person sits there and says nothing; who answers does it elsewhere."""
    await asyncio.Event().wait()


def impatient() -> None:
    """Look more often than the house does by itself: a test need not wait for its turns."""
    for module in (handle, watching, calls, working):
        module.POLL_SECONDS = POLL_SECONDS  # type: ignore[attr-defined]


class Local:
    """A house in this process, on a thread and a loop of its own."""

    def __init__(self, place: Place, shift: int = 0) -> None:
        impatient()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(_heard)
        self._thread = threading.Thread(target=self._loop.run_forever, name="stead-test-home")
        self._thread.start()

        async def made() -> Inside:
            return Inside(place, shift)

        try:
            self._inside = self._run(made())
        except BaseException:
            self._end()
            raise

    def _run(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def tell(self, word: str, *given: Any) -> Any:
        """Have the house do this. Raises `Refused`."""
        try:
            return self._run(getattr(self._inside, word)(*given))
        except SteadError as error:
            raise Refused(error.code, str(error)) from None

    def crash(self) -> None:
        """Drop everything, as a kill does."""
        self.tell("crash")
        self._end()

    def close(self) -> None:
        """Leave in order."""
        self.tell("close")
        self._end()

    def _end(self) -> None:
        self._run(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end_tasks() -> None:
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_default_executor()


def _heard(loop: asyncio.AbstractEventLoop, about: dict[str, Any]) -> None:
    """Tasks of a session that was deleted, or of a house that crashed, end with an error that nobody waits for."""
    logging.getLogger("tests.model").debug("%s", about)


class Remote:
    """A house in a child process: it dies of a real SIGKILL."""

    def __init__(self, place: Place, shift: int = 0) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._pipe = ours
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ours.close()
                _serve(theirs, lambda: Local(place, shift))
            finally:
                os._exit(0)
        theirs.close()
        self._alive = True
        self._heard()

    def tell(self, word: str, *given: Any) -> Any:
        try:
            self._pipe.send((word, given))
        except OSError:
            self._died()
        return self._heard()

    def _heard(self) -> Any:
        try:
            if not self._pipe.poll(60):
                raise AssertionError("the house does not answer")
            kind, value = self._pipe.recv()
        except (EOFError, OSError):
            self._died()
        if kind == "refused":
            raise Refused(*value)
        assert kind == "done", value
        return value

    def _died(self) -> None:
        self._gone()
        raise Died

    def _gone(self) -> None:
        if self._alive:
            self._alive = False
            self._pipe.close()
            os.waitpid(self.pid, 0)

    def crash(self) -> None:
        if self._alive:
            os.kill(self.pid, signal.SIGKILL)
        self._gone()

    def close(self) -> None:
        self.tell("close")
        self._gone()


def _serve(pipe: Connection, make: Callable[[], Local]) -> None:
    import traceback

    try:
        home = make()
        pipe.send(("done", None))
        while True:
            word, given = pipe.recv()
            try:
                pipe.send(("done", home.close() if word == "close" else home.tell(word, *given)))
            except Refused as refused:
                pipe.send(("refused", refused.args))
            if word == "close":
                return
    except EOFError:
        return
    except BaseException:
        pipe.send(("failed", traceback.format_exc()))
