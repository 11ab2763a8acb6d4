"""One tool call: judged, decided by a person if need be, started, run, ended; each of these durable before the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from stead.agent import closing, gate, orphans, tools
from stead.agent.changing import see_through
from stead.agent.covering import Covering, gaps
from stead.agent.overlay import transaction
from stead.agent.overlay.layer import within
from stead.agent.overlay.transaction import DISCARDED, Consent, Transaction
from stead.agent.tools import paths
from stead.agent.tools.base import Input, Interrupted, Result, Tool
from stead.agent.tools.talk import ASK
from stead.agent.workspace import CallContext
from stead.core.errors import SteadError
from stead.core.events import Fact
from stead.core.parts import ToolPart
from stead.domain import asks, partials, permissions, runs, sessions, settings
from stead.domain.people import LOCAL_ACTOR
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.agent.loop import Loop

Answer = dict[str, Any]
Ask = Callable[[asks.Ask], Awaitable[Answer | None]]
Asker = Literal["deny", "allow", "wait"] | Ask
"""How a run asks: a policy, or a function that shows an open ask to a person and gives `{"allow": bool, "reason"?, "rules"?}` for
an approval, `{"text": str}` for a question, None when nobody could be asked."""

POLL_SECONDS = 0.1
"""How often it is looked whether somebody answered elsewhere."""
NOBODY = "Refused: this needs a person's approval and nobody could be asked. Nothing was executed."


class Waiting(BaseException):
    """The run waits for a person and this process need not stay."""


@dataclass(slots=True)
class Calls:
    """The tool calls of one step of a run."""

    loop: Loop

    async def one(self, n: int, part: ToolPart) -> ToolPart:
        """Bring one pending call to its end and give the part with its result."""
        if part["status"] == "running" and part["tool"] != ASK.name:  # begun by a process that died, and never run twice
            return await self._end(n, part, runs.unknown_result(None, why=closing.DIED))
        if part.get("cut"):
            error = "The arguments were cut off before they were complete, so nothing was executed. Send a shorter call."
            return await self._end(n, part, {"status": "error", "error": error})
        checked = tools.check(part["tool"], part["arguments"])
        if isinstance(checked, Result):  # an unknown tool or unfit arguments: nothing to judge, nothing executed
            return await self._finish(n, part, checked, 0.0)
        tool, fit = checked
        if part["status"] == "running":  # a question that was asked before the program ended: it still stands
            return await self._perform(n, part, tool, fit, None)
        try:  # before the judgement: what is judged is where the paths lead now, not where they lead when somebody has answered
            judged = frozenset(paths.real(self.loop.root, text) for text in tool.paths(fit))
        except SteadError as failure:
            return await self._finish(n, part, Result(error=f"{failure.message} Nothing was executed."), 0.0)
        given = fit.model_dump(exclude_unset=True)
        decision = gate.judge(self.loop.rules, part["tool"], given, project=self.loop.root, home=self.loop.home)
        if decision.action == "ask" and self.loop.mode == "full":
            by, refused = "mode full", None
        elif decision.action == "ask":
            by, refused = await self._approve(n, part, given, decision, self._gaps(tool, given, judged))
        else:
            refused = None if decision.action == "allow" else f"Denied by a rule: {decision.why} Nothing was executed."
            by = "rule"
        decided = _decided(part, "allow" if refused is None else "deny", by, decision)
        if refused is not None:
            return await self._end(n, part, {"status": "denied", "error": refused}, first=decided)
        return await self._execute(n, part, tool, fit, judged, decided)

    # --- asking ---------------------------------------------------------------------------------------------------------------

    def _gaps(self, tool: Tool, given: dict[str, Any], judged: frozenset[Path]) -> list[str]:
        """What undo will not cover of this call."""
        loop = self.loop
        return gaps(loop.tree, tool, judged, self._outside(given), loop.most_bytes)

    def _outside(self, given: dict[str, Any]) -> list[str]:
        command = given.get("command")
        return gate.written_outside(command, gate.places(self.loop.root, self.loop.home)) if isinstance(command, str) else []

    async def _approve(
        self, n: int, part: ToolPart, given: dict[str, Any], decision: gate.Decision, uncovered: list[str]
    ) -> tuple[str, str | None]:
        """Ask a person about a call. Gives who decided, and what the model is told of a refusal (None: allowed)."""
        about = {
            "tool": part["tool"],
            "arguments": part["arguments"],
            "why": decision.why,
            "parts": decision.to_json()["parts"],
            "rules": gate.generalise(part["tool"], given),
            **({"not_covered": uncovered} if uncovered else {}),
        }
        answer = await self._ask("approval", n, about)
        if answer is None:
            self.loop.refused = True
            self.loop.flags.append(gate.flag_for(part["tool"], given))
            return "nobody", NOBODY
        by = str(answer.get("by") or LOCAL_ACTOR)
        if not answer.get("allow"):
            reason = f" They said: {answer['reason']}" if answer.get("reason") else ""
            return by, f"Denied by the person. Nothing was executed.{reason}"
        for text in answer.get("rules") or ():
            try:
                self.loop.rules.append(gate.parse(str(text), "allow", "session", "approval"))
            except SteadError as error:  # the call itself is allowed all the same
                self.loop.notice(error.message)
        return by, None

    def _consent(self, n: int) -> Consent:
        """What asks a person about that which a command has done on an overlay."""

        async def consent(about: dict[str, Any]) -> str | None:
            answer = await self._ask("approval", n, about, again=True)
            if answer is None:
                self.loop.refused = True
                return f"This needs a person's consent and nobody could be asked. {DISCARDED}"
            if answer.get("rules"):
                self.loop.notice("What a command changed is shown each time: `undo.transaction` set to apply asks no more.")
            reason = f" They said: {answer['reason']}" if answer.get("reason") else ""
            return None if answer.get("allow") else f"The person did not agree. {DISCARDED}{reason}"

        return consent

    async def _ask(self, kind: asks.Kind, n: int, about: dict[str, Any], *, again: bool = False) -> Answer | None:
        """Ask, or take the answer that there is. `again`: something else about the same call, which has begun and cannot wait
        without this process."""
        loop, policy = self.loop, self.loop.on_ask
        if again and policy == "wait":
            policy = _elsewhere
        with loop.store.view() as view:
            stands = None if again else asks.of_part(view, loop.run, n, kind)  # since before a restart
        if stands is not None and stands.status == "answered":
            return self._answer(stands)
        if policy == "deny" or (policy == "allow" and kind == "question"):
            return None
        if policy == "allow":
            return {"allow": True, "by": "flag"}
        found = stands if stands is not None and stands.status == "open" else await self._open(kind, n, about)
        if policy == "wait":

            def wait(tx: Tx) -> asks.Ask:
                now = asks.get(tx, found.id)
                if now.status == "open":  # somebody may have answered in the meantime
                    runs.wait(tx, loop.run, found.id)
                return now

            now: asks.Ask = await loop.commit(wait)
            if now.status == "open":
                raise Waiting
            return self._answer(now)
        assert callable(policy)
        answer = await self._asked(policy, found)
        by, said = LOCAL_ACTOR, answer
        if isinstance(answer, dict):
            by = str(answer.get("by") or LOCAL_ACTOR)
            said = {name: value for name, value in answer.items() if name != "by"}
        if said is not None:
            asks.check(found.kind, said)
        packed = loop.store.blobs.pack(said)

        def settled(tx: Tx) -> asks.Ask:
            """The answer that counts: the first one, from whatever surface it came."""
            if asks.get(tx, found.id).status == "open":
                if said is None:
                    asks.close(tx, found.id, "nobody could be asked")
                else:
                    asks.answer(tx, found.id, tx.unpack(packed), by=by)
            return asks.get(tx, found.id)

        return self._answer(await loop.commit(settled))

    def _answer(self, ask: asks.Ask) -> Answer | None:
        """The answer to an ask, its long texts in their place, with who gave it; None when there is none."""
        return None if ask.answer is None else {**self.loop.store.blobs.resolve(ask.answer), "by": ask.answered_by}

    async def _open(self, kind: asks.Kind, n: int, about: dict[str, Any]) -> asks.Ask:
        loop, run = self.loop, self.loop.run
        ask = loop.store.ids.new()
        packed = loop.store.blobs.pack(about)

        def job(tx: Tx) -> asks.Ask:
            asks.open_ask(tx, ask, run.session, run.id, kind=kind, message=run.message, n=n, about=tx.unpack(packed))
            return asks.get(tx, ask)

        return cast(asks.Ask, await loop.commit(job))

    async def _asked(self, policy: Ask, found: asks.Ask) -> Answer | None:
        """Have the person asked here, until there is an answer, from here or from anywhere else."""
        here = asyncio.ensure_future(policy(found))
        try:
            while True:
                done, _ = await asyncio.wait([here], timeout=POLL_SECONDS)
                if done:
                    return here.result()
                with self.loop.store.view() as view:
                    if asks.get(view, found.id).status != "open":
                        return None
        finally:
            if not here.done():
                here.cancel()
                await asyncio.wait([here])

    # --- doing ----------------------------------------------------------------------------------------------------------------

    async def _execute(
        self,
        n: int,
        part: ToolPart,
        tool: Tool,
        given: Input,
        judged: frozenset[Path],
        decided: permissions.PermissionDecided,
    ) -> ToolPart:
        loop = self.loop

        def begin(tx: Tx) -> bool:
            if runs.abort_requested(tx, loop.run.id):
                return False
            tx.append(loop.run.session, decided, run=loop.run.id)
            started = sessions.ToolStarted(message=loop.run.message, n=n, call=part["call"])
            tx.append(loop.run.session, started, run=loop.run.id)
            return True

        if not await loop.commit(begin):
            raise asyncio.CancelledError  # nothing starts behind somebody's wish to stop
        return await self._perform(n, part, tool, given, judged)

    async def _perform(self, n: int, part: ToolPart, tool: Tool, given: Input, judged: frozenset[Path] | None) -> ToolPart:
        loop = self.loop
        since = loop.store.clock.monotonic()
        own = None
        if tool.effect == "bash":
            await transaction.tidy(loop.data_dir)
            own = self._transaction(part, given)
        cover = None
        result = Result()
        loop.live.begin_tool(n)
        try:
            if own is not None:
                await see_through(transaction.begin(own, loop.data_dir, loop.home))
            layer = None if own is None else own.layer
            cover = self._cover(part, tool, given) if layer is None else None
            if cover is not None:
                await cover.begin()
            with within(layer):
                result = await tools.perform(tool, given, self._context(n, part, judged))
            if own is not None:
                asked = own.asks and loop.mode != "full"
                result = await own.end(result, str(given.model_dump().get("command")), self._consent(n) if asked else None)
        except Interrupted as cut:
            self._cut_short(n, own, round(cut.seconds * 1000), cut.partial.output)
            raise
        except asyncio.CancelledError:
            if own is not None and own.layer is not None:
                self._cut_short(n, own, round((loop.store.clock.monotonic() - since) * 1000), result.output)
            raise
        finally:
            loop.live.end_tool()
            if cover is not None:
                await see_through(cover.end())
            if own is not None:
                await see_through(asyncio.to_thread(own.close))
        return await self._finish(n, part, result, loop.store.clock.monotonic() - since)

    def _cut_short(self, n: int, own: Transaction | None, ran: int, output: str) -> None:
        more = "" if own is None or own.layer is None else "What it changed was applied." if own.begun else DISCARDED
        self.loop.early[n] = runs.unknown_result(ran, why=closing.ABORTED, output=output, more=more)

    def _transaction(self, part: ToolPart, given: Input) -> Transaction | None:
        """What runs a command on an overlay of the project, where the settings want that."""
        loop = self.loop
        with loop.store.view() as view:
            project = sessions.get(view, loop.run.session).project
            wanted = settings.effective(view, project=project, session=loop.run.session)["undo.transaction"].value
        if wanted == "off":
            return None
        outside = self._outside(given.model_dump())
        common = (loop.store, loop.commit, loop.run, loop.root, part["call"], loop.most_bytes, loop.tree, outside)
        return Transaction(*common, asks=wanted == "ask")

    def _cover(self, part: ToolPart, tool: Tool, given: Input) -> Covering | None:
        """What finds and stores the changes of a command in files; other tools say themselves what they change."""
        loop = self.loop
        if loop.tree is None or tool.effect != "bash":
            return None
        outside = self._outside(given.model_dump())
        return Covering(loop.tree, loop.store, loop.commit, loop.run, loop.root, part["call"], outside)

    async def _finish(self, n: int, part: ToolPart, result: Result, seconds: float) -> ToolPart:
        end: dict[str, Any] = {
            "status": "done" if result.error is None else "error",
            "output": result.output,
            "duration_ms": round(seconds * 1000),
        }
        if result.error is not None:
            end["error"] = result.error
        if result.files:
            end["files"] = result.files
        return await self._end(n, part, end, full=result.full)

    async def _end(
        self, n: int, part: ToolPart, end: dict[str, Any], *, full: bytes | None = None, first: Fact | None = None
    ) -> ToolPart:
        """Store the call's one result; `first` is what is to stand before it in the log."""
        loop = self.loop
        if full is not None:
            prepared = await asyncio.to_thread(loop.store.blobs.prepare, full)
            stored = {**end, "full": {"blob": prepared.hash, "size": prepared.size}}
        else:
            prepared, stored = None, end
        packed = loop.store.blobs.pack(stored)

        def job(tx: Tx) -> None:
            if prepared is not None:
                tx.put(prepared)
            if first is not None:
                tx.append(loop.run.session, first, run=loop.run.id)
            fact = sessions.ToolEnded(message=loop.run.message, n=n, call=part["call"], result=tx.unpack(packed))
            tx.append(loop.run.session, fact, run=loop.run.id)
            partials.close_tool_call(tx, loop.run, n)

        await loop.commit(job)
        return cast(ToolPart, {**part, **end})

    def _denied(self, tool: str) -> Callable[[Path], bool]:
        """Whether a rule denies the tool a path that it comes across while it walks folders."""
        rules = [rule for rule in self.loop.rules if rule.action == "deny"]
        if not rules:
            return lambda path: False
        where = {"project": self.loop.root, "home": self.loop.home}
        return lambda path: gate.path_denied(rules, tool, str(path), **where) is not None

    def _context(self, n: int, part: ToolPart, judged: frozenset[Path] | None) -> CallContext:
        loop = self.loop

        async def question(text: str, options: list[str] | None) -> str:
            answer = await self._ask("question", n, {"question": text, "options": options or []})
            if answer is None:
                loop.refused = True
                raise SteadError("ask_closed", "Nobody could be asked. Go on with what you know, or stop and say what you need.")
            return str(answer.get("text", ""))

        return CallContext(
            store=loop.store,
            commit=loop.commit,
            run=loop.run,
            root=loop.root,
            call=part["call"],
            environ={**loop.environ, orphans.MARK: f"{loop.run.id}.{n}"},
            data_dir=loop.data_dir,
            judged=judged,
            denied=self._denied(part["tool"]),
            show=loop.live.printed,
            started=loop.live.spawned,
            question=question,
            tree=loop.tree,
            most_bytes=loop.most_bytes,
        )


async def _elsewhere(_: asks.Ask) -> Answer | None:
    """Nobody is asked here: the answer comes from another surface."""
    await asyncio.Event().wait()
    return None


def _decided(part: ToolPart, action: Literal["allow", "deny"], by: str, decision: gate.Decision) -> permissions.PermissionDecided:
    rule = None if decision.rule is None else decision.to_json()["rule"]
    return permissions.PermissionDecided(call=part["call"], tool=part["tool"], action=action, by=by, why=decision.why, rule=rule)
