"""A random life of the house and a model of it agree (tests/model/life.py says how), on both databases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.crash.places import quick_folder
from tests.model.killed import Killed
from tests.model.life import Life

DATABASES = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
CHECKS = list(HealthCheck)
SMALL = settings(
    phases=[Phase.generate], stateful_step_count=25, derandomize=True, deadline=None, database=None, suppress_health_check=CHECKS
)
LONG = settings(stateful_step_count=40, deadline=None, suppress_health_check=CHECKS)
EXAMPLES = {"sqlite": 40, "postgres": 8}
MANY = {"sqlite": 2_000, "postgres": 400}  # a life on PostgreSQL takes five times as long


@pytest.mark.slow
@pytest.mark.parametrize("database", DATABASES)
def test_a_random_life_of_the_house_and_its_model_agree(database: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    with quick_folder(tmp_path) as memory:
        machine = lives_on(database, memory, request)
        run_state_machine_as_test(machine, settings=settings(SMALL, max_examples=EXAMPLES[database]))


@pytest.mark.slow
@pytest.mark.crash
@pytest.mark.parametrize("database", DATABASES)
def test_a_random_life_and_its_model_agree_when_processes_are_killed(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with quick_folder(tmp_path) as memory:
        machine = lives_on(database, memory, request, Killed)
        run_state_machine_as_test(machine, settings=settings(SMALL, max_examples=EXAMPLES[database] // 4))


@pytest.mark.long
@pytest.mark.crash
@pytest.mark.parametrize("database", DATABASES)
@pytest.mark.parametrize("form", [Life, Killed], ids=["dropped", "killed"])
def test_thousands_of_random_lives_and_their_models_agree(
    form: type[Life], database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with quick_folder(tmp_path) as memory:
        machine = lives_on(database, memory, request, form)
        run_state_machine_as_test(machine, settings=settings(LONG, max_examples=MANY[database]))


def lives_on(database: str, memory: Path, request: pytest.FixtureRequest, form: type[Life] = Life, **more: Any) -> type[Life]:
    """The machine on this database, each life on an empty one."""

    def where() -> str | None:
        return None if database == "sqlite" else emptied(request.getfixturevalue("_postgres_shared"))

    return type("OneLife", (form,), {"where": staticmethod(where), "memory": memory, **more})


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
