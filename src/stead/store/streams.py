"""Large contents, piece by piece: never more than some MiB of them are in memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from stead.core.errors import SteadError
from stead.store import faults
from stead.store.codec import zstd
from stead.store.safefile.leftovers import draft
from stead.store.safefile.walk import folder as opened_folder
from stead.store.safefile.walk import private_folder, sync

PIECE = 1 << 20


def keep(folder: Path, first: bytes, file: BinaryIO) -> tuple[str, int, str]:
    """Store all of `file`, of which `first` was read already, as a durable temporary file in `folder`: hash, bytes, its name.
    Who takes it renames it; one that nobody took is swept when its writer is dead."""
    digest, size = hashlib.sha256(), 0
    packing = zstd().ZstdCompressor(options={zstd().CompressionParameter.checksum_flag: 1})
    private_folder(folder)
    with opened_folder(folder, follow=True) as place:
        temp, fd = draft(place, "incoming", 0o600)
        try:
            piece = first
            while piece:
                digest.update(piece)
                size += len(piece)
                _write(fd, packing.compress(piece))
                piece = file.read(PIECE)
            _write(fd, packing.flush())
            sync(fd)
            faults.point("streams.written")
        except BaseException:
            with suppress(OSError):
                os.unlink(temp, dir_fd=place)
            raise
        finally:
            os.close(fd)
    return digest.hexdigest(), size, temp


def pieces(path: Path, digest: str) -> Iterator[bytes]:
    """The content of a zstd file, checked against its hash before the last piece is given. Raises `store_damaged`."""
    found, unpacking = hashlib.sha256(), zstd().ZstdDecompressor()
    held = b""
    try:
        with path.open("rb") as file:
            while not unpacking.eof:
                raw = file.read(PIECE) if unpacking.needs_input else b""
                if not raw and unpacking.needs_input:
                    raise ValueError("it breaks off")
                piece = unpacking.decompress(raw, PIECE)
                if piece:
                    found.update(piece)
                    if held:
                        yield held
                    held = piece
    except SteadError:
        raise
    except Exception as error:
        raise SteadError("store_damaged", f"Blob {digest[:12]} cannot be read: {error}.") from error
    if found.hexdigest() != digest:
        raise SteadError("store_damaged", f"Blob {digest[:12]} is not what was stored.")
    if held:
        yield held


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
