"""One contract suite for both databases: a test that takes `where` or `store` runs on SQLite and on PostgreSQL."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from stead.core.clock import ManualClock
from stead.store import Store, faults, open_store
from tests.store.notes import NOTES


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the store under test lies: what `open_store` takes."""
    return str(tmp_path / "house") if request.param == "sqlite" else str(request.getfixturevalue("postgres_empty"))


Opener = Callable[..., Store]


@pytest.fixture
def opener(where: str, tmp_path: Path) -> Iterator[Opener]:
    """`opener(**arguments)` opens the store under test, with the notes feature; all are closed at the end."""
    opened: list[Store] = []

    def open_(**arguments: Any) -> Store:
        arguments.setdefault("features", [NOTES])
        arguments.setdefault("clock", ManualClock())
        folder = None if where.startswith("/") else tmp_path / "house"
        opened.append(open_store(where, folder=folder, **arguments))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(opener: Opener) -> Iterator[Store]:
    """An open store; every test that leaves it usable ends with rebuild == live (I8)."""
    opened = opener()
    yield opened
    if not opened._closed:
        live = opened.dump()
        opened.rebuild()
        assert opened.dump() == live, "a rebuild from the log gives other rows than were there"


@pytest.fixture(autouse=True)
def _nothing_armed() -> Iterator[None]:
    yield
    faults.disarm()


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user of the machine may enter, for tests about rights; root's power is given up in a child."""
    folder = Path(tempfile.mkdtemp(prefix="stead-test-")).resolve()
    if os.geteuid() == 0:
        os.chown(folder, 65534, 65534)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)
