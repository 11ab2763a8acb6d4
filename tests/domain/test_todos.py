"""The agent's own list: replaced whole, items that stay keep their id."""

from __future__ import annotations

from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.domain import todos
from stead.store import Store
from tests.domain import house
from tests.domain.house import SESSION


@pytest.fixture(autouse=True)
def _session(store: Store) -> None:
    house.session(store)


def replace(store: Store, *items: tuple[str, Any]) -> list[todos.Todo]:
    return store.write(lambda tx: todos.replace(tx, SESSION, items, "run1"))


def listed(store: Store, name: str = SESSION) -> list[todos.Todo]:
    with store.view() as view:
        return todos.listed(view, name)


def test_the_list_is_what_was_said_last_in_its_order(store: Store) -> None:
    made = replace(store, ("b", "doing"), ("a", "pending"))
    assert listed(store) == made and [(one["text"], one["status"]) for one in made] == [("b", "doing"), ("a", "pending")]
    assert replace(store) == [] == listed(store)


def test_an_item_that_stays_keeps_its_id_wherever_it_stands(store: Store) -> None:
    a, b = replace(store, ("a", "pending"), ("b", "pending"))
    after = replace(store, ("new", "doing"), ("b", "done"), ("a", "dropped"))
    assert [one["id"] for one in after[1:]] == [b["id"], a["id"]]
    assert len({one["id"] for one in after}) == 3


def test_an_id_is_never_given_twice_also_for_equal_texts(store: Store) -> None:
    ids: set[str] = set()
    for _ in range(4):
        for one in replace(store, ("same", "pending"), ("same", "pending")):
            ids.add(one["id"])
        replace(store)
    assert len(ids) == 8
    first = replace(store, ("same", "pending"), ("same", "done"))
    again = replace(store, ("same", "pending"), ("same", "done"))
    assert len({one["id"] for one in again}) == 2 and first[0]["id"] != first[1]["id"]


@pytest.mark.parametrize("text", ["", "\0", "\ud83d", "a\0b\udc00", "line\nline\u2028", "😀" * 500])
def test_any_text_comes_back_exactly(store: Store, text: str) -> None:
    made = replace(store, (text, "pending"))
    assert listed(store) == made and made[0]["text"] == text
    assert replace(store, (text, "done"))[0]["id"] == made[0]["id"]


def test_a_list_too_long_for_an_event_is_refused_and_the_old_one_stays(store: Store) -> None:
    kept = replace(store, ("kept", "pending"))
    with pytest.raises(SteadError) as failed:
        replace(store, *((f"{n} " + "x" * 100, "pending") for n in range(900)))
    assert failed.value.code == "bad_value" and listed(store) == kept


def test_sessions_do_not_mix_and_a_deleted_one_takes_its_list_with_it(store: Store) -> None:
    other = "other00000000000"
    house.session(store, other)
    replace(store, ("mine", "pending"))
    theirs = store.write(lambda tx: todos.replace(tx, other, [("mine", "pending")]))
    house.delete(store)
    assert listed(store) == [] and listed(store, other) == theirs
