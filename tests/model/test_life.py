"""A random life of the house and a model of it agree (tests/model/life.py says how), on both databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.crash.places import quick_folder
from tests.model.life import Life

SMALL = settings(
    max_examples=12, stateful_step_count=20, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_random_life_of_the_house_and_its_model_agree(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with quick_folder(tmp_path) as memory:
        run_state_machine_as_test(lives_on(database, memory, request), settings=SMALL)


def lives_on(database: str, memory: Path, request: pytest.FixtureRequest, **more: Any) -> type[Life]:
    """The machine on this database, each life on an empty one."""

    def where() -> str | None:
        return None if database == "sqlite" else emptied(request.getfixturevalue("_postgres_shared"))

    return type("Life", (Life,), {"where": staticmethod(where), "memory": memory, **more})


def emptied(url: str) -> str:
    """The database without anything in its tables; they stay, for to make them takes longer than a whole life."""
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname='public'").fetchall()
        for (table,) in tables:
            if table not in ("kernel", "projections"):
                connection.execute(psycopg.sql.SQL("DELETE FROM {}").format(psycopg.sql.Identifier(table)))
        if tables:
            connection.execute("UPDATE kernel SET seq=0")
    return url
