"""A fork has exactly the prefix, the other stays as it is, and neither lives off the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead
from stead.app.shown import message_json, session_json
from stead.core.errors import SteadError
from stead.domain import attachments, sessions, todos, usage
from tests.agent.house import script, use
from tests.cli.door import stead
from tests.undo.room import Room, edit, room, write


def told(at: Stead, session: str) -> list[Any]:
    """What a session says, without the ids and times that differ in a copy."""
    with at.store.view() as view:
        found = sessions.messages(view, session)
    shown = [message_json(one, at.store.blobs) for one in found]
    for message in shown:
        message.pop("id")
        for part in message["parts"]:
            part.pop("id")
    return shown


def rows(at: Stead, session: str) -> dict[str, Any]:
    with at.store.view() as view:
        return session_json(view, sessions.get(view, session))


async def three(here: Room) -> str:
    for n in range(3):
        await here.turn(
            write(f"f{n}", "x" * 20_000), use("todo_write", todos=[{"text": f"t{n}", "status": "doing"}]), text=f"say {n}"
        )
    assert here.session is not None
    return here.session


async def test_b164_each_fork_has_exactly_the_prefix_and_the_parent_is_unchanged(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        a = await three(here)
        whole, before = told(here.at, a), rows(here.at, a)
        b, c = here.at.fork(a), here.at.fork(a)
        d = here.at.fork(b)
        e = here.at.fork(d, f"{d}.2")
        first, none, last = here.at.fork(a, 2), here.at.fork(a, 1), here.at.fork(a, f"{a}.6")
        expected = {b: whole, c: whole, d: whole, e: whole[:2], first: whole[:2], none: [], last: whole}
        for session, said in expected.items():
            assert told(here.at, session) == said
            assert rows(here.at, session)["messages"] == len(said)
        assert told(here.at, a) == whole and rows(here.at, a) == before
        lineage = {session: rows(here.at, session)["forked_from"] for session in expected}
        assert lineage[b] == lineage[c] == lineage[last] == {"session": a, "message": f"{a}.6"}
        assert lineage[d] == {"session": b, "message": f"{b}.6"} and lineage[e] == {"session": d, "message": f"{d}.2"}
        assert lineage[none] == {"session": a, "message": f"{a}.0"}
        with here.at.store.view() as view:
            assert [one["text"] for one in todos.listed(view, b)] == ["t2"]
            assert {one.id for one in sessions.page(view)} == {a, *expected}
            assert usage.sums_of(view, b) == [] and sessions.get(view, b).cost == 0


async def test_a_fork_goes_on_and_the_model_sees_the_prefix(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await three(here)
        assert here.session is not None
        new = here.at.fork(here.session, 3)
        other = Room(here.at, here.folder, new)
        assert await other.turn(edit("f0", "x" * 20_000, "y"), text="else") == 3
        assert [message.n for message in _messages(here.at, new)] == [1, 2, 3, 4]
        assert (await other.undo()).restored == ["f0"] and here.said() == [1, 2, 3, 4, 5, 6]


def _messages(at: Stead, session: str) -> list[sessions.Message]:
    with at.store.view() as view:
        return sessions.messages(view, session)


async def test_b164_a_session_at_work_is_forked_up_to_before_its_prompt(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await here.turn(write("a", "a"))
        whole = told(here.at, here.session or "")
        here.at.models = script([{"tools": [use("ask", question="Which?")]}, {"text": "end"}])
        run = await here.at.prompt(here.session, "more", on_ask="wait")
        await run.ended()
        assert here.session is not None
        assert told(here.at, here.at.fork(here.session)) == whole
        assert told(here.at, here.at.fork(here.session, 3)) == whole
        with pytest.raises(SteadError, match="still written"):
            here.at.fork(here.session, 4)


async def test_a_branch_that_was_left_can_be_forked(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        a = await three(here)
        whole = told(here.at, a)
        await here.undo(what="conversation")
        assert told(here.at, a) == whole[:4] and told(here.at, here.at.fork(a)) == whole[:4]
        assert told(here.at, here.at.fork(a, 6)) == whole


async def test_b167_deleting_one_for_good_never_breaks_the_other(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        part = attachments.add(here.at.data / "attachments", "abc", "note.txt", b"a note")
        here.at.models = script([{"tools": [use("write", path="big", content="z" * 30_000)]}, {"text": "done"}])
        run = await here.at.prompt(
            None, [{"type": "text", "text": "see"}, part], project=here.folder, model="fake/m", on_ask="allow"
        )
        await run.ended()
        here.at.store.write(
            lambda tx: sessions.create(
                tx,
                "child1",
                rows(here.at, run.session)["project"],
                title="c",
                agent="build",
                model=None,
                parent=run.session,
                parent_call="call_1_1",
            )
        )
        whole = told(here.at, run.session)
        new = here.at.fork(run.session)
        with here.at.store.view() as view:
            (child,) = sessions.children(view, new)
            assert child.parent_call == "call_1_1" and child.forked_from == "child1" and not child.hidden
        here.at.delete(run.session)
        assert told(here.at, new) == whole
        assert attachments.load(here.at.data / "attachments", "abc") == b"a note"
        with here.at.store.view() as view:
            assert [one.id for one in sessions.children(view, new)] == [child.id]
        here.at.delete(new)
        with pytest.raises(SteadError):
            attachments.load(here.at.data / "attachments", "abc")


async def test_b165_the_command_line_writes_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEAD_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("STEAD_CONFIG", str(tmp_path / "config"))
    async with room(tmp_path) as here:
        a = await three(here)
        by_library = here.at.fork(a, 4)
    done = stead("sessions", "fork", a, "--message", "4", "--json")
    assert done.code == 0
    by_command = done.json["session"]["id"]
    async with room(tmp_path) as here:
        one, other = rows(here.at, by_library), rows(here.at, by_command)
        differing = {name for name in one if one[name] != other[name]}
        assert differing <= {"id", "head", "created", "updated"} and told(here.at, by_library) == told(here.at, by_command)
        assert told(here.at, a)[:4] == told(here.at, by_command)
