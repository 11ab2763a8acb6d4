"""A random life of a house: people prompt, queue, answer, stop, edit files by hand; processes leave, crash and come again.

Every rule tells the house and the reference the same, then waits until the house stands where the reference says that it must, and
looks at everything that can be seen. In the small form the houses are in this process and a crash drops what they hold; in the long
form each is a child of its own, killed where it stands or at a named point of what it is doing.
"""

from __future__ import annotations

import functools
import hashlib
import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.model import plans
from tests.model.homes import PATIENCE_SECONDS, Died, Local, Place, Refused, Remote
from tests.model.looking import Log
from tests.model.reference import Prompt, Reference, Run

Dice = random.Random
"""What a rule draws besides its arguments: whatever the houses do, Hypothesis draws the same."""
MOST_SESSIONS, MOST_HOMES = 2, 2
PACES = (0, 1, 2, 3, 9)
policies = st.sampled_from(["person", "wait"])
kinds = st.sampled_from(plans.KINDS)
paces = st.sampled_from(PACES)
dice = st.integers(0, 1 << 32).map(Dice)

Where = Callable[[], str | None]


@contextmanager
def on_sqlite() -> Iterator[Where]:
    yield lambda: None


def surviving(rule: Callable[..., None]) -> Callable[..., None]:
    """A rule in which a process may be killed: what it leaves is closed, and the reference takes over what became of it."""

    @functools.wraps(rule)
    def wrapped(self: Life, *args: Any, **more: Any) -> None:
        try:
            rule(self, *args, **more)
            self.settle()
        except Died:
            self.after_a_kill()

    return wrapped


