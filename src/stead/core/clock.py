"""The only place that reads the time. Everything else is handed a clock."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What stead needs to know about time. Pass your own to `Stead.open(clock=...)` to decide it."""

    def now(self) -> int:
        """Milliseconds since 1970 in UTC. May go backwards: order never comes from here (invariant I14)."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards, for durations and time limits."""
        ...


class SystemClock:
    """The machine's clock."""

    def now(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        return time.monotonic()


class ManualClock:
    """A clock that moves only when told to; for programs and tests that need to repeat themselves exactly."""

    def __init__(self, now: int = 1_700_000_000_000) -> None:
        self._now = now
        self._mono = 0.0

    def now(self) -> int:
        return self._now

    def monotonic(self) -> float:
        return self._mono

    def advance(self, ms: int) -> None:
        """Move both clocks forward by `ms` milliseconds (negative: only the wall clock steps back)."""
        self._now += ms
        self._mono += max(ms, 0) / 1000


def rfc3339(ms: int) -> str:
    """`ms` since 1970 as RFC 3339 in UTC with milliseconds: `2026-11-30T17:19:00.123Z`. Correct up to year 9999."""
    seconds, milli = divmod(ms, 1000)
    days, rest = divmod(seconds, 86_400)
    year, month, day = _civil(days)
    hour, rest = divmod(rest, 3600)
    minute, second = divmod(rest, 60)
    return f"{year:04d}-{month:02d}-{day:02d}T{hour:02d}:{minute:02d}:{second:02d}.{milli:03d}Z"


def day(ms: int) -> str:
    """The UTC calendar day of `ms`: `2026-11-30`."""
    return "{:04d}-{:02d}-{:02d}".format(*_civil(ms // 86_400_000))


def _civil(days: int) -> tuple[int, int, int]:
    """Days since 1970-01-01 as (year, month, day); the proleptic Gregorian calendar, without importing datetime."""
    z = days + 719_468
    era, doe = divmod(z, 146_097)
    yoe = (doe - doe // 1460 + doe // 36_524 - doe // 146_096) // 365
    doy = doe - (365 * yoe + yoe // 4 - yoe // 100)
    mp = (5 * doy + 2) // 153
    month = mp + 3 if mp < 10 else mp - 9
    return yoe + era * 400 + (month <= 2), month, doy - (153 * mp + 2) // 5 + 1
