"""The table of decisions holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from stead.agent.gate import Action, Layer, Rule, judge, parse
from tests.agent.gate.table import BASH, PATHS

_ACTIONS: dict[str, Action] = {"+": "allow", "?": "ask", "-": "deny"}
_LAYERS: tuple[Layer, ...] = ("flag", "session", "agent", "project", "global")


def rules(text: str, project: Path, home: Path) -> list[Rule]:
    """The rules of a row, with the row's `/p` and `/h` replaced by folders of this test."""
    found = []
    for item in filter(None, (item.strip() for item in text.split(";"))):
        layer, rest = next(((name, item[len(name) :].strip()) for name in _LAYERS if item.startswith(f"{name} ")), ("flag", item))
        body = rest[1:].strip().replace("(/p/", f"({project}/").replace("(/h/", f"({home}/")
        found.append(parse(body, _ACTIONS[rest[0]], layer))
    return found


def places(tmp_path: Path) -> tuple[Path, Path]:
    project, home = tmp_path / "p", tmp_path / "h"
    project.mkdir()
    home.mkdir()
    return project, home


@pytest.mark.parametrize("row", BASH, ids=lambda row: f"{row[0]} | {row[1]}"[:80].encode("ascii", "backslashreplace").decode())
def test_a_command_is_decided_as_the_table_says(row: tuple[str, str, str], tmp_path: Path) -> None:
    project, home = places(tmp_path)
    decision = judge(rules(row[0], project, home), "bash", {"command": row[1]}, project=project, home=home)
    assert decision.action == row[2], decision


@pytest.mark.parametrize("row", PATHS, ids=lambda row: f"{row[0]} | {row[1]}"[:80].encode("ascii", "backslashreplace").decode())
def test_a_path_is_decided_as_the_table_says(row: tuple[str, str, str], tmp_path: Path) -> None:
    project, home = places(tmp_path)
    tool, _, path = row[1].partition(" ")
    for short, folder in (("/p/", project), ("/h/", home)):
        path = f"{folder}/{path[3:]}" if path.startswith(short) else path
    decision = judge(rules(row[0], project, home), tool, {"path": path}, project=project, home=home)
    assert decision.action == row[2], decision


def test_the_table_is_long_enough_to_be_documentation() -> None:
    assert len(BASH) >= 60 and len(PATHS) >= 40
