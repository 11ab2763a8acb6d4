"""Rules that hold for every test: its own data folder, no network beyond this machine, a time budget, a PostgreSQL server."""

from __future__ import annotations

import ipaddress
import os
import shutil
import socket
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support import ROOT, SRC
from tests.support import postgres as pg
from tests.support import scale as _scale

BUDGET, BUDGET_SLOW = 5.0, 30.0  # seconds; who needs more is listed at the end of the run
GUARD_SLOW, GUARD_LONG = 90, 3600  # pytest-timeout ends what hangs (30 s for an ordinary test: pyproject.toml)

_RUN = "_STEAD_TEST_RUN"  # names the folder that the processes of one test run share
_KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY", "OPENROUTER_API_KEY", "STEAD_SECRET")
_FORMATTING = ("NO_COLOR", "FORCE_COLOR", "CLICOLOR_FORCE", "COLUMNS", "PGPASSWORD", "PGSERVICE", "PGOPTIONS")


# The same examples in every run; many more of them, and new ones, in `make long`.
settings.register_profile("short", max_examples=60, derandomize=True, deadline=None, database=None)
settings.register_profile("long", max_examples=2_000, deadline=None)
settings.load_profile("long" if _scale(100) == 100 else "short")


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


# ---- the environment of the whole run ----


def pytest_configure(config: pytest.Config) -> None:
    if not _is_worker(config):
        os.environ[_RUN] = str(pg.make_run_folder())
    home = Path(tempfile.mkdtemp(prefix="home-", dir=os.environ[_RUN]))
    os.environ["STEAD_DATA"] = str(home / "data")
    os.environ["STEAD_CONFIG"] = str(home / "config")
    for name in (*_KEYS, *_FORMATTING):
        os.environ.pop(name, None)
    paths = [str(SRC), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))  # subprocesses run this checkout
    config.stash[_HOME] = home


_HOME = pytest.StashKey[Path]()


def pytest_sessionstart(session: pytest.Session) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and not _is_worker(session.config):
        found = pg.find()
        if found.url or found.error:  # else it is started, and noted, by the first test that needs it
            (Path(os.environ[_RUN]) / "postgres.json").write_text(pg.json.dumps(found.__dict__))
        reporter.write_line(f"PostgreSQL for the tests: {found.label}" + (f": {found.error}" if found.error else ""))


def pytest_unconfigure(config: pytest.Config) -> None:
    if _is_worker(config):
        shutil.rmtree(config.stash[_HOME], ignore_errors=True)
    else:
        pg.end_run(Path(os.environ[_RUN]))


@pytest.fixture(autouse=True)
def _own_data_folder() -> Iterator[None]:
    """No test may leave stead pointing at the real data or configuration of the person who runs it."""
    before = {name: os.environ[name] for name in ("STEAD_DATA", "STEAD_CONFIG")}
    yield
    after = {name: os.environ.get(name) for name in before}
    os.environ.update(before)  # so that only the culprit fails
    assert after == before, "this test changed where stead keeps its data: use monkeypatch.setenv or the fixture data_dir"


# ---- no network beyond this machine ----


class NetworkRefused(ConnectionRefusedError):
    """A test tried to reach something beyond this machine."""


def _is_here(host: object) -> bool:
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    if host in (None, "", "localhost"):
        return True
    try:
        address = ipaddress.ip_address(str(host).partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("connect", "connect_ex"):
            patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))
        looked_up = socket.getaddrinfo

        def getaddrinfo(host: Any, *args: Any, **kwargs: Any) -> Any:
            if not _is_here(host) and not str(host).replace(".", "").isdigit() and ":" not in str(host):
                raise socket.gaierror(socket.EAI_NONAME, f"tests may not look up {host!r}")
            return looked_up(host, *args, **kwargs)

        patch.setattr(socket, "getaddrinfo", getaddrinfo)
        yield


def _guarded(original: Any) -> Any:
    def connect(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_here(address[0]):
            raise NetworkRefused(f"tests may not connect to {address[0]}")
        return original(self, address)

    return connect


# ---- time budgets ----


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _DATABASE_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.postgres)
        if item.get_closest_marker("timeout") is None:
            if item.get_closest_marker("long") or _scale(100) > 1:  # at full size any property test may take its time
                item.add_marker(pytest.mark.timeout(GUARD_LONG))
            elif item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.timeout(GUARD_SLOW))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    spent: dict[str, float] = defaultdict(float)
    budgets: dict[str, float] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and "long" not in report.keywords:
                spent[report.nodeid] += report.duration
                budgets[report.nodeid] = BUDGET_SLOW if "slow" in report.keywords else BUDGET
    over = sorted((seconds, nodeid) for nodeid, seconds in spent.items() if seconds > budgets[nodeid])
    if over:
        terminalreporter.section(f"over their budget ({BUDGET:.0f} s, slow: {BUDGET_SLOW:.0f} s)")
        for seconds, nodeid in reversed(over):
            terminalreporter.write_line(f"{seconds:6.1f} s  {nodeid}")


# ---- fixtures ----

_DATABASE_FIXTURES = {"postgres_url", "postgres_url_module", "postgres_empty", "postgres_databases"}


@pytest.fixture(scope="session")
def postgres_databases() -> Iterator[pg.Databases]:
    """Makes and drops databases; for tests that need more than one."""
    found = pg.server(Path(os.environ[_RUN]))
    if found.url is None:
        pytest.fail(found.error or "no PostgreSQL", pytrace=False)
    databases = pg.Databases(found.url)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_databases: pg.Databases) -> Iterator[str]:
    """The URL of a fresh, empty PostgreSQL database for this test alone."""
    with postgres_databases.database() as url:
        yield url


@pytest.fixture(scope="session")
def _postgres_shared(postgres_databases: pg.Databases) -> Iterator[str]:
    with postgres_databases.database() as url:
        yield url


@pytest.fixture
def postgres_empty(_postgres_shared: str) -> str:
    """The URL of an empty PostgreSQL database that this process's tests take in turns: ten times as fast as `postgres_url`."""
    with pg.psycopg.connect(_postgres_shared, autocommit=True) as connection:
        connection.execute("DROP SCHEMA public CASCADE")
        connection.execute("CREATE SCHEMA public")
    return _postgres_shared


@pytest.fixture(scope="module")
def postgres_url_module(postgres_databases: pg.Databases) -> Iterator[str]:
    """The URL of a PostgreSQL database that the tests of one file share."""
    with postgres_databases.database() as url:
        yield url


@pytest.fixture
def data_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder of this test's own (0700); STEAD_DATA and STEAD_CONFIG point at it and its neighbour."""
    folder = tmp_path / "data"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("STEAD_DATA", str(folder))
    monkeypatch.setenv("STEAD_CONFIG", str(tmp_path / "config"))
    return folder


@pytest.fixture(scope="session")
def scale() -> Any:
    """`scale(n)`: n in `make long`, a hundredth of it otherwise, at least 1."""
    return _scale


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of recordings and samples that do not belong to the repository: STEAD_SHARED, or `../shared` beside it."""
    folder = Path(os.environ.get("STEAD_SHARED") or ROOT.parent / "shared")
    if not (folder / "cassettes").is_dir():
        pytest.skip(f"there is no folder of recordings at {folder} (STEAD_SHARED names another)")
    return folder
