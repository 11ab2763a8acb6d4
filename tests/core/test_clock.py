from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.core.clock import ManualClock, SystemClock, day, rfc3339

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST = (datetime(1, 1, 1, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)
LAST = (datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC) - EPOCH) // timedelta(milliseconds=1)


def by_datetime(ms: int) -> str:
    when = EPOCH + timedelta(milliseconds=ms)
    return f"{when.year:04d}-{when:%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z"


@pytest.mark.parametrize(
    "ms",
    [0, 1, 999, -1, -86_400_000, 951_782_400_000, 1_709_164_800_000, 4_107_542_399_999, 2**31 * 1000, 2**32 * 1000, LAST, FIRST],
)
def test_times_are_written_as_datetime_writes_them(ms: int) -> None:
    assert rfc3339(ms) == by_datetime(ms)
    assert day(ms) == by_datetime(ms)[:10]


@given(st.integers(FIRST, LAST))
def test_any_time_of_ten_thousand_years(ms: int) -> None:
    assert rfc3339(ms) == by_datetime(ms)


def test_every_day_around_each_leap_year_rule() -> None:
    for year in (1899, 1900, 1999, 2000, 2026, 2028, 2099, 2100, 2400, 9999):
        for n in range(365 + (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))):
            that_day = date(year, 1, 1) + timedelta(days=n)
            assert day((that_day - date(1970, 1, 1)).days * 86_400_000) == that_day.isoformat()


@pytest.mark.parametrize("ms, text", [(2_147_483_648_000, "2038-01-19T03:14:08.000Z"), (LAST, "9999-12-31T23:59:59.999Z")])
def test_far_dates_are_written_right(ms: int, text: str) -> None:
    assert rfc3339(ms) == text


def test_the_text_of_times_sorts_as_the_times_do() -> None:
    times = [0, 1, 10, 999, 1_000, 86_399_999, 86_400_000, 1_786_665_600_000, 2**31 * 1000, 2**32 * 1000, LAST]
    assert sorted(map(rfc3339, times)) == [rfc3339(ms) for ms in times]


def test_the_system_clock_is_the_time() -> None:
    clock = SystemClock()
    assert abs(clock.now() - datetime.now(UTC).timestamp() * 1000) < 5_000
    assert clock.monotonic() <= clock.monotonic()


def test_a_manual_clock_moves_only_when_told() -> None:
    clock = ManualClock(1_000)
    assert (clock.now(), clock.now(), clock.monotonic()) == (1_000, 1_000, 0.0)
    clock.advance(2_500)
    assert (clock.now(), clock.monotonic()) == (3_500, 2.5)
    clock.advance(-3_000)
    assert (clock.now(), clock.monotonic()) == (500, 2.5), "the wall clock may step back, a duration never does"
