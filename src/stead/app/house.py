"""The house: opens the store, closes what dead processes left, starts runs, and tells what happens. Wiring, and nothing else.

Importing this module is cheap; the agent and its libraries are imported when a run starts.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.app.features import FEATURES
from stead.app.life import LEASE_MS, Life
from stead.app.recovery import end_unowned, recover
from stead.app.retention import at_start
from stead.app.tidy import Tidy
from stead.config.places import config_folder, data_folder
from stead.core.clock import Clock, SystemClock
from stead.core.events import Event
from stead.core.ids import Ids, RandomIds
from stead.domain import owners, queue, rewinds, runs, settings
from stead.domain.people import LOCAL_ACTOR
from stead.store.store import Store, open_store

if TYPE_CHECKING:
    from stead.agent.calls import Asker
    from stead.agent.closing import Fate
    from stead.agent.connect import Connection
    from stead.agent.frames import Frame
    from stead.agent.gate import Rule
    from stead.agent.models.base import Model
    from stead.agent.tree import Tree
    from stead.app.handle import RunHandle
    from stead.app.starting import Wish
    from stead.app.undo import Plan, Result
    from stead.config.layers import UserFile
    from stead.config.secrets import Secrets
    from stead.domain import asks
    from stead.store.log import Tx


class Stead:
    """An open house. Use it as `async with Stead.open() as house:`, or call `close()`. Methods may be called from one thread."""

    def __init__(
        self, store: Store, data: Path, config: Path, environ: Mapping[str, str], models: Mapping[str, Model], lease_ms: int
    ) -> None:
        self.store = store
        self.data = data
        self.config = config
        self.environ = environ
        self.models = models
        self.life = Life(store, data / "locks", lease_ms)
        self._secrets: Secrets | None = None
        self._frames: list[Callable[[Frame], None]] = []
        self._running: dict[str, RunHandle] = {}
        self.undoing: set[str] = set()
        """The rewinds that are carried out here at this moment."""
        self._tidy = Tidy(self)
        self._trees: dict[Path, Tree] = {}
        self._unwatched = False

    @classmethod
    def open(
        cls,
        data_dir: str | Path | None = None,
        *,
        config_dir: str | Path | None = None,
        database_url: str | None = None,
        clock: Clock | None = None,
        ids: Ids | None = None,
        models: Mapping[str, Model] | None = None,
        environ: Mapping[str, str] | None = None,
        lease_ms: int = LEASE_MS,
        progress: Callable[[int, int], None] | None = None,
    ) -> Stead:
        """Open the house in `data_dir` (default: the person's own), or on the PostgreSQL database at `database_url`.

        `models` are ready-made models by provider name. Runs that a dead process left open are closed first. On PostgreSQL a
        process that works gives a sign of life four times in `lease_ms`, and is taken for dead after that time without one.
        `progress(at, total)` is told while tables are filled anew, which a new version of stead may need once.
        Raises `store_newer`, `store_damaged`, `store_busy`, `read_only`, `disk_full`.
        """
        around = os.environ if environ is None else environ
        data = Path(data_dir) if data_dir is not None else data_folder(around)
        config = Path(config_dir) if config_dir is not None else config_folder(around)
        made = {"clock": clock or SystemClock(), "ids": ids or RandomIds(), "progress": progress}
        store = open_store(database_url or data, FEATURES, folder=data if database_url else None, **made)  # type: ignore[arg-type]
        house = cls(store, data, config, environ=around, models=models or {}, lease_ms=lease_ms)
        try:
            house.recover()
            at_start(house)
        except BaseException:
            house.close()
            raise
        return house

    async def __aenter__(self) -> Stead:
        return self

    async def __aexit__(self, *_: object) -> None:
        import asyncio

        try:
            for handle in self.running():
                handle.leave()
            for handle in self.running():
                await handle.ended()
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the store and give the process's lock back. Idempotent. A run that is left open is closed by whoever opens next."""
        self.life.end()
        self.close_trees()
        owner = self.life.id
        left = owner is not None and self._left_open(owner)
        self.store.close()
        self.life.release(forget=not left)

    def _left_open(self, owner: str) -> bool:
        try:
            with self.store.view() as view:
                waiting = owner in queue.owners(view)
            if waiting:  # others may begin what waited here
                self.store.write(lambda tx: queue.leave(tx, owner))
            with self.store.view() as view:
                left = runs.owned(view, owner) or owner in rewinds.owners(view)
            if not left and self.store.database.shared:
                self.store.write(lambda tx: owners.forget(tx, owner))
            return left
        except Exception:  # a store that cannot be read may hold some
            return True

    def suspect(self) -> None:
        """Something of this process may be stored of which nobody in it knows: it is looked for, and closed, within seconds."""
        self._tidy.suspect()

    def unended(self, run: runs.Run, fate: Fate | None) -> None:
        """Nobody works on a run of this process any more, and its end could not be stored: that is done as soon as it can be, by
        this process or by whoever opens the store after it."""
        self._tidy.unended(run, fate)

    def recover(self) -> None:
        """Close what dead processes left open. Idempotent; `open` has done it once. From a coroutine, call it in a thread."""
        recover(self.store, self.life)

    # --- running --------------------------------------------------------------------------------------------------------------

    async def prompt(
        self,
        session: str | None,
        parts: str | Sequence[Any],
        *,
        project: str | Path | None = None,
        agent: str | None = None,
        model: str | None = None,
        key: str | None = None,
        max_steps: int | None = None,
        max_cost: float | None = None,
        rules: Sequence[Rule] = (),
        on_ask: Asker = "deny",
    ) -> RunHandle:
        """Send a prompt and give its run once `run.started` is durable. `session` None begins one in the folder `project`.

        While the session has a run that has not ended, or prompts that wait, the prompt is queued behind them (`prompt.queued` is
        durable then) and begins in its turn, as long as this process lives; `RunHandle.run` is None meanwhile.
        `parts` is text or a list of parts; `key` makes the call idempotent within the session. `max_cost` is dollars.
        Raises before anything is stored: `project_missing`, `not_found`, `no_key`, `usage`, `script_invalid`.
        """
        import asyncio

        from stead.app.starting import Wish

        wish = Wish(session, project, agent, model, key, max_steps, max_cost, rules, on_ask)
        # A caller who goes away does not leave behind a stored prompt that nobody works on.
        return await asyncio.shield(self._prompt(wish, parts))

    async def enqueue(self, session: str | None, parts: str | Sequence[Any], **wish: Any) -> str:
        """Store a prompt for whichever process works for the store (`work`), and give the id of the run that it will be.

        Arguments as for `prompt`, whose checks are made now; durable when it returns. It needs no process to stay.
        """
        import asyncio

        from stead.app.starting import Wish

        return (await asyncio.shield(self._prompt(Wish.of(session, here=False, **wish), parts))).id

    async def _prompt(self, wish: Wish, parts: str | Sequence[Any]) -> RunHandle:
        import asyncio

        from stead.agent.begin import prompt_parts
        from stead.app.handle import RunHandle
        from stead.app.starting import granted, plan

        given = prompt_parts(parts)
        start, connection = plan(self, wish)
        packed = await asyncio.to_thread(self.store.blobs.pack, given)
        await self._free(wish.session)
        begun = await self._commit(lambda tx: start.job(tx, packed))
        if not begun.fresh or not wish.here:
            return self._running.get(begun.id) or RunHandle(self, begun.id, begun.session, begun.run)
        handle = RunHandle(self, begun.id, begun.session, begun.run, wish.on_ask, granted(wish.rules))
        return self._take(handle, connection)

    async def _commit(self, job: Callable[[Tx], Any]) -> Any:
        try:
            return await self.store.commit(job, actor=LOCAL_ACTOR)
        except BaseException:  # it may have been committed all the same
            self.suspect()
            raise

    async def _free(self, session: str | None) -> None:
        """See to it that no prompt waits for a run whose process has died."""
        import asyncio

        if session is None:
            return
        with self.store.view() as view:
            before, rewind = runs.active(view, session), rewinds.open_in(view, session)
        if rewind is not None and rewind.id not in self.undoing and not self.alive(rewind.owner):
            await asyncio.to_thread(self.recover)
        if before is not None and before.status == "running" and not self._mine(before) and not self.alive(before.owner):
            await asyncio.to_thread(self.recover)

    def _take(self, handle: RunHandle, connection: Connection | None = None) -> RunHandle:
        """Work here on what the handle holds; where that is already done here, by the handle that does it."""
        here = self._running.get(handle.id)
        if here is not None and here.run is not None and handle.run is not None and here.run.epoch == handle.run.epoch:
            return here
        self._running[handle.id] = handle
        handle.start(connection)
        return handle

    def take(self, run: runs.Run, *, on_ask: Asker | None = None) -> RunHandle:
        """Work here on a run that was just begun under this process's name. Idempotent."""
        from stead.app.handle import RunHandle

        return self._take(RunHandle(self, run.id, run.session, run, on_ask))

    def _mine(self, run: runs.Run) -> bool:
        return run.owner == self.life.id

    async def resume(self, session: str, *, on_ask: Asker | None = None, rules: Sequence[Rule] = ()) -> RunHandle:
        """Go on with the session's run that waits for a person, from where it stopped; no tool that ran is run again.

        `on_ask` says how the person is asked from now on; `rules` are added to those that were agreed for the run. Raises
        `not_found` when no run waits there, `conflict` when its question is still open and `on_ask` cannot put it to anybody.
        """
        import asyncio

        return await asyncio.shield(self._resume(session, on_ask, rules))

    async def _resume(self, session: str, on_ask: Asker | None, rules: Sequence[Rule]) -> RunHandle:
        from stead.app.handle import RunHandle
        from stead.app.starting import granted
        from stead.app.waits import resume

        grants = granted(rules)
        lasting = [rule for rule in rules if rule not in grants]
        run = await self._commit(resume(self, session, on_ask, lasting))
        return self._take(RunHandle(self, run.id, session, run, on_ask, grants))

    async def begin(self, prompt: str, *, on_ask: Asker | None = None, now: bool = False) -> RunHandle:
        """Wait here for the turn of a queued prompt, and work on it. A held one is let go on. `now`: it is the next, or is said in
        the run at work between two of its steps. Raises `conflict` when it has begun or was taken back, `not_found`."""
        import asyncio

        return await asyncio.shield(self._begin(prompt, on_ask, now))

    async def _begin(self, prompt: str, on_ask: Asker | None, now: bool) -> RunHandle:
        from stead.app.handle import RunHandle

        owner = self.owner()
        with self.store.view() as view:
            session = queue.get(view, prompt).session
        await self._free(session)

        def let_go(tx: Tx) -> None:
            queue.release(tx, prompt, owner)
            if now:
                queue.send(tx, prompt)

        await self._commit(let_go)
        here = self._running.get(prompt)
        if here is not None and here.wait_for(on_ask):
            return here
        return self._take(RunHandle(self, prompt, session, None, on_ask))

    async def work(self, *, most: int = 4, idle: Callable[[], bool] = lambda: False) -> None:
        """Work on queued prompts that nobody in particular waits for, up to `most` at a time, until cancelled or until nothing is
        left to do and `idle()` is true. Any number of processes may do so at once: each prompt is worked on by one."""
        from stead.app.working import work

        await work(self, most, idle)

    def running(self) -> list[RunHandle]:
        """The runs of this process that have not ended."""
        return list(self._running.values())

    def forget(self, handle: RunHandle) -> None:
        """A run of this process ended; its handle says so. Another handle may have taken it up again by now."""
        if self._running.get(handle.id) is handle:
            del self._running[handle.id]

    def stop(self, session: str, *, by: str = LOCAL_ACTOR) -> bool:
        """Ask for the session's run to end, whichever process owns it. False when nothing runs there."""
        with self.store.view() as view:
            run = runs.active(view, session)
        if run is None:
            return False
        asked = self.store.write(lambda tx: runs.request_abort(tx, run.id, by=by), actor=by)
        nobody = run.id not in self._running if self._mine(run) else not self.alive(run.owner)
        if run.status == "waiting" or nobody:
            end_unowned(self.store, run)
        return asked

    def answer(self, ask: str, answer: dict[str, Any], *, by: str = LOCAL_ACTOR) -> asks.Ask:
        """Answer an open question or approval, once, from any process: `{"text": str}`, or `{"allow": bool, "reason"?, "rules"?}`.

        Durable when it returns. A run at work goes on by itself; one that waits goes on with `resume`. Raises `not_found`, `usage`
        for an answer that does not fit, `ask_closed` when it was answered or withdrawn before.
        """
        from stead.app.waits import answer as given

        return self.store.write(given(self.store, ask, answer, by), actor=by)

    def delete(self, session: str, *, by: str = LOCAL_ACTOR) -> list[str]:
        """Delete a session and its children for good, and give their ids. What they cost stays in the ledger.

        A run in it is asked to end first; raises `conflict` when it has not ended after a few seconds. It waits: from a coroutine,
        call it in a thread.
        """
        from stead.app.deletion import delete

        return delete(self, session, by)

    # --- taking back ----------------------------------------------------------------------------------------------------------

    async def plan_undo(self, session: str, **wish: Any) -> Plan:
        """What an undo would do; nothing is written. Without more: the last user message that is not undone, with all after it.

        `to`: the state just before this user message. `message`, `calls`: only what this message or these tool calls changed.
        `what`: "files", "conversation" or "both". `paths`: only these, `hunks`: of a path only these. `force`: paths that are
        restored whatever stands there by now; `merge`: lines are merged where they can be. Raises `not_found`, `ambiguous`,
        `usage`.
        """
        import asyncio

        from stead.app.undo import Wish, plan_undo

        return await asyncio.to_thread(plan_undo, self, session, Wish(**wish))

    async def plan_redo(self, session: str, **wish: Any) -> Plan:
        """What taking back the newest undo would do; arguments as for `plan_undo`. Empty when there is none."""
        import asyncio

        from stead.app.undo import Wish, plan_redo

        return await asyncio.to_thread(plan_redo, self, session, Wish(**wish))

    async def undo(self, plan: Plan, *, by: str = LOCAL_ACTOR) -> Result:
        """Carry out a plan, of an undo or a redo. A path that is no longer what the plan saw is left alone and named in the result.

        Durable when it returns, finished also when the caller goes away; what it overwrites is stored first. Raises `conflict`
        when a run or another undo is under way in the session.
        """
        import asyncio

        from stead.app.undo import undo

        return await asyncio.shield(asyncio.to_thread(undo, self, plan, by=by))

    def fork(self, session: str, message: str | int | None = None, *, title: str | None = None, by: str = LOCAL_ACTOR) -> str:
        """A new session that begins with the messages of this one, and its id: with all up to an answer, all before a message
        of the user, or without `message` all that is complete. Files, grants and costs stay with the other; children are copied
        with it.

        Durable when it returns. Raises `not_found`; `conflict` for a message that is still written. It waits: from a coroutine,
        call it in a thread.
        """
        from stead.app.forking import fork

        return fork(self, session, message, title, by)

    # --- telling --------------------------------------------------------------------------------------------------------------

    def on_frame(self, listener: Callable[[Frame], None]) -> Callable[[], None]:
        """Call `listener` with every frame of this process's runs, on the loop's thread. Gives the way to stop it."""
        self._frames.append(listener)
        return lambda: self._frames.remove(listener)

    def watch(self, after: int = 0, stream: str | None = None) -> AsyncGenerator[Event[Any] | Frame]:
        """Every committed event behind `after`, in order and without a gap, whichever process committed it, with the frames of live
        text between them. Who joins while a part grows first gets one frame with all of its text so far."""
        from stead.app.watching import watch

        return watch(self, after, stream)

    def follow(self, handle: RunHandle, after: int = 0) -> AsyncGenerator[Event[Any] | Frame]:
        """What is committed behind `after` of the run that `handle` holds, with its frames, up to its end or to where it waits.
        Where the prompt was said in another run, that run's from there on."""
        from stead.app.watching import follow

        return follow(self, handle, after)

    def run_json(self, run: str) -> dict[str, Any]:
        """A run as every surface shows it: `{session, run, outcome, result, error, usage, cost, changes, asks}`."""
        from stead.app.shown import run_json

        return run_json(self.store, run)

    # --- the rest of the house ------------------------------------------------------------------------------------------------

    @property
    def secrets(self) -> Secrets:
        """What seals and opens keys."""
        if self._secrets is None:
            from stead.config.secrets import Secrets

            self._secrets = Secrets(self.data, environ=self.environ, secret_file=self.user_file().secret_file)
        return self._secrets

    def user_file(self) -> UserFile:
        """What the person's own `config.toml` says, as it is now."""
        from stead.config.layers import load

        return load(self.config, check=settings.check)

    def tree(self, root: Path, values: Mapping[str, settings.Effective]) -> Tree:
        """What finds the changes of commands in this project folder; one a folder, for as long as the house is open."""
        if root not in self._trees:
            from stead.agent.covering import limits_of
            from stead.agent.tree import Tree

            made = Tree(root, data_dir=self.data.resolve(), limits=limits_of(values), blob_of=self.store.blobs.get)
            self._trees[root] = made
            if self._unwatched:  # a run that was being set up while the house closed: nothing may be left behind
                made.close()
        return self._trees[root]

    def close_trees(self) -> None:
        """Watch no project any more, now or later. Idempotent."""
        self._unwatched = True
        for tree in self._trees.values():
            tree.close()

    def owner(self) -> str:
        """This process's name as the owner of runs; its lock is taken when first asked for."""
        return self.life.owner()

    def alive(self, owner: str) -> bool:
        """Whether the process that works under this name still lives."""
        return self.life.alive(owner)

    def publish(self, frame: Frame) -> None:
        """Give a frame to everybody who looks on."""
        for listener in list(self._frames):
            try:
                listener(frame)
            except Exception:  # who looks on does not end the run
                import logging

                logging.getLogger("stead").exception("a listener failed")
