"""Content-addressed bytes: SHA-256 of the content is the name, zstd the form; small ones in the database, large ones in files.

Write order (I4): a large blob's file is durable before its row, the row commits with or before the event that names it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from stead.core.errors import SteadError
from stead.core.text import cut_bytes
from stead.store import deltas, faults
from stead.store.codec import compress, decompress

if TYPE_CHECKING:
    from stead.store.database import Row

IN_DATABASE_BYTES = 64 << 10
STREAMED_BYTES = 16 << 20
"""A file with more is read and written piece by piece."""
MOVED_TEXT_BYTES = 8 << 10
HEAD_BYTES = 1 << 10
# A packed value stays well below the cap of an event, whatever stands beside it.
PACKED_BYTES = 48 << 10

_ZSTD = "zstd"
_RAW = "raw"
_DELTA = "delta"


class Hold:
    """A share in the file of a blob, until the value goes: `Blobs.discard` removes no file of which somebody has one."""

    __slots__ = ("_fd",)

    def __init__(self, path: Path) -> None:
        """Raises `OSError` when there is no such file."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        with suppress(OSError):  # where nothing can be locked nothing is collected either
            fcntl.flock(self._fd, fcntl.LOCK_SH)

    def stands(self, path: Path) -> bool:
        """Whether the file still has its name: it may have been removed just before it was held."""
        return _is_file(self._fd, path)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            os.close(self._fd)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A blob ready to be stored by `Tx.put`: hashed and compressed; `stored` is None when its bytes already lie in a file, which
    nobody collects for as long as this value lives."""

    hash: str
    size: int
    codec: str
    stored: bytes | None
    hold: Hold | None = field(default=None, compare=False, repr=False)
    base: str | None = None
    """The blob of which this one is a delta."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """Of a delta: all of it, should its base be gone by the time it is stored."""

    def whole(self) -> Prepared:
        """The same, by itself, in the database."""
        assert self.content is not None
        return Prepared(self.hash, self.size, _ZSTD, compress(self.content))


@dataclass(frozen=True, slots=True)
class Packed:
    """A JSON value whose long strings stand as `{"$blob", "size", "head"}`, with the blobs they moved to."""

    value: Any
    blobs: tuple[Prepared, ...]


class Blobs:
    """The blob store. Thread-safe. Without a folder every blob lies in the database."""

    def __init__(self, folder: Path | None, find: Callable[[str], Row | None], weigh: Callable[[str], tuple[int, int]]) -> None:
        """`find` gives codec, stored bytes, size and base of a blob; `weigh` what a blob and what all deltas on it take (bytes)."""
        self._folder = folder
        self._find = find
        self._weigh = weigh

    def has(self, digest: str) -> bool:
        """Whether a blob of this hash is stored."""
        return self._find(digest) is not None

    def prepare_stream(self, file: BinaryIO) -> Prepared:
        """Like `prepare`, of all that can be read from an open file. Of a large one never more than some MiB are in memory,
        where there is a folder."""
        first = file.read(STREAMED_BYTES)
        if self._folder is None or len(first) < STREAMED_BYTES:
            return self.prepare(first + file.read())
        from stead.store import streams
        from stead.store.safefile import private_folder, sync_folder

        digest, size, name = streams.keep(self._folder, first, file)
        temp, path = self._folder / name, self._path(digest)
        while True:
            if (hold := _held(path)) is None:
                private_folder(path.parent)
                os.rename(temp, path)
                sync_folder(path.parent)
                hold = _held(path)
            if hold is not None and hold.stands(path):
                temp.unlink(missing_ok=True)  # it is there where the same content was stored before
                row = self._find(digest)
                faults.point("blobs.file_durable")
                return Prepared(digest, size, str(row[0]) if row is not None else _ZSTD, None, hold)

    def chunks(self, digest: str) -> Iterator[bytes]:
        """The content of a blob in pieces of at most 1 MiB; raises as `get` does, at the latest before the last one."""
        row = self._find(digest)
        if row is not None and row[0] == _ZSTD and row[1] is None and row[2] > STREAMED_BYTES:
            from stead.store import streams

            yield from streams.pieces(self._path(digest), digest)
            return
        content = self.get(digest)
        for at in range(0, len(content), 1 << 20):
            yield content[at : at + (1 << 20)]

    def prepare(self, content: bytes, *, after: str | None = None) -> Prepared:
        """Hash and compress `content`, and write it to its file if it is large. Call it outside of jobs.

        `after`: the hash of what the same file held before. Where that is stored, and much of it is still there, only what differs
        from its key version is: one of the versions of a file, stored whole. The next one becomes the key when the deltas on it
        take as much as it does itself; so any version is two decompressions away.
        """
        digest = hashlib.sha256(content).hexdigest()
        if after is not None and after != digest and deltas.LEAST_BYTES <= len(content) <= deltas.MOST_BYTES:
            delta = None if self.has(digest) else self._delta(digest, content, after)
            if delta is not None:
                return delta
        packed = compress(content)
        codec, stored = (_ZSTD, packed) if len(packed) < len(content) else (_RAW, content)
        if self._folder is None or len(stored) <= IN_DATABASE_BYTES:
            return Prepared(digest, len(content), codec, stored)
        kept, hold = self._keep(digest, codec, stored)
        faults.point("blobs.file_durable")
        return Prepared(digest, len(content), kept, None, hold)

    def _delta(self, digest: str, content: bytes, after: str) -> Prepared | None:
        """The content as a delta on the key of `after`; None where it is better stored whole."""
        row = self._find(after)
        if row is None:
            return None
        key = str(row[3]) if row[3] is not None else after
        try:
            base = self.get(key)
        except SteadError:  # damaged, or gone in this moment
            return None
        if not deltas.LEAST_BYTES <= len(base) <= deltas.MOST_BYTES:
            return None
        delta = deltas.encode(content, base)
        taken, on_it = self._weigh(key)
        if len(delta) > IN_DATABASE_BYTES or len(delta) * 4 > taken * 3 or on_it + len(delta) > taken:
            return None
        return Prepared(digest, len(content), _DELTA, delta, None, key, content)

    def remade(self, digest: str, on: str | None) -> Prepared:
        """A stored blob in another form: as a delta on `on` where that is worth it, else whole. Raises as `get` does."""
        content = self.get(digest)
        return (self._delta(digest, content, on) if on is not None else None) or self.prepare(content)

    def _keep(self, digest: str, codec: str, stored: bytes) -> tuple[str, Hold]:
        """Have the content durable in its file, held: how it lies there, which may be how it was stored before."""
        from stead.store.safefile import private_folder, sync_folder, write_private

        path = self._path(digest)
        while True:
            hold = _held(path)
            kept = _codec_of(path, digest) if hold is not None else None
            if kept is None:
                private_folder(path.parent)
                write_private(path, stored)
                hold, kept = _held(path), codec
            else:
                sync_folder(path.parent)  # whoever wrote it may not have come that far
            if hold is not None and hold.stands(path):
                return kept, hold

    def discard(self, digest: str) -> bool:
        """Remove the file of a blob that has no row. False when there is none, it has a row, or somebody is about to store it."""
        if self._folder is None:
            return False
        path = self._path(digest)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            # Again, now that nobody can be between its file and its row: whoever prepared it holds it until its commit.
            if self._find(digest) is not None or not _is_file(fd, path):
                return False
            path.unlink()
            return True
        finally:
            os.close(fd)

    def file_size(self, digest: str) -> int:
        """The bytes of a blob's file, 0 when it lies in the database."""
        try:
            return self._path(digest).stat().st_size if self._folder is not None else 0
        except FileNotFoundError:
            return 0

    def files(self) -> Iterator[tuple[str, int]]:
        """The blobs that lie in files, by hash, with their sizes."""
        if self._folder is None or not self._folder.is_dir():
            return
        for folder in sorted(self._folder.iterdir()):
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if not path.name.startswith("."):
                    yield folder.name + path.name, path.stat().st_size

    def get(self, digest: str) -> bytes:
        """The content of a blob. Raises `not_found` when it is not stored, `store_damaged` when its bytes are not what they
        were."""
        content = self._read(digest)
        if hashlib.sha256(content).hexdigest() != digest:
            raise SteadError("store_damaged", f"Blob {digest[:12]} is not what was stored.")
        return content

    def _read(self, digest: str) -> bytes:
        """The content as it is stored, without a look at its hash: of a base, what was made of it is looked at."""
        row = self._find(digest)
        if row is None:
            raise SteadError("not_found", f"There is no blob {digest[:12]}.")
        codec, stored, size, base = row
        try:
            raw = bytes(stored) if stored is not None else self._path(digest).read_bytes()
            if codec == _RAW:
                return raw[:size]  # a power cut may leave a file longer than it was, with NUL behind its content
            return decompress(raw) if base is None else deltas.decode(raw, self._read(base), size)
        except Exception as error:
            raise SteadError("store_damaged", f"Blob {digest[:12]} cannot be read: {error}.") from error

    def pack(self, value: Any) -> Packed:
        """Move every string over 8 KiB inside a JSON value into a blob, and shorter ones where there are so many that the value
        would not fit into an event; then the largest of its lists and objects, whole, as JSON. Nothing is shortened. Call it
        outside of jobs."""
        from stead.core.jsontext import dumps

        best: tuple[int, Any, dict[str, bytes]] | None = None
        for limit in (MOVED_TEXT_BYTES, 2 << 10, 512):
            moved: dict[str, bytes] = {}
            tried = _move(value, limit, moved)
            size = len(dumps(tried))
            if best is None or size < best[0]:
                best = (size, tried, moved)
            if best[0] <= PACKED_BYTES:
                break
        assert best is not None
        size, tried, moved = best
        while size > PACKED_BYTES and isinstance(tried, dict) and (name := _largest(tried)) is not None:
            raw = dumps(tried[name])
            digest = hashlib.sha256(raw).hexdigest()
            moved[digest] = raw
            tried = {**tried, name: {"$blob": digest, "size": len(raw), "head": "", "json": True}}
            size = len(dumps(tried))
        return Packed(tried, tuple(self.prepare(raw) for raw in moved.values()))

    def resolve(self, value: Any) -> Any:
        """Undo `pack`: everything that was moved back in its place."""
        if isinstance(value, dict):
            if _is_reference(value):
                content = self.get(value["$blob"])
                if value.get("json"):
                    from stead.core.jsontext import loads

                    return self.resolve(loads(content))
                return content.decode("utf-8", "surrogatepass")
            return {_unescaped(key): self.resolve(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.resolve(item) for item in value]
        return value

    def _path(self, digest: str) -> Path:
        assert self._folder is not None
        return self._folder / digest[:2] / digest[2:]


def _move(value: Any, limit: int, moved: dict[str, bytes]) -> Any:
    """`value` with references in the place of strings over `limit` bytes, which are added to `moved` with their hashes."""
    if isinstance(value, str) and len(value) * 4 > limit:
        raw = value.encode("utf-8", "surrogatepass")
        if len(raw) <= limit:
            return value
        digest = hashlib.sha256(raw).hexdigest()
        moved[digest] = raw
        return {"$blob": digest, "size": len(raw), "head": cut_bytes(value, min(HEAD_BYTES, limit // 4))}
    if isinstance(value, dict):
        return {_escaped(key): _move(item, limit, moved) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_move(item, limit, moved) for item in value]
    return value


def _largest(value: dict[str, Any]) -> str | None:
    """The largest list or object that an object holds, if there is one that is not moved yet."""
    from stead.core.jsontext import dumps

    held = [(len(dumps(item)), key) for key, item in value.items() if isinstance(item, (dict, list, tuple))]
    held = [(size, key) for size, key in held if not (isinstance(value[key], dict) and _is_reference(value[key]))]
    return max(held)[1] if held else None


def _is_reference(value: dict[str, Any]) -> bool:
    return isinstance(value.get("$blob"), str)


def _escaped(key: Any) -> Any:
    """A key of the value's own that looks like ours gets one more `$`; `resolve` takes it away again."""
    return f"${key}" if isinstance(key, str) and key.startswith("$") and key.lstrip("$") == "blob" else key


def _unescaped(key: Any) -> Any:
    return key[1:] if isinstance(key, str) and key.startswith("$$") and key.lstrip("$") == "blob" else key


def _held(path: Path) -> Hold | None:
    try:
        return Hold(path)
    except FileNotFoundError:
        return None


def _is_file(fd: int, path: Path) -> bool:
    try:
        now, mine = os.stat(path, follow_symlinks=False), os.fstat(fd)
    except FileNotFoundError:
        return False
    return (now.st_dev, now.st_ino) == (mine.st_dev, mine.st_ino)


def _codec_of(path: Path, digest: str) -> str | None:
    """How the content with this hash is stored in the file at `path`; None when it is not there, or damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    for codec, read in ((_ZSTD, decompress), (_RAW, bytes)):
        try:
            content = read(stored)
        except Exception:
            continue
        if hashlib.sha256(content).hexdigest() == digest:
            return codec
    return None
