"""JSON in and out. One rule for the odd values, the same on every database:

- what we produce is encoded by orjson; NaN, infinities and integers over 64 bits are refused (`bad_value`);
- a lone surrogate is kept as its `\\udXXX` escape and comes back as it was (two that make a pair come back as the one
  character they stand for); `shown()` turns it into U+FFFD;
- NUL is kept as `\\u0000`; bodies are stored as bytes, never in a text column;
- foreign JSON (tool arguments, provider data, imports) is kept as its original text; `parse_foreign` reads it with the
  standard library, which keeps integers of any size exact.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

import orjson

from stead.core.errors import SteadError


def dumps(value: object) -> bytes:
    """Encode `value` (JSON types and dataclasses) as compact UTF-8 JSON. Raises `bad_value` for what JSON cannot hold exactly."""
    try:
        encoded = orjson.dumps(value)
    except TypeError as error:  # includes orjson.JSONEncodeError
        if not _has_surrogate(value):
            raise SteadError("bad_value", f"This value cannot be stored as JSON: {error}.") from None
        _refuse_inexact(value)
        return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False, default=_fields).encode()
    if b"null" in encoded:  # orjson writes NaN as null; look only when there is a null to explain
        _refuse_inexact(value)
    return encoded


def loads(raw: bytes | str) -> Any:
    """Decode JSON that `dumps` wrote."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw, parse_constant=_refuse_constant)  # a lone surrogate, which orjson does not read


def parse_foreign(text: str | bytes) -> Any:
    """Decode JSON made by others: integers stay exact (up to the 4,300 digits that Python reads); NaN, Infinity and numbers
    too large for a float are refused, and so is what is nested too deeply to read. Raises `ValueError`."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
    except RecursionError:
        raise ValueError("this JSON is nested too deeply") from None


def dump_foreign(value: object) -> str:
    """Encode a value that `parse_foreign` gave, integers of any size included, as compact JSON text in plain ASCII."""
    return json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def shown(text: str) -> str:
    """`text` with lone surrogates as U+FFFD: valid UTF-8 for a screen, a protocol or a provider."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def shown_deep(value: Any) -> Any:
    """`shown` for every string inside a JSON value, keys included."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, dict):
        return {shown(key): shown_deep(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown_deep(item) for item in value]
    return value


def _fields(value: object) -> Any:
    from dataclasses import asdict, is_dataclass

    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    raise SteadError("bad_value", f"A {type(value).__name__} cannot be stored as JSON.")


def _plain(value: object) -> Any:
    return value if isinstance(value, (dict, list, tuple, str, int, float, type(None))) else _fields(value)


def _has_surrogate(value: object) -> bool:
    if isinstance(value, str):
        return not value.isascii() and shown(value) != value
    value = _plain(value)
    if isinstance(value, dict):
        return any(_has_surrogate(key) or _has_surrogate(item) for key, item in value.items())
    return isinstance(value, (list, tuple)) and any(_has_surrogate(item) for item in value)


def _refuse_inexact(value: object) -> None:
    value = value if isinstance(value, (str, bool)) else _plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise SteadError("bad_value", f"{value} cannot be stored: JSON has no such number.")
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise SteadError("bad_value", "An integer over 64 bits cannot be stored as a number; keep it as text.")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise SteadError("bad_value", f"A key of a JSON object is text, not {type(key).__name__}.")
            _refuse_inexact(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _refuse_inexact(item)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:40]} is too large for a number")
    return number
