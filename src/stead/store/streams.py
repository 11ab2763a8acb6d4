"""Large contents, piece by piece: never more than some MiB of them are in memory."""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from stead.core.errors import SteadError
from stead.store import faults
from stead.store.codec import zstd
from stead.store.safefile import walk
from stead.store.safefile.errors import reported
from stead.store.safefile.leftovers import draft
from stead.store.safefile.walk import folder as opened_folder
from stead.store.safefile.walk import private_folder, sync_folder

PIECE = 1 << 20


class Incoming:
    """A content in a durable temporary file: its hash, its bytes, and those that the file takes."""

    def __init__(self, path: Path, fd: int, hash: str, size: int) -> None:
        self.hash, self.size, self.taken = hash, size, os.fstat(fd).st_size
        self._path, self._fd, self._moved = path, fd, False

    def move(self, path: Path) -> None:
        """Give the file its name, for good. Once."""
        os.rename(self._path, path)
        self._moved = True
        fcntl.flock(self._fd, fcntl.LOCK_UN)  # it is nobody's leftover any more
        sync_folder(path.parent)


@contextmanager
def incoming(folder: Path, first: bytes, file: BinaryIO, most: int | None) -> Iterator[Incoming]:
    """All of `file`, of which `first` was read already, as a temporary file in `folder`. It is locked, so that nobody takes it for
    a dead writer's, and goes at the end unless it was moved. Raises `bad_value` where there are more than `most` bytes."""
    private_folder(folder)
    with opened_folder(folder, follow=True) as place:
        with reported(folder):
            temp, fd = draft(place, "incoming", 0o600)
        new = None
        try:
            digest, size = _write_all(folder, fd, first, file, most)
            new = Incoming(folder / temp, fd, digest, size)
            yield new
        finally:
            if new is None or not new._moved:
                with suppress(OSError):
                    os.unlink(temp, dir_fd=place)
            os.close(fd)


def pieces(path: Path, digest: str, codec: str, size: int) -> Iterator[bytes]:
    """The content of a file, in pieces of at most 1 MiB, checked against its hash before the last one is given. Raises
    `store_damaged`."""
    found, held = hashlib.sha256(), b""
    try:
        with path.open("rb") as file:
            for piece in _content(file, codec, size):
                found.update(piece)
                if held:
                    yield held
                held = piece
    except Exception as error:
        raise SteadError("store_damaged", f"Blob {digest[:12]} cannot be read: {error}.") from error
    if found.hexdigest() != digest:
        raise SteadError("store_damaged", f"Blob {digest[:12]} is not what was stored.")
    if held:
        yield held


def form_of(path: Path, digest: str) -> str | None:
    """How the content with this hash is stored in a file (`zstd`, `raw`); None when it is not there, or damaged."""
    for codec in ("zstd", "raw"):
        found = hashlib.sha256()
        try:
            with path.open("rb") as file:
                for piece in _content(file, codec, None):
                    found.update(piece)
        except Exception:
            continue
        if found.hexdigest() == digest:
            return codec
    return None


def too_large(most: int) -> SteadError:
    """The error for a content of more than `most` bytes."""
    return SteadError("bad_value", f"It has more than {most:,} bytes.", details={"most": most})


def _content(file: BinaryIO, codec: str, size: int | None) -> Iterator[bytes]:
    if codec == "raw":
        left = size
        while piece := file.read(PIECE if left is None else min(PIECE, left)):
            left = None if left is None else left - len(piece)
            yield piece
        return
    unpacking = zstd().ZstdDecompressor()
    while not unpacking.eof:
        raw = file.read(PIECE) if unpacking.needs_input else b""
        if not raw and unpacking.needs_input:
            raise ValueError("it breaks off")
        if piece := unpacking.decompress(raw, PIECE):
            yield piece
    rest = unpacking.unused_data
    while rest:  # a power cut may leave a file longer than it was, with NUL behind its content
        if rest.strip(b"\0"):
            raise ValueError("something else stands behind it")
        rest = file.read(PIECE)


def _write_all(folder: Path, fd: int, first: bytes, file: BinaryIO, most: int | None) -> tuple[str, int]:
    digest, size, piece = hashlib.sha256(), 0, first
    packing = zstd().ZstdCompressor(options={zstd().CompressionParameter.checksum_flag: 1})
    while piece:
        digest.update(piece)
        size += len(piece)
        if most is not None and size > most:
            raise too_large(most)
        with reported(folder):
            _write(fd, packing.compress(piece))
        piece = file.read(PIECE)
    with reported(folder):
        _write(fd, packing.flush())
        walk.sync(fd)
        faults.point("streams.written")
    return digest.hexdigest(), size


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
