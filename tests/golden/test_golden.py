"""Data folders of earlier releases open for ever: nothing in them is lost, changed or done a second time (I12).

Each folder was recorded once, by the release whose name it bears (record.py), in the middle of a run. What a reader saw then must
be contained in what a reader sees now: fields may be added, never changed or dropped.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import apsw
import pytest

from stead.app import Stead
from stead.app.doctor import examine
from stead.core.errors import SteadError
from stead.domain import changes, providers, runs
from stead.store.kernel import KERNEL_VERSION
from tests.golden import life, shapes
from tests.store.children import Child, as_nobody

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.zip"))
FREED = ("status", "last_run", "updated")  # of a session whose run is closed by the restart


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of the folder, as a killed process left it, and what a reader saw in it the moment before."""
    data = tmp_path / "data"
    with zipfile.ZipFile(HERE / f"{request.param}.zip") as archive:
        archive.extractall(data)
    for path in (data, *data.rglob("*")):  # an archive of this kind keeps no modes
        path.chmod(0o700 if path.is_dir() else 0o600)
    return data, json.loads((HERE / f"{request.param}.json").read_text())


def now(house: Stead, told: dict[str, Any]) -> dict[str, Any]:
    """Today's view of what was told then, as JSON says it."""
    seen = shapes.seen(house, told["sessions"], told["ended_or_waiting"], told["attachments"])
    seen["in_flight"] = shapes.seen(house, list(told["in_flight"]), [], [])["session"]
    return dict(json.loads(json.dumps(seen)))


def settled(told: dict[str, Any]) -> dict[str, Any]:
    """What was seen, without the few fields that closing the runs in flight may change."""
    seen: dict[str, Any] = json.loads(json.dumps(told["seen"]))
    for session in told["in_flight"]:
        seen["sessions"][session] = {name: value for name, value in seen["sessions"][session].items() if name not in FREED}
    return seen


def test_there_is_a_folder_and_it_is_small() -> None:
    assert NAMES
    for name in NAMES:
        assert (HERE / f"{name}.zip").stat().st_size < 300_000 and (HERE / f"{name}.json").stat().st_size < 300_000


def test_everything_that_was_seen_is_seen(golden: tuple[Path, dict[str, Any]]) -> None:
    data, told = golden
    with_house = life.opened(data)
    today = now(with_house, told)
    assert shapes.lost(settled(told), today) == []
    _the_run_in_flight_was_closed(with_house, told, today)
    assert shapes.log(with_house)[: len(told["log"])] == told["log"], "the log itself was touched"
    live = with_house.store.dump()
    with_house.store.rebuild()
    assert with_house.store.dump() == live
    assert now(with_house, told) == today
    found = examine(with_house, full=True)
    assert found["ok"], [one for one in found["checks"] if not one["ok"]]
    with_house.close()


def _the_run_in_flight_was_closed(house: Stead, told: dict[str, Any], today: dict[str, Any]) -> None:
    with house.store.view() as view:
        assert changes.unsettled(view) == []
        assert runs.owners(view) == set()
        assert view.q("SELECT count(*), min(outcome) FROM runs WHERE session IN ('" + "','".join(told["in_flight"]) + "')") == [
            (len(told["in_flight"]), "interrupted")
        ]
        assert providers.unreadable(view, house.secrets) == []
    for session, before in told["in_flight"].items():
        after = today["in_flight"][session]
        assert after["about"]["status"] == "idle" and after["about"]["last_run"] == "interrupted"
        for old, new in zip(before["messages"], after["messages"], strict=True):
            kept = [
                {k: v for k, v in part.items() if k != "status" or part["type"] != "tool" or v == "done"} for part in old["parts"]
            ]
            assert shapes.lost(kept, new["parts"][: len(kept)]) == []  # what came is a prefix of what is shown now
            assert all(part["status"] in ("done", "error", "denied") for part in new["parts"] if part["type"] == "tool")


def test_opening_it_twice_is_the_same_and_two_processes_may(golden: tuple[Path, dict[str, Any]]) -> None:
    data, told = golden

    def look() -> Any:
        house = life.opened(data)
        found = now(house, told), shapes.log(house), house.store.dump()
        house.close()
        return found

    first = Child(look).result()
    assert sorted(os.listdir(data / "locks")) == ["maintenance"], "dead processes' locks are gone"
    assert Child(look).result() == first
    beside = [Child(look), Child(look)]
    assert [child.result() for child in beside] == [first, first]


def test_a_folder_that_nothing_can_be_written_to_is_read_or_refused_plainly(golden: tuple[Path, dict[str, Any]]) -> None:
    """Read, without the recovery's writes; where its kernel is older than ours and cannot be brought up, refused as `read_only`."""
    data, told = golden
    old = apsw.Connection(str(data / "stead.db")).execute("SELECT version FROM kernel").fetchall()[0][0] < KERNEL_VERSION
    with tempfile.TemporaryDirectory(prefix="stead-test-") as folder:
        place = Path(shutil.copytree(data, Path(folder).resolve() / "data"))
        whole = [Path(folder), place, *place.rglob("*")]
        for path in whole:
            if os.geteuid() == 0:
                os.chown(path, 65534, 65534)
            path.chmod(0o500 if path.is_dir() else 0o400)
        before = {path: path.read_bytes() for path in whole if path.is_file()}

        def look() -> Any:
            try:
                house = life.opened(place)
            except SteadError as error:
                return error.code
            try:
                return now(house, told)
            finally:
                house.close()

        try:
            seen = as_nobody(look)
            assert {path: path.read_bytes() for path in whole if path.is_file()} == before
        finally:
            for path in whole:
                path.chmod(0o700 if path.is_dir() else 0o600)
    if old:
        assert seen == "read_only"
    else:
        assert shapes.lost(settled(told), seen) == []


def test_a_prompt_goes_on_where_it_was_cut(golden: tuple[Path, dict[str, Any]]) -> None:
    data, told = golden
    house = life.opened(data)
    (session,) = told["in_flight"]
    about: dict[str, Any] = {
        "agent": "build",
        "model": "acme/large",
        "owner": house.owner(),
        "project": "garden0000000001",
        "max_steps": 9,
    }
    part = {"type": "text", "text": "and on"}
    run = house.store.write(lambda tx: runs.start(tx, "runafterwards001", session, [part], **about))
    assert house.store.write(lambda tx: runs.end(tx, run.id, "done", steps=0))
    assert shapes.lost(settled(told)["session"], now(house, told)["session"]) == []
    house.close()


def test_the_comparison_sees_what_is_lost(golden: tuple[Path, dict[str, Any]]) -> None:
    """One row less, one text other: the comparison must say so."""
    data, told = golden
    life.opened(data).close()
    raw = apsw.Connection(str(data / "stead.db"))
    raw.execute("DELETE FROM todos WHERE n=1").fetchall()
    raw.execute("UPDATE usage_days SET output=output+1 WHERE day=(SELECT min(day) FROM usage_days)").fetchall()
    raw.execute("UPDATE sessions SET title='other' WHERE pinned=1").fetchall()
    raw.close()
    house = life.opened(data)
    found = shapes.lost(settled(told), now(house, told))
    house.close()
    assert {one.split(".")[1].split("[")[0].split(" ")[0] for one in found} >= {"session", "sessions", "usage"}, found
    assert shapes.lost({"a": 1}, {"a": True}) and shapes.lost([1], [1, 2]) and not shapes.lost({"a": [1]}, {"a": [1], "b": 2})
