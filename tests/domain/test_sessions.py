"""Sessions, messages, parts: order by number, bodies once, odd shapes shown and never lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.core.ids import CountingIds
from stead.core.jsontext import dumps
from stead.domain import runs, sessions
from stead.store import Store, Tx, open_store
from tests.domain import house
from tests.domain.house import PROJECT, SESSION


def get(store: Store, name: str = SESSION) -> sessions.Session:
    with store.view() as view:
        return sessions.get(view, name)


def messages(store: Store, name: str = SESSION, **which: Any) -> list[sessions.Message]:
    with store.view() as view:
        return sessions.messages(view, name, **which)


def fails(code: str, work: Callable[[], Any]) -> SteadError:
    with pytest.raises(SteadError) as failed:
        work()
    assert failed.value.code == code
    return failed.value


def add(store: Store, *parts: Any, role: sessions.Role = "assistant") -> int:
    def job(tx: Tx) -> int:
        n = sessions.add_message(tx, SESSION, role)
        for k, part in enumerate(parts):
            sessions.add_part(tx, SESSION, n, k, part)
        return n

    return store.write(job)


def test_a_new_session_is_what_was_said(store: Store) -> None:
    house.session(store, title="First line\nsecond\0 \ud83d\n", max_steps=7, parent="p", parent_call="c")
    found = get(store)
    assert (found.id, found.project, found.agent, found.model, found.max_steps) == (SESSION, PROJECT, "build", "openai/m", 7)
    assert "\n" not in found.title and "\0" not in found.title and found.title.startswith("First line second")
    assert (found.parent, found.parent_call, found.pinned, found.archived, found.messages, found.cost) == (
        *("p", "c", False, False, 0, 0.0),
    )
    assert found.created == found.updated == store.clock.now()


@pytest.mark.parametrize("title", ["", " \n\t", "\0"])
def test_a_session_has_a_title_even_without_one(store: Store, title: str) -> None:
    house.session(store, title=title)
    assert get(store).title.strip()


def test_only_what_changed_is_written(store: Store) -> None:
    house.session(store)

    def change(**values: Any) -> None:
        store.write(lambda tx: sessions.change(tx, SESSION, **values))

    change(title=" New\ntitle ", pinned=True, model=None)
    change(title="New title", pinned=True, model=None)
    with store.view() as view:
        assert [event.data.values for event in view.events(stream=SESSION)[1:]] == [
            {"title": "New title", "pinned": True, "model": None}
        ]
    found = get(store)
    assert (found.title, found.pinned, found.model) == ("New title", True, None)
    for wrong in ({"title": " "}, {"cost_nano": 1}, {"id": "x"}):
        fails("usage", lambda wrong=wrong: change(**wrong))
    fails("not_found", lambda: store.write(lambda tx: sessions.change(tx, "nobody", pinned=True)))


def test_parts_come_back_in_the_order_of_their_numbers(store: Store) -> None:
    house.session(store)
    texts = [{"type": "text", "text": str(n)} for n in range(20)]
    for first in (0, 10):
        add(store, *texts[first : first + 10])
    found = messages(store)
    assert [(message.n, [n for n, _ in message.parts]) for message in found] == [(1, list(range(10))), (2, list(range(10)))]
    assert [part for message in found for _, part in message.parts] == texts
    with store.view() as view:
        assert sessions.next_part(view, SESSION, 1) == 10 and sessions.next_part(view, SESSION, 3) == 0
        assert sessions.message(view, SESSION, 2).id == f"{SESSION}.2"
        fails("not_found", lambda: sessions.message(view, SESSION, 3))


def test_pages_from_the_newest_back(store: Store) -> None:
    house.session(store)
    for n in range(7):
        add(store, {"type": "text", "text": str(n)})
    assert [message.n for message in messages(store, limit=3)] == [5, 6, 7]
    assert [message.n for message in messages(store, limit=3, before=5)] == [2, 3, 4]
    assert messages(store, limit=3, before=1) == []


def test_raw_messages_are_the_stored_bytes_and_say_what_the_objects_say(store: Store) -> None:
    house.session(store)
    run = house.start(store, text="odd \ud83d \0 \u2028 null")
    house.call(store, run, 0, started=True)
    result = {"status": "done", "output": "42\udc00"}
    store.write(lambda tx: tx.append(SESSION, sessions.ToolEnded(message=run.message, n=0, call="c1", result=result)))
    house.call(store, run, 1, "c2", started=True)
    house.step(store, run, 2)
    add(store)  # a message without parts
    with store.view() as view:
        raw, found = sessions.raw_messages(view, SESSION), sessions.messages(view, SESSION)
        stored = {event.seq: event for event in view.events(stream=SESSION)}
        assert [json.loads(one)["n"] for one in sessions.raw_messages(view, SESSION, limit=2, before=3)] == [1, 2]
        assert sessions.raw_messages(view, "nobody") == []
    bodies = (sessions.PartAdded, sessions.ToolEnded, sessions.StepEnded)
    for text, message in zip(raw, found, strict=True):
        one = json.loads(text)
        assert {name: one.get(name) for name in ("n", "role", "author", "model", "run", "created", "stop_sequence")} == {
            name: getattr(message, name) for name in ("n", "role", "author", "model", "run", "created", "stop_sequence")
        }
        for part, (n, whole) in zip(one["parts"], message.parts, strict=True):
            ended = part["ended"]["result"] if "ended" in part else {"status": "running"} if "started" in part else {}
            assert part["added"]["n"] == n and {**part["added"]["part"], **ended} == whole
            if "started" in part:
                assert stored[part["started"]].data.call == whole["call"]
        for event in stored.values():
            if isinstance(event.data, bodies) and event.data.message == message.n:
                assert dumps(event.data.to_data()) in text


def test_a_number_is_never_given_twice(store: Store) -> None:
    house.session(store)
    add(store, {"type": "text", "text": "x"})
    with pytest.raises(Exception, match=r"(?i)unique"):
        store.write(lambda tx: sessions.add_part(tx, SESSION, 1, 0, {"type": "text", "text": "y"}))
    assert [part["text"] for _, part in messages(store)[0].parts] == ["x"]


@pytest.mark.parametrize(
    "part",
    [
        {"type": "hologram", "beam": [1, {"deep": None}]},
        {"no": "type"},
        {"type": 7},
        {"type": "text"},
        {"type": "step", "model": "m", "tokens": {"input": 1}, "cost": None, "finish": "stop"},
        "not an object",
        None,
        [1],
    ],
)
def test_a_part_of_any_shape_is_kept_whole_and_shown_for_what_it_is(store: Store, part: Any) -> None:
    house.session(store)
    add(store, {"type": "text", "text": "before"}, part, {"type": "text", "text": "after"})
    kept = [part for _, part in messages(store)[0].parts]
    assert kept[1] == part and kept[0]["text"] == "before" and kept[2]["text"] == "after"
    shown = sessions.message_json(messages(store)[0])["parts"][1]
    assert shown["id"] == f"{SESSION}.1.1"
    assert shown.get("original", shown) == part or shown["issue"]["path"]


def test_what_is_shown_holds_no_provider_data_and_arguments_as_json(store: Store) -> None:
    house.session(store)
    add(
        store,
        {"type": "reasoning", "text": "hm", "meta": {"family": "anthropic", "signature": "s3cr"}},
        {"type": "tool", "call": "c", "tool": "bash", "arguments": '{"n": 12345678901234567890123}', "status": "pending"},
        {"type": "tool", "call": "d", "tool": "bash", "arguments": '{"cut', "status": "pending"},
        {"type": "tool", "call": "e", "tool": "list", "arguments": " ", "status": "pending"},
    )
    reasoning, whole, broken, empty = sessions.message_json(messages(store)[0])["parts"]
    assert "meta" not in reasoning
    assert whole["input"] == {"n": 12345678901234567890123} and "arguments" not in whole  # exact, over 64 bits
    assert broken["input"] is None and broken["arguments"] == '{"cut' and empty["input"] == {}
    assert messages(store)[0].parts[0][1]["meta"]["signature"] == "s3cr"


def test_a_tool_part_is_read_with_the_one_result_of_its_call(store: Store) -> None:
    house.session(store)
    run = house.start(store)
    house.call(store, run, 0)

    def now() -> dict[str, Any]:
        return dict(messages(store)[-1].parts[0][1])

    assert now()["status"] == "pending"
    store.write(lambda tx: tx.append(SESSION, sessions.ToolStarted(message=run.message, n=0, call="c1")))
    assert now()["status"] == "running"
    result = {"status": "done", "output": "42", "duration_ms": 3}
    store.write(lambda tx: tx.append(SESSION, sessions.ToolEnded(message=run.message, n=0, call="c1", result=result)))
    assert now() == {"type": "tool", "call": "c1", "tool": "bash", "arguments": "{}", **result}


def test_a_retracted_attempt_is_not_shown_but_stays_in_the_log(store: Store) -> None:
    house.session(store)
    run = house.start(store)
    for n in range(3):
        house.call(store, run, n, f"c{n}")
    store.write(lambda tx: tx.append(SESSION, sessions.StepRetracted(message=run.message, n=1, reason="cut")))
    assert [n for n, _ in messages(store)[-1].parts] == [0]
    with store.view() as view:
        assert sum(event.kind == "part.added" for event in view.events(stream=SESSION)) == 4
        assert sessions.next_part(view, SESSION, run.message) == 1


def test_listed_are_the_newest_first_without_children_hidden_and_trashed_ones(store: Store, clock: ManualClock) -> None:
    for n in range(9):
        house.session(store, f"session{n:09}", title=f"t{n}", project="ab"[n % 2] * 16, parent="x" if n == 3 else None)
        clock.advance(n % 3)  # several in one millisecond
    store.write(lambda tx: sessions.change(tx, "session000000005", trashed=True))
    store.write(lambda tx: sessions.change(tx, "session000000006", archived=True))
    with store.view() as view:
        everything = [one.title for one in sessions.page(view)]
        assert everything == ["t8", "t7", "t6", "t4", "t2", "t1", "t0"]
        assert [one.title for one in sessions.page(view, "b" * 16)] == ["t7", "t1"]
        assert [one.title for one in sessions.page(view, trashed=True)] == ["t5"]
        paged: list[str] = []
        before = None
        while page := sessions.page(view, limit=2, before=before):
            paged += [one.title for one in page]
            before = (page[-1].updated, page[-1].seq)
        assert paged == everything
        newest = sessions.latest(view, "a" * 16)
        assert newest is not None and newest.title == "t8"
        assert sessions.latest(view, "nowhere") is None


def test_a_session_is_found_by_id_prefix_or_title(store: Store) -> None:
    house.session(store, "abcdef0000000001", title="same")
    house.session(store, "abcdef0000000002", title="same", project="other")
    house.session(store, "zzzzzz0000000003", title="100%_odd'")
    with store.view() as view:
        assert sessions.resolve(view, "zzzzzz").id == "zzzzzz0000000003"
        assert sessions.resolve(view, "100%_odd'").id == "zzzzzz0000000003"
        assert sessions.resolve(view, "same", project="other").id == "abcdef0000000002"
        error = fails("ambiguous", lambda: sessions.resolve(view, "abcdef"))
        assert error.details and len(error.details["candidates"]) == 2
        fails("ambiguous", lambda: sessions.resolve(view, "same"))
        for text in ("", "zzzzz", "%", "______", "SAME", "zzzzzz9", "\0", "\ud800" * 6):
            fails("not_found", lambda text=text: sessions.resolve(view, text))


def test_a_session_deleted_for_good_is_gone_everywhere(store: Store) -> None:
    house.session(store)
    house.session(store, "another000000000")
    run = house.start(store)
    house.call(store, run, 0, started=True)
    house.step(store, run, 1, input=5)
    house.delete(store)
    for rows in store.dump().values():
        assert not any(SESSION in map(str, row) for row in rows if len(row) != 2)  # usage_sessions keeps the day
    fails("not_found", lambda: get(store))
    fails("not_found", lambda: house.start(store, "run2"))
    assert get(store, "another000000000")


def test_the_same_parts_in_the_same_order_after_closing_and_opening(where: str) -> None:
    def opened() -> Store:
        return open_store(where, house.FEATURES, clock=ManualClock(), ids=CountingIds())

    with opened() as store:
        house.session(store)
        add(store, {"type": "text", "text": "\0\ud83d\u2028 é"}, {"type": "odd", "v": [2**63, 0.1]})
        run = house.start(store)
        house.call(store, run, 0, started=True)
        before = messages(store)
    with opened() as again:
        assert messages(again) == before
        with again.view() as view:
            assert runs.active(view, SESSION) == run
        live = again.dump()
        again.rebuild()
        assert again.dump() == live
