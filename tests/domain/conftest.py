"""One suite for both databases: `store` is SQLite once and PostgreSQL once, and every test ends with rebuild == live (I8)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from stead.core.clock import ManualClock
from stead.core.ids import CountingIds
from stead.domain import people, projects, providers, runs, settings
from stead.store import Feature, Store, open_store
from tests.domain import house


@pytest.fixture
def features() -> Sequence[Feature]:
    """The features of the store under test; a test file may have its own."""
    return [people.FEATURE, projects.FEATURE, settings.FEATURE, providers.FEATURE, *house.FEATURES]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the store under test lies: what `open_store` takes."""
    return str(tmp_path / "house") if request.param == "sqlite" else str(request.getfixturevalue("postgres_empty"))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(where: str, features: Sequence[Feature], clock: ManualClock) -> Iterator[Store]:
    with open_store(where, features, clock=clock, ids=CountingIds()) as opened:
        yield opened
        live = opened.dump()
        opened.rebuild()
        assert opened.dump() == live, "a rebuild from the log gives other rows than were there"


@pytest.fixture
def run(store: Store) -> runs.Run:
    """A session with a run at work."""
    house.session(store)
    return house.start(store)
