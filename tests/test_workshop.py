"""The rules that tests/conftest.py sets hold."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import psycopg
import pytest

from tests.support import ROOT, scale
from tests.support import postgres as pg


@pytest.mark.parametrize("host", ["192.0.2.1", "10.0.0.1", "169.254.169.254", "2001:db8::1"])
def test_nothing_beyond_this_machine_is_reached(host: str) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried, pytest.raises(ConnectionRefusedError):
        tried.settimeout(1)
        tried.connect((host, 80))


def test_no_name_is_looked_up() -> None:
    with pytest.raises(socket.gaierror):
        socket.create_connection(("example.com", 80), timeout=1)


def test_this_machine_is_reached() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(("localhost", server.getsockname()[1])) as client,
    ):
        assert client.getpeername()[0] == "127.0.0.1"


def test_a_database_is_new_and_empty_and_its_name_says_whose_it_is(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(
            "SELECT current_database(), pg_encoding_to_char(encoding), datcollate FROM pg_database"
            " WHERE datname = current_database()"
        ).fetchone()
        assert row and re.fullmatch(r"stead_test_[0-9a-f]{16}", row[0]) and row[1:] == ("UTF8", "C")
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)


def test_only_databases_of_this_run_are_dropped(postgres_databases: pg.Databases) -> None:
    with pytest.raises(AssertionError):
        postgres_databases.drop("postgresql://localhost/postgres")


@pytest.mark.parametrize(
    "url, shown",
    [
        ("postgresql://u:secret@h:1/db", "postgresql://u:***@h:1/db"),
        ("postgresql://u@h/db?password=secret&x=1", "postgresql://u@h/db?password=***&x=1"),
    ],
)
def test_a_password_is_never_printed(url: str, shown: str) -> None:
    assert pg._without_password(url) == shown


def test_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEAD_SCALE", raising=False)
    assert [scale(n) for n in (1, 100, 5_000)] == [1, 1, 50]
    monkeypatch.setenv("STEAD_SCALE", "1")
    assert [scale(n) for n in (1, 5_000)] == [1, 5_000]


def test_the_data_folder_of_a_test_is_its_own(data_dir: Path) -> None:
    assert data_dir.stat().st_mode & 0o777 == 0o700
    assert list(data_dir.iterdir()) == []


def test_every_make_target_is_explained() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.M)
    assert phony
    for target in phony[1].split():
        assert re.search(rf"^{target}:.*## \S", makefile, re.M), f"make {target} has no line in `make help`"
