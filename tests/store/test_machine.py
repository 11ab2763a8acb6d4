"""A random life of a store beside a model of it: sessions, runs, todos, deletions, crashes, rebuilds. The two always agree."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.domain import asks, runs, sessions, todos, usage
from stead.store import Store, open_store
from stead.store.lock import ProcessLock, dead_owners, forget_owner
from tests.domain import house

NAMES = [f"session{n:09}" for n in range(3)]
texts = st.sampled_from(["", "plain", "\0", "\ud83d", "ü\u2028", "x" * 9_000]) | st.text(max_size=6)


class Life(RuleBasedStateMachine):
    """`_open` is the store as a living process holds it; a crash drops it without closing."""

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="stead-test-"))
        self.leaked: list[Store] = []
        self.parts: dict[str, list[list[Any]]] = {}
        self.todos: dict[str, list[tuple[str, str]]] = {}
        self.running: dict[str, runs.Run] = {}
        self.ended: dict[str, str] = {}
        self.gone: set[str] = set()
        self.calls = self.lives = self.seen = 0
        self.revive()

    def revive(self) -> None:
        self.lives += 1
        self.store = open_store(self.folder, house.FEATURES, clock=ManualClock())
        dead = dead_owners(self.folder / "locks")
        closed = house.recover(self.store, *dead)
        for owner in dead:
            forget_owner(self.folder / "locks", owner)
        assert closed == [run.id for run in self.running.values()]
        for name, run in self.running.items():
            self.ended[run.id] = "interrupted"
            self.parts[name][run.message - 1].append(None)  # the notice
        self.running = {}
        self.owner = ProcessLock(self.folder / "locks", f"owner{self.lives}", {})

    def living(self) -> list[str]:
        return [name for name in self.parts if name not in self.gone]

    @rule(name=st.sampled_from(NAMES))
    def create(self, name: str) -> None:
        if name in self.parts:
            return
        house.session(self.store, name)
        self.parts[name], self.todos[name] = [], []

    @precondition(lambda self: self.living())
    @rule(data=st.data(), text=texts)
    def say(self, data: Any, text: str) -> None:
        name = data.draw(st.sampled_from(self.living()))
        packed = self.store.blobs.pack({"type": "text", "text": text})

        def job(tx: Any) -> None:
            n = sessions.add_message(tx, name, "user")
            sessions.add_part(tx, name, n, 0, tx.unpack(packed))

        self.store.write(job)
        self.parts[name].append([text])

    @precondition(lambda self: self.living())
    @rule(data=st.data(), text=texts)
    def a_job_that_fails(self, data: Any, text: str) -> None:
        name = data.draw(st.sampled_from(self.living()))

        def job(tx: Any) -> None:
            n = sessions.add_message(tx, name, "user")
            sessions.add_part(tx, name, n, 0, {"type": "text", "text": text[:100]})
            todos.replace(tx, name, [])
            raise ValueError

        with pytest.raises(ValueError):
            self.store.write(job)

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def start(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self.living()))
        run = f"run{len(self.ended) + len(self.running)}"
        if name in self.running:
            with pytest.raises(SteadError):
                house.start(self.store, run, name)
            return
        self.running[name] = house.start(self.store, run, name, owner=self.owner.id)
        self.parts[name] += [["hello"], []]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), started=st.booleans(), cost=st.sampled_from([None, 0.1]))
    def work(self, data: Any, started: bool, cost: float | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        run = self.running[name]
        parts = self.parts[name][run.message - 1]
        house.call(self.store, run, len(parts), f"c{len(parts)}", started=started)
        house.step(self.store, run, len(parts) + 1, cost=cost, input=1)
        self.calls += 1
        parts += [None, None]

    @precondition(lambda self: self.running)
    @rule(data=st.data(), outcome=st.sampled_from(["done", "aborted", "error"]))
    def end(self, data: Any, outcome: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.running)))
        run = self.running.pop(name)

        def job(tx: Any) -> list[bool]:
            runs.close_calls(tx, run, why="The run ended")
            return [runs.end(tx, run.id, outcome, steps=0), runs.end(tx, run.id, "limit", steps=0)]

        assert self.store.write(job) == [True, False]
        self.ended[run.id] = outcome

    @precondition(lambda self: self.living())
    @rule(data=st.data(), items=st.lists(st.tuples(st.text(max_size=5), st.sampled_from(["pending", "done"])), max_size=3))
    def plan(self, data: Any, items: Any) -> None:
        name = data.draw(st.sampled_from(self.living()))
        self.store.write(lambda tx: todos.replace(tx, name, items))
        self.todos[name] = items

    @precondition(lambda self: self.living())
    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        name = data.draw(st.sampled_from(self.living()))
        house.delete(self.store, name)
        self.gone.add(name)
        if run := self.running.pop(name, None):
            self.ended[run.id] = "gone"

    @precondition(lambda self: self.gone)
    @rule(data=st.data())
    def write_to_the_dead(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.gone)))
        with pytest.raises(SteadError) as failed:
            self.store.write(lambda tx: sessions.add_message(tx, name, "user"))
        assert failed.value.code == "not_found"

    @rule()
    def crash(self) -> None:
        self.leaked.append(self.store)
        self.owner.release(forget=False)
        self.revive()

    @rule()
    def close_and_open(self) -> None:
        self.store.close()
        self.owner.release(forget=False)
        self.revive()

    @rule()
    def rebuild(self) -> None:
        live = self.store.dump()
        self.store.rebuild()
        assert self.store.dump() == live

    @invariant()
    def the_store_is_the_model(self) -> None:
        with self.store.view() as view:
            for name in self.living():
                found = sessions.messages(view, name)
                assert [message.n for message in found] == list(range(1, len(self.parts[name]) + 1))
                for message, parts in zip(found, self.parts[name], strict=True):
                    assert [n for n, _ in message.parts] == list(range(len(parts)))
                    for (_, part), text in zip(message.parts, parts, strict=True):
                        assert text is None or self.store.blobs.resolve(part)["text"] == text
                assert [(one["text"], one["status"]) for one in todos.listed(view, name)] == self.todos[name]
                active = runs.active(view, name)
                assert (active and active.id) == (self.running[name].id if name in self.running else None)
            for name in self.gone:
                with pytest.raises(SteadError):
                    sessions.get(view, name)
                assert sessions.messages(view, name) == [] and todos.listed(view, name) == []
            assert usage.report(view, ())["total"]["calls"] == self.calls
            assert asks.open_asks(view) == []
            for run, outcome in self.ended.items():
                if outcome != "gone" and view.one("SELECT 1 FROM runs WHERE id=?", run):
                    assert runs.get(view, run).outcome == outcome
            newest = view.newest()
            assert newest >= self.seen
            self.seen = newest

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.rebuild()
            self.owner.release()
            for store in (self.store, *self.leaked):
                store.close()
            shutil.rmtree(self.folder)


CHECKS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def test_a_random_life_and_its_model_agree() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=16, stateful_step_count=20, derandomize=True, deadline=None, database=None, suppress_health_check=CHECKS
        ),
    )


@pytest.mark.long
def test_two_thousand_random_lives_and_their_models_agree() -> None:
    run_state_machine_as_test(
        Life, settings=settings(max_examples=2_000, stateful_step_count=40, deadline=None, suppress_health_check=CHECKS)
    )
