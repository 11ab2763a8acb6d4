"""A content as what differs from another: zstd with the other as a prefix. Pure.

The window must cover both, and long-distance matching must be on: without, a delta over 1 MB silently becomes a full copy. A wrong
base does not raise by itself in every case, so whoever decodes compares the hash.
"""

from __future__ import annotations

from typing import Any

from stead.store.codec import zstd

LEAST_BYTES = 512
"""Smaller contents are stored whole."""
MOST_BYTES = 32 << 20
"""Larger contents are stored whole: both sides of a delta are held in memory."""


def encode(content: bytes, base: bytes) -> bytes:
    """What `decode` makes `content` of, given the same base."""
    parameter = zstd().CompressionParameter
    options = {
        parameter.compression_level: 3,
        parameter.window_log: max(20, (len(base) + len(content)).bit_length()),
        parameter.enable_long_distance_matching: 1,
        parameter.checksum_flag: 1,
    }
    return bytes(zstd().compress(content, options=options, zstd_dict=_prefix(base)))


def decode(delta: bytes, base: bytes, size: int) -> bytes:
    """The content of a delta; `size` is what it must have (bytes). Raises an error of zstd, or `ValueError`, for what is
    damaged."""
    options = {zstd().DecompressionParameter.window_log_max: max(20, (len(base) + size).bit_length() + 1)}
    return bytes(zstd().decompress(delta, zstd_dict=_prefix(base), options=options))


def _prefix(base: bytes) -> Any:
    return zstd().ZstdDict(base, is_raw=True).as_prefix
