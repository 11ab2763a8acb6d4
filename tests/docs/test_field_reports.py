"""docs/internals/field-reports.md is whole and true: a row for every report, and a test behind every claim."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.support import ROOT

PAGE = (ROOT / "docs/internals/field-reports.md").read_text(encoding="utf-8")
LINES = [line for line in PAGE.splitlines() if re.match(r"\| *B\d", line)]
ROWS = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in LINES]
SUBJECTS = {"restart", "undo", "gate", "import and search", "context and configuration", "doors"}


@cache
def test_names() -> frozenset[str]:
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("*.py"):
        found.update(re.findall(r"^\s*(?:async )?def (test_b\d{3}\w*)\(", path.read_text(encoding="utf-8"), re.M))
    return frozenset(found)


test_names.__test__ = False  # type: ignore[attr-defined]


def test_the_page_has_one_whole_row_for_each_number() -> None:
    numbers = [row[0] for row in ROWS]
    assert len(numbers) == 172 and len(set(numbers)) == len(numbers)
    assert numbers == sorted(numbers)
    for row in ROWS:
        assert len(row) == 3 and len(row[1]) > 20 and row[1].endswith("."), row
        assert "http" not in row[1].replace("http, https or mailto", "") and "#" not in row[1], row


def test_every_owed_row_names_a_subject_of_the_page() -> None:
    table = PAGE.split("| subject |")[1].split("\n\n")[0]
    assert {line.split("|")[1].strip() for line in table.splitlines()[2:]} == SUBJECTS
    for number, _, proof in ROWS:
        if proof.startswith("owed: "):
            assert proof.removeprefix("owed: ") in SUBJECTS, number
        else:
            assert proof == f"tests: {number.lower()}", number


@pytest.mark.parametrize("number", [row[0] for row in ROWS if row[2].startswith("tests:")])
def test_a_claimed_row_has_its_test(number: str) -> None:
    assert any(re.match(rf"test_{number.lower()}(_|$)", name) for name in test_names()), f"no test function test_{number.lower()}_*"


def test_every_test_of_a_report_has_its_row() -> None:
    numbers = {row[0].lower() for row in ROWS}
    assert {name for name in test_names() if name[5:9] not in numbers} == set()


def test_the_page_covers_the_whole_collection(shared: Path) -> None:
    collected = re.findall(r"^### (B\d+)", (shared / "field-reports.md").read_text(encoding="utf-8"), re.M)
    assert sorted(collected) == [row[0] for row in ROWS]
