"""What is made ready outside of a job, to be stored in one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from stead.store.blobfiles import Hold
from stead.store.codec import compress

ZSTD = "zstd"
RAW = "raw"
DELTA = "delta"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A blob ready to be stored by `Tx.put`: hashed and compressed; `stored` is None when its bytes already lie in a file, which
    nobody collects for as long as this value lives, or in the database."""

    hash: str
    size: int
    codec: str
    stored: bytes | None
    hold: Hold | None = field(default=None, compare=False, repr=False)
    base: str | None = None
    """The blob of which this one is a delta."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """All of it, of a delta and of what is `known`: should its base, or its row, be gone by the time it is stored."""
    taken: int = field(default=0, compare=False)
    """The bytes that it takes as it is stored."""
    known: bool = field(default=False, compare=False)
    """It was found stored and whole: nothing is left to do for `put` if it still is."""
    mends: bool = field(default=False, compare=False)
    """It was found stored and damaged: its row is written anew."""

    def whole(self) -> Prepared:
        """The same, by itself, in the database."""
        assert self.content is not None
        codec, stored = smaller(self.content)
        return Prepared(self.hash, self.size, codec, stored, taken=len(stored), mends=self.mends)


@dataclass(frozen=True, slots=True)
class Packed:
    """A JSON value whose long strings stand as `{"$blob", "size", "head"}`, with the blobs they moved to."""

    value: Any
    blobs: tuple[Prepared, ...]


def smaller(content: bytes) -> tuple[str, bytes]:
    """A content as it is stored whole: codec and bytes."""
    stored = compress(content)
    return (ZSTD, stored) if len(stored) < len(content) else (RAW, content)
