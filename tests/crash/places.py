"""Where processes are killed by the hundred: in memory where there is room, because a kill, unlike a power cut, needs no disk."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_MEMORY = Path("/dev/shm")
_ROOM = 1 << 30


@contextmanager
def quick_folder(otherwise: Path) -> Iterator[Path]:
    """A folder of its own in memory, removed at the end; `otherwise` where the system has none, or too small a one."""
    try:
        found = os.statvfs(_MEMORY)
        roomy = found.f_bavail * found.f_frsize > _ROOM and os.access(_MEMORY, os.W_OK)
    except OSError:
        roomy = False
    if not roomy:
        yield otherwise
        return
    with tempfile.TemporaryDirectory(prefix="stead-test-", dir=_MEMORY) as folder:
        yield Path(folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder of this test's own, in memory where that is possible."""
    with quick_folder(tmp_path) as folder:
        yield folder
