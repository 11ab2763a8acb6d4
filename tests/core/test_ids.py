from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from stead.core.ids import CountingIds, Ids, RandomIds, secret_bytes


@pytest.mark.parametrize("ids", [RandomIds(), CountingIds()])
def test_an_id_is_sixteen_letters_and_digits_that_can_be_read_out(ids: Ids) -> None:
    for _ in range(500):
        assert re.fullmatch(r"[0-9a-hjkmnp-tv-z]{16}", ids.new())


def test_ids_do_not_repeat_and_have_no_order() -> None:
    ids = RandomIds()
    made = [ids.new() for _ in range(5_000)]
    assert len(set(made)) == 5_000
    assert made != sorted(made)


def test_six_letters_tell_many_sessions_apart() -> None:
    ids = CountingIds()
    assert len({ids.new()[:6] for _ in range(2_000)}) == 2_000


def test_counting_ids_repeat_themselves() -> None:
    first, second = CountingIds(7), CountingIds(7)
    assert [first.new() for _ in range(50)] == [second.new() for _ in range(50)]
    assert CountingIds(8).new() not in {CountingIds(7).new()}


def test_threads_never_share_an_id() -> None:
    ids = RandomIds()
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: ids.new(), range(4_000)))
    assert len(set(made)) == 4_000


def test_secret_bytes_are_as_many_as_asked_for() -> None:
    assert [len(secret_bytes(n)) for n in (0, 12, 32)] == [0, 12, 32]
    assert secret_bytes(32) != secret_bytes(32)
