"""The house: opens the store, closes what dead processes left, starts runs, and tells what happens. Wiring, and nothing else.

Importing this module is cheap; the agent and its libraries are imported when a run starts.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.config.places import config_folder, data_folder
from stead.core.clock import Clock, SystemClock, rfc3339
from stead.core.errors import SteadError
from stead.core.events import Event
from stead.core.ids import Ids, RandomIds
from stead.domain import (
    asks,
    changes,
    people,
    permissions,
    projects,
    providers,
    runs,
    sessions,
    settings,
    todos,
    usage,
)
from stead.store.database import Reads
from stead.store.store import Store, open_store

if TYPE_CHECKING:
    from stead.agent.begin import Start
    from stead.agent.calls import Asker
    from stead.agent.frames import Frame
    from stead.agent.gate import Rule
    from stead.agent.loop import Loop
    from stead.agent.models.base import Model
    from stead.config.layers import UserFile
    from stead.config.secrets import Secrets
    from stead.domain.projects import Project
    from stead.store.log import Tx

FEATURES = (
    people.FEATURE,
    projects.FEATURE,
    providers.FEATURE,
    settings.FEATURE,
    sessions.FEATURE,
    runs.FEATURE,
    asks.FEATURE,
    changes.FEATURE,
    permissions.FEATURE,
    todos.FEATURE,
    usage.FEATURE,
)

DEFAULT_AGENT = "build"
DEFAULT_STEPS = 100
POLL_SECONDS = 0.1
"""How often it is looked what other processes committed."""
_PAGE = 1000
DELETE_WAITS = 50
"""How many times POLL_SECONDS a deletion waits for a run to end."""


class Stead:
    """An open house. Use it as `async with Stead.open() as house:`, or call `close()`. Methods may be called from one thread."""

    def __init__(self, store: Store, data: Path, config: Path, environ: Mapping[str, str], models: Mapping[str, Model]) -> None:
        self.store = store
        self.data = data
        self.config = config
        self.environ = environ
        self._models = models
        self._owner: Any = None
        self._secrets: Secrets | None = None
        self._frames: list[Callable[[Frame], None]] = []
        self._running: dict[str, RunHandle] = {}

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
    ) -> Stead:
        """Open the house in `data_dir` (default: the person's own), or on the PostgreSQL database at `database_url`.

        `models` are ready-made models by provider name. Runs that a dead process left open are closed first.
        Raises `store_newer`, `store_damaged`, `store_busy`, `read_only`, `disk_full`.
        """
        around = os.environ if environ is None else environ
        data = Path(data_dir) if data_dir is not None else data_folder(around)
        config = Path(config_dir) if config_dir is not None else config_folder(around)
        made = {"clock": clock or SystemClock(), "ids": ids or RandomIds()}
        store = open_store(database_url or data, FEATURES, folder=data if database_url else None, **made)  # type: ignore[arg-type]
        house = cls(store, data, config, around, models or {})
        try:
            house._recover()
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
                handle.abort()
            for handle in self.running():
                await handle.ended()
        finally:
            await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Close the store and give the process's lock back. Idempotent. A run that is left open is closed by whoever opens next."""
        owner, self._owner = self._owner, None
        left = owner is not None and self._left_open(owner.id)
        self.store.close()
        if owner is not None:
            owner.release(forget=not left)

    def _left_open(self, owner: str) -> bool:
        try:
            with self.store.view() as view:
                return runs.owned(view, owner)
        except Exception:  # a store that cannot be read may hold some
            return True

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

        `parts` is text or a list of parts; `key` makes the call idempotent within the session. `max_cost` is dollars.
        Raises before anything is stored: `project_missing`, `not_found`, `no_key`, `usage`, `script_invalid`, `conflict`.
        """
        import asyncio

        from stead.agent.begin import Start, prompt_parts
        from stead.agent.connect import connect, default_reference
        from stead.agent.loop import Limits, Loop
        from stead.agent.tools.environ import clean_environ
        from stead.domain.providers.keys import known_secret_values

        given = prompt_parts(parts)
        if not callable(on_ask) and on_ask not in ("deny", "allow", "wait"):
            raise SteadError("usage", f"on_ask is deny, allow, wait or a function, not {on_ask!r}.")
        flags = {"model": model, "agent": agent, "max_steps": max_steps, "max_cost": max_cost}
        for name, value in flags.items():
            if value is not None:
                settings.check(name, value)
        with self.store.view() as view:
            old = sessions.get(view, session) if session else None
            folder, known = self._folder(view, old, project)
            values = settings.effective(
                view, project=known.id if known else None, session=session, file_layer=self.user_file().settings, flags=flags
            )
            reference = model or (old.model if old else None) or values["model"].value or default_reference(view, self.environ)
            window = settings.context_window(values, reference)
            connection = connect(
                view,
                reference,
                root=Path(folder.folder),
                environ=self.environ,
                vault=self.secrets,
                models=self._models,
                window=window,
            )
            secret = known_secret_values(view, self.secrets, self.environ)
        new = self.store.ids.new
        start = Start(
            session=session,
            folder=folder,
            known=known,
            agent=agent or (old.agent if old else None) or values["agent"].value or DEFAULT_AGENT,
            model=reference,
            max_steps=max_steps or (old.max_steps if old else None) or values["max_steps"].value or DEFAULT_STEPS,
            key=key,
            owner=self.owner(),
            ids=(new(), new(), new()),
            instructions=projects.find_instructions(folder.folder),
        )
        packed = [await asyncio.to_thread(self.store.blobs.pack, part) for part in given]

        def loop_of(run: runs.Run) -> Loop:
            return Loop(
                store=self.store,
                run=run,
                root=Path(folder.folder),
                data_dir=self.data.resolve(),
                connection=connection,
                rules=list(rules),
                on_ask=on_ask,
                publish=self._publish_frame,
                limits=Limits(run.max_steps, values["max_cost"].value),
                environ=clean_environ(self.environ, secret),
                jitter=_jitter,
                home=Path.home(),
            )

        # A caller who goes away does not leave behind a stored prompt that nobody works on.
        return await asyncio.shield(self._begin(start, packed, loop_of))

    async def _begin(self, start: Start, packed: Sequence[Any], loop_of: Callable[[runs.Run], Loop]) -> RunHandle:
        run, fresh = await self.store.commit(lambda tx: start.job(tx, packed), actor="person:local")
        if not fresh:
            return self._running.get(run.id) or RunHandle(self, run, None)
        handle = RunHandle(self, run, loop_of(run))
        self._running[run.id] = handle
        handle.start()
        return handle

    def running(self) -> list[RunHandle]:
        """The runs of this process that have not ended."""
        return list(self._running.values())

    def stop(self, session: str, *, by: str = "person:local") -> bool:
        """Ask for the session's run to end, whichever process owns it. False when nothing runs there."""
        with self.store.view() as view:
            run = runs.active(view, session)
        if run is None:
            return False
        asked = self.store.write(lambda tx: runs.request_abort(tx, run.id, by=by), actor=by)
        mine = self._owner is not None and run.owner == self._owner.id
        nobody = run.id not in self._running if mine else not self._alive(run.owner)
        if run.status == "waiting" or nobody:
            self.store.write(lambda tx: self._end_unowned(tx, run), actor=by)
        return asked

    def delete(self, session: str, *, by: str = "person:local") -> list[str]:
        """Delete a session and its children for good, and give their ids. What they cost stays in the ledger.

        A run in it is asked to end first; raises `conflict` when it has not ended after a few seconds. It waits: from a coroutine,
        call it in a thread.
        """
        from stead.domain import attachments

        with self.store.view() as view:
            family = sessions.with_children(view, session)
        for one in family:
            self.stop(one, by=by)
        for _ in range(DELETE_WAITS):
            with self.store.view() as view:
                busy = any(runs.active(view, one) for one in sessions.with_children(view, session))
            if not busy:
                break
            threading.Event().wait(POLL_SECONDS)
        with self.store.view() as view:
            keep = settings.effective(view, file_layer=self.user_file().settings)["attachments.on_delete"].value == "keep"
        gone, files = self.store.write(lambda tx: self._forget(tx, session, keep), actor=by)
        for attachment in files:
            attachments.remove(self.data / "attachments", attachment)
        return gone

    def _forget(self, tx: Tx, session: str, keep: bool) -> tuple[list[str], list[str]]:
        gone = sessions.with_children(tx, session)
        files = [] if keep else [file for one in gone for file in sessions.attachments_of(tx, one)]
        for one in gone:
            if runs.active(tx, one) is not None:
                raise SteadError("conflict", f"Session {one} has a run that does not end.", hint="Try again in a moment.")
            settings.forget(tx, "session", one)
            tx.append("system", sessions.SessionDeleted(session=one, usage=usage.sums_of(tx, one)))
            tx.forget_stream(one)
        return gone, files

    # --- telling --------------------------------------------------------------------------------------------------------------

    def on_frame(self, listener: Callable[[Frame], None]) -> Callable[[], None]:
        """Call `listener` with every frame of this process's runs, on the loop's thread. Gives the way to stop it."""
        self._frames.append(listener)
        return lambda: self._frames.remove(listener)

    async def watch(self, after: int = 0, stream: str | None = None) -> AsyncIterator[Event[Any] | Frame]:
        """Every committed event behind `after`, in order and without a gap, with the frames of this process between them."""
        import asyncio

        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Event[Any] | Frame] = asyncio.Queue()

        def heard(events: Sequence[Event[Any]]) -> None:
            for event in events:
                loop.call_soon_threadsafe(queue.put_nowait, event)

        stop_events, stop_frames = self.store.listen(heard), self.on_frame(queue.put_nowait)  # first listen, then read
        try:
            upto: int | None = None
            while True:
                # What was not heard in its turn is read: everything at first, later what other processes committed.
                more = True
                while more:
                    found, after, more = self._missed(after, upto, stream)
                    for event in found:
                        yield event
                while True:
                    try:
                        async with asyncio.timeout(POLL_SECONDS):
                            item = await queue.get()
                    except TimeoutError:
                        upto = None
                        break
                    if not isinstance(item, Event):
                        if stream in (None, item.session):
                            yield item
                    elif item.seq == after + 1:
                        after = item.seq
                        if stream in (None, item.stream):
                            yield item
                    elif item.seq > after:
                        upto = item.seq
                        break
        finally:
            stop_events()
            stop_frames()

    def _missed(self, after: int, upto: int | None, stream: str | None) -> tuple[list[Event[Any]], int, bool]:
        """A page of the events behind `after`, up to and with `upto` (None: all there are), the `seq` up to which all were looked
        at, and whether there are more."""
        with self.store.view() as view:
            newest = upto if upto is not None else view.newest()
            page = view.events(after=after, stream=stream, limit=_PAGE) if after < newest else []
        found = [event for event in page if event.seq <= newest]
        if len(found) == _PAGE:
            return found, found[-1].seq, True
        return found, max(after, newest), False

    def run_json(self, run: str) -> dict[str, Any]:
        """A run as every surface shows it: `{session, run, outcome, result, error, usage, cost, changes, asks}`."""
        with self.store.view() as view:
            found = runs.get(view, run)
            message = sessions.message(view, found.session, found.message)
            used = usage.of_run(view, run)
            net = changes.net(changes.listed(view, found.session, run=run))
            open_asks = [ask for ask in asks.open_asks(view, found.session) if ask.run == run]
        error = {"code": found.code, "message": found.error} if found.code else None
        return {
            "session": found.session,
            "run": run,
            "outcome": found.outcome or found.status,
            "result": self._answer([part for _, part in message.parts]),
            "error": error,
            "usage": used["tokens"],
            "cost": used["cost"],
            "changes": [_without_hunks(changes.change_json(one, self.store.blobs.get)) for one in net],
            "asks": [ask_json(ask) for ask in open_asks],
        }

    def _answer(self, parts: list[dict[str, Any]]) -> str:
        """The final answer: the text of the last model call that had any."""
        texts: list[str] = []
        for part in parts:
            kind = part.get("type")
            if kind == "step":
                texts.append("")
            elif kind == "text" and isinstance(text := self.store.blobs.resolve(part).get("text"), str):
                texts.append(text)
        answer: list[str] = []
        for text in reversed(texts):
            if text:
                answer.append(text)
            elif answer:
                break
        return "\n\n".join(reversed(answer))

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

    def owner(self) -> str:
        """This process's name as the owner of runs; its lock is taken when first asked for."""
        if self._owner is None:
            from stead import __version__
            from stead.store.lock import ProcessLock

            about = {"started": rfc3339(self.store.clock.now()), "version": __version__}
            self._owner = ProcessLock(self.data / "locks", self.store.ids.new(), about)
        return str(self._owner.id)

    def _alive(self, owner: str) -> bool:
        from stead.store.lock import living

        return owner in {about["id"] for about in living(self.data / "locks")}

    def _publish_frame(self, frame: Frame) -> None:
        for listener in list(self._frames):
            try:
                listener(frame)
            except Exception:  # who looks on does not end the run
                import logging

                logging.getLogger("stead").exception("a listener failed")

    def _folder(
        self, view: Reads, old: sessions.Session | None, project: str | Path | None
    ) -> tuple[projects.Identity, Project | None]:
        if old is not None:
            known = projects.get(view, old.project)
            return projects.identify(known.folder), known
        if project is None:
            raise SteadError("usage", "A new session needs a project folder.")
        folder = projects.identify(project)
        return folder, projects.find(view, folder)

    def _end_unowned(self, tx: Any, run: runs.Run) -> None:
        asks.close_open(tx, run.session, run.id, "The run was aborted")
        runs.close_calls(tx, run, tx.now, why="The run was aborted")
        runs.end(tx, run.id, "aborted", steps=runs.count_steps(tx, run))

    def _recover(self) -> None:
        """Close what dead processes left open. Costs a look into a folder and one small query where there is nothing to do."""
        from stead.store.lock import dead_owners, forget_owner, living

        locks = self.data / "locks"
        dead = set(dead_owners(locks)) if locks.is_dir() else set()
        if self.store.database.name == "sqlite":  # all its processes are here, so an owner without a lock file is dead as well
            with self.store.view() as view:
                owners = runs.owners(view)
            dead |= owners - {about["id"] for about in living(locks)} if owners else set()
        if not dead:
            return
        from stead.agent.workspace import settle

        settled = settle(self.store, self._root_of, self._at_work)
        self.store.write(lambda tx: runs.recover(tx, sorted(dead)))
        for owner in dead if settled else ():
            forget_owner(locks, owner)

    def _at_work(self, run: str) -> bool:
        with self.store.view() as view:
            try:
                found = runs.get(view, run)
            except SteadError:
                return False
        return found.status != "ended" and self._alive(found.owner)

    def _root_of(self, session: str) -> Path | None:
        with self.store.view() as view:
            try:
                return Path(projects.get(view, sessions.get(view, session).project).folder)
            except SteadError:
                return None


