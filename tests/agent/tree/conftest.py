"""Whatever becomes of a test, its trees are closed: the system has few queues of events for all of a user's programs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stead.agent.tree.inotify import Inotify
from tests.agent.tree.worlds import OPEN, until


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    until(_is_free)  # those that were closed are given back a little later
    yield
    while OPEN:
        OPEN.pop().close()


def _is_free() -> bool:
    try:
        Inotify().close()
    except OSError:
        return False
    return True
