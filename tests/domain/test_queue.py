"""The queue: prompts wait in their order, begin once, and are the same after a rebuild."""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.domain import queue, runs, sessions
from stead.store import Store, Tx
from tests.domain import house
from tests.domain.house import PROJECT, SESSION, recover
from tests.support import scale

TERMS = {"agent": "build", "model": "openai/m", "project": PROJECT, "max_steps": 9, "rules": [], "on_ask": "deny"}


def add(store: Store, name: str, session: str = SESSION, **more: Any) -> queue.Prompt:
    about = {"owner": None, **more}
    return store.write(lambda tx: queue.add(tx, name, session, [{"type": "text", "text": f"say {name}"}], TERMS, **about))


def get(store: Store, name: str) -> queue.Prompt:
    with store.view() as view:
        return queue.get(view, name)


def order(store: Store, session: str | None = SESSION) -> list[str]:
    with store.view() as view:
        return [one.id for one in queue.waiting(view, session)]


def write(store: Store, job: Callable[[Tx], Any]) -> Any:
    return store.write(job)


def begin(store: Store, name: str, owner: str = "owner2") -> runs.Run | None:
    return store.write(lambda tx: queue.begin(tx, queue.get(tx, name), owner))


def refused(store: Store, job: Callable[[Tx], Any], code: str = "conflict") -> None:
    before = len(order(store, None))
    with pytest.raises(SteadError) as failed:
        store.write(job)
    assert failed.value.code == code and len(order(store, None)) == before


def free(store: Store, **more: Any) -> str | None:
    found = write(store, lambda tx: queue.free(tx, store.database.types["pass_over"], **more))
    return found.id if found else None


def texts(store: Store, run: runs.Run) -> list[str]:
    with store.view() as view:
        return [part["text"] for _, part in sessions.message(view, run.session, run.prompt).parts]


def test_prompts_begin_in_order_and_one_at_a_time(store: Store, run: runs.Run) -> None:
    for name in ("a", "b", "c"):
        add(store, name)
    assert order(store) == ["a", "b", "c"] and begin(store, "a") is None  # the run before has not ended
    house.end(store, run)
    assert begin(store, "b") is None
    begun = begin(store, "a")
    assert begun is not None and (begun.id, begun.owner, begun.max_steps) == ("a", "owner2", 9)
    assert texts(store, begun) == ["say a"] and get(store, "a").state == "begun" and get(store, "a").run == "a"
    assert begin(store, "a") is None and begin(store, "b") is None
    house.end(store, begun)
    assert order(store) == ["b", "c"] and begin(store, "b") is not None


def test_the_terms_that_were_agreed_go_with_the_run(store: Store, run: runs.Run) -> None:
    add(store, "a", author="person:p", key="k")
    house.end(store, run)
    begun = begin(store, "a")
    assert begun is not None and begun.key == "k"
    with store.view() as view:
        assert runs.terms(view, begun) == {"rules": [], "on_ask": "deny"}
        assert sessions.message(view, SESSION, begun.prompt).author == "person:p"


def test_a_prompt_is_edited_moved_and_taken_back_as_long_as_it_waits(store: Store, run: runs.Run) -> None:
    for name in ("a", "b", "c"):
        add(store, name)
    for wrong, place, wanted in (("c", 1, "cab"), ("c", 2, "acb"), ("a", 99, "cba"), ("b", 0, "bca")):
        write(store, lambda tx, wrong=wrong, place=place: queue.move(tx, wrong, place))
        assert order(store) == list(wanted)
    add(store, "d")
    assert order(store) == ["b", "c", "a", "d"]  # a new one stands behind them all
    write(store, lambda tx: queue.edit(tx, "b", [{"type": "text", "text": "other words"}]))
    write(store, lambda tx: queue.retract(tx, "c", by="person:p"))
    assert order(store) == ["b", "a", "d"] and get(store, "c").state == "retracted"
    house.end(store, run)
    begun = begin(store, "b")
    assert begun is not None and texts(store, begun) == ["other words"]
    for job in (
        lambda tx: queue.edit(tx, "b", []),
        lambda tx: queue.move(tx, "b", 1),
        lambda tx: queue.retract(tx, "b", by="x"),
        lambda tx: queue.release(tx, "b"),
        lambda tx: queue.send(tx, "b"),
        lambda tx: queue.retract(tx, "c", by="x"),
    ):
        refused(store, job)
    for job in (lambda tx: queue.edit(tx, "none", []), lambda tx: queue.send(tx, "none"), lambda tx: queue.move(tx, "none", 1)):
        refused(store, job, "not_found")


