"""Signs of life in the database: by its own clock, each for as long as it promised."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest

from stead.domain import owners
from stead.store import Feature, Store


@pytest.fixture
def features() -> Sequence[Feature]:
    return [owners.FEATURE]


def beat(store: Store, owner: str, lease: int) -> None:
    clock = store.database.types["now_ms"]
    store.write(lambda tx: owners.beat(tx, owner, lease, clock))


def state(store: Store) -> tuple[set[str], set[str]]:
    clock = store.database.types["now_ms"]
    with store.view() as view:
        return owners.living(view, clock), owners.silent(view, clock)


def test_an_owner_lives_for_its_lease_and_then_is_silent(store: Store) -> None:
    beat(store, "long", 60_000)
    beat(store, "short", 1)
    time.sleep(0.02)
    assert state(store) == ({"long"}, {"short"})
    beat(store, "short", 60_000)  # it speaks again
    assert state(store) == ({"long", "short"}, set())


def test_a_new_lease_takes_the_place_of_the_old(store: Store) -> None:
    beat(store, "one", 60_000)
    beat(store, "one", 1)
    time.sleep(0.02)
    assert state(store) == (set(), {"one"})


def test_the_last_beat_is_by_the_clock_of_the_database(store: Store) -> None:
    with store.view() as view:
        assert owners.last_beat(view, "one") is None
    beat(store, "one", 60_000)
    with store.view() as view:
        heard = owners.last_beat(view, "one")
    assert heard is not None and abs(heard - time.time() * 1000) < 60_000  # the test's own clock stands at another time


def test_who_is_forgotten_is_neither_alive_nor_silent(store: Store) -> None:
    beat(store, "one", 60_000)
    store.write(lambda tx: owners.forget(tx, "one"))
    store.write(lambda tx: owners.forget(tx, "one"))
    assert state(store) == (set(), set())


def test_signs_of_life_are_no_events_and_survive_a_rebuild(store: Store) -> None:
    beat(store, "one", 60_000)
    with store.view() as view:
        assert view.events() == []
    store.rebuild()
    assert state(store) == ({"one"}, set())
