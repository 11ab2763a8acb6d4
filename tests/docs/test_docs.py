"""The pages that speak of the code say what the code says."""

from __future__ import annotations

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import stead.domain
from stead.core import events
from stead.core.errors import CODES
from stead.domain.settings import FAMILIES, KEYS
from tests.support import ROOT

PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def rows(page: str) -> list[list[str]]:
    """The cells of each table row that begins with a name in backquotes."""
    lines = (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]


def test_errors_lists_every_code_in_order_and_no_other() -> None:
    listed = [row[0].strip("`") for row in rows("errors.md")]
    assert listed == list(CODES)
    for row in rows("errors.md"):
        assert len(row) == 3 and row[1].endswith(".") and row[2].endswith("."), row


def test_events_lists_every_kind_with_its_fields() -> None:
    for module in pkgutil.walk_packages(stead.domain.__path__, "stead.domain."):
        importlib.import_module(module.name)
    kinds = {kind: cls for kind, cls in events.KINDS.items() if cls.__module__.startswith("stead.domain.")}
    wanted = [f"| `{kind}` | {', '.join(f'`{name}`' for name in cls.fields)} |" for kind, cls in sorted(kinds.items())]
    listed = [f"| {row[0]} | {row[1]} |" for row in rows("events.md")]
    assert sorted(set(wanted) - set(listed)) == [], "rows that docs/events.md lacks"
    assert sorted(set(listed) - set(wanted)) == [], "rows of docs/events.md that no longer hold"
    assert listed == wanted, "the rows of docs/events.md are in alphabetical order"
    assert all(len(row[2]) > 5 for row in rows("events.md"))


def test_settings_lists_every_key_in_order_and_no_other() -> None:
    assert [row[0].strip("`") for row in rows("settings.md")] == [*KEYS, *(f"{family}.PROVIDER/MODEL" for family in FAMILIES)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_inside_the_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name) if name else page
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", found.read_text(encoding="utf-8"), re.M)
            assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tables_have_as_many_cells_as_their_heads(page: Path) -> None:
    width = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.sub(r"\\\||`[^`]*`", "", line).strip().strip("|").split("|"))
        width = width or cells
        assert cells == width, f"line {number}"
