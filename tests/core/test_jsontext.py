"""Odd values in JSON (field reports B145, B147-B149): each comes back exactly, or is refused with a reason."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stead.core.errors import SteadError
from stead.core.jsontext import dump_foreign, dumps, loads, parse_foreign, shown, shown_deep

ANY_TEXT = st.text(st.characters(exclude_categories=()))  # lone surrogates included
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False) | ANY_TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(ANY_TEXT, inner, max_size=5), max_leaves=20
)


def paired(value: Any) -> Any:
    """`value` with each pair of surrogates as the one character that it stands for."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
    if isinstance(value, dict):
        return {paired(key): paired(item) for key, item in value.items()}
    return [paired(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
def test_b149_every_json_value_comes_back_as_it_was(value: Any) -> None:
    raw = dumps(value)
    assert loads(raw) == paired(value)
    assert json.loads(raw.decode("utf-8")) == paired(value), "what is stored is strict UTF-8 and JSON that anybody can read"
    assert b"\n" not in raw and b"\x00" not in raw


@given(VALUES)
def test_b145_what_is_shown_is_always_valid_unicode(value: Any) -> None:
    dumps(shown_deep(value)).decode("utf-8")
    json.dumps(shown_deep(value), ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("backslashes", [1, 2, 3])
@pytest.mark.parametrize("as_key", [False, True])
def test_b148_a_written_out_escape_is_not_a_nul(backslashes: int, as_key: bool) -> None:
    text = "\\" * backslashes + "u0000"
    value = {text: 1} if as_key else {"text": text}
    assert loads(dumps(value)) == value
    assert parse_foreign(dump_foreign(value)) == value
    assert "\0" not in dumps(value).decode()


@pytest.mark.parametrize(
    "value", ["\0", "a\0b", {"\0": 1}, ["\\u0000\0"], "\x1a", "\u2028\u2029", "a\ufeffb", "\x7f\x80", "\U0010ffff"]
)
def test_b149_control_and_odd_characters_are_exact(value: Any) -> None:
    assert loads(dumps(value)) == value


@pytest.mark.parametrize("value", ["\ud800", "x\udfffy", {"\udc00": "\ud83d"}, ["ok", {"deep": ["\ude00"]}], "\udc80\ud880"])
def test_b145_a_lone_surrogate_is_kept_escaped_and_shown_as_a_replacement(value: Any) -> None:
    raw = dumps(value)
    assert raw.isascii()
    assert loads(raw) == value
    assert "\ufffd" in str(shown_deep(value))


def test_b145_two_halves_that_meet_become_the_whole() -> None:
    assert loads(dumps("\ud83d\ude00")) == "😀"
    assert shown("\ud83d\ude00!\ud83d") == "😀!\ufffd"


@pytest.mark.parametrize("text", ["", "plain", "ü😀", "\ufeff", "\ufeff\ufeffx", "e\u0301"])
def test_sound_text_is_shown_as_it_is(text: str) -> None:
    assert shown(text) == text


@given(ANY_TEXT)
def test_shown_replaces_only_lone_surrogates(text: str) -> None:
    whole = paired(text)
    assert shown(text) == "".join("\ufffd" if 0xD800 <= ord(char) <= 0xDFFF else char for char in whole)


@pytest.mark.parametrize("number", [2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**64 - 1])
def test_b149_integers_of_64_bits_are_exact(number: int) -> None:
    assert loads(dumps([number])) == [number]


@pytest.mark.parametrize(
    "bad", [math.nan, math.inf, -math.inf, 2**64, -(2**63) - 1, b"bytes", {1: 2}, {"a": object()}, {"s": {1, 2}}]
)
@pytest.mark.parametrize("beside", [None, "\ud800"], ids=["", "beside a lone surrogate"])
def test_b149_what_json_cannot_hold_is_refused(bad: Any, beside: Any) -> None:
    for value in ([beside, {"x": [bad]}], {"x": bad, "y": beside}):
        with pytest.raises(SteadError) as refused:
            dumps(value)
        assert refused.value.code == "bad_value"


def test_null_is_not_taken_for_nan() -> None:
    assert loads(dumps({"x": None, "null": "null"})) == {"x": None, "null": "null"}


def test_b149_a_line_of_a_megabyte() -> None:
    for text in ("x" * 1_000_000, "ü\0\u2028😀" * 100_000, "\ud800" * 100_000):
        assert loads(dumps({"line": text})) == {"line": text}


@dataclass(frozen=True, slots=True)
class Pair:
    left: str
    right: list[int | float | None]


def test_dataclasses_are_written_field_by_field() -> None:
    assert loads(dumps(Pair("a", [1, None]))) == {"left": "a", "right": [1, None]}
    assert loads(dumps([Pair("\ud800", [1])])) == [{"left": "\ud800", "right": [1]}]
    for bad in (Pair("a", [math.nan]), Pair("\ud800", [math.nan]), Pair("a", [2**70])):
        with pytest.raises(SteadError):
            dumps(bad)


# ---- JSON made by others ----


@pytest.mark.parametrize(
    "text", ["123456789012345678901234567890", "-18446744073709551617", '{"id": 36893488147419103233}', "9" * 4_000]
)
def test_b149_foreign_integers_of_any_size_stay_exact(text: str) -> None:
    value = parse_foreign(text)
    assert parse_foreign(dump_foreign(value)) == value
    assert str(value).replace("'", '"') == text


@pytest.mark.parametrize("text", ["NaN", "[Infinity]", '{"x": -Infinity}', "1e999", "[-1e400]"])
def test_b149_foreign_numbers_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_foreign(text)


@pytest.mark.parametrize(
    "text", ["", "{", '{"a": "b', "[" * 100_000, "nul", "{'a': 1}", '"\x01"', b"\xff", b'"\xc3"', "1" * 5_000, "{}{}"]
)
def test_broken_foreign_json_is_an_ordinary_error(text: str | bytes) -> None:
    with pytest.raises(ValueError):
        parse_foreign(text)


@given(VALUES)
def test_foreign_json_comes_back_and_is_plain_ascii(value: Any) -> None:
    text = dump_foreign(value)
    assert text.isascii()
    assert parse_foreign(text) == paired(value)
