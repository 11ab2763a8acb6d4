"""Odd values: what is stored comes back as it was or is refused with a message, the same on both databases (B145, B147-B149)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.core.errors import SteadError
from stead.core.jsontext import shown
from stead.store import Store
from tests.store.notes import write

LOSSLESS: dict[str, Any] = {
    "NUL": "a\0b",
    "only NUL": "\0\0\0",
    "literal escape": "\\u0000",
    "two backslashes": "\\\\u0000",
    "three backslashes": "\\\\\\u0000",
    "escape as key": {"\\u0000": 1, "\0": 2, "\\\\u0000": 3},
    "lone surrogate": "\ud83d",
    "lone low surrogate": "x\udc00y",
    "surrogate as key": {"\ud800": "\udfff"},
    "surrogate beside Chinese": "\ud800漢字 é",
    "line separators": "a\u2028b\u2029c\x85d\x1ae\x0bf",
    "BOM in the middle": "a\ufeffb",
    "emoji family": "👩\u200d👩\u200d👧",
    "not a character": "\ufffe\uffff\U0010ffff",
    "64 bits": [2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1],
    "floats": [0.1, 1e308, 5e-324, -0.0, 1e22],
    "empty": [{}, [], "", None, {"": ""}],
    "true is not one": [True, 1, False, 0, 1.0],
    "percent and question mark": "100 % of ?s and %s, %(x)s, $1, :a",
    "quotes": "'\"`;--",
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_odd_values_come_back_as_they_were(store: Store, name: str) -> None:
    value = LOSSLESS[name]
    event = store.write(lambda tx: tx.append("a", write_fact("t", value)))
    assert same(event.data.value, value)
    with store.view() as view:
        assert same(view.events()[0].data.value, value)


def test_a_megabyte_in_one_line_goes_through_a_blob(store: Store) -> None:
    text = "line \u2028 " * 131_072 + "\0"
    packed = store.blobs.pack({"text": text})
    store.write(lambda tx: tx.append("a", write_fact("t", tx.unpack(packed))))
    with store.view() as view:
        assert store.blobs.resolve(view.events()[0].data.value) == {"text": text}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 2**64, -(2**63) - 1, 10**400, {1: 2}, b"x", {1, 2}])
def test_what_json_cannot_hold_exactly_is_refused(store: Store, value: Any) -> None:
    for wrapped in (value, [None, {"deep": value}]):
        with pytest.raises(SteadError) as failed:
            store.write(write("a", value=wrapped))
        assert failed.value.code == "bad_value"
    with store.view() as view:
        assert view.events() == []


@pytest.mark.parametrize("text", ["a\0b", "\ud83d", "x\udc00y\0", "plain", "\ud800 漢 \0"])
def test_a_text_column_shows_what_the_body_keeps(store: Store, text: str) -> None:
    seq = store.write(write("a", text))
    with store.view() as view:
        assert view.events()[0].data.text == text
        assert view.q("SELECT text FROM notes WHERE seq=?", seq) == [(shown(text).replace("\0", "\ufffd"),)]
        assert view.q("SELECT seq FROM notes WHERE text=?", text) == [(seq,)]  # and is found by what was written


def test_b145_text_cut_at_any_length_is_stored_and_read(store: Store) -> None:
    sample = "ab\U0001f468\u200d\U0001f469\u200d\U0001f467e\u0301\U0001f1e9\U0001f1ea\ud83d"
    for length in range(len(sample) + 1):
        store.write(write("a", sample[:length], sample[length:]))
    with store.view() as view:
        assert [event.data.text for event in view.events()] == [sample[:length] for length in range(len(sample) + 1)]


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=_json)
def test_any_json_is_read_back_as_it_was_written(store: Store, value: Any) -> None:
    seq = store.write(write("a", value=value))
    with store.view() as view:
        assert same(view.events(after=seq - 1)[0].data.value, value)


def write_fact(text: str, value: Any) -> Any:
    from tests.store.notes import Written

    return Written(text=text, value=value)


def same(left: Any, right: Any) -> bool:
    """Equal in value and in type: 1, 1.0 and True are three things, and so are 0.0 and -0.0."""
    return json.dumps(left) == json.dumps(right)
