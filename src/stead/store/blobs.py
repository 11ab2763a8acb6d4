"""Content-addressed bytes: SHA-256 of the content is the name, zstd the form; small ones in the database, large ones in files. A
version of a file may be stored as what differs from another one, its key (`deltas.py`).

Write order (I4): a large blob's file is durable before its row, the row commits with or before the event that names it; a delta has
a row only beside that of its base, which is stored whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stead.core.errors import SteadError
from stead.store import deltas, faults
from stead.store.blobfiles import Files, Hold, name_of
from stead.store.codec import decompress
from stead.store.packing import HEAD_BYTES, MOVED_TEXT_BYTES, packed, unpacked
from stead.store.prepared import DELTA, RAW, ZSTD, Packed, Prepared, smaller

if TYPE_CHECKING:
    from stead.store.database import Row

__all__ = ["HEAD_BYTES", "IN_DATABASE_BYTES", "MOVED_TEXT_BYTES", "STREAMED_BYTES", "Blobs", "Hold", "Packed", "Prepared"]

IN_DATABASE_BYTES = 64 << 10
STREAMED_BYTES = 16 << 20
"""A file with more is read and written piece by piece."""
REMEMBERED_BYTES = 4 << 20


class Blobs:
    """The blob store. Thread-safe. Without a folder every blob lies in the database."""

    def __init__(self, folder: Path | None, find: Callable[[str], Row | None], weigh: Callable[[str], tuple[int, int]]) -> None:
        """`find` gives codec, stored bytes, size and base of a blob; `weigh` what a blob and what all deltas on it take (bytes)."""
        self._files = Files(folder) if folder is not None else None
        self._find = find
        self._weigh = weigh
        self._last: tuple[bytes, bytes] | None = None

    def has(self, digest: str) -> bool:
        """Whether a blob of this hash is stored."""
        return self._find(digest) is not None

    # --- to be stored ---------------------------------------------------------------------------------------------------------

    def prepare(self, content: bytes, *, after: str | None = None) -> Prepared:
        """Hash and compress `content`, and write it to its file if it is large. Call it outside of jobs.

        `after`: the hash of what the same file held before. Where that is stored, and much of it is still there, only what differs
        from its key version is: one of the versions of a file, stored whole. The next one becomes the key when the deltas on it
        take as much as it does itself; so any version is two decompressions away. What is stored already is read, and stored anew
        if it is damaged.
        """
        digest = hashlib.sha256(content).hexdigest()
        row = self._find(digest)
        if row is not None and _in_own_file(row):
            if self._files is not None and (found := self._files.found(digest, partial(_form_of, digest=digest))) is not None:
                return Prepared(digest, len(content), found[0], None, found[1], taken=self.file_size(digest))
        elif row is not None:
            if self._gives(row, content):
                return Prepared(digest, len(content), str(row[0]), None, content=content, known=True)
            return self._whole(digest, content, mends=True)
        if row is None and after is not None and (delta := self._delta(digest, content, after)) is not None:
            return delta
        return self._whole(digest, content)

    def prepare_stream(self, file: BinaryIO, *, most: int | None = None) -> Prepared:
        """Like `prepare`, of all that can be read from an open file. Of a large one never more than some MiB are in memory,
        where there is a folder. Raises `bad_value` where there are more than `most` bytes."""
        from stead.store import streams

        first = file.read(STREAMED_BYTES)
        if self._files is None or len(first) < STREAMED_BYTES:
            content = first + file.read(-1 if most is None else max(0, most - len(first)) + 1)
            if most is not None and len(content) > most:
                raise streams.too_large(most)
            return self.prepare(content)
        with streams.incoming(self._files.folder, first, file, most) as new:
            row = self._find(new.hash)
            mends = row is not None and row[3] is not None
            if mends:
                try:
                    return Prepared(new.hash, new.size, DELTA, None, content=self.get(new.hash), known=True)
                except SteadError:  # damaged
                    pass
            codec, hold = self._files.keep(new.hash, partial(_form_of, digest=new.hash), new.move, ZSTD)
        faults.point("blobs.file_durable")
        return Prepared(new.hash, new.size, codec, None, hold, taken=self.file_size(new.hash), mends=mends)

    def remade(self, digest: str, on: str | None) -> Prepared:
        """A stored blob in another form: as a delta on the key of `on` where that is worth it, else whole. Raises as `get` does."""
        content = self.get(digest)
        return (self._delta(digest, content, on) if on is not None else None) or self._whole(digest, content)

    def _whole(self, digest: str, content: bytes, *, mends: bool = False) -> Prepared:
        codec, stored = smaller(content)
        if self._files is None or len(stored) <= IN_DATABASE_BYTES:
            return Prepared(digest, len(content), codec, stored, taken=len(stored), mends=mends)
        kept, hold = self._keep(digest, codec, stored)
        faults.point("blobs.file_durable")
        return Prepared(digest, len(content), kept, None, hold, taken=self.file_size(digest), mends=mends)

    def _keep(self, digest: str, codec: str, stored: bytes) -> tuple[str, Hold]:
        """Have the content durable in its file, held: how it lies there, which may be how it was stored before."""
        from stead.store.safefile import write_private

        assert self._files is not None
        return self._files.keep(digest, partial(_form_of, digest=digest), lambda path: write_private(path, stored), codec)

    def _delta(self, digest: str, content: bytes, after: str) -> Prepared | None:
        """The content as a delta on the key of `after`; None where it is better stored whole."""
        if after == digest or not deltas.LEAST_BYTES <= len(content) <= deltas.MOST_BYTES:
            return None
        row = self._find(after)
        if row is None or row[2] > deltas.MOST_BYTES:
            return None
        key = str(row[3]) if row[3] is not None else after
        try:
            if (under := row if key == after else self._find(key)) is None:
                return None
            base = self._key(key, under)
        except SteadError:  # damaged, or gone in this moment
            return None
        if key == digest or not deltas.LEAST_BYTES <= len(base) <= deltas.MOST_BYTES or hashlib.sha256(base).hexdigest() != key:
            return None
        delta = deltas.encode(content, base)
        taken, on_it = self._weigh(key)
        if len(delta) * 4 > taken * 3 or on_it + len(delta) > taken:
            return None
        made = Prepared(digest, len(content), DELTA, delta, None, key, content, len(delta))
        return made if self._files is None or len(delta) <= IN_DATABASE_BYTES else self._in_file(made, base)

    def _in_file(self, made: Prepared, base: bytes) -> Prepared:
        """A large delta, in its file."""
        from stead.store.safefile import write_private

        def form(path: Path) -> str | None:
            try:
                return DELTA if deltas.decode(path.read_bytes(), base, made.size) == made.content else None
            except Exception:
                return None

        assert self._files is not None and made.stored is not None
        delta, name = made.stored, name_of(made.hash, made.base)
        _, hold = self._files.keep(name, form, lambda path: write_private(path, delta), DELTA)
        faults.point("blobs.file_durable")
        taken = self._files.size(name)
        return Prepared(made.hash, made.size, DELTA, None, hold, made.base, made.content, taken)

    # --- to be read -----------------------------------------------------------------------------------------------------------

    def get(self, digest: str) -> bytes:
        """The content of a blob. Raises `not_found` when it is not stored, `store_damaged` when its bytes are not what they
        were."""
        row = self._find(digest)
        while row is not None:
            try:
                content = self._read(digest, row)
                if hashlib.sha256(content).hexdigest() == digest:
                    return content
                raise SteadError("store_damaged", f"Blob {digest[:12]} is not what was stored.")
            except SteadError:
                now = self._find(digest)
                if now == row:
                    raise
                row = now  # it got another form meanwhile: its base was collected
        raise SteadError("not_found", f"There is no blob {digest[:12]}.")

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The content of a blob in pieces of at most 1 MiB; raises as `get` does, at the latest before the last one."""
        row = self._find(digest)
        if row is not None and _in_own_file(row) and row[2] > STREAMED_BYTES:
            from stead.store import streams

            yield from streams.pieces(self._path(digest), digest, str(row[0]), int(row[2]))
            return
        content = self.get(digest)
        for at in range(0, len(content), 1 << 20):
            yield content[at : at + (1 << 20)]

    def _read(self, digest: str, row: Row) -> bytes:
        """The content as it is stored, without a look at its hash: of a base, what was made of it is looked at."""
        codec, stored, size, base = row
        try:
            raw = bytes(stored) if stored is not None else self._path(name_of(digest, base)).read_bytes()
            if codec == RAW:
                return raw[:size]  # a power cut may leave a file longer than it was, with NUL behind its content
            if base is None:
                return decompress(raw)
            under = self._find(base)
            if under is None:
                raise SteadError("not_found", f"there is no blob {base[:12]}, on which it lies")
            return deltas.decode(raw, self._key(base, under), size)
        except Exception as error:
            why = error.message.rstrip(".") if isinstance(error, SteadError) else error
            raise SteadError("store_damaged", f"Blob {digest[:12]} cannot be read: {why}.") from error

    def _key(self, digest: str, row: Row) -> bytes:
        """The content of a key. The last one is remembered, beside the bytes that it was made of: many versions of one file are
        stored or read one after the other."""
        if row[0] != ZSTD or row[3] is not None or row[2] > REMEMBERED_BYTES:
            return self._read(digest, row)
        try:
            raw = bytes(row[1]) if row[1] is not None else self._path(digest).read_bytes()
            last = self._last
            if last is None or last[0] != raw:
                self._last = last = (raw, decompress(raw))
            return last[1]
        except Exception as error:
            raise SteadError("store_damaged", f"Blob {digest[:12]} cannot be read: {error}.") from error

    def _gives(self, row: Row, content: bytes) -> bool:
        """Whether a row still gives this content."""
        try:
            return self._read(hashlib.sha256(content).hexdigest(), row) == content
        except SteadError:
            return False

    # --- the files ------------------------------------------------------------------------------------------------------------

    def files(self) -> Iterator[tuple[str, int]]:
        """The blobs that lie in files, by hash, with their sizes."""
        yield from ((name[:64], size) for name, size in self.file_names())

    def file_names(self) -> Iterator[tuple[str, int]]:
        """The files themselves, by name (`blobfiles.name_of`), with their sizes."""
        if self._files is not None:
            yield from self._files.listed()

    def file_size(self, digest: str, base: str | None = None) -> int:
        """The bytes of a blob's file, 0 when it lies in the database."""
        return self._files.size(name_of(digest, base)) if self._files is not None else 0

    def discard(self, name: str) -> bool:
        """Remove a file that no row means. False when there is none, one does, or somebody is about to store it."""

        def needed() -> bool:
            row = self._find(name[:64])
            return row is not None and row[1] is None and name_of(name[:64], row[3]) == name

        return self._files is not None and self._files.discard(name, needed)

    def sweep(self) -> int:
        """Remove what writers of streams left that are dead, and give how many."""
        from stead.store.safefile import sweep

        return sweep(self._files.folder, "incoming") if self._files is not None and self._files.folder.is_dir() else 0

    def _path(self, name: str) -> Path:
        assert self._files is not None
        return self._files.path(name)

    # --- JSON values ----------------------------------------------------------------------------------------------------------

    def pack(self, value: Any) -> Packed:
        """Move every string over 8 KiB inside a JSON value into a blob, and shorter ones where there are so many that the value
        would not fit into an event; then the largest of its lists and objects, whole, as JSON. Nothing is shortened. Call it
        outside of jobs."""
        small, moved = packed(value)
        return Packed(small, tuple(self.prepare(raw) for raw in moved.values()))

    def resolve(self, value: Any) -> Any:
        """Undo `pack`: everything that was moved back in its place."""
        return unpacked(value, self.get)


def _in_own_file(row: Row) -> bool:
    """Whether a blob lies in a file, whole."""
    return row[1] is None and row[3] is None


def _form_of(path: Path, digest: str) -> str | None:
    from stead.store import streams

    return streams.form_of(path, digest)
