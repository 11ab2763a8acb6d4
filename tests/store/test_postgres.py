"""What holds for the store on a server: lost connections, and no state in the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stead.core.errors import SteadError
from stead.store import Store, open_store
from tests.store.notes import NOTES, write

pytestmark = pytest.mark.postgres


@pytest.fixture
def store(postgres_empty: str, tmp_path: Path) -> Iterator[Store]:
    with open_store(postgres_empty, [NOTES], folder=tmp_path / "house") as opened:
        yield opened


def cut_all(url: str) -> None:
    """End every other connection to the database, as a restarting server does."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname=current_database() AND pid<>pg_backend_pid()"
        )


def test_the_writer_comes_back_after_its_connection_was_lost(store: Store, postgres_empty: str) -> None:
    store.write(write("a", "1"))
    for text in "23":
        cut_all(postgres_empty)
        with pytest.raises(SteadError) as failed:
            store.write(write("a", "lost"))
        assert failed.value.code == "store_busy"
        store.write(write("a", text))
    with store.view() as view:
        assert [event.data.text for event in view.events()] == ["1", "2", "3"]


def test_a_reader_whose_idle_connection_was_lost_takes_another(store: Store, postgres_empty: str) -> None:
    store.write(write("a"))
    with store.view() as one, store.view() as two, store.view() as three:
        assert len(one.events()) == len(two.events()) == len(three.events()) == 1
    cut_all(postgres_empty)
    for _ in range(4):
        with store.view() as view:
            assert len(view.events()) == 1


def test_a_connection_lost_inside_of_a_job_fails_the_job_and_nothing_is_kept(store: Store, postgres_empty: str) -> None:
    def job(tx: object) -> None:
        write("a", "lost")(tx)
        cut_all(postgres_empty)
        write("a", "lost too")(tx)

    with pytest.raises(SteadError):
        store.write(job)
    assert store.write(write("a", "kept"))
    with store.view() as view:
        assert [event.data.text for event in view.events()] == ["kept"]


def test_a_rolled_back_transaction_is_never_taken_for_a_commit(store: Store) -> None:
    conn = store.database.writer()
    conn.begin()
    with pytest.raises(psycopg.Error):
        conn.q("SELECT * FROM no_such_table")
    with pytest.raises(SteadError, match="ROLLBACK"):
        conn.commit()
    conn.close()


def test_bodies_are_bytes_and_statements_are_not_prepared(store: Store) -> None:
    store.write(write("a"))
    with store.view() as view:
        assert view.q("SELECT data_type FROM information_schema.columns WHERE table_name='events' AND column_name='data'") == [
            ("bytea",)
        ]
    assert store.write(lambda tx: tx.q("SELECT count(*) FROM pg_prepared_statements")) == [(0,)]


def test_a_database_that_does_not_exist_is_said(postgres_empty: str) -> None:
    address, _, query = postgres_empty.partition("?")
    with pytest.raises(SteadError) as failed:
        open_store(f"{address.rpartition('/')[0]}/stead_test_missing?{query}")
    assert failed.value.code == "store_busy" and "stead_test_missing" in failed.value.message
