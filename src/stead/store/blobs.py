"""Content-addressed bytes: SHA-256 of the content is the name, zstd the form; small ones in the database, large ones in files.

Write order (I4): a large blob's file is durable before its row, the row commits with or before the event that names it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.core.text import cut_bytes

if TYPE_CHECKING:
    from stead.store.database import Row

IN_DATABASE_BYTES = 64 << 10
MOVED_TEXT_BYTES = 8 << 10
HEAD_BYTES = 1 << 10
# A packed value stays well below the cap of an event, whatever stands beside it.
PACKED_BYTES = 48 << 10

_ZSTD = "zstd"
_RAW = "raw"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A blob ready to be stored by `Tx.put`: hashed and compressed; `stored` is None when its bytes already lie in a file."""

    hash: str
    size: int
    codec: str
    stored: bytes | None


@dataclass(frozen=True, slots=True)
class Packed:
    """A JSON value whose long strings stand as `{"$blob", "size", "head"}`, with the blobs they moved to."""

    value: Any
    blobs: tuple[Prepared, ...]


class Blobs:
    """The blob store. Thread-safe. Without a folder every blob lies in the database."""

    def __init__(self, folder: Path | None, find: Callable[[str], Row | None]) -> None:
        self._folder = folder
        self._find = find

    def prepare(self, content: bytes) -> Prepared:
        """Hash and compress `content`, and write it to its file if it is large. Call it outside of jobs."""
        digest = hashlib.sha256(content).hexdigest()
        packed = _compress(content)
        codec, stored = (_ZSTD, packed) if len(packed) < len(content) else (_RAW, content)
        if self._folder is None or len(stored) <= IN_DATABASE_BYTES:
            return Prepared(digest, len(content), codec, stored)
        path = self._path(digest)
        if not path.exists():
            from stead.store.safefile import private_folder, write_private

            private_folder(path.parent)
            write_private(path, stored)
        return Prepared(digest, len(content), codec, None)

    def get(self, digest: str) -> bytes:
        """The content of a blob. Raises `not_found` when it is not stored, `store_damaged` when its bytes are not what they
        were."""
        row = self._find(digest)
        if row is None:
            raise SteadError("not_found", f"There is no blob {digest[:12]}.")
        codec, stored = row
        try:
            raw = bytes(stored) if stored is not None else self._path(digest).read_bytes()
            content = raw if codec == _RAW else _decompress(raw)
        except Exception as error:
            raise SteadError("store_damaged", f"Blob {digest[:12]} cannot be read: {error}.") from error
        if hashlib.sha256(content).hexdigest() != digest:
            raise SteadError("store_damaged", f"Blob {digest[:12]} is not what was stored.")
        return content

    def pack(self, value: Any) -> Packed:
        """Move every string over 8 KiB inside a JSON value into a blob; nothing is shortened. Call it outside of jobs."""
        from stead.core.jsontext import dumps

        blobs: list[Prepared] = []
        limit = MOVED_TEXT_BYTES
        packed = self._move(value, limit, blobs)
        while len(dumps(packed)) > PACKED_BYTES and limit > 64:
            limit //= 4  # many middling strings: move smaller ones too
            packed = self._move(packed, limit, blobs)
        return Packed(packed, tuple(blobs))

    def resolve(self, value: Any) -> Any:
        """Undo `pack`: every moved string back in its place."""
        if isinstance(value, dict):
            if isinstance(value.get("$blob"), str):
                return self.get(value["$blob"]).decode("utf-8", "surrogatepass")
            return {key: self.resolve(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.resolve(item) for item in value]
        return value

    def _move(self, value: Any, limit: int, blobs: list[Prepared]) -> Any:
        if isinstance(value, str) and len(value) * 4 > limit:
            raw = value.encode("utf-8", "surrogatepass")
            if len(raw) <= limit:
                return value
            prepared = self.prepare(raw)
            blobs.append(prepared)
            return {"$blob": prepared.hash, "size": len(raw), "head": cut_bytes(value, min(HEAD_BYTES, limit // 2))}
        if isinstance(value, dict):
            if "$blob" in value:
                return value
            return {key: self._move(item, limit, blobs) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._move(item, limit, blobs) for item in value]
        return value

    def _path(self, digest: str) -> Path:
        assert self._folder is not None
        return self._folder / digest[:2] / digest[2:]


def _compress(content: bytes) -> bytes:
    return bytes(_zstd().compress(content, options={_zstd().CompressionParameter.checksum_flag: 1}))


def _decompress(raw: bytes) -> bytes:
    return bytes(_zstd().decompress(raw))


def _zstd() -> Any:
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
