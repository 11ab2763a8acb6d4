"""The judges as servers, each started once in a test process and by the first test that needs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.judges import door
from tests.judges.replay import Replay, prepare
from tests.judges.servers import INSTALLED, served


@pytest.fixture
def proj(data_dir: Path, tmp_path: Path) -> Path:
    """A project of this test's own, in a house of its own."""
    return door.project(tmp_path)


@pytest.fixture(scope="session")
def replay(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replay]:
    """The server of ../shared/judges over the recordings and the copies that tests made of them."""
    script = shared / "judges" / "replay_server.py"
    if not script.is_file():
        pytest.skip(f"there is no {script}")
    folder = tmp_path_factory.mktemp("cassettes")
    prepare(shared / "cassettes", folder)

    def command(port: int) -> list[str]:
        return [sys.executable, str(script), str(folder), "--port", str(port)]

    with served(command, "/", folder / "log") as url:
        yield Replay(url, shared / "cassettes")


@pytest.fixture(scope="session")
def llmock_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = INSTALLED / "bin" / "llmock"
    if not program.exists():
        pytest.skip("llmock is not installed: `make judges` installs it")

    def command(port: int) -> list[str]:
        return [str(program), "serve", "--port", str(port), "--log-level", "warning", "--stream-chunk-delay-ms", "30"]

    with served(command, "/health", tmp_path_factory.mktemp("llmock") / "log") as url:
        yield url


@pytest.fixture(scope="session")
def aimock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is missing: the judge aimock needs node 20 or newer")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=20).stdout.strip()
    if int(version.removeprefix("v").partition(".")[0] or 0) < 20:
        pytest.skip(f"node is {version}: the judge aimock needs node 20 or newer")
    program = INSTALLED / "node_modules" / "@copilotkit" / "aimock" / "dist" / "cli.js"
    if not program.exists():
        pytest.skip("aimock is not installed: `make judges` installs it where npm is there")
    fixtures = Path(__file__).with_name("aimock.json")

    def command(port: int) -> list[str]:
        return [node, str(program), "-p", str(port), "-f", str(fixtures), "-c", "7", "--strict", "--log-level", "warn"]

    strict = {**os.environ, "AIMOCK_STRICT_TURN_INDEX": "1"}
    with served(command, "/health", tmp_path_factory.mktemp("aimock") / "log", env=strict) as url:
        yield url
