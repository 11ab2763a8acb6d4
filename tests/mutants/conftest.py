from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.places import quick_folder


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder of this test's own, in memory where that is possible."""
    with quick_folder(tmp_path) as folder:
        yield folder
