"""The long form of the random life: each house is a process, and a real SIGKILL ends it, where it stands or in mid-word.

What was acknowledged must be there afterwards. Whether what was asked for in the moment of the kill came to be, nobody was told:
the reference takes over what the log says, once that has kept every promise.
"""

from __future__ import annotations

import time
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model import plans
from tests.model.homes import Died
from tests.model.life import Dice, Life, dice, surviving
from tests.model.reference import Prompt, Reference, Run, Session

POINTS = (
    *("writer.begun", "log.appended", "log.projected", "writer.before_commit", "writer.after_commit"),
    *("log.blob_put", "blobs.file_durable", "safefile.created", "safefile.written", "safefile.synced"),
    *("safefile.renamed", "safefile.done", "lock.created", "lock.held", "rebuild.chunk", "rebuild.swapped"),
    *("collect.decided", "collect.rows_gone", "sqlite.vacuumed"),
)
"""The named points of store/faults.py that a life passes."""
QUIET_LOOKS = 8


class Killed(Life):
    remote = True

    @rule(dice=dice, name=st.sampled_from(POINTS), count=st.sampled_from([1, 1, 2, 3, 5, 8]))
    @surviving
    def will_be_killed(self, dice: Dice, name: str, count: int) -> None:
        """The next time, or a later one, that a house passes this point it dies."""
        self.tell(self.home(dice), "arm", name, count)

    def open_one(self) -> None:
        try:
            super().open_one()
        except Died:  # nothing is armed in a new process
            raise AssertionError("a house died while it was opened") from None

    def after_a_kill(self) -> None:
        """Somebody finds what the dead left; then the log and the houses say where everything stands."""
        before, word = self.reference, self.word  # what it was told to do when it died may have been done, or not
        while True:
            try:
                if self.homes:
                    self.tell(min(self.homes), "recover")
                    before.dead.clear()
                else:
                    self.open_one()
                seen, stands = self.quiet()
                self.look(seen)
                self.look_back()
                break
            except Died:
                continue
        self.check_promises(before, word)
        self.reference = self.as_it_is(stands, before)
        try:
            self.settle()
        except Died:
            self.after_a_kill()

    def quiet(self) -> tuple[dict[str, Any], dict[int, Any]]:
        """What is seen once nothing moves any more."""
        until = time.monotonic() + self.patience
        last, same = None, 0
        while same < QUIET_LOOKS:
            assert time.monotonic() < until, "the houses do not come to rest"
            stands = {home: self.tell(home, "stands") for home in self.homes}
            seen = self.tell(min(self.homes), "shown", self.log.seq)
            moving = any(stop == "going" for one in stands.values() for stop, *_ in one["runs"].values())
            now = (stands, seen["shown"])
            last, same = now, same + 1 if now == last and not moving else 0
            time.sleep(0.01)
        return seen, stands

    def check_promises(self, before: Reference, word: str) -> None:
        """What was acknowledged is there: prompts, what they say, that they were taken back, deletions."""
        log = self.log
        assert set(before.gone) <= log.gone, "a deleted session is there again"
        known = {one.id for order in log.queue.values() for one in order} | set(log.begun) | log.retracted
        for id, session in before.where.items():
            if session not in log.gone:
                assert id in known, f"prompt {before.texts[id]!r} was acknowledged and is gone"
                assert word == "edit" or log.texts[id] == before.texts[id], "an acknowledged edit is gone"
        assert set(before.retracted) <= log.retracted, "a prompt that was taken back is there again"

    def as_it_is(self, stands: dict[int, Any], before: Reference) -> Reference:
        """A reference that begins with what the log tells."""
        log = self.log
        now = Reference(living=set(self.homes), gone=sorted(log.gone))
        self.learn_names()
        homes = {name: home for home, name in self.names.items()}
        now.workers = {home for home, one in stands.items() if one["works"]}
        now.texts, now.where, now.became = dict(log.texts), dict(log.where), dict(log.became)
        now.retracted = [id for id in log.where if id in log.retracted]
        for id, about in log.sessions.items():
            now.sessions[id] = Session(about["title"], about["archived"], about["trashed"])
            for one in log.queue.get(id, ()):
                owner = homes[one.owner] if one.owner else None
                now.sessions[id].queue.append(Prompt(one.id, id, one.text, owner, one.agreed, one.person, one.held, one.now))
        for told in log.runs.values():
            run = Run(
                told.id, told.session, told.text, homes.get(told.owner), told.policy, list(plans.STOPS[plans.kind_of(told.text)])
            )
            run.status, run.outcome = told.status, told.outcome
            run.ask = next((status for of, status in log.asks.values() if of == told.id), None)
            now.runs[run.id] = run
            if run.status != "ended":
                now.sessions[run.session].active = run.id
                self.stand(run, told.steps, stands.get(run.home or 0, {"runs": {}})["runs"].get(run.id, ("ask", 0, 0)))
        return now

    def stand(self, run: Run, steps: int, stands: tuple[str, int, int]) -> None:
        """Put the run where it stands: behind so many steps, at this stop."""
        stop, run.passed, run.let = stands
        while run.stops.count("gate") <= steps:
            run.stops += ["gate", "middle"]  # something was said in it, and answered
        gates = [n for n, one in enumerate(run.stops) if one == "gate"]
        run.at = (
            gates[steps] if stop == "gate" else run.stops.index(stop, gates[steps - 1] if stop in ("ask", "hang") else gates[steps])
        )
        run.denied = run.policy == "deny" and "ask" in run.stops[: run.at]
