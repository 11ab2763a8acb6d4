"""Whether a store is as it should be: the database itself, the log, the blobs, the projections, the files. Reads, and with `repair`
makes right what can be made from what is there; the log is never touched."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.core.events import Event, UnknownFact
from stead.store import holders, lock, rebuild, safefile
from stead.store.collect import names_in
from stead.store.log import EVENT_COLUMNS, MAX_EVENT_BYTES, read_event

if TYPE_CHECKING:
    from stead.store.log import Tx
    from stead.store.store import Progress, Store

_PAGE = 1000
_SAMPLE = 200
_NAMED = 5
_LEFT_MS = 10 * 60 * 1000
"""A temporary file older than this has no writer any more."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at: how it is, in a sentence."""

    name: str
    ok: bool
    detail: str


@dataclass(slots=True)
class Walk:
    """What one way through the log found."""

    events: int = 0
    unknown: int = 0
    last: int = 0
    faults: list[str] = field(default_factory=list)
    blobs: set[str] = field(default_factory=set)


def database(store: Store) -> Check:
    """What the database finds wrong with itself."""
    with store.view() as view:
        found = store.database.faults(view._conn)
    return Check("database", not found, _told(found) or "Every page and every reference is whole.")


def walk(store: Store, look: Callable[[Event[Any]], None], progress: Progress | None = None) -> Walk:
    """Read the whole log in order, page by page, and show each event to `look`."""
    found = Walk()
    with store.view() as view:
        total = view.newest()
    while True:
        with store.view() as view:
            rows = view.q(f"SELECT {EVENT_COLUMNS} FROM events WHERE seq>? ORDER BY seq LIMIT ?", found.last, _PAGE)
        for row in rows:
            _see(row, found, look)
        if not rows:
            return found
        if progress is not None:
            progress(min(found.last, total), total)


def _see(row: tuple[Any, ...], found: Walk, look: Callable[[Event[Any]], None]) -> None:
    seq, data = int(row[0]), bytes(row[8])
    if seq <= found.last:
        found.faults.append(f"event {seq} stands behind event {found.last}")
    found.last = max(seq, found.last)
    found.events += 1
    found.blobs.update(names_in([data]))
    if len(data) > MAX_EVENT_BYTES:
        found.faults.append(f"event {seq} has {len(data):,} bytes, the limit is {MAX_EVENT_BYTES:,}")
    try:
        event = read_event(row)
    except Exception as error:  # whatever is wrong with it, the rest is looked at all the same
        found.faults.append(f"event {seq} ({row[2]}) cannot be read: {error}")
        return
    if isinstance(event.data, UnknownFact):
        found.unknown += 1
    look(event)


def log(store: Store, found: Walk) -> Check:
    """Every event can be read, in one order, and no number can be given twice."""
    faults = list(found.faults)
    with store.view() as view:
        given = int(view.q("SELECT seq FROM kernel")[0][0])
        gone = int(view.q("SELECT coalesce(max(seq), 1) FROM tombstones")[0][0]) - 1
    if gone > given:
        faults.append(f"numbers up to {gone} were given to what was deleted, the store remembers {given}")
    kept = f", {found.unknown:,} of them of a kind that this version does not know" if found.unknown else ""
    return Check("log", not faults, _told(faults) or f"{found.events:,} events{kept}, in one order.")


def deleted(store: Store) -> Check:
    """What was deleted for good has no events."""
    with store.view() as view:
        rows = view.q("SELECT DISTINCT e.stream FROM events e JOIN tombstones t ON t.stream=e.stream LIMIT 100")
        count = view.q("SELECT count(*) FROM tombstones")[0][0]
    faults = [f"{stream} was deleted and has events" for (stream,) in rows]
    return Check("deleted", not faults, _told(faults) or f"{count:,} deleted for good, nothing left of them in the log.")


