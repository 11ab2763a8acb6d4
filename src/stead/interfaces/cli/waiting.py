"""A line on stderr for whoever waits longer than a moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stead.interfaces.cli import out

if TYPE_CHECKING:
    from stead.core.clock import Clock

_SECONDS = 1.0


class Waiting:
    """Says how far something is: nothing in the first second, then a line at most every second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._said = clock.monotonic()

    def told(self, what: str, at: int, total: int) -> None:
        """Be told how far it is; `at` and `total` count the same."""
        now = self._clock.monotonic()
        if now - self._said >= _SECONDS and at < total:
            self._said = now
            out.note(f"{what}: {at * 100 // total} %")