class RunHandle:
    """A run that was started here (or, given a known `key`, was found again)."""

    def __init__(self, house: Stead, run: runs.Run, loop: Loop | None) -> None:
        self.id = run.id
        self.session = run.session
        self.message = f"{run.session}.{run.message}"
        self._house = house
        self._loop = loop
        self._task: Any = None

    def start(self) -> None:
        """Begin the work; called once, by the house."""
        import asyncio

        assert self._loop is not None
        self._task = asyncio.create_task(self._loop.execute(), name=f"run-{self.id}")
        poller = asyncio.create_task(self._obey())
        self._task.add_done_callback(lambda _: (poller.cancel(), self._house._running.pop(self.id, None)))

    async def result(self) -> dict[str, Any]:
        """Wait for the end and give the run as `Stead.run_json` does. Cancelling the wait does not abort the run."""
        import asyncio

        await self.ended()
        return await asyncio.to_thread(self._house.run_json, self.id)

    async def ended(self) -> None:
        """Wait until the run ended or waits for a person."""
        import asyncio

        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                self._task.result()
        while self._task is None and self._at_work():  # noqa: ASYNC110 another process works on it
            await asyncio.sleep(POLL_SECONDS)

    def abort(self) -> None:
        """End the run now; its open calls get their results and it is stored as aborted. Returns at once."""
        if self._task is not None and not self._task.done():
            self._task.cancel()

    @property
    def flags(self) -> list[str]:
        """The `--allow` rules that would have let the refused calls through."""
        return list(dict.fromkeys(self._loop.flags)) if self._loop else []

    def _at_work(self) -> bool:
        with self._house.store.view() as view:
            run = runs.get(view, self.id)
        return run.status == "running" and self._house._alive(run.owner)

    async def _obey(self) -> None:
        """End the run when another process asks for it."""
        import asyncio

        while True:
            await asyncio.sleep(POLL_SECONDS)
            with suppress(SteadError), self._house.store.view() as view:  # a store that is busy now is looked into again
                if runs.abort_requested(view, self.id):
                    self.abort()
                    return


def ask_json(ask: asks.Ask) -> dict[str, Any]:
    """An ask as every surface shows it."""
    return {"id": ask.id, "session": ask.session, "run": ask.run, "kind": ask.kind, "status": ask.status, **ask.about}


def _without_hunks(change: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in change.items() if name not in ("hunks", "binary")}


def _jitter() -> float:
    from stead.core.ids import secret_bytes

    return secret_bytes(1)[0] / 255
