"""What must be there, in plain Python: sessions, their queues, their runs, and where each run stands still.

It is told the same as the houses and knows no store. `shown` and `stands` are compared with what the houses say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.model import plans


@dataclass
class Prompt:
    """A prompt in the queue. `owner` is the house that waits to work on it; `person`: somebody sits there who can be asked."""

    id: str
    session: str
    text: str
    owner: int | None
    agreed: str
    person: bool = False
    held: bool = False
    now: bool = False

    @property
    def policy(self) -> str:
        """How its run asks when it begins now."""
        if self.person:
            return "person"
        return "deny" if self.agreed == "person" else self.agreed

    def leave(self) -> None:
        """Nobody waits for it any more."""
        self.owner, self.person = None, False


@dataclass
class Run:
    """A run; `at` is how many of its `stops` are behind it."""

    id: str
    session: str
    text: str
    home: int | None
    policy: str
    stops: list[str]
    at: int = 0
    passed: int = 0
    let: int = 0
    status: str = "running"
    outcome: str | None = None
    ask: str | None = None
    denied: bool = False
    maybe: frozenset[int] = frozenset()
    """The houses of which one works on it, where `home` is not known yet: whichever came first."""

    @property
    def stop(self) -> str:
        return self.stops[self.at]


@dataclass
class Session:
    title: str
    archived: bool = False
    trashed: bool = False
    queue: list[Prompt] = field(default_factory=list)
    """In the order in which they begin."""
    active: str | None = None

    @property
    def head(self) -> Prompt | None:
        return None if self.trashed else next((one for one in self.queue if not one.held), None)


@dataclass
class Reference:
    sessions: dict[str, Session] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    """What each prompt says that was acknowledged and not deleted with its session, by id."""
    where: dict[str, str] = field(default_factory=dict)
    """The session of each of them."""
    became: dict[str, str] = field(default_factory=dict)
    """In which run each prompt was said."""
    retracted: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    living: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    workers: set[int] = field(default_factory=set)

    # --- asked by the rules ---------------------------------------------------------------------------------------------------

    def waiting(self) -> list[Prompt]:
        return [one for session in self.sessions.values() for one in session.queue]

    def active(self) -> list[Run]:
        return [self.runs[one.active] for one in self.sessions.values() if one.active]

    def unknown(self) -> list[Run]:
        return [run for run in self.active() if run.home is None]

    # --- what a person does ---------------------------------------------------------------------------------------------------

    def prompted(self, home: int | None, id: str, session: str, text: str, policy: str) -> None:
        """A prompt was acknowledged; `home` None: for whichever worker comes."""
        place = self.sessions.setdefault(session, Session(text))
        self.texts[id], self.where[id] = text, session
        one = Prompt(id, session, text, home, policy, policy == "person" and home is not None)
        if home is None or place.active or place.head:
            place.queue.append(one)
        else:
            self._start(one, home, policy)
        self.go_on()

    def changed(self, session: str, **values: Any) -> None:
        for name, value in values.items():
            setattr(self.sessions[session], name, value)
        self.go_on()

    def let(self, run: str, gates: int) -> None:
        self.runs[run].let += gates
        self._flow(self.runs[run])
        self.go_on()

    def answered(self, run: Run) -> None:
        run.ask = "answered"
        if run.status == "running":
            self._past(run)
            self._flow(run)
        self.go_on()

    def resumed(self, run: Run, home: int) -> None:
        if run.home != home:
            run.home, run.passed, run.let = home, 0, plans.pace_of(run.text)
        run.status, run.policy = "running", "person"
        if run.ask == "answered":
            self._past(run)
            self._flow(run)
        self.go_on()

    def stopped(self, session: str) -> None:
        active = self.sessions[session].active
        if active:
            self._end(self.runs[active], "aborted")
        self.go_on()

    def aborted(self, prompt: str) -> None:
        """By its handle: a run at work ends, a waiting prompt is held."""
        if prompt in self.runs:
            self._end(self.runs[prompt], "aborted")
        else:
            self._hold(self._queued(prompt))
        self.go_on()

    def edited(self, prompt: str, text: str) -> None:
        self._queued(prompt).text = self.texts[prompt] = text

    def moved(self, prompt: str, place: int) -> None:
        one = self._queued(prompt)
        order = self.sessions[one.session].queue
        order.remove(one)
        order.insert(place - 1, one)
        self.go_on()

    def taken_back(self, prompt: str) -> None:
        one = self._queued(prompt)
        self.sessions[one.session].queue.remove(one)
        self.retracted.append(prompt)
        self.go_on()

    def sent(self, prompt: str) -> None:
        one = self._queued(prompt)
        if one.now and not one.held:  # it is sent
            return
        order = self.sessions[one.session].queue
        order.remove(one)
        order.insert(next((n for n, other in enumerate(order) if not other.now), len(order)), one)
        one.now, one.held = True, False
        self.go_on()

    def begun(self, prompt: str, home: int) -> None:
        one = self._queued(prompt)
        one.held, one.owner, one.person = False, home, True
        self.go_on()

    def deleted(self, session: str) -> None:
        del self.sessions[session]
        self.gone.append(session)
        for run in [run for run in self.runs.values() if run.session == session]:
            del self.runs[run.id]
        for id in [id for id, where in self.where.items() if where == session]:
            del self.where[id], self.texts[id]
            self.became.pop(id, None)
        self.retracted = [id for id in self.retracted if id in self.where]
        self.go_on()

    def works(self, home: int, begins: bool) -> None:
        """A house begins or ends to work on what nobody in particular waits for."""
        (self.workers.add if begins else self.workers.discard)(home)
        self.go_on()

    # --- houses come and go ---------------------------------------------------------------------------------------------------

    def opened(self, home: int) -> None:
        self.living.add(home)
        self.recovered()

    def closed(self, home: int) -> None:
        """In order: what it works on is aborted, what waited in it may be begun by another."""
        self.living.discard(home)
        self.workers.discard(home)
        for run in self.active():
            if run.home == home and run.status == "running":
                self._end(run, "aborted")
        for one in self.waiting():
            if one.owner == home:
                one.leave()
        self.go_on()

    def crashed(self, home: int) -> None:
        self.living.discard(home)
        self.dead.add(home)
        self.workers.discard(home)

    def recovered(self) -> None:
        """What the dead worked on is interrupted, and the prompts behind it held; what had only been asking goes on waiting."""
        for run in self.active():
            if run.home in self.dead and run.status == "running":
                if run.ask == "open":
                    run.status = "waiting"
                    continue
                self._end(run, "interrupted")
                for one in self.sessions[run.session].queue:
                    self._hold(one)
        for one in self.waiting():
            if one.owner in self.dead:
                self._hold(one)
        self.dead.clear()
        self.go_on()

    # --- what follows by itself -----------------------------------------------------------------------------------------------

    def go_on(self) -> None:
        """Whatever may begin now begins."""
        while self._begin_one():
            pass

    def _begin_one(self) -> bool:
        for session in self.sessions.values():
            head = session.head
            if session.active is None and head is not None and head.owner in self.living:
                assert head.owner is not None
                session.queue.remove(head)
                self._start(head, head.owner, head.policy)
                return True
            if session.active is None and head is not None and head.owner is None:
                here = {one.owner for one in session.queue if one.owner in self.living and not one.held}
                if able := frozenset(one for one in here | self.workers if one is not None):
                    session.queue.remove(head)
                    self._start(head, min(able), head.policy)
                    run = self.runs[head.id]
                    run.home, run.maybe = (None, able) if len(able) > 1 else (run.home, able)
                    return True
        return False

    def _start(self, one: Prompt, home: int, policy: str) -> None:
        stops = list(plans.STOPS[plans.kind_of(one.text)])
        run = self.runs[one.id] = Run(one.id, one.session, one.text, home, policy, stops, let=plans.pace_of(one.text))
        self.became[one.id] = one.id
        self.sessions[one.session].active = one.id
        self._flow(run)

    def _flow(self, run: Run) -> None:
        while run.status == "running" and run.stop in plans.GATES and run.let:
            run.let -= 1
            run.passed += 1
            self._past(run)

    def _past(self, run: Run) -> None:
        """Go from one stop to the next. Between two steps what is sent now is taken up."""
        run.at += 1
        over = run.at == len(run.stops)
        if over or run.stop == "gate":
            if (one := next(self._sent(run.session), None)) is not None:
                self.sessions[run.session].queue.remove(one)
                self.became[one.id] = run.id
                if over:
                    run.stops += ["gate", "middle"]
            elif over:
                self._end(run, "denied" if run.denied else "done")
        elif run.stop == "ask":
            if run.policy == "deny":
                run.denied = True
                self._past(run)
                return
            run.ask = "open"
            if run.policy == "wait":
                run.status = "waiting"

    def _sent(self, session: str) -> Iterator[Prompt]:
        return (one for one in self.sessions[session].queue if one.now and not one.held)

    def _end(self, run: Run, outcome: str) -> None:
        run.status, run.outcome = "ended", outcome
        run.ask = "closed" if run.ask == "open" else run.ask
        self.sessions[run.session].active = None

    def _hold(self, one: Prompt) -> None:
        if not one.held:
            one.held = True
            one.leave()

    def _queued(self, prompt: str) -> Prompt:
        return next(one for one in self.waiting() if one.id == prompt)

    # --- to be compared -------------------------------------------------------------------------------------------------------

    def shown(self) -> dict[str, Any]:
        return {
            "sessions": {id: (one.title, one.archived, one.trashed) for id, one in self.sessions.items()},
            "queue": {
                id: [(p.id, p.text, p.held, p.now, p.owner) for p in one.queue] for id, one in self.sessions.items() if one.queue
            },
            "runs": {run.id: (run.session, run.text, run.status, run.outcome) for run in self.runs.values()},
            "asks": {run.id: run.ask for run in self.runs.values() if run.ask},
        }

    def stands(self, home: int) -> dict[str, Any]:
        mine = [run for run in self.active() if run.home == home and run.status == "running"]
        waits = [one.id for one in self.waiting() if one.owner == home and not one.held]
        found = {run.id: (run.stop, run.passed, run.let) for run in mine}
        return {"runs": found, "waits": sorted(waits), "works": home in self.workers}
