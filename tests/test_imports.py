"""What a command loads, and what nothing may load: start-up time and the one-SQLite rule stand or fall here."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import ROOT, imported_by

HEAVY = {"pydantic", "httpx2", "fastapi", "starlette", "uvicorn", "genai_prices", "cryptography", "tree_sitter", "psycopg"}
FOREIGN_SQLITE = {"sqlite3", "aiosqlite", "sqlalchemy", "pysqlite3"}
COMMAND_LINE = {"typer", "click", "rich"}


def roots(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_importing_stead_costs_nothing() -> None:
    program = "import sys; before = set(sys.modules); import stead; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert loaded == ["stead"]


@pytest.mark.parametrize(
    "module", ["stead.core.events", "stead.core.text", "stead.core.clock", "stead.core.ids", "stead.core.errors"]
)
def test_the_words_need_the_standard_library_only(module: str) -> None:
    program = f"import sys; import {module}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not roots(set(loaded)) & (HEAVY | COMMAND_LINE | FOREIGN_SQLITE | {"apsw", "orjson"})


def test_version_is_answered_before_the_command_line_library_is_loaded() -> None:
    code, modules = imported_by(["--version"])
    assert code == 0
    assert not roots(modules) & (COMMAND_LINE | HEAVY | FOREIGN_SQLITE | {"apsw", "orjson", "asyncio", "dataclasses"})
    assert {name for name in modules if name.startswith("stead")} <= {"stead", "stead.__main__"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["sessions", "list"],
        ["sessions", "list", "--json"],
        ["sessions", "show", "a-title"],
        ["diff", "a-title"],
        ["diff", "a-title", "--patch"],
        ["usage"],
        ["inbox"],
        ["queue"],
        ["storage"],
        ["config", "get", "model"],
        ["config", "list", "--origin"],
        ["provider", "list"],
    ],
    ids=" ".join,
)
def test_a_reading_command_loads_no_heavy_module(arguments: list[str], data_dir: Path, tmp_path: Path) -> None:
    """pydantic is what typer itself would load for the values of options; `interfaces/cli/values.py` reads them instead."""
    _fill(data_dir, tmp_path)
    code, modules = imported_by(arguments, cwd=tmp_path)
    assert code == 0
    assert not roots(modules) & (HEAVY | FOREIGN_SQLITE | {"asyncio", "rich", "logging", "zoneinfo", "ssl"})
    assert not {name for name in modules if name.startswith(("stead.agent", "stead.store.writer", "stead.config.secrets"))}
    ours = {name for name in modules if name.startswith("stead.interfaces.cli.")}
    assert not ours & {f"stead.interfaces.cli.{name}" for name in ("run", "chat", "demo", "turn", "progress", "asking")}


def _fill(data: Path, folder: Path) -> None:
    """A store with one session, called a-title."""
    from stead.app import Stead
    from stead.domain import projects, sessions

    with Stead.open(data).store as store:
        here = projects.identify(folder)
        project = store.write(lambda tx: projects.open_project(tx, here, id="a" * 16))
        store.write(lambda tx: sessions.create(tx, "b" * 16, project, title="a-title", agent="build", model=None))
        store.write(lambda tx: sessions.add_message(tx, "b" * 16, "user"))


def test_no_module_of_ours_and_no_test_loads_another_sqlite_library() -> None:
    """Two SQLite libraries on one file in one process break each other's locks; a test may use another in a process of its own."""
    found = []
    for folder in ("src", "tests", "bench"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and node.module:
                    names = [node.module]
                if roots(set(names)) & FOREIGN_SQLITE:
                    found.append(f"{path.relative_to(ROOT)}:{node.lineno}" if hasattr(node, "lineno") else str(path))
    assert found == []


def test_the_environment_of_tests_is_a_temporary_one() -> None:
    assert "ANTHROPIC_API_KEY" not in os.environ
    assert Path(os.environ["STEAD_DATA"]) != Path.home() / ".local/share/stead"
