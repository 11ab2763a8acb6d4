"""What holds for the store on a server: lost connections, and no state in the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from stead.core.errors import SteadError
from stead.store import Store, open_store
from stead.store.postgres import PostgresConn
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


def test_a_writer_whose_idle_connection_was_lost_takes_another_and_nobody_notices(
    store: Store, postgres_empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(write("a", "1"))
    for text in "23":
        cut_all(postgres_empty)
        store.write(write("a", text))
    with store.view() as view:
        assert [event.data.text for event in view.events()] == ["1", "2", "3"]
    assert caplog.records == []


def test_a_connection_that_is_lost_again_and_again_is_replaced_once_and_then_said(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(write("a", "1"))
    tries = 0

    def begin(conn: PostgresConn) -> None:
        nonlocal tries
        tries += 1
        conn.raw.close()
        conn.q("BEGIN")

    with monkeypatch.context() as patch:
        patch.setattr(PostgresConn, "begin", begin)
        with pytest.raises(SteadError) as failed:
            store.write(write("a", "lost"))
    assert failed.value.code == "store_busy" and tries == 2
    store.write(write("a", "2"))
    with store.view() as view:
        assert [event.data.text for event in view.events()] == ["1", "2"]


def test_a_reader_whose_idle_connection_was_lost_takes_another(store: Store, postgres_empty: str) -> None:
    store.write(write("a"))
    with store.view() as one, store.view() as two, store.view() as three:
        assert len(one.events()) == len(two.events()) == len(three.events()) == 1
    cut_all(postgres_empty)
    for _ in range(4):
        with store.view() as view:
            assert len(view.events()) == 1


def test_a_connection_lost_inside_of_a_job_fails_the_job_and_nothing_is_kept(
    store: Store, postgres_empty: str, caplog: pytest.LogCaptureFixture
) -> None:
    def job(tx: object) -> None:
        write("a", "lost")(tx)
        cut_all(postgres_empty)
        write("a", "lost too")(tx)

    with pytest.raises(SteadError):
        store.write(job)
    assert "rolling back failed" not in caplog.text  # with its connection the transaction is gone
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


@pytest.mark.parametrize("table", ["kernel", "events", "projections"])
def test_a_lost_table_of_the_kernel_is_damage_and_one_of_a_feature_is_filled_again(
    store: Store, postgres_empty: str, table: str
) -> None:
    store.write(write("a", "kept"))
    store.write(lambda tx: tx.q("DROP TABLE notes"))

    with open_store(postgres_empty, [NOTES], folder=store.folder) as again:
        assert len(again.dump()["notes"]) == 1
        again.write(lambda tx: tx.q(f"DROP TABLE {table}"))
    with psycopg.connect(postgres_empty) as connection:
        before = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname=current_schema() ORDER BY 1").fetchall()
        for _ in range(2):
            with pytest.raises(SteadError) as failed:
                open_store(postgres_empty, [NOTES], folder=store.folder)
            assert failed.value.code == "store_damaged" and f"lost its table {table}." in failed.value.message
        assert (
            before == connection.execute("SELECT tablename FROM pg_tables WHERE schemaname=current_schema() ORDER BY 1").fetchall()
        )


def test_a_database_that_does_not_exist_is_said(postgres_empty: str) -> None:
    address, _, query = postgres_empty.partition("?")
    with pytest.raises(SteadError) as failed:
        open_store(f"{address.rpartition('/')[0]}/stead_test_missing?{query}")
    assert failed.value.code == "store_busy" and "stead_test_missing" in failed.value.message
