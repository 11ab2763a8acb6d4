"""Retention: nothing is trimmed unasked, a trim is told and can be reverted exactly, and what is freed deletes nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead
from stead.app import retention as kept
from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.domain import sessions, settings
from stead.domain.changes import trims
from stead.store import check
from stead.store.collect import collect, names_in
from tests.agent.house import house
from tests.cli.door import stead
from tests.undo.room import Room, tree, write

DAY = 24 * 60 * 60 * 1000


def policy(at: Stead, text: str) -> None:
    at.store.write(lambda tx: settings.change(tx, values={"retention": text}))


def rows(at: Stead) -> list[Any]:
    with at.store.view() as view:
        return view.q("SELECT seq, path, before_blob, after_blob, trimmed, spared FROM changes ORDER BY seq")


def trimmed(at: Stead) -> list[str]:
    return [row[1] for row in rows(at) if row[4] is not None]


def later(at: Stead, days: float) -> None:
    clock = at.store.clock
    assert isinstance(clock, ManualClock)
    clock.advance(int(days * DAY))


async def four(here: Room) -> list[int]:
    return [await here.turn(write(f"f{n}", f"{n}" * 3_000)) for n in range(4)]


def same(at: Stead) -> None:
    """What the tables hold is what the log gives (I8)."""
    live = at.store.dump()
    at.store.rebuild()
    assert at.store.dump() == live


@asynccontextmanager
async def room(tmp_path: Path, url: str | None = None) -> AsyncIterator[Room]:
    """A room whose time stands still."""
    (tmp_path / "project").mkdir()
    async with house(tmp_path, database_url=url, clock=ManualClock()) as at:
        yield Room(at, tmp_path / "project")


@pytest.mark.parametrize("text", ["keep", "trim-100-30", "messages:5", "days:1 bytes:1_000", "bytes:7 messages:2 days:3"])
def test_policies(text: str) -> None:
    found = settings.retention_of(text)
    assert (found is None) == (text == "keep")


@pytest.mark.parametrize(
    "text", ["", "messages:0", "messages:-1", "days:x", "days:1 days:2", "weeks:1", "trim", "days", "keep days:1"]
)
def test_what_is_no_policy_is_refused(text: str) -> None:
    with pytest.raises(SteadError, match="retention"):
        settings.check("retention", text)


def test_the_ready_policy() -> None:
    assert settings.retention_of("trim-100-30") == settings.Retention(messages=100, days=30)


async def test_b172_by_default_nothing_is_trimmed_however_late(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await four(here)
        later(here.at, 400)
        before = rows(here.at)
        kept.at_start(here.at)
        assert trimmed(here.at) == [] and kept.announcement(here.at) is None
        assert rows(here.at) == before


async def test_b172_what_is_trimmed_is_told_once_and_reverted_exactly(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await four(here)
        before = [row[:4] for row in rows(here.at)]
        policy(here.at, "messages:2")
        kept.at_start(here.at)
        assert trimmed(here.at) == ["f0", "f1"]
        said = kept.announcement(here.at)
        assert said is not None and "2 changes" in said and "--untrim" in said
        assert kept.announcement(here.at) is None
        later(here.at, 6.9)
        assert kept.free(here.at) == 0
        collect(here.at.store, age_ms=0)
        assert kept.revert(here.at) == {"changes": 2, "sessions": 1}
        assert trimmed(here.at) == [] and [row[:4] for row in rows(here.at)] == before
        kept.at_start(here.at)
        assert trimmed(here.at) == []  # the policy spares what came back
        assert kept.apply(here.at, every=True) == 2  # a person may still say so
        kept.revert(here.at)
        await here.undo(to=1)
        assert tree(here.folder) == {}


async def test_after_the_grace_the_contents_go_and_an_undo_leaves_the_file(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await four(here)
        gone = [row[3] for row in rows(here.at)][:2]
        policy(here.at, "messages:2")
        kept.at_start(here.at)
        for freed in (False, True):
            if freed:
                later(here.at, 8)
                assert kept.free(here.at) == 1
                assert kept.revert(here.at) == {"changes": 0, "sessions": 0}
                assert [here.at.store.blobs.has(digest) for digest in gone] == [False, False]
            for force in ((), ("f0", "f1")):
                plan = await here.plan(to=1, what="files", force=force)
                assert {item.path: item.case for item in plan.items if item.path[0] == "f"} == {
                    "f0": "missing",
                    "f1": "missing",
                    "f2": "clean",
                    "f3": "clean",
                }
        named = {row[3] for row in rows(here.at) if row[3] is not None}
        assert len(named) == 2 and all(here.at.store.blobs.has(digest) for digest in named)
        with here.at.store.view() as view:
            log = set(names_in(data for (data,) in view.q("SELECT data FROM events")))
        assert named <= log and not log & set(gone) and check.blobs(here.at.store, log, True).ok
        done = await here.undo(to=1, what="files")
        assert done.restored == ["f2", "f3"] and [one["path"] for one in done.conflicts] == ["f0", "f1"]
        assert sorted(tree(here.folder)) == ["f0", "f1"]


async def test_pinned_sessions_are_passed_over(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        await four(here)
        session = str(here.session)
        here.at.store.write(lambda tx: sessions.change(tx, session, pinned=True))
        policy(here.at, "messages:1")
        assert kept.apply(here.at) == 0
        here.at.store.write(lambda tx: sessions.change(tx, session, pinned=False))
        assert kept.apply(here.at) == 3


async def test_days_and_bytes_count_too_and_the_least_holds(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        await four(here)
        later(here.at, 10)
        await here.turn(write("f4", "4" * 3_000))
        policy(here.at, "days:20 messages:100")
        assert kept.apply(here.at) == 0
        policy(here.at, "days:5 messages:2")
        assert kept.apply(here.at) == 4
        kept.revert(here.at)
        policy(here.at, "days:20 bytes:1")
        assert kept.apply(here.at, every=True) == 5


async def test_a_trim_survives_a_rebuild_before_and_after_it_is_freed(tmp_path: Path, url: str | None) -> None:
    async with room(tmp_path, url) as here:
        await four(here)
        policy(here.at, "messages:3")
        kept.apply(here.at)
        same(here.at)
        kept.revert(here.at)
        policy(here.at, "messages:1")
        kept.apply(here.at, every=True)
        later(here.at, 8)
        kept.free(here.at)
        same(here.at)
        with here.at.store.view() as view:
            assert [one.state for one in trims.trims(view)] == ["reverted", "freed"]


async def test_freeing_goes_on_where_it_was_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with room(tmp_path) as here:
        await four(here)
        policy(here.at, "messages:1")
        kept.apply(here.at)
        with here.at.store.view() as view:
            (one,) = trims.trims(view)
        monkeypatch.setattr(trims, "_SHARE", 1)
        later(here.at, 8)
        assert here.at.store.write(lambda tx: trims.free(tx, one.seq)) is True
        assert [row[3] is None for row in rows(here.at)] == [True, False, False, False]
        assert kept.revert(here.at)["changes"] == 0
        same(here.at)
        kept.at_start(here.at)
        assert [row[3] is None for row in rows(here.at)] == [True, True, True, False]
        same(here.at)


async def test_a_content_that_a_kept_change_needs_stays(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        for n in (1, 2, 1):
            await here.turn(write("f", f"{n}" * 3_000))
        policy(here.at, "messages:1")
        assert kept.apply(here.at) == 2
        with here.at.store.view() as view:
            assert [one.bytes for one in trims.trims(view)] == [0]
        later(here.at, 8)
        kept.free(here.at)
        await here.undo(what="files")
        assert (here.folder / "f").read_text() == "2" * 3_000


async def test_a_redo_of_what_was_trimmed_is_refused_for_the_file(tmp_path: Path) -> None:
    async with room(tmp_path) as here:
        await four(here)
        await here.undo()
        policy(here.at, "bytes:1")
        kept.apply(here.at)
        done = await here.redo()
        assert [one["path"] for one in done.conflicts] == ["f3"] and not (here.folder / "f3").exists()


async def test_the_next_command_says_what_was_trimmed_and_brings_it_back(tmp_path: Path, data_dir: Path) -> None:
    (tmp_path / "project").mkdir()
    async with Stead.open(data_dir, environ={}) as at:
        await four(Room(at, tmp_path / "project"))
        policy(at, "messages:1")
    told = stead("storage", "--json")
    assert "3 changes" in told.err and "stead storage --untrim" in told.err
    undo = told.json["undo"]
    assert undo["bytes"] > 0 and undo["month"] == undo["week"] == undo["day"] == undo["bytes"] and undo["gib"] == 0
    (one,) = undo["trims"]
    assert one["changes"] == 3 and one["bytes"] > 0 and one["state"] == "open" and one["until"] - one["at"] == 7 * DAY
    assert "trimmed" not in stead("sessions", "list").err
    assert "3 changes" in stead("storage", "--untrim").err
    assert stead("storage", "--json").json["undo"]["trims"][0]["state"] == "reverted"
    assert stead("storage", "--trim", "--untrim").code == 2
    assert "3 changes" in stead("storage", "--trim").err


def test_each_gib_of_undo_data_is_told(monkeypatch: pytest.MonkeyPatch, data_dir: Path) -> None:
    assert "GiB" not in stead("storage").err
    sizes = kept.undo_sizes
    monkeypatch.setattr(trims, "contents", lambda view: [("a" * 64, 0)])
    monkeypatch.setattr("stead.app.storage.undo_sizes", lambda house, stored: sizes(house, {"a" * 64: (2 << 30) + 5}))
    assert "over 2 GiB" in stead("storage").err
