"""zstd, from the standard library or its backport; and a whole content with it. Pure."""

from __future__ import annotations

from typing import Any


def compress(content: bytes) -> bytes:
    """A content as one zstd frame with a checksum."""
    return bytes(zstd().compress(content, options={zstd().CompressionParameter.checksum_flag: 1}))


def decompress(raw: bytes) -> bytes:
    """The content of a frame; NUL behind it is no fault: a power cut may leave a file longer than it was. Raises for what is
    damaged."""
    reading = zstd().ZstdDecompressor()
    content = bytes(reading.decompress(raw))
    if not reading.eof or reading.unused_data.strip(b"\0"):
        raise ValueError("it breaks off" if not reading.eof else "something else stands behind it")
    return content


def zstd() -> Any:
    """The module."""
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd as found
    else:
        from backports import zstd as found
    return found