class Life(RuleBasedStateMachine):
    """Subclasses say where the store lies (`where`) and what a house is made of."""

    where: ClassVar[Where]
    memory: ClassVar[Path | None] = None
    remote: ClassVar[bool] = False
    patience: ClassVar[float] = PATIENCE_SECONDS

    def __init__(self) -> None:
        super().__init__()
        self.homes: dict[int, Any] = {}
        self.names: dict[int, str] = {}
        self.reference = Reference()
        self.log = Log()
        self.events: list[Any] = []
        self.files: dict[str, str | None] = {}
        self.lives = self.tokens = self.shift = 0
        self.texts: dict[str, int] = {}
        self.word = ""

    @initialize(kind=kinds, pace=paces)
    def begin(self, kind: str, pace: int) -> None:
        folder = Path(tempfile.mkdtemp(prefix="stead-test-", dir=self.memory))
        self.place = Place(folder, type(self).where())
        self.place.root.mkdir()
        self.by_hand("mine.txt", "nobody touches this\n")
        self.open_one()
        self.prompt_anew(1, self.text(kind, pace), "person")
        self.prompt_more(1, next(iter(self.reference.sessions)), self.text("file", 9), "person")
        self.settle()

    def open_one(self) -> None:
        """Another process comes; it closes what the dead left."""
        self.lives += 1
        make = Remote if self.remote else Local
        self.homes[self.lives] = make(self.place, self.shift)
        self.reference.opened(self.lives)

    # --- drawing --------------------------------------------------------------------------------------------------------------

    def home(self, dice: Dice) -> int:
        return dice.choice(sorted(self.homes))

    def text(self, kind: str, pace: int) -> str:
        self.tokens += 1
        return f"p{self.tokens} {kind} {pace}"

    def session(self, dice: Dice) -> str:
        return dice.choice(list(self.reference.sessions))

    def in_use(self, dice: Dice) -> str:
        """A session that takes prompts; if all are in the trash, one is taken out."""
        found = [id for id, one in self.reference.sessions.items() if not one.trashed]
        if not found:
            found = [self.session(dice)]
            self.tell(self.home(dice), "change", found[0], {"trashed": False})
            self.reference.changed(found[0], trashed=False)
        return dice.choice(found)

    def in_trash(self, session: str) -> bool:
        return self.reference.sessions[session].trashed

    def tell(self, home: int, word: str, *given: Any) -> Any:
        self.word = word
        try:
            return self.homes[home].tell(word, *given)
        except Died:
            del self.homes[home]
            self.reference.crashed(home)
            raise

    def leave(self, home: int, how: str) -> None:
        self.word = how
        getattr(self.homes.pop(home), how)()

    def refused(self, code: str, home: int, word: str, *given: Any) -> None:
        """The house must refuse this, with this code."""
        try:
            self.tell(home, word, *given)
        except Refused as refused:
            assert refused.args[0] == code, refused
        else:
            raise AssertionError(f"{word} was not refused")

    # --- prompts --------------------------------------------------------------------------------------------------------------

    @rule(
        dice=dice,
        how=st.sampled_from(["anew", "here", "here", "for anybody", "again"]),
        kind=kinds,
        pace=paces,
        policy=policies,
    )
    @surviving
    def prompt(self, dice: Dice, how: str, kind: str, pace: int, policy: str) -> None:
        home, session = self.home(dice), self.in_use(dice)
        if how == "again":
            self.prompt_again(dice, home)
        elif how == "anew" and len(self.reference.sessions) < MOST_SESSIONS:
            self.prompt_anew(home, self.text(kind, pace), policy)
        elif how == "for anybody":
            run = self.tell(home, "enqueue", session, text := self.text(kind, pace))
            self.reference.prompted(None, run, session, text, "wait")
        else:
            self.prompt_more(home, session, self.text(kind, pace), policy)

    def prompt_anew(self, home: int, text: str, policy: str) -> None:
        run, session = self.tell(home, "prompt", None, text, policy)
        self.reference.prompted(home, run, session, text, policy)

    def prompt_more(self, home: int, session: str, text: str, policy: str) -> None:
        run, where = self.tell(home, "prompt", session, text, policy)
        assert where == session
        self.reference.prompted(home, run, session, text, policy)

    def prompt_any(self, dice: Dice) -> None:
        """What a rule does that finds nothing to do."""
        text = self.text(dice.choice(plans.KINDS), dice.choice(PACES))
        self.prompt_more(self.home(dice), self.in_use(dice), text, dice.choice(["person", "wait"]))

    def prompt_again(self, dice: Dice, home: int) -> None:
        """Whoever is not sure whether a prompt came through sends it again: nothing is stored, the answer is the same."""
        known = [id for id in self.reference.texts if id not in self.reference.retracted]
        if known := [id for id in known if not self.in_trash(self.reference.where[id])]:
            id = dice.choice(known)
            session = self.reference.where[id]
            assert self.tell(home, "prompt", session, self.first_texts[id], "person") == (id, session)

    @property
    def first_texts(self) -> dict[str, str]:
        """What each prompt said when it was sent; its key is the token of that."""
        found = {}
        for _, _, kind, _, data in self.events:
            if kind == "prompt.queued":
                found[data["prompt"]] = data["parts"][0]["text"]
        return {**self.reference.texts, **found}

    @rule(dice=dice, how=st.sampled_from(["edit", "move", "send", "send", "retract", "begin"]))
    @surviving
    def change_the_queue(self, dice: Dice, how: str) -> None:
        home = self.home(dice)
        if not self.reference.waiting():
            return self.prompt_any(dice)
        one = dice.choice(self.reference.waiting())
        if how == "edit":
            self.edit(home, one, dice.choice(plans.KINDS), dice.choice(PACES))
        elif how == "move":
            place = dice.randint(1, 4)
            self.tell(home, "move", one.id, place)
            self.reference.moved(one.id, place)
        elif how in ("send", "begin") and self.in_trash(one.session):
            self.refused("usage", home, how, one.id)
        elif how == "send":
            self.tell(home, "send", one.id)
            self.reference.sent(one.id)
        elif how == "retract":
            self.tell(home, "retract", one.id)
            self.reference.taken_back(one.id)
        elif one.owner in (None, home):  # a person lets a held prompt go on, or waits for one, from this door too
            self.tell(home, "begin", one.id)
            self.reference.begun(one.id, home)

    def edit(self, home: int, one: Prompt, kind: str, pace: int) -> None:
        if plans.rules_of(kind) != plans.rules_of(plans.kind_of(one.text)):
            kind = plans.kind_of(one.text)  # what was allowed stays as it was agreed
        self.tell(home, "edit", one.id, text := self.text(kind, pace))
        self.reference.edited(one.id, text)

    @rule(dice=dice)
    @surviving
    def work(self, dice: Dice) -> None:
        """A house begins to work on what nobody in particular waits for, or ends to."""
        home = self.home(dice)
        begins = home not in self.reference.workers
        self.tell(home, "work", begins)
        self.reference.works(home, begins)

    # --- runs -----------------------------------------------------------------------------------------------------------------

    def at_gates(self) -> list[Run]:
        return [run for run in self.reference.active() if run.status == "running" and run.stop in plans.GATES]

    @rule(dice=dice, gates=st.sampled_from([1, 1, 2, 3, 9]))
    @surviving
    def go_on(self, dice: Dice, gates: int) -> None:
        if not self.at_gates():
            return self.prompt_any(dice)
        run = dice.choice(self.at_gates())
        assert run.home is not None
        self.tell(run.home, "let", plans.token_of(run.text), gates)
        self.reference.let(run.id, gates)

    @rule(dice=dice, allow=st.booleans())
    @surviving
    def attend(self, dice: Dice, allow: bool) -> None:
        """A person answers what is asked, or goes on with what waits."""
        home = self.home(dice)
        asked = [run for run in self.reference.active() if run.ask == "open" or run.status == "waiting"]
        if not asked:
            return self.prompt_any(dice)
        run = dice.choice(asked)
        if self.in_trash(run.session):
            return self.refused("usage", home, "resume", run.session)
        if run.ask == "open" and (run.status == "running" or dice.random() < 0.5):
            ask = next(ask for ask, (of, status) in self.log.asks.items() if of == run.id and status == "open")
            self.tell(home, "answer", ask, _answer(run.text, allow))
            self.reference.answered(run)
        else:
            self.tell(home, "resume", run.session)
            self.reference.resumed(run, home)

    @rule(dice=dice, how=st.sampled_from(["stop", "abort"]))
    @surviving
    def stop(self, dice: Dice, how: str) -> None:
        """A session's run is stopped from anywhere, or a prompt by whoever sent it."""
        home, session = self.home(dice), self.session(dice)
        stands = self.reference.stands(home)
        if how == "stop":
            active = self.reference.sessions[session].active
            assert self.tell(home, "stop", session) == (active is not None)
            self.reference.stopped(session)
        elif ours := [id for id in self.reference.texts if id in stands["runs"] or id in stands["waits"]]:
            id = dice.choice(ours)
            self.tell(home, "abort", id)
            self.reference.aborted(id)

    # --- sessions, settings, files --------------------------------------------------------------------------------------------

    @rule(dice=dice, what=st.sampled_from(["title", "archived", "trashed", "language", "clock", "rebuild"]))
    @surviving
    def something_else(self, dice: Dice, what: str) -> None:
        """A session or a setting is changed, the clock jumps, the tables are made anew: no run takes notice, but
        in the trash none begins."""
        home, session = self.home(dice), self.session(dice)
        if what == "language":
            self.tell(home, "set", {what: dice.choice(["de", "en"])})
        elif what == "rebuild":
            self.compare(home)
        elif what == "clock":
            jump = dice.choice([86_400_000, 1_000, -5_000, -86_400_000])
            self.shift += jump
            for one in sorted(self.homes):
                self.tell(one, "jump", jump)
        else:
            found = self.reference.sessions[session]
            value = f"{found.title}+" if what == "title" else not getattr(found, what)
            self.tell(home, "change", session, {what: value})
            self.reference.changed(session, **{what: value})

    @rule(dice=dice)
    @surviving
    def delete(self, dice: Dice) -> None:
        session = self.session(dice)
        if len(self.reference.sessions) < MOST_SESSIONS:
            return self.prompt_anew(self.home(dice), self.text(dice.choice(plans.KINDS), dice.choice(PACES)), "person")
        self.tell(self.home(dice), "delete", session)
        self.reference.deleted(session)

    @rule(dice=dice)
    @surviving
    def what_must_be_refused(self, dice: Dice) -> None:
        """What comes too late, or to a session that is gone, is refused with its code and changes nothing."""
        known = self.reference
        over = [ask for ask, (_, status) in self.log.asks.items() if status != "open"]
        gone = [id for id in (*known.retracted, *known.became) if id in self.log.waited]
        usable = {id: one for id, one in known.sessions.items() if not one.trashed}
        busy = [id for id, one in usable.items() if one.active is None or known.runs[one.active].status == "running"]
        binned = [id for id in known.sessions if id not in usable]
        wrongs: list[tuple[Any, ...]] = [
            *(("ask_closed", "answer", ask, _answer(known.runs[self.log.asks[ask][0]].text, True)) for ask in over),
            *(("conflict", word, id) for id in gone for word in ("retract", "send", "begin")),
            *(("not_found", "resume", id) for id in (*busy, *known.gone)),
            *(("not_found", "prompt", id, "p0 talk 0", "person") for id in known.gone),
            *(("not_found", "enqueue", id, "p0 talk 0") for id in known.gone),
            *(("not_found", "change", id, {"pinned": True}) for id in known.gone),
            *(("not_found", "delete", id) for id in (*known.gone, "system")),
            *(("usage", "resume", id) for id in binned),
            *(("usage", "prompt", id, "p0 talk 0", "person") for id in binned),
            *(("usage", "enqueue", id, "p0 talk 0") for id in binned),
        ]
        if wrongs:
            code, word, *given = dice.choice(wrongs)
            self.refused(code, self.home(dice), word, *given)

    @rule(name=st.sampled_from(["mine.txt", *plans.FILES]), text=st.none() | st.sampled_from(["by hand\n", "", "x" * 9_000]))
    @surviving
    def edit_by_hand(self, name: str, text: str | None) -> None:
        self.by_hand(name, text)

    def by_hand(self, name: str, text: str | None) -> None:
        path = self.place.root / name
        if text is None:
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        self.files[name] = None if text is None else hashlib.sha256(text.encode()).hexdigest()

    # --- processes ------------------------------------------------------------------------------------------------------------

    @rule()
    @surviving
    def another_comes(self) -> None:
        if len(self.homes) < MOST_HOMES:
            self.open_one()

    @rule(dice=dice, how=st.sampled_from(["leaves", "crashes", "all crash"]), opens=st.booleans())
    @surviving
    def a_process_ends(self, dice: Dice, how: str, opens: bool) -> None:
        home = self.home(dice)
        if how == "leaves":
            self.leave(home, "close")
            self.reference.closed(home)
            if not self.homes:
                self.open_one()
            return
        for one in [home] if how == "crashes" else sorted(self.homes):
            self.leave(one, "crash")
            self.reference.crashed(one)
        self.recover(opens)

    def recover(self, opens: bool) -> None:
        """Who finds what the dead left: one that is there, or one that comes."""
        if self.homes and (not opens or len(self.homes) == MOST_HOMES):
            self.tell(min(self.homes), "recover")
            self.reference.recovered()
        else:
            self.open_one()

    # --- looking --------------------------------------------------------------------------------------------------------------

    def compare(self, home: int) -> None:
        differ = self.tell(home, "rebuilt")
        assert not differ, f"a rebuild gives other rows: {differ}"

    def settle(self) -> None:
        """Wait until every house stands where the reference says, then look at all that can be seen."""
        until = time.monotonic() + self.patience
        while True:
            found = {home: self.tell(home, "stands") for home in self.homes}
            if self.reference.unknown():
                self.who_began()
            wanted = {home: self.reference.stands(home) for home in self.homes}
            late = time.monotonic() > until
            if found == wanted or late:
                seen = self.tell(min(self.homes), "shown", self.log.seq)
                if found == wanted and seen["shown"] == (told := self.wanted()):
                    break
                assert not late, _differ(wanted, found) + _differ(told if found == wanted else self.wanted(), seen["shown"])
            time.sleep(0.002)
        self.look(seen)

    def who_began(self) -> None:
        """Where several houses may begin a prompt, one did."""
        owners = self.tell(min(self.homes), "shown", self.log.seq)["owners"]
        self.learn_names()
        for run in self.reference.unknown():
            if run.id in owners:
                run.home = next(home for home in run.maybe if self.names.get(home) == owners[run.id])

    def learn_names(self) -> None:
        for home in self.homes:
            if (name := self.tell(home, "owner")) is not None:
                self.names[home] = name

    def wanted(self) -> dict[str, Any]:
        """What the reference says, with the owners as the houses call them."""
        self.learn_names()
        told = self.reference.shown()
        for session, order in told["queue"].items():
            told["queue"][session] = [(*one, None if owner is None else self.names.get(owner)) for *one, owner in order]
        return told

    def look(self, seen: dict[str, Any]) -> None:
        """The log and the tables tell the same, no promise was broken on the way, and the disk holds what the log knows."""
        for event in seen["events"]:
            self.log.take(event)
        self.events += seen["events"]
        assert self.log.shown() == seen["shown"], _differ(self.log.shown(), seen["shown"])
        assert not seen["wrong"], seen["wrong"]
        for run, size in self.texts.items():
            if run in self.log.runs:
                assert seen["texts"].get(run, 0) >= size, "of the text of a run is less there than was kept"
        self.texts = seen["texts"]
        self.files.update(self.log.files)
        self.log.files.clear()
        on_disk = {
            path.relative_to(self.place.root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.place.root.rglob("*")
            if path.is_file() and path.name != plans.RAN
        }
        known = {name: digest for name, digest in self.files.items() if digest is not None}
        assert on_disk == known, f"the disk holds what the log does not know: {_differ(known, on_disk)}"
        ran = self.place.root / plans.RAN
        lines = ran.read_text().split() if ran.exists() else []
        assert len(lines) == len(set(lines)), f"a command ran twice: {lines}"
        commands = {plans.token_of(run.text) for run in self.log.runs.values() if plans.kind_of(run.text) in ("bash", "hang")}
        assert self.log.done & commands <= set(lines), "a command that is done did not run"

    def look_back(self) -> None:
        """Nothing that was ever read in the log has changed since; only deleted sessions are gone from it."""
        seen = self.tell(min(self.homes), "shown", 0)
        kept = [event for event in self.events if event[1] not in self.log.gone]
        assert kept == seen["events"][: len(kept)], "the log is not what it was"

    def teardown(self) -> None:
        try:
            if self.homes:
                self.compare(min(self.homes))
                self.look_back()
        except Died:
            pass
        finally:
            for home in list(self.homes.values()):
                home.crash()
            if hasattr(self, "place"):
                shutil.rmtree(self.place.folder)

    def after_a_kill(self) -> None:
        raise AssertionError("a house died, and nobody killed it")


def _answer(prompt: str, allow: bool) -> dict[str, Any]:
    return {"text": "yes"} if plans.kind_of(prompt) == "ask" else {"allow": allow}


def _differ(wanted: Any, found: Any, where: str = "") -> str:
    if isinstance(wanted, dict) and isinstance(found, dict):
        keys = [*wanted, *(key for key in found if key not in wanted)]
        return "".join(_differ(wanted.get(key), found.get(key), f"{where}/{key}") for key in keys)
    return "" if wanted == found else f"\n{where}: there must be {wanted!r}, there is {found!r}"
