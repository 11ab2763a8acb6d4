"""One tool call: judged, decided by a person if need be, started, run, ended; each of these durable before the next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from stead.agent import gate, tools
from stead.agent.frames import Frame
from stead.agent.tools import paths
from stead.agent.tools.base import Input, Interrupted, Result, Tool
from stead.agent.workspace import CallContext
from stead.core.errors import SteadError
from stead.core.parts import ToolPart
from stead.domain import asks, changes, permissions, runs, sessions
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.agent.loop import Loop

Answer = dict[str, Any]
Ask = Callable[[asks.Ask], Awaitable[Answer | None]]
Asker = Literal["deny", "allow", "wait"] | Ask
"""How a run asks: a policy, or a function that shows an open ask to a person and gives `{"allow": bool, "reason"?, "rules"?}` for
an approval, `{"text": str}` for a question, None when nobody could be asked."""

NOBODY = "Refused: this needs a person's approval and nobody could be asked. Nothing was executed."


@dataclass(slots=True)
class Calls:
    """The tool calls of one step of a run."""

    loop: Loop

    async def one(self, n: int, part: ToolPart) -> ToolPart:
        """Bring one pending call to its end and give the part with its result."""
        if part.get("cut"):
            error = "The arguments were cut off before they were complete, so nothing was executed. Send a shorter call."
            return await self._end(n, part, {"status": "error", "error": error})
        checked = tools.check(part["tool"], part["arguments"])
        if isinstance(checked, Result):  # an unknown tool or unfit arguments: nothing to judge, nothing executed
            return await self._finish(n, part, checked, 0.0)
        tool, fit = checked
        given = fit.model_dump(exclude_unset=True)
        decision = gate.judge(self.loop.rules, part["tool"], given, project=self.loop.root, home=self.loop.home)
        if decision.action == "ask":
            refused = await self._approve(n, part, given, decision)
        else:
            refused = None if decision.action == "allow" else f"Denied by a rule: {decision.why} Nothing was executed."
            await self._decided(part, decision.action, "rule", decision)
        if refused is not None:
            return await self._end(n, part, {"status": "denied", "error": refused})
        judged = frozenset(paths.real(self.loop.root, text) for text in tool.paths(fit))
        return await self._execute(n, part, tool, fit, judged)

    async def patch(self, first: int, after: int) -> None:
        """Store what the calls of this step changed, if they changed anything."""
        loop = self.loop
        with loop.store.view() as view:
            made = changes.listed(view, loop.run.session, run=loop.run.id, after=after)
        sums: dict[str, list[int]] = {}
        for change in made:
            counts = sums.setdefault(change.path, [0, 0])
            counts[0] += change.additions
            counts[1] += change.deletions
        if sums:
            files = [{"path": path, "additions": plus, "deletions": minus} for path, (plus, minus) in sums.items()]
            await loop._add(loop._take_number(), {"type": "patch", "files": files})  # type: ignore[typeddict-item]

    # --- asking ---------------------------------------------------------------------------------------------------------------

    async def _approve(self, n: int, part: ToolPart, given: dict[str, Any], decision: gate.Decision) -> str | None:
        """Ask a person about a call. None: allowed; else what the model is told."""
        about = {
            "tool": part["tool"],
            "arguments": part["arguments"],
            "why": decision.why,
            "parts": decision.to_json()["parts"],
            "rules": gate.generalise(part["tool"], given),
        }
        answer = await self._ask("approval", n, about)
        if answer is None:
            self.loop.refused = True
            await self._decided(part, "deny", "nobody", decision)
            self.loop.flags.append(gate.flag_for(part["tool"], given))
            return NOBODY
        allowed = bool(answer.get("allow"))
        for text in answer.get("rules") or ():
            self.loop.rules.append(gate.parse(text, "allow", "session", "approval"))
        await self._decided(part, "allow" if allowed else "deny", str(answer.get("by") or "person:local"), decision)
        if allowed:
            return None
        reason = f" They said: {answer['reason']}" if answer.get("reason") else ""
        return f"Denied by the person. Nothing was executed.{reason}"

    async def _ask(self, kind: asks.Kind, n: int, about: dict[str, Any]) -> Answer | None:
        loop, policy = self.loop, self.loop.on_ask
        if policy == "deny" or (policy == "allow" and kind == "question"):
            return None
        if policy == "allow":
            return {"allow": True, "by": "flag"}
        ask = loop.store.ids.new()
        packed = loop.store.blobs.pack(about)

        def opened(tx: Tx) -> asks.Ask:
            asks.open_ask(tx, ask, loop.run.session, loop.run.id, kind=kind, message=loop.run.message, n=n, about=tx.unpack(packed))
            if policy == "wait":
                tx.append(loop.run.session, runs.RunWaiting(run=loop.run.id, ask=ask), run=loop.run.id)
            return asks.get(tx, ask)

        found: asks.Ask = await loop._commit(opened)
        if policy == "wait":
            from stead.agent.loop import Waiting

            raise Waiting
        assert callable(policy)
        answer = await policy(found)
        if answer is None:
            await loop._commit(lambda tx: asks.close_open(tx, loop.run.session, loop.run.id, "nobody could be asked"))
        else:
            await loop._commit(lambda tx: asks.answer(tx, ask, answer, by=str(answer.get("by") or "person:local")))
        return answer

    async def _decided(self, part: ToolPart, action: Literal["allow", "deny"], by: str, decision: gate.Decision) -> None:
        rule = None if decision.rule is None else decision.to_json()["rule"]
        fact = permissions.PermissionDecided(
            call=part["call"], tool=part["tool"], action=action, by=by, why=decision.why, rule=rule
        )
        await self.loop._commit(lambda tx: tx.append(self.loop.run.session, fact, run=self.loop.run.id))

    # --- doing ----------------------------------------------------------------------------------------------------------------

    async def _execute(self, n: int, part: ToolPart, tool: Tool, given: Input, judged: frozenset[Path]) -> ToolPart:
        loop = self.loop
        started = sessions.ToolStarted(message=loop.run.message, n=n, call=part["call"])
        await loop._commit(lambda tx: tx.append(loop.run.session, started, run=loop.run.id))
        begin = loop.store.clock.monotonic()
        try:
            result = await tools.perform(tool, given, self._context(n, part, judged))
        except Interrupted as cut:
            ran = round(cut.seconds * 1000)
            told = runs.unknown_result(ran, why="The run was aborted", output=cut.partial.output)
            loop.early.append((n, part["call"], told))
            raise
        return await self._finish(n, part, result, loop.store.clock.monotonic() - begin)

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

    async def _end(self, n: int, part: ToolPart, end: dict[str, Any], *, full: bytes | None = None) -> ToolPart:
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
            fact = sessions.ToolEnded(message=loop.run.message, n=n, call=part["call"], result=tx.unpack(packed))
            tx.append(loop.run.session, fact, run=loop.run.id)

        await loop._commit(job)
        return cast(ToolPart, {**part, **end})

    def _context(self, n: int, part: ToolPart, judged: frozenset[Path] | None) -> CallContext:
        loop = self.loop
        shown = 0

        def show(text: str) -> None:
            nonlocal shown
            part_id = f"{loop.run.session}.{loop.run.message}.{n}"
            loop.publish(Frame("tool_output", loop.run.session, loop.run.id, part_id, shown, text))
            shown += len(text)

        async def question(text: str, options: list[str] | None) -> str:
            answer = await self._ask("question", n, {"question": text, "options": options or []})
            if answer is None:
                loop.refused = True
                raise SteadError("ask_closed", "Nobody could be asked. Go on with what you know, or stop and say what you need.")
            return str(answer.get("text", ""))

        return CallContext(
            store=loop.store,
            run=loop.run,
            root=loop.root,
            call=part["call"],
            environ=loop.environ,
            data_dir=loop.data_dir,
            judged=judged,
            show=show,
            question=question,
        )
