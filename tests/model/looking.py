"""What a house shows, and what its log alone says: two ways to the same picture."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from stead.domain import asks, queue, runs, sessions
from stead.store.store import Store
from tests.model import plans

Told = tuple[int, str, str, str | None, dict[str, Any]]
"""An event: seq, stream, kind, run, data."""


def look(store: Store, after: int) -> dict[str, Any]:
    """The public picture of a store, its events behind `after`, and what should never be there (`wrong`)."""
    with store.view() as view:
        events = [(e.seq, e.stream, e.kind, e.run, e.data.to_data()) for e in view.events(after=after, limit=1_000_000)]
        found = [one for trashed in (False, True) for one in sessions.page(view, limit=1_000, trashed=trashed)]
        waiting = [(one, queue.content(view, one)[0][0]["text"]) for one in queue.waiting(view)]
        told = [runs.Run(*row) for row in view.q(f"SELECT {runs._COLUMNS} FROM runs ORDER BY seq")]
        messages = {one.id: sessions.messages(view, one.id) for one in found}
        asked = [asks.get(view, id) for (id,) in view.q("SELECT id FROM asks ORDER BY seq")]
        growing = dict(view.q("SELECT run, sum(length(text)) FROM partials GROUP BY run"))
        kept = {table: view.q(f"SELECT run FROM {table}") for table in ("partials", "open_model_calls", "open_tool_calls")}
        parts = view.q("SELECT DISTINCT session, message FROM parts") + view.q("SELECT session, n FROM messages")
    order: dict[str, list[Any]] = {}
    for one, text in waiting:
        order.setdefault(one.session, []).append((one.id, text, one.held is not None, one.now, one.owner))
    shown = {
        "sessions": {one.id: (one.title, one.archived, one.trashed) for one in found},
        "queue": order,
        "runs": {
            run.id: (run.session, messages[run.session][run.prompt - 1].parts[0][1]["text"], run.status, run.outcome)
            for run in told
        },
        "asks": {ask.run: ask.status for ask in asked},
    }
    wrong = _wrong(told, messages, kept, parts, set(shown["sessions"]))
    for found_here in messages.values():
        for one in found_here:
            for _, part in one.parts if one.role == "assistant" and one.run else ():
                if part["type"] == "text":
                    growing[one.run] = growing.get(one.run, 0) + len(part["text"])
    owners = {run.id: run.owner for run in told}
    return {"shown": shown, "events": events, "wrong": wrong, "owners": owners, "texts": growing}


def _wrong(told: list[runs.Run], messages: Any, kept: Any, parts: Any, known: set[str]) -> list[str]:
    at_work = {run.id for run in told if run.status == "running"}
    rows = [(table, run) for table, found in kept.items() for (run,) in found]
    wrong = [f"{table} holds a row of {run}, which is not at work" for table, run in rows if run not in at_work]
    wrong += [f"a message of {session} is left, which is no session" for session, _ in parts if session not in known]
    open_runs = {run.id for run in told if run.status != "ended"}
    for session, found in messages.items():
        if [one.n for one in found] != list(range(1, len(found) + 1)):
            wrong.append(f"the messages of {session} are numbered {[one.n for one in found]}")
        texts = {one.run: one.parts[0][1]["text"] for one in reversed(found) if one.role == "user"}
        for one in found:
            for n, part in one.parts if one.role == "assistant" else ():
                where = f"part {session}.{one.n}.{n}"
                if part["type"] == "tool" and one.run not in open_runs and part["status"] not in ("done", "error", "denied"):
                    wrong.append(f"{where} is {part['status']} in a run that ended")
                if part["type"] == "text":
                    whole = plans.text_of(texts[one.run])
                    if part["text"] != whole and not (part.get("cut") and whole.startswith(part["text"])):
                        wrong.append(f"{where} says what the model did not say")
    return wrong


@dataclass
class LogPrompt:
    id: str
    session: str
    text: str
    owner: str | None
    agreed: str
    person: bool = False
    held: bool = False
    now: bool = False

    def leave(self, owner: str | None = None) -> None:
        """Who waits to work on it is another, or nobody; a person sits only where somebody waits."""
        self.owner, self.person = owner, owner is not None


@dataclass
class LogRun:
    id: str
    session: str
    text: str
    owner: str
    policy: str
    status: str = "running"
    outcome: str | None = None
    steps: int = 0


@dataclass
class Log:
    """Reads events one after the other and keeps what they come to, knowing no table of the house's. A broken promise is an
    `AssertionError` at the event that broke it."""

    seq: int = 0
    sessions: dict[str, dict[str, Any]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    queue: dict[str, list[LogPrompt]] = field(default_factory=dict)
    runs: dict[str, LogRun] = field(default_factory=dict)
    asks: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Run and status of each ask."""
    texts: dict[str, str] = field(default_factory=dict)
    where: dict[str, str] = field(default_factory=dict)
    became: dict[str, str] = field(default_factory=dict)
    """Of each prompt what it says, its session, and the run in which it was said."""
    begun: Counter[str] = field(default_factory=Counter)
    waited: set[str] = field(default_factory=set)
    retracted: set[str] = field(default_factory=set)
    tools: dict[tuple[str, int, int], list[str]] = field(default_factory=dict)
    """What became of each tool call: added, started, ended."""
    of_run: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    """The tokens of the runs in which a command came to its end."""
    files: dict[str, str | None] = field(default_factory=dict)
    """The blob that the log knows for each path, None for none; in the order of the changes since it was last emptied."""
    captured: dict[int, dict[str, Any]] = field(default_factory=dict)
    pending_text: dict[tuple[str, int], str] = field(default_factory=dict)

    def take(self, event: Told) -> None:
        seq, stream, kind, run, data = event
        assert seq > self.seq, f"event {seq} stands behind {self.seq}"
        self.seq = seq
        assert stream not in self.gone, f"{kind} was written into the deleted session {stream}"
        if (read := getattr(self, "_" + kind.replace(".", "_"), None)) is not None:
            read(stream, run, data)

    # --- sessions -------------------------------------------------------------------------------------------------------------

    def _session_created(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        assert stream not in self.sessions
        self.sessions[stream] = {"title": data["title"], "archived": False, "trashed": False}

    def _session_changed(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        self.sessions[stream].update({key: value for key, value in data["values"].items() if key in self.sessions[stream]})

    def _session_deleted(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        session = data["session"]
        self.gone.add(session)
        del self.sessions[session]
        self.queue.pop(session, None)
        for id in [id for id, one in self.runs.items() if one.session == session]:
            del self.runs[id]
        for id in [id for id, where in self.where.items() if where == session]:
            del self.texts[id], self.where[id]
            self.became.pop(id, None)
        self.asks = {ask: one for ask, one in self.asks.items() if one[0] in self.runs}

    def _part_added(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        part = data["part"]
        if part["type"] == "text":
            self.pending_text.setdefault((stream, data["message"]), part["text"])
        if part["type"] == "tool":
            place = (stream, data["message"], data["n"])
            assert place not in self.tools
            self.tools[place] = ["added"]
            self.of_run.setdefault(run or "", []).append(place)

    def _tool_started(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        found = self.tools[stream, data["message"], data["n"]]
        assert found == ["added"], f"a call was {', '.join(found)} and is started now"
        found.append("started")

    def _tool_ended(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        found = self.tools[stream, data["message"], data["n"]]
        assert found[-1] != "ended", "a call has two results"
        if data["result"]["status"] == "done" and run in self.runs:
            assert "started" in found, "a call was never started and is done"
            self.done.add(plans.token_of(self.runs[run].text))
        found.append("ended")

    def _step_ended(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        self.runs[run or ""].steps += 1

    # --- runs -----------------------------------------------------------------------------------------------------------------

    def _run_started(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        id, text = data["run"], self.pending_text[stream, data["prompt"]]
        self.begun[id] += 1
        assert self.begun[id] == 1, f"prompt {id} began twice"
        assert not any(one.session == stream and one.status != "ended" for one in self.runs.values()), "two runs in one session"
        policy = data["terms"]["on_ask"]
        self._says(id, stream, text, id)
        if id in self.waited:
            first = next((one for one in self._order(stream) if not one.held), None)
            assert first is not None and first.id == id, f"prompt {id} began out of its turn, or while it was held"
            assert not self.sessions[stream]["trashed"], f"prompt {id} began in the trash"
            one = self._leave(stream, id, text)
            policy = "person" if one.person else "deny" if one.agreed == "person" else one.agreed
        self.runs[id] = LogRun(id, stream, text, data["owner"], policy)

    def _run_steered(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        id = data["queued"]
        self.begun[id] += 1
        assert self.begun[id] == 1, f"prompt {id} was said twice"
        one = self._leave(stream, id, self.pending_text[stream, data["prompt"]])
        assert one.now and not one.held, f"prompt {id} was said now though nobody wanted that"
        assert self.runs[data["run"]].status == "running"
        self._says(id, stream, one.text, data["run"])

    def _run_waiting(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        assert self.runs[data["run"]].status == "running"
        self.runs[data["run"]].status = "waiting"

    def _run_resumed(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        one = self.runs[data["run"]]
        assert one.status == "waiting", "a run was resumed that did not wait"
        one.status, one.owner, one.policy = "running", data["owner"], "person"

    def _run_ended(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        one = self.runs[data["run"]]
        assert one.status != "ended", f"run {one.id} ended twice"
        one.status, one.outcome = "ended", data["outcome"]
        for place in self.of_run.get(one.id, ()):
            assert self.tools[place].count("ended") == 1, f"a call of run {one.id} is {', '.join(self.tools[place])} at its end"
        for ask, (of, status) in self.asks.items():
            if of == one.id and status == "open":
                self.asks[ask] = (of, "closed")

    # --- the queue ------------------------------------------------------------------------------------------------------------

    def _prompt_queued(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        self.waited.add(data["prompt"])
        text, agreed, owner = data["parts"][0]["text"], data["terms"]["on_ask"], data.get("owner")
        one = LogPrompt(data["prompt"], stream, text, owner, agreed, agreed == "person" and owner is not None)
        self.queue.setdefault(stream, []).append(one)
        self._says(one.id, stream, text)

    def _prompt_changed(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        text = self._found(stream, data["prompt"]).text = data["parts"][0]["text"]
        self._says(data["prompt"], stream, text)

    def _prompt_moved(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        one = self._found(stream, data["prompt"])
        assert 1 <= data["place"] <= len(self.queue[stream])
        self.queue[stream].remove(one)
        self.queue[stream].insert(data["place"] - 1, one)

    def _prompt_held(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        one = self._found(stream, data["prompt"])
        one.held = True
        one.leave()

    def _prompt_released(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        one = self._found(stream, data["prompt"])
        one.held = False
        one.leave(data.get("owner"))

    def _prompt_sent(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        one, order = self._found(stream, data["prompt"]), self.queue[stream]
        order.remove(one)
        order.insert(next((n for n, other in enumerate(order) if not other.now), len(order)), one)
        one.now, one.held = True, False

    def _prompt_retracted(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        self.queue[stream].remove(self._found(stream, data["prompt"]))
        self.retracted.add(data["prompt"])

    def _says(self, prompt: str, session: str, text: str, run: str | None = None) -> None:
        self.texts[prompt], self.where[prompt] = text, session
        if run is not None:
            self.became[prompt] = run

    def _found(self, session: str, prompt: str) -> LogPrompt:
        return next(one for one in self.queue[session] if one.id == prompt)

    def _order(self, session: str) -> list[LogPrompt]:
        return self.queue.get(session, [])

    def _leave(self, session: str, prompt: str, text: str) -> LogPrompt:
        one = self._found(session, prompt)
        assert one.text == text, f"prompt {prompt} says {text!r} and said {one.text!r}"
        self.queue[session].remove(one)
        return one

    # --- asks and files -------------------------------------------------------------------------------------------------------

    def _ask_opened(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        assert data["ask"] not in self.asks
        self.asks[data["ask"]] = (str(run), "open")

    def _ask_answered(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        of, status = self.asks[data["ask"]]
        assert status == "open", f"an ask that is {status} was answered"
        self.asks[data["ask"]] = (of, "answered")

    def _ask_closed(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        of, status = self.asks[data["ask"]]
        assert status == "open", f"an ask that is {status} was closed"
        self.asks[data["ask"]] = (of, "closed")

    def _change_captured(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        self.captured[self.seq] = data

    def _change_applied(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        change = self.captured.pop(data["captured"])
        self.files[change["path"]] = change["after"].get("blob")

    def _change_failed(self, stream: str, run: str | None, data: dict[str, Any]) -> None:
        del self.captured[data["captured"]]

    # --- to be compared -------------------------------------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        order = {
            session: [(one.id, one.text, one.held, one.now, one.owner) for one in self._order(session)]
            for session, found in self.queue.items()
            if found
        }
        return {
            "sessions": {id: (one["title"], one["archived"], one["trashed"]) for id, one in self.sessions.items()},
            "queue": order,
            "runs": {one.id: (one.session, one.text, one.status, one.outcome) for one in self.runs.values()},
            "asks": dict(self.asks.values()),
        }
