"""Server-sent events, however they come."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.agent.models.sse import Event, Reader


def read(stream: bytes, *cuts: int) -> list[Event]:
    reader, found, last = Reader(), [], 0
    for cut in [*cuts, len(stream)]:
        found += reader.feed(stream[last:cut])
        last = cut
    rest = reader.rest()
    return found + ([rest] if rest else [])


@pytest.mark.parametrize(
    ("stream", "wanted"),
    [
        (b"data: a\n\n", [Event("a")]),
        (b"data:a\ndata:  b\n\n", [Event("a\n b")]),
        (b"event: x\ndata: a\nid: 1\nretry: 5\n\n", [Event("a", "x")]),
        (b"event: x\n\ndata: a\n\n", [Event("a")]),
        (b": ping\n\n: ping\ndata: a\n\n", [Event("a")]),
        (b"data\n\n", [Event("")]),
        (b"data: a\r\rdata: b\r\n\r\ndata: c\n\n", [Event("a"), Event("b"), Event("c")]),
        (b"\xef\xbb\xbfdata: a\n\n", [Event("a")]),
        (b"data: \xff\xe2\x82\n\n", [Event("\ufffd\ufffd")]),
        (b"data: \xe2\x80\xa8\x0b\x1c\n\n", [Event("\u2028\x0b\x1c")]),
        (b"data: a", [Event("a")]),
        (b"data: a\n", [Event("a")]),
        (b"error: {}\n", [Event("{}", "error")]),
        (b"nonsense\n\n", []),
        (b"", []),
    ],
)
def test_streams(stream: bytes, wanted: list[Event]) -> None:
    assert read(stream) == wanted
    for cut in range(len(stream) + 1):
        assert read(stream, cut) == wanted
    assert read(stream, *range(len(stream))) == wanted


@given(
    st.lists(st.sampled_from([b"data: ", b"\r", b"\n", b"\r\n", b"a", b"\xc3\xa4", b":", b"event: e", b"\xef\xbb\xbf"])), st.data()
)
def test_cutting_changes_nothing(pieces: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    assert read(stream, *cuts) == read(stream)


def test_a_long_line_in_small_pieces_is_not_slow() -> None:
    reader = Reader()
    for _ in range(100_000):
        assert reader.feed(b"data: 0123456789") == []
    assert len(reader.feed(b"\n\n")[0].data) > 1_000_000
