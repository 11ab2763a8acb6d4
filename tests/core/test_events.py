from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from stead.core import events
from stead.core.events import Event, Fact, UnknownFact, blob_hashes, decode, event, lifts


@pytest.fixture(autouse=True)
def _kinds_of_this_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(events, "KINDS", dict(events.KINDS))
    monkeypatch.setattr(events, "_LIFTS", dict(events._LIFTS))
    yield


def test_a_kind_is_declared_once_and_decoded_by_name() -> None:
    @event("lamp.lit")
    class LampLit(Fact):
        room: str
        watts: int = 40

    fact = decode("lamp.lit", 1, {"room": "hall"})
    assert fact == LampLit(room="hall", watts=40)
    assert (LampLit.kind, LampLit.v, LampLit.fields) == ("lamp.lit", 1, ("room", "watts"))
    assert Event(seq=3, stream="s", ts=1, actor="a", run=None, op=None, data=fact).kind == "lamp.lit"
    with pytest.raises(AttributeError):
        fact.room = "attic"  # type: ignore[attr-defined]


def test_two_different_declarations_of_one_kind_are_a_fault() -> None:
    @event("lamp.lit")
    class LampLit(Fact):
        room: str

    with pytest.raises(AssertionError):

        @event("lamp.lit")
        class Other(Fact):
            room: str


def test_unknown_fields_are_ignored_and_new_fields_have_defaults() -> None:
    @event("lamp.lit")
    class LampLit(Fact):
        room: str
        colour: str = "white"

    assert decode("lamp.lit", 1, {"room": "hall", "from a later version": 1}) == LampLit(room="hall")


def test_old_versions_are_lifted_step_by_step() -> None:
    @event("lamp.lit", v=3)
    class LampLit(Fact):
        place: str
        watts: int

    @lifts("lamp.lit", 1)
    def _1(data: dict[str, Any]) -> dict[str, Any]:
        return {"place": data["room"]}

    @lifts("lamp.lit", 2)
    def _2(data: dict[str, Any]) -> dict[str, Any]:
        return {**data, "watts": 60}

    stored = {"room": "hall"}
    assert decode("lamp.lit", 1, stored) == LampLit(place="hall", watts=60)
    assert decode("lamp.lit", 2, {"place": "attic"}) == LampLit(place="attic", watts=60)
    assert decode("lamp.lit", 3, {"place": "attic", "watts": 5}) == LampLit(place="attic", watts=5)
    assert stored == {"room": "hall"}


@pytest.mark.parametrize("kind, v", [("hologram.shown", 1), ("lamp.lit", 2)])
def test_unknown_kinds_and_later_versions_are_kept_whole(kind: str, v: int) -> None:
    @event("lamp.lit")
    class LampLit(Fact):
        room: str

    data = {"place": {"name": "hall"}, "n": 2**60}
    assert decode(kind, v, data) == UnknownFact(original_kind=kind, original=data)


def test_every_blob_of_an_event_is_named() -> None:
    @event("lamp.lit")
    class LampLit(Fact):
        parts: list[Any]
        text: Any = ""

    head = {"$blob": "1" * 64, "size": 9_000, "head": "..."}
    fact = LampLit(parts=[{"type": "file", "blob": "2" * 64}, {"deep": ({"$blob": "3" * 64},)}, {"blob": None}, "blob"], text=head)
    assert sorted(fact.blobs()) == ["1" * 64, "2" * 64, "3" * 64]
    assert list(blob_hashes({"a": [1, None, "x"]})) == []
