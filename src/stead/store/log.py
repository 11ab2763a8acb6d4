"""The log inside a write transaction: append an event, and its projections with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, as_stored, decode
from stead.core.jsontext import dumps, loads
from stead.store import faults
from stead.store.database import Conn, Reads, Row

if TYPE_CHECKING:
    from stead.store.blobs import Packed, Prepared

MAX_EVENT_BYTES = 64 << 10
"""Larger text belongs into blobs (`Blobs.pack`), so that the log stays small whatever tools print."""

F = TypeVar("F", bound=Fact)
Projector = Callable[["Tx", Event[Any]], None]
"""Turns an event into rows, in the transaction that appends it."""
Listener = Callable[[Sequence[Event[Any]]], None]
"""Is told of the events of a commit, in order, after it is durable."""
HEAD = "SELECT version, seq, (SELECT max(seq) FROM events), (SELECT sum(version) FROM projections) FROM kernel"
"""The kernel version; the highest `seq` of what was ever deleted, and the highest of what is there: no number is given twice; a
number that changes whenever tables of features were made anew by another version, for versions only grow."""
EVENT_COLUMNS = "seq, stream, kind, v, ts, actor, run, op, data"


class Tx:
    """One job's view of the write transaction. A job reads and writes tables, appends events, and does nothing else:
    no file, no network, no waiting. `now` is read once, so that everything in a job has the same time."""

    __slots__ = ("_conn", "_next", "_projectors", "actor", "events", "now", "written")

    def __init__(
        self, conn: Conn, projectors: Mapping[type[Fact], Sequence[Projector]], next_seq: int, now: int, actor: str
    ) -> None:
        self._conn = conn
        self._projectors = projectors
        self._next = next_seq
        self.now = now
        self.actor = actor
        self.events: list[Event[Any]] = []
        self.written = 0

    def q(self, sql: str, *args: Any) -> list[Row]:
        """Run one statement with `?` parameters and give all its rows."""
        return self._conn.q(sql, args)

    def one(self, sql: str, *args: Any) -> Row | None:
        """The first row, or None."""
        rows = self._conn.q(sql, args)
        return rows[0] if rows else None

    def append(self, stream: str, fact: F, *, run: str | None = None, op: str | None = None, expect: int | None = None) -> Event[F]:
        """Append an event and run its projectors. It is durable when the job's commit is (`Store.write` returned).

        `expect` is the last `seq` of the stream that the caller saw: if there is a newer one, nothing is written and
        `conflict` is raised. Also raised: `not_found` for a deleted stream, `bad_value` for an oversized event, `internal`
        for a blob that is not stored.
        """
        data = dumps(fact.to_data())
        if len(data) > MAX_EVENT_BYTES:
            raise SteadError(
                "bad_value", f"An event of {len(data):,} bytes is over the limit of {MAX_EVENT_BYTES:,} ({fact.kind})."
            )
        if b'blob":' in data:  # what names a blob: looking is cheaper than walking through every value
            for digest in fact.blobs():
                if not self.has_blob(digest):
                    raise SteadError("internal", f"{fact.kind} refers to a blob that is not stored ({digest[:12]}).")
        if self.one("SELECT 1 FROM tombstones WHERE stream=?", stream):
            raise SteadError("not_found", f"{stream} was deleted.")
        if expect is not None and (last := self.last_seq(stream)) != expect:
            raise SteadError("conflict", "This was changed in the meantime.", details={"expected": expect, "found": last})
        seq = self._next
        self._next += 1
        row = (seq, stream, fact.kind, fact.v, self.now, self.actor, run, op, data)
        self._conn.q(f"INSERT INTO events({EVENT_COLUMNS}) VALUES(?,?,?,?,?,?,?,?,?)", row)
        faults.point("log.appended")
        # Projectors and listeners are given what the log holds, so that a rebuild and another process see the same (I8).
        event = Event(seq, stream, self.now, self.actor, run, op, as_stored(fact, loads(data)))
        for project in self._projectors.get(type(fact), ()):
            project(self, event)
        faults.point("log.projected")
        self.events.append(event)
        self.written += len(data)
        return event

    def last_seq(self, stream: str) -> int:
        """The `seq` of the stream's last event, 0 when it has none."""
        return last_seq(self, stream)

    def has_blob(self, digest: str) -> bool:
        """Whether this blob is stored."""
        return self.one("SELECT 1 FROM blobs WHERE hash=?", digest) is not None

    def put(self, prepared: Prepared) -> str:
        """Store a blob that `Blobs.prepare` made ready; idempotent. Gives its hash."""
        again = prepared.known and self.q("UPDATE blobs SET touched=? WHERE hash=? RETURNING hash", self.now, prepared.hash)
        if not again:
            self._insert(prepared)
        faults.point("log.blob_put")
        return prepared.hash

    def _insert(self, prepared: Prepared) -> None:
        """Store its row. Codec, bytes and base of one that is there belong together: they stay, or all are exchanged."""
        base = prepared.base
        if prepared.known or (base is not None and not self.one("SELECT 1 FROM blobs WHERE hash=? AND base IS NULL", base)):
            prepared = prepared.whole()  # collected since it was made ready
        row = (prepared.hash, prepared.size, prepared.taken, prepared.codec, prepared.stored, prepared.base, self.now)
        if prepared.mends:
            then = "stored=excluded.stored, codec=excluded.codec, data=excluded.data, base=excluded.base"
        else:  # a file that was found damaged may have been written anew in another form
            files = "blobs.data IS NULL AND blobs.base IS NULL AND excluded.data IS NULL AND excluded.base IS NULL"
            then = ", ".join(f"{name}=CASE WHEN {files} THEN excluded.{name} ELSE blobs.{name} END" for name in ("codec", "stored"))
        self._conn.q(
            "INSERT INTO blobs(hash, size, stored, codec, data, base, touched) VALUES(?,?,?,?,?,?,?)"
            f" ON CONFLICT(hash) DO UPDATE SET touched=excluded.touched, {then}",
            row,
        )
        self.written += len(prepared.stored or b"")

    def unpack(self, packed: Packed) -> Any:
        """Store the blobs of a packed value and give the value that refers to them."""
        for prepared in packed.blobs:
            self.put(prepared)
        return packed.value

    def unname(self, seq: int, stream: str) -> None:
        """Take the blobs that an event names as `blob` out of it, for good; all else it says stays. Idempotent. The caller
        appends what says so, and its projectors make of the rows what a rebuild would give."""
        row = self.one("SELECT data FROM events WHERE seq=? AND stream=?", seq, stream)
        if row is not None:
            self.q("UPDATE events SET data=? WHERE seq=?", dumps(_unnamed(loads(row[0]))), seq)

    def forget_stream(self, stream: str) -> None:
        """Remove a stream's events and refuse every later write to it (I10). The caller appends what must be remembered."""
        self.q("INSERT INTO tombstones(stream, seq) VALUES(?,?) ON CONFLICT(stream) DO NOTHING", stream, self._next)
        self.q("UPDATE kernel SET seq=? WHERE seq<?", self._next - 1, self._next - 1)
        self.q("DELETE FROM events WHERE stream=?", stream)

    @property
    def next_seq(self) -> int:
        """The `seq` that the next event will have."""
        return self._next


def _unnamed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _unnamed(item) for key, item in value.items() if key != "blob"}
    return [_unnamed(item) for item in value] if isinstance(value, list) else value


def last_seq(view: Reads, stream: str) -> int:
    """The `seq` of the stream's last event, 0 when it has none."""
    row = view.one("SELECT max(seq) FROM events WHERE stream=?", stream)
    return int(row[0]) if row and row[0] else 0


def read_event(row: Row) -> Event[Any]:
    """An event from the columns `EVENT_COLUMNS`."""
    seq, stream, kind, v, ts, actor, run, op, data = row
    return Event(seq, stream, ts, actor, run, op, decode(kind, v, loads(data)))
