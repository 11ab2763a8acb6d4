"""The only place that makes ids and random bytes. Ids are opaque text: nothing may be read out of them."""

from __future__ import annotations

import os
from typing import Protocol

# Crockford's base 32 in lower case: no i, l, o, u, so that an id can be read out and typed.
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


class Ids(Protocol):
    """A source of ids. Pass your own to `Stead.open(ids=...)` to make a run repeatable."""

    def new(self) -> str:
        """A fresh id of 16 lower-case letters and digits (80 random bits); any 6 of its first letters tell sessions apart."""
        ...


class RandomIds:
    """Ids from the operating system's random source. Thread-safe."""

    def new(self) -> str:
        return _encode(os.urandom(10))


class CountingIds:
    """Ids that count upwards from `start`, for programs and tests that need to repeat themselves exactly."""

    def __init__(self, start: int = 1) -> None:
        self._next = start

    def new(self) -> str:
        # Multiplying by an odd constant permutes the 80-bit numbers: ids differ in their first letters as random ones do.
        value = (self._next * 0x9E3779B97F4A7C15F39D) & ((1 << 80) - 1)
        self._next += 1
        return _encode(value.to_bytes(10, "big"))


def secret_bytes(count: int) -> bytes:
    """`count` random bytes fit for keys and nonces."""
    return os.urandom(count)


def _encode(raw: bytes) -> str:
    value = int.from_bytes(raw, "big")
    return "".join(_ALPHABET[(value >> shift) & 31] for shift in range(len(raw) * 8 - 5, -1, -5))