def blobs(store: Store, named: set[str], full: bool, progress: Progress | None = None) -> Check:
    """Every blob that the log names is there, and what it is a delta on; all of them, or some, are read and compared with their
    hash. What is wrong with a base is told once, with what lies on it."""
    with store.view() as view:
        rows = {digest: (bool(in_file), base) for digest, in_file, base in view.q("SELECT hash, data IS NULL, base FROM blobs")}
    faults = [f"{digest[:12]} is not stored" for digest in sorted(named - rows.keys())]
    there = sorted(named & rows.keys())
    on: dict[str, list[str]] = {}
    for digest in there:
        if (base := rows[digest][1]) is not None:
            on.setdefault(base, []).append(digest)
    lost = {base: f"{base[:12]} is not stored" for base in sorted(on.keys() - rows.keys())}
    for digest in sorted({*there, *on} & rows.keys()):
        in_file, base = rows[digest]
        if in_file and not store.blobs.file_size(digest, base):
            lost[digest] = f"{digest[:12]} has no file"
    read = there if full else there[:: len(there) // _SAMPLE + 1]  # hashes are in no order of their own: any of them will do
    bases = sorted({base for digest in read if (base := rows[digest][1]) is not None} - set(read))
    for n, digest in enumerate((*bases, *sorted(read, key=lambda digest: rows[digest][1] is not None))):
        if digest not in lost and rows[digest][1] not in lost and (wrong := _wrong(store, digest)) is not None:
            lost[digest] = wrong
        if progress is not None and n % 20 == 19:
            progress(n + 1, len(bases) + len(read))
    faults += [f"{wrong}{_lying(on.get(digest, ()))}" for digest, wrong in lost.items()]
    said = f"{len(there):,} blobs are there; {len(read):,} were read and are what was stored."
    return Check("blobs", not faults, _told(faults) or said)


def _wrong(store: Store, digest: str) -> str | None:
    try:
        for _ in store.blobs.chunks(digest):
            pass
    except SteadError as error:
        return error.message.rstrip(".")
    return None


def _lying(on: Sequence[str]) -> str:
    """What is lost with a base."""
    if not on:
        return ""
    more = f" and {len(on) - 1:,} more" if len(on) > 1 else ""
    return f", and with it what lies on it: {on[0][:12]}{more}"


def projections(store: Store, repair: bool, progress: Progress | None = None) -> Check:
    """The tables hold what the log says: they are filled again beside themselves and compared. `repair` exchanges them when they
    differ."""

    def job(tx: Tx) -> tuple[int, int, dict[str, tuple[int, int]]]:
        at, total = rebuild.fill(tx, store.database, store.features)
        found = {}
        if at == total:
            found = rebuild.compare(tx, store.database, store.features)
            if found and repair:
                rebuild.swap(tx, store.database, store.features)
            else:
                rebuild.drop(tx, store.features)
        return at, total, found

    at, total = 0, 1
    differing: dict[str, tuple[int, int]] = {}
    try:
        while at != total:
            at, total, differing = store.write(job)
            if progress is not None:
                progress(at, total)
    except SteadError as error:
        if error.code != "read_only":
            raise
        return Check("projections", True, "Not compared with the log: nothing can be written here.")
    if not differing:
        count = sum(len(feature.tables) for feature in store.features)
        return Check("projections", True, f"{count} tables are what the log gives.")
    faults = [f"{table}: {missing:,} rows missing, {extra:,} wrong" for table, (missing, extra) in differing.items()]
    if repair:
        return Check("projections", True, f"Made again from the log. {_told(faults)}")
    return Check("projections", False, f"{_told(faults)} `stead doctor --repair` makes them again from the log.")


def indexes(store: Store, repair: bool) -> Check:
    """Every index is there; `repair` makes those that are not."""
    with store.view() as view:
        lost = rebuild.lost_indexes(store.database.indexes(view._conn), store.features)
    if lost and repair:

        def job(tx: Tx) -> None:
            there = store.database.indexes(tx._conn)
            rebuild.make_indexes(tx, there, rebuild.lost_indexes(there, store.features))

        store.write(job)
        return Check("indexes", True, f"Made again: {', '.join(lost)}.")
    if lost:
        named = _told([f"{name} of {on.split('(', 1)[0]} is missing" for name, on in lost.items()])
        return Check("indexes", False, f"{named} Reading is slow without; `stead doctor --repair` makes them again.")
    return Check("indexes", True, "All are there.")


def files(store: Store, repair: bool) -> Check:
    """Only their owner may read what lies in the data folder."""
    faults, mended = [], 0
    for path, found in _below(store.folder):
        wanted = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
        if stat.S_IMODE(found.st_mode) & ~wanted and found.st_uid == os.geteuid():
            if repair:
                os.chmod(path, stat.S_IMODE(found.st_mode) & wanted)
                mended += 1
            else:
                faults.append(f"{path.name} has the mode {stat.S_IMODE(found.st_mode):o} instead of {wanted:o}")
    said = f"{mended} modes were set right." if mended else "All are their owner's alone."
    return Check("files", not faults, _told(faults) or said)


def leftovers(store: Store, repair: bool) -> Check:
    """Temporary files and lock files of processes that are gone."""
    assert store.folder is not None
    faults, removed = [], 0
    for path in _left(store.folder, store.clock.now()):
        if repair:
            safefile.remove(path)
            removed += 1
        else:
            faults.append(f"{path.name} was left behind")
    for owner in lock.dead_owners(store.folder / "locks"):
        if repair:
            lock.forget_owner(store.folder / "locks", owner)
            removed += 1
        else:
            faults.append(f"the lock of a dead process ({owner}) was left behind")
    return Check("leftovers", not faults, _told(faults) or (f"{removed} were removed." if removed else "There are none."))


def wal(store: Store) -> Check:
    """The write-ahead log is within its bound; above it, who keeps it from being begun anew."""
    from stead.store.sqlite import WAL_LIMIT

    size = store.database.log_bytes()
    if size <= WAL_LIMIT or store.folder is None:
        return Check("wal", True, f"The write-ahead log has {size:,} bytes.")
    path = store.folder / "stead.db"
    who = holders.named(store.folder / "locks", holders.of_reading(path))
    said = f"The write-ahead log has {size:,} bytes, its bound is {WAL_LIMIT:,}. It is kept by {who}, which has not ended reading."
    if not holders.of_reading(path):
        said = f"The write-ahead log has {size:,} bytes and will be made short when next something is written."
        return Check("wal", True, said)
    return Check("wal", False, said)


def _left(folder: Path, now: int) -> Iterator[Path]:
    folders = [folder, *(path for path, found in _below(folder) if stat.S_ISDIR(found.st_mode))]
    for one in dict.fromkeys(folders):
        for path in (*safefile.leftovers(one), *sorted(one.glob(".*.part"))):
            if now - path.stat().st_mtime * 1000 > _LEFT_MS:
                yield path


def _below(folder: Path | None) -> Iterator[tuple[Path, os.stat_result]]:
    """The data folder and every folder and file in it; links are not followed."""
    if folder is None:
        return
    yield folder, folder.stat()
    for path in sorted(folder.rglob("*")):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
            yield path, found


def _told(faults: list[str]) -> str:
    """Faults as a sentence: the first few, and how many more."""
    more = len(faults) - _NAMED
    return "; ".join(faults[:_NAMED]) + (f"; and {more:,} more" if more > 0 else "") + ("." if faults else "")