def test_a_move_says_what_moved_however_long_the_queue_is(store: Store, run: runs.Run) -> None:
    many = scale(5_000)

    def fill(tx: Tx) -> None:
        for n in range(many):
            queue.add(tx, f"p{n:05}", SESSION, [{"type": "text", "text": "x"}], TERMS, owner=None)

    store.write(fill)
    last, names = f"p{many - 1:05}", [f"p{n:05}" for n in range(many)]
    write(store, lambda tx: queue.move(tx, last, 1))
    assert order(store) == [last, *names[:-1]]
    write(store, lambda tx: queue.send(tx, names[many // 2]))
    write(store, lambda tx: queue.move(tx, last, 10**30))
    assert order(store) == [names[many // 2], *(name for name in names if name not in (names[many // 2], last)), last]
    with store.view() as view:
        sizes = view.q("SELECT length(data) FROM events WHERE kind IN ('prompt.moved', 'prompt.sent')")
    assert len(sizes) == 3 and max(sizes)[0] < 100


def test_what_is_sent_now_stands_behind_those_sent_before_and_may_be_moved_like_any(store: Store, run: runs.Run) -> None:
    for name in "abcde":
        add(store, name)
    for job, wanted in (
        (lambda tx: queue.send(tx, "d"), "dabce"),
        (lambda tx: queue.send(tx, "c"), "dcabe"),
        (lambda tx: queue.move(tx, "e", 1), "edcab"),  # past those that were sent
        (lambda tx: queue.move(tx, "d", 3), "ecdab"),
        (lambda tx: queue.send(tx, "a"), "aecdb"),  # the next to begin, whatever was moved before the others
        (lambda tx: queue.hold(tx, queue.get(tx, "a"), "why"), "aecdb"),
        (lambda tx: queue.send(tx, "a"), "aecdb"),
    ):
        write(store, job)
        assert order(store) == list(wanted)
    going_on = write(store, lambda tx: queue.steer(tx, run))
    assert get(store, "a").run == run.id
    write(store, lambda tx: queue.steer(tx, going_on))
    assert get(store, "c").run == run.id and get(store, "e").state == "queued"
    house.end(store, run)
    assert free(store) == "e" and begin(store, "d") is None and begin(store, "e") is not None


@pytest.mark.parametrize("seed", range(4))
def test_the_order_is_that_of_a_list_in_which_one_is_moved_at_a_time(store: Store, run: runs.Run, seed: int) -> None:
    dice, wanted, sent = Random(seed), list[str](), set[str]()
    for n in range(40):
        if len(wanted) < 3 or dice.random() < 0.2:
            wanted.append(add(store, f"p{n}").id)
            continue
        one = dice.choice(wanted)
        wanted.remove(one)
        if (what := dice.choice(["move", "move", "send", "retract"])) == "move":
            place = dice.randint(1, len(wanted) + 2)
            write(store, lambda tx, one=one, place=place: queue.move(tx, one, place))
            wanted.insert(place - 1, one)
        elif what == "send":
            again = one in sent
            write(store, lambda tx, one=one: queue.hold(tx, queue.get(tx, one), "why"))
            write(store, lambda tx, one=one: queue.send(tx, one))
            sent.add(one)
            wanted.insert(next((at for at, other in enumerate(wanted) if other not in sent), len(wanted)), one)
            assert again or get(store, one).now
        else:
            write(store, lambda tx, one=one: queue.retract(tx, one, by="x"))
        assert order(store) == wanted
        with store.view() as view:
            first = queue.head(view, SESSION)
            assert (first.id if first else None) == (wanted[0] if wanted else None)


def test_in_the_trash_nothing_begins_until_the_session_is_restored(store: Store, run: runs.Run) -> None:
    add(store, "a")
    add(store, "b")
    house.end(store, run)
    write(store, lambda tx: sessions.change(tx, SESSION, trashed=True))
    assert free(store) is None and begin(store, "a") is None and write(store, lambda tx: queue.head(tx, SESSION)) is None
    for job in (lambda tx: queue.send(tx, "b"), lambda tx: queue.release(tx, "a", "owner2"), lambda tx: queue.resume(tx, "a", "o")):
        refused(store, job, "usage")
    assert write(store, lambda tx: queue.hold_session(tx, SESSION, "why")) == ["a", "b"]
    write(store, lambda tx: queue.let_go(tx, ["a", "b"], "another reason"))
    assert get(store, "a").held == "why"
    write(store, lambda tx: queue.let_go(tx, ["a", "b"], "why"))
    write(store, lambda tx: sessions.change(tx, SESSION, trashed=False))
    assert free(store) == "a" and begin(store, "a") is not None


def test_a_held_prompt_waits_and_keeps_nobody_else_waiting(store: Store, run: runs.Run) -> None:
    add(store, "a", owner="owner1")
    add(store, "b", owner="owner2")
    assert write(store, lambda tx: queue.hold_of(tx, ["owner1"], "It died.")) == ["a"]
    assert (get(store, "a").held, get(store, "a").owner) == ("It died.", None)
    house.end(store, run)
    assert begin(store, "a") is None
    b = begin(store, "b")
    assert b is not None
    house.end(store, b)
    write(store, lambda tx: queue.release(tx, "a", "owner3"))
    assert (get(store, "a").held, get(store, "a").owner) == (None, "owner3") and begin(store, "a") is not None


def test_holding_twice_and_releasing_twice_is_one_event_each(store: Store, run: runs.Run) -> None:
    add(store, "a", owner="owner1")
    for _ in range(2):
        write(store, lambda tx: queue.hold_session(tx, SESSION, "why"))
    for _ in range(2):
        write(store, lambda tx: queue.release(tx, "a"))
    with store.view() as view:
        found = [event.kind for event in view.events(stream=SESSION)]
    assert (found.count("prompt.held"), found.count("prompt.released")) == (1, 1)


def test_a_process_that_leaves_in_order_leaves_its_prompts_to_any(store: Store, run: runs.Run) -> None:
    add(store, "a", owner="owner1")
    with store.view() as view:
        assert queue.owners(view) == {"owner1"} and queue.free(view) is None
    write(store, lambda tx: queue.leave(tx, "owner1"))
    house.end(store, run)
    with store.view() as view:
        found = queue.free(view)
        assert found is not None and found.id == "a" and found.held is None and queue.owners(view) == set()


def test_an_interruption_holds_all_that_waits_in_its_session_and_in_no_other(store: Store, run: runs.Run) -> None:
    house.session(store, "other00000000000")
    add(store, "a", owner="owner9")
    add(store, "b")
    add(store, "c", "other00000000000")
    assert recover(store, "owner1") == [run.id]
    assert [get(store, name).held is None for name in "abc"] == [False, False, True]
    assert recover(store, "owner1") == []


def test_a_prompt_sent_now_is_put_between_two_steps_of_the_run(store: Store, run: runs.Run) -> None:
    add(store, "a")
    add(store, "b", author="person:p")
    write(store, lambda tx: queue.send(tx, "b"))
    assert order(store) == ["b", "a"]
    going_on = write(store, lambda tx: queue.steer(tx, run))
    assert (going_on.id, going_on.epoch, going_on.prompt) == (run.id, run.epoch, run.prompt)
    assert going_on.message == run.message + 2 and write(store, lambda tx: queue.steer(tx, going_on)) is None
    with store.view() as view:
        roles = [(one.role, one.run) for one in sessions.messages(view, SESSION, limit=10)[::-1]]
        assert queue.became(view, "b") == run.id and queue.became(view, "a") == "a"
    assert sorted(roles) == sorted([("user", run.id), ("assistant", run.id)] * 2)
    assert (get(store, "b").state, get(store, "b").run) == ("begun", run.id)
    refused(store, lambda tx: queue.retract(tx, "b", by="x"))


def test_sending_now_lets_a_held_prompt_go_on_every_time(store: Store, run: runs.Run) -> None:
    add(store, "a", owner="owner1")
    for _ in range(2):
        write(store, lambda tx: queue.send(tx, "a"))
        assert get(store, "a").held is None and get(store, "a").now
        write(store, lambda tx: queue.hold_session(tx, SESSION, "why"))
        assert write(store, lambda tx: queue.steer(tx, run)) is None
    write(store, lambda tx: queue.send(tx, "a"))
    assert write(store, lambda tx: queue.steer(tx, run)) is not None


def test_the_longest_waiting_head_of_a_session_that_rests_is_free(store: Store, run: runs.Run) -> None:
    for name in ("other00000000000", "third00000000000"):
        house.session(store, name)
    add(store, "a")
    add(store, "b", "other00000000000")
    add(store, "c", "other00000000000")
    add(store, "d", "third00000000000")
    write(store, lambda tx: queue.hold(tx, queue.get(tx, "d"), "why"))

    assert free(store) == "b" and free(store, session=SESSION) is None
    b = begin(store, "b")
    assert b is not None and free(store) is None  # c is behind it, d is held, a behind the run
    house.end(store, run)
    assert free(store) == free(store, session=SESSION) == "a"


def test_a_key_names_one_prompt_until_it_is_taken_back(store: Store, run: runs.Run) -> None:
    add(store, "a", key="k")
    with store.view() as view:
        found = queue.with_key(view, SESSION, "k")
        assert found is not None and found.id == "a" and queue.with_key(view, SESSION, "other") is None
    write(store, lambda tx: queue.retract(tx, "a", by="x"))
    with store.view() as view:
        assert queue.with_key(view, SESSION, "k") is None


def test_many_at_once_begin_a_prompt_once(store: Store, run: runs.Run) -> None:
    add(store, "a")
    house.end(store, run)
    barrier = threading.Barrier(8)
    got: list[Any] = []

    def work(n: int) -> None:
        barrier.wait()
        got.append(begin(store, "a", f"owner{n}"))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(one is not None for one in got) == 1
    with store.view() as view:
        started = [event.data.run for event in view.events(stream=SESSION) if event.kind == "run.started"]
    assert started == ["run1", "a"]


def test_a_deleted_session_takes_its_queue_along(store: Store, run: runs.Run) -> None:
    house.session(store, "other00000000000")
    add(store, "a")
    add(store, "b", "other00000000000")
    house.end(store, run)
    house.delete(store)
    assert order(store, None) == ["b"]
    refused(store, lambda tx: queue.send(tx, "a"), "not_found")


def test_long_words_and_odd_text_come_back_as_they_were(store: Store, run: runs.Run) -> None:
    said = [{"type": "text", "text": "a\0b \ud83d end " + "x" * 30_000}]
    packed = store.blobs.pack(said)
    store.write(lambda tx: queue.add(tx, "a", SESSION, tx.unpack(packed), TERMS, owner=None))
    with store.view() as view:
        parts, _ = queue.content(view, queue.get(view, "a"))
    assert store.blobs.resolve(parts) == said
