"""What lies beside the database may be damaged by a power failure or a person: empty, or with NUL bytes behind it. It is reported,
and keeps nothing else from opening."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead, shown
from stead.core.errors import SteadError
from stead.domain import attachments, providers, sessions
from stead.store import faults
from stead.store.lock import living
from tests.crash import scenario
from tests.store.children import Child

pytestmark = pytest.mark.crash


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A house as a killed process left it, at the end of a prompt's life: everything that can lie in a data folder does."""
    place = tmp_path_factory.mktemp("killed")
    scenario.prepare(place / "project")

    def play() -> None:
        faults.watch(lambda name: faults.kill(name) if (place / "data/backups/before.db").exists() else None)
        scenario.play(place / "data", place / "project", os.open(os.devnull, os.O_WRONLY))

    assert Child(play).killed()
    return place


@pytest.fixture
def data(killed: Path, place: Path) -> Path:
    """A copy of it to damage."""
    shutil.copytree(killed / "data", place / "data")
    return place / "data"


def kinds(data: Path) -> dict[str, list[Path]]:
    """The files beside the database, by what they are."""
    found: dict[str, list[Path]] = {}
    for path in sorted(data.rglob("*")):
        if path.is_file() and path.name not in ("stead.db", "stead.db-wal", "stead.db-shm"):
            top = path.relative_to(data).parts[0]
            found.setdefault(top, []).append(path)
    return found


def look(data: Path) -> dict[str, Any]:
    """What a reader sees; of what cannot be read, the error's code."""

    def seen() -> dict[str, Any]:
        house = Stead.open(data, config_dir=data.parent / "config", environ={})
        try:
            with house.store.view() as view:
                listed = shown.sessions_json(view, sessions.page(view))
                found = sessions.messages(view, scenario.SESSION)
                provider = providers.get(view, "acme")
                digests = [digest for (digest,) in view.q("SELECT hash FROM blobs ORDER BY hash")]
            return {
                "sessions": [one["title"] for one in listed],
                "messages": [_or_code(lambda m=m: shown.message_json(m, house.store.blobs)) for m in found],  # type: ignore[misc]
                "attachment": _or_code(lambda: attachments.load(house.data / "attachments", "attachment000001")),
                "blobs": [_or_code(lambda d=d: len(house.store.blobs.get(d))) for d in digests],  # type: ignore[misc]
                "key": _or_code(lambda: _key(house, provider)),
                "living": living(data / "locks"),
            }
        finally:
            house.close()

    return dict(Child(seen).result())


def _key(house: Stead, provider: providers.Provider) -> str | None:
    with house.store.view() as view:
        return providers.key_for(view, provider, house.secrets, {})


def _or_code(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except SteadError as error:
        assert error.message
        return error.code


def test_there_is_everything_that_can_lie_in_a_data_folder(data: Path) -> None:
    assert {"attachments", "backups", "blobs", "locks", "secret.key"} <= set(kinds(data))


def test_b003_nul_bytes_behind_each_side_file_and_a_stale_lock_keep_nothing_from_opening(data: Path) -> None:
    whole = look(shutil.copytree(data, data.parent / "sound" / "data"))
    assert whole["sessions"] == ["A prompt"] and whole["key"] == scenario.KEY
    for paths in kinds(data).values():
        for path in paths:
            with path.open("ab") as file:
                file.write(b"\0" * 1_206)
    for again in range(2):
        seen = look(data)
        assert seen["sessions"] == whole["sessions"] and seen["living"] == whole["living"], again
        assert seen["key"] == scenario.KEY
        assert seen["messages"] == whole["messages"]


def test_b003_a_lock_whose_process_number_belongs_to_another_process_by_now_is_stale(data: Path) -> None:
    """The lock itself tells whether its process lives; the number in it is only for people."""
    (owner,) = [path for path in kinds(data)["locks"] if path.name != "maintenance" and not path.name.startswith(".")]
    for number in (os.getpid(), 1, 4_194_303):
        owner.write_text(f'{{"pid":{number},"boot":"another"}}')
        seen = look(data)
        assert seen["living"] == [] and not owner.exists()
    house = Child(lambda: _runs(data)).result()
    assert house == [("ended", "interrupted")]


def _runs(data: Path) -> Any:
    house = scenario.open_(data)
    with house.store.view() as view:
        found = view.q("SELECT status, outcome FROM runs WHERE id='run1'")
    house.close()
    return found


def test_b005_each_file_emptied_by_itself_is_reported_where_it_is_needed_and_keeps_nothing_else_from_opening(data: Path) -> None:
    whole = look(shutil.copytree(data, data.parent / "sound" / "data"))
    for kind, paths in kinds(data).items():
        for n, path in enumerate(paths):
            one = data.parent / f"{kind}{n}" / "data"
            shutil.copytree(data, one)
            (one / path.relative_to(data)).write_bytes(b"")
            seen = look(one)
            assert seen["sessions"] == whole["sessions"] and len(seen["messages"]) == len(whole["messages"]), kind
            if kind == "secret.key":
                assert seen["key"] == "store_damaged" and (one / "secret.key").read_bytes() == b"", "it is not replaced"
            else:
                assert seen["key"] == whole["key"], kind
            assert seen["messages"] == whole["messages"], kind


def test_b005_an_empty_database_beside_all_that_is_refused_and_left_as_it_is(data: Path) -> None:
    for name in ("stead.db-wal", "stead.db-shm"):
        (data / name).unlink(missing_ok=True)
    (data / "stead.db").write_bytes(b"")

    def refused() -> str:
        try:
            Stead.open(data, config_dir=data.parent / "config", environ={})
        except SteadError as error:
            assert error.hint and "stead.db" in error.message
            return error.code
        return "opened"

    for _ in range(3):
        assert Child(refused).result() == "store_damaged"
        assert (data / "stead.db").read_bytes() == b""
