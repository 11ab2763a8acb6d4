"""A disk that fills up in the middle of a turn: what fits is kept, the reason is said, and once there is room all goes on."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from stead.agent.gate import parse
from stead.app import Stead
from stead.core.errors import SteadError
from stead.domain import runs, sessions
from tests.agent import house as agent
from tests.power.trial import lived
from tests.store.children import Child
from tests.support import run_stead, scale

pytestmark = pytest.mark.power
BULK = "".join(f"{n:x}" for n in random.Random(1).choices(range(16), k=40_000))
TURNS: list[dict[str, Any]] = [
    {"text": "First this. " * 400, "tools": [agent.use("write", path="one.txt", content=BULK)]},
    {"text": "Then that.", "tools": [agent.use("write", path="two.txt", content=BULK[::-1])]},
    {"text": "And it is done."},
]


def opened(place: Path, turns: Any) -> Stead:
    return agent.house(place, models=agent.script(turns))


async def said(house: Stead, project: Path, session: str | None, text: str) -> dict[str, Any]:
    rules = [parse("write", "allow", "flag")]
    handle = await house.prompt(session, text, project=project, model="fake/x", rules=rules)
    return await handle.result()


def fill(place: Path) -> None:
    """A turn on a small disk. Whatever comes of it is a full disk that is called one, or an end like any other."""

    async def turn() -> None:
        house = opened(place, TURNS)
        try:
            told = await said(house, place / "project", None, "work")
            assert told["outcome"] == "done" or told["error"]["code"] == "disk_full", told
            place.with_name("done").touch()
        finally:
            house.close()

    asyncio.run(turn())


def look(place: Path) -> None:
    """There is room again: everything opens, the turn is closed once, and the next one works."""

    async def turn() -> None:
        async with opened(place, [{"text": "It works."}]) as house:
            with house.store.view() as view:
                found = sessions.page(view)
                assert view.q("PRAGMA integrity_check") == [("ok",)]
                before = [runs.last(view, one.id) for one in found]
            for run in before:
                assert run is not None and run.status == "ended" and run.outcome in ("done", "error", "interrupted")
                ends = [event for event in agent.events(house, run.session, "run.ended") if event.data.run == run.id]
                assert len(ends) == 1
                for part in agent.parts(house, run.id):
                    assert part["type"] != "tool" or part["status"] in ("done", "error"), part
            told = await said(house, place / "project", found[0].id if found else None, "again")
            assert told["outcome"] == "done" and told["result"] == "It works."
            live = house.store.dump()
            house.store.rebuild()
            assert house.store.dump() == live

    asyncio.run(turn())


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_b001_a_turn_on_a_disk_that_fills_up_costs_at_most_what_was_being_written(place: Path, part: int) -> None:
    rng = random.Random(part)
    spaces = [20_000, 150_000, 300_000, 1_000_000, *(rng.randrange(20_000, 700_000) for _ in range(scale(300)))]
    for seed, space in enumerate(spaces):
        disk = place / str(seed) / "disk"
        disk.mkdir(parents=True)
        agent.project(disk)
        lived(disk, lambda disk=disk: fill(disk), seed=seed, space=space)  # type: ignore[misc]
        assert space > 180_000 or not disk.with_name("done").exists(), "it was not full"
        Child(lambda disk=disk: look(disk)).result()  # type: ignore[misc]


def limited(place: Path, size: int) -> None:
    """A turn in a process none of whose files may grow beyond `size` bytes, as with a quota: whatever it says of that."""
    opened(place, TURNS).close()
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    async def turn() -> None:
        house = opened(place, TURNS)
        try:
            told = await said(house, place / "project", None, "work")
            assert told["outcome"] == "error" and told["error"]["message"]
        finally:
            house.close()

    with suppress(SteadError):
        asyncio.run(turn())


@pytest.mark.slow
def test_b001_files_that_may_not_grow_any_more_are_like_a_full_disk(place: Path) -> None:
    for size in (60_000, 100_000, 150_000):
        disk = place / str(size) / "disk"
        disk.mkdir(parents=True)
        agent.project(disk)
        Child(lambda disk=disk, size=size: limited(disk, size)).result()  # type: ignore[misc]
        Child(lambda disk=disk: look(disk)).result()  # type: ignore[misc]


# --- a real one, through the real command -------------------------------------------------------------------------------------


@pytest.fixture
def forty_megabytes(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with 40 MB, where this user may mount one."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk], capture_output=True).returncode:
        pytest.skip("may not mount a file system here; the modelled disk above is full all the same")
    try:
        yield disk
    finally:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.slow
def test_b001_a_command_that_fills_the_real_disk(forty_megabytes: Path, tmp_path: Path) -> None:
    disk = forty_megabytes
    project, env = disk / "project", {"STEAD_DATA": str(disk / "data"), "STEAD_CONFIG": str(tmp_path / "config")}
    project.mkdir()
    command = "cat /dev/zero > big; head -c 20000 /dev/urandom | base64"
    turns = [{"text": "I fill it.", "tools": [agent.use("bash", command=command)]}, {"text": "And more."}]
    script = {"turns": turns, "prompts": [{"match": "again", "turns": [{"text": "It works."}]}]}
    (project / "play.yaml").write_text(orjson.dumps(script).decode())

    def stead(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return run_stead(*arguments, cwd=project, env=env)

    full = stead("run", "-m", "script/play.yaml", "--allow", "bash(*)", "fill it")
    assert full.returncode != 0
    assert full.stderr.decode().count("disk_full") == 1, full.stderr.decode()
    assert os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize < 1 << 16
    before = stead("sessions", "list", "--json")  # still full: what is stored can be read
    assert before.returncode == 0 and b"fill it" in before.stdout
    (project / "big").unlink()
    again = stead("run", "-c", "-m", "script/play.yaml", "--json", "again")
    assert again.returncode == 0, again.stderr.decode()
    session = orjson.loads(again.stdout)["session"]
    assert orjson.loads(again.stdout)["result"] == "It works."
    shown = stead("sessions", "show", session).stdout.decode()
    assert "I fill it." in shown
    log = stead("run", "-c", "-m", "script/play.yaml", "--stream-json", "again").stdout  # it goes on as if nothing had been
    assert b'"outcome":"done"' in log
    house = Stead.open(disk / "data", config_dir=tmp_path / "config")
    ends = [(one.data.outcome, (one.data.error or {}).get("code")) for one in agent.events(house, session, "run.ended")]
    house.close()
    assert ends == [("error", "disk_full"), ("done", None), ("done", None)]  # why it ended was kept beside the store


def test_a_full_disk_is_what_the_modelled_one_says(place: Path) -> None:
    """Without room nothing begins, and the reason is said."""
    disk = place / "disk"
    disk.mkdir()

    def start() -> None:
        with pytest.raises(SteadError) as failed:
            opened(disk, TURNS)
        (place / "told").write_text(failed.value.code)

    lived(disk, start, space=1_000)
    assert (place / "told").read_text() == "disk_full"
