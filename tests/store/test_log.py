"""Appending and reading: order, counters, tombstones, caps. On both databases."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.store import Store
from tests.store.notes import Written, erase_stream, write

Opener = Callable[..., Store]


def seqs(store: Store, stream: str | None = None) -> list[int]:
    with store.view() as view:
        return [event.seq for event in view.events(stream=stream)]


def refused(job: Any, store: Store) -> str:
    with pytest.raises(SteadError) as failed:
        store.write(job)
    return failed.value.code


def test_what_was_written_is_read_back_in_order_with_all_its_columns(store: Store) -> None:
    first = store.write(lambda tx: tx.append("a", Written(text="one", value={"k": [1, None]}), run="r", op="o"), actor="person:p")
    store.write(write("b", "two"))
    with store.view() as view:
        events = view.events()
        assert view.events(stream="b") == events[1:]
        assert view.events(after=first.seq) == events[1:]
        assert view.events(limit=1) == events[:1]
    assert events[0] == first
    assert (first.stream, first.kind, first.actor, first.run, first.op) == ("a", "note.written", "person:p", "r", "o")
    assert first.ts == store.clock.now()
    assert first.data == Written(text="one", value={"k": [1, None]})


def test_pages_of_a_long_stream_join_without_a_gap(store: Store) -> None:
    store.write(lambda tx: [tx.append("ab"[n % 2], Written(text=str(n))) for n in range(57)])
    read: list[str] = []
    after = 0
    with store.view() as view:
        while page := view.events(after=after, stream="a", limit=10):
            read += [event.data.text for event in page]
            after = page[-1].seq
    assert read == [str(n) for n in range(0, 57, 2)]


def test_seq_is_one_counter_for_the_whole_store(store: Store) -> None:
    got = [store.write(write(stream)) for stream in "abcab"]
    assert got == sorted(set(got)) and seqs(store) == got  # F365


@pytest.mark.parametrize("zone", ["Asia/Kolkata", "UTC"])
def test_b024_a_thousand_events_in_one_millisecond_meet_no_false_conflict(
    store: Store, zone: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    last = 0
    for _ in range(20):

        def job(tx: Any) -> int:
            nonlocal last
            for _ in range(50):
                last = tx.append("a", Written(text="x"), expect=last).seq
            return last

        store.write(job)
    with store.view() as view:
        assert view.q("SELECT count(*), min(ts), max(ts) FROM events") == [(1000, store.clock.now(), store.clock.now())]
    monkeypatch.undo()
    time.tzset()


def test_b083_events_of_one_tick_always_come_back_in_the_order_of_writing(store: Store) -> None:
    store.write(lambda tx: [tx.append("a", Written(text=str(n))) for n in range(50)])
    for _ in range(100):
        with store.view() as view:
            assert [event.data.text for event in view.events(stream="a")] == [str(n) for n in range(50)]


def test_a_clock_that_goes_back_changes_no_order(store: Store) -> None:
    clock = store.clock
    assert isinstance(clock, ManualClock)
    for n in range(5):
        store.write(write("a", str(n)))
        clock.advance(-3_600_000)
    with store.view() as view:
        events = view.events(stream="a")
    assert [event.data.text for event in events] == list("01234")
    assert [event.ts for event in events] == sorted((event.ts for event in events), reverse=True)


def test_b153_a_job_reads_the_clock_once(store: Store) -> None:
    def job(tx: Any) -> list[int]:
        first = tx.append("a", Written(text="1"))
        store.clock.advance(5)  # type: ignore[attr-defined]
        return [first.ts, tx.append("a", Written(text="2")).ts, tx.now]

    assert len(set(store.write(job))) == 1


def test_expect_refuses_the_second_of_two_writers_and_names_what_it_found(store: Store) -> None:
    seen = store.write(write("a", expect=0))
    store.write(write("other"))  # another stream's events do not count
    newer = store.write(write("a", expect=seen))
    with pytest.raises(SteadError) as failed:
        store.write(write("a", "lost", expect=seen))
    assert failed.value.code == "conflict"
    assert failed.value.details == {"expected": seen, "found": newer}
    assert seqs(store, "a") == [seen, newer]


def test_a_deleted_stream_takes_no_writes_also_after_a_rebuild(store: Store) -> None:
    store.write(write("a"))
    kept = store.write(write("b"))
    store.write(erase_stream("a"))
    assert refused(write("a"), store) == "not_found"  # I10
    assert refused(lambda tx: [tx.append("b", Written(text="x")), tx.append("a", Written(text="y"))], store) == "not_found"
    store.rebuild()
    assert refused(write("a"), store) == "not_found"
    assert seqs(store, "a") == [] and seqs(store, "b") == [kept]
    assert {row[1] for row in store.dump()["notes"]} == {"b"}


def test_a_deleted_stream_stays_dead_in_the_next_process(opener: Opener) -> None:
    store = opener()
    store.write(write("a"))
    store.write(erase_stream("a"))
    store.close()
    assert refused(write("a"), opener()) == "not_found"


def test_a_job_that_deletes_and_fails_deletes_nothing(store: Store) -> None:
    seq = store.write(write("a"))

    def job(tx: Any) -> None:
        erase_stream("a")(tx)
        raise ValueError

    with pytest.raises(ValueError):
        store.write(job)
    assert seqs(store, "a") == [seq] and store.write(write("a")) > seq


def test_seq_is_never_given_twice_even_when_the_last_rows_are_gone(opener: Opener) -> None:
    store = opener()
    store.write(write("a"))
    last = store.write(write("b"))
    store.write(lambda tx: tx.forget_stream("b"))
    store.close()
    store = opener()
    with store.view() as view:
        assert view.newest() == last
    assert store.write(write("c")) == last + 1

    def made_and_gone(tx: Any) -> int:
        seq = write("d")(tx)
        tx.forget_stream("d")
        return int(seq)

    gone = store.write(made_and_gone)
    assert store.write(write("e")) > gone


def test_seq_grows_over_the_gap_of_a_failed_job(store: Store) -> None:
    first = store.write(write("a"))

    def job(tx: Any) -> None:
        for _ in range(3):
            tx.append("a", Written(text="lost"))
        raise ValueError

    with pytest.raises(ValueError):
        store.write(job)
    assert store.write(write("a")) > first
    assert len(seqs(store)) == 2


def test_an_event_over_64_kib_is_refused_and_one_below_is_not(store: Store) -> None:
    seq = store.write(write("a", "x" * 65_000))
    assert refused(write("a", "x" * 65_600), store) == "bad_value"
    assert seqs(store) == [seq]


def test_f369_an_event_that_names_a_missing_blob_is_refused(store: Store) -> None:
    missing = "0" * 64
    for value in ({"blob": missing}, {"deep": [{"$blob": missing, "size": 1, "head": ""}]}):
        assert refused(write("a", value=value), store) == "internal"
    assert seqs(store) == []


def test_an_event_and_its_projection_commit_together_or_not_at_all(store: Store) -> None:
    def job(tx: Any) -> None:
        tx.append("a", Written(text="half"))
        tx.append("a", Written(text="\0" * 20_000))  # too big once escaped: fails behind the first one's projection

    assert refused(job, store) == "bad_value"
    assert seqs(store) == [] and store.dump()["notes"] == []  # I1
