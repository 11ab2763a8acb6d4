"""The store: opening, writing, reading, rebuilding. Everything durable goes through one of these."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stead.core.clock import Clock, SystemClock
from stead.core.events import Event
from stead.core.ids import Ids, RandomIds
from stead.store import kernel, rebuild
from stead.store.blobs import Blobs
from stead.store.database import Conn, Database
from stead.store.feature import Feature, projectors_of
from stead.store.reader import Readers, View

if TYPE_CHECKING:
    from concurrent.futures import Future

    from stead.store.log import Tx
    from stead.store.writer import Writer

T = TypeVar("T")
Listener = Callable[[Sequence[Event[Any]]], None]


class Store:
    """An open store. Thread-safe; one process may hold several, and several processes may open one at a time.

    Reading needs no writer: its thread starts with the first write.
    """

    def __init__(self, database: Database, features: Sequence[Feature], *, folder: Path | None, clock: Clock, ids: Ids) -> None:
        self.database = database
        self.features = list(features)
        self.folder = folder
        self.clock = clock
        self.ids = ids
        self.blobs = Blobs(folder / "blobs" if folder else None, self._find_blob)
        self._projectors = projectors_of(self.features)
        self._readers = Readers(database)
        self._writer: Writer | None = None
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._held: int | None = None

    def write(self, job: Callable[[Tx], T], *, actor: str = "system") -> T:
        """Run `job` in a write transaction and give its result when it is durable. Blocks; from a coroutine use `commit`.

        A job may share its commit with others; its exception is its own and undoes only its own changes.
        """
        result: T = self.submit(job, actor=actor).result()
        return result

    def submit(self, job: Callable[[Tx], T], *, actor: str = "system") -> Future[T]:
        """Like `write`, as a future at once."""
        return self.writer().submit(job, actor)

    async def commit(self, job: Callable[[Tx], T], *, actor: str = "system") -> T:
        """Like `write`, for a coroutine. If the caller is cancelled, the job may have been committed all the same."""
        result: T = await self.writer().commit(job, actor)
        return result

    def view(self) -> AbstractContextManager[View]:
        """`with store.view() as view:` reads one moment of the store. Keep it short."""
        return self._readers.view()

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(events)` after each commit of this process, in order, on the writer's thread. Gives the way to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def writer(self) -> Writer:
        """The writer; started when first needed."""
        with self._lock:
            if self._writer is None:
                from stead.store.writer import Writer

                self._writer = Writer(self.database.writer(), self._projectors, self.clock, self._publish)
            return self._writer

    def rebuild(self, names: Sequence[str] | None = None, *, progress: Callable[[int, int], None] | None = None) -> None:
        """Drop the tables of these features (default: all) and fill them again from the log. Nothing changes if it fails."""
        chosen = [feature for feature in self.features if names is None or feature.name in names]
        self.write(lambda tx: rebuild.run(tx, chosen, self.database.types, progress))

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every projection's rows, sorted: two stores with equal dumps show the same."""
        with self.view() as view:
            return {
                table: sorted((tuple(row) for row in view.q(f"SELECT * FROM {table}")), key=repr)
                for feature in self.features
                for table in feature.tables
            }

    def close(self) -> None:
        """Commit what waits and close everything. Idempotent."""
        if self._writer is not None:
            self._writer.close()
        self._readers.close()
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _publish(self, events: Sequence[Event[Any]]) -> None:
        for listener in list(self._listeners):
            try:
                listener(events)
            except Exception:
                import logging

                logging.getLogger("stead.store").exception("a listener failed")

    def _find_blob(self, digest: str) -> tuple[Any, ...] | None:
        with self.view() as view:
            return view.one("SELECT codec, data FROM blobs WHERE hash=?", digest)

    def _prepare(self, migrations: Sequence[kernel.Migration]) -> None:
        """Make or migrate the kernel, then the features' tables. Reads alone where everything is as it should be."""
        locks = self.folder / "locks" if self.folder else None
        if self.database.exists():
            with self.view() as view:
                found = view.one("SELECT version FROM kernel") if "kernel" in _tables(view, self.database) else None
                version = int(found[0]) if found else 0
                kernel.refuse_newer(version, len(migrations))
                stale = rebuild.stale(view, self.features) if version == len(migrations) else self.features
        else:
            version, stale = 0, self.features
        if version < len(migrations):
            self._migrate(version, migrations, locks)
        if locks is not None:
            from stead.store.lock import hold

            self._held = hold(locks, self.clock)
        if stale:
            self.write(lambda tx: rebuild.bring_up(tx, self.features, self.database.types))

    def _migrate(self, version: int, migrations: Sequence[kernel.Migration], locks: Path | None) -> None:
        from contextlib import nullcontext

        from stead.store.lock import using

        with using(locks, self.clock, alone=True) if locks and version else nullcontext():
            if version and self.folder:
                self._back_up(version)
            conn: Conn = self.database.writer()
            try:
                kernel.migrate(self.database, conn, migrations, store=self.ids.new(), now=self.clock.now())
            finally:
                conn.close()

    def _back_up(self, version: int) -> None:
        from stead.store.safefile import private_folder

        assert self.folder is not None
        backups = self.folder / "backups"
        private_folder(backups)
        self.database.backup(backups / f"kernel-{version}-{self.clock.now()}.db")


def open_store(
    where: str | Path,
    features: Sequence[Feature] = (),
    *,
    folder: Path | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    migrations: Sequence[kernel.Migration] = kernel.MIGRATIONS,
) -> Store:
    """Open a store, making it if it is not there: a folder (SQLite in `stead.db`) or a `postgresql://` address.

    `folder` is where large blobs, locks and backups of a PostgreSQL store lie; without it everything lies in the database.
    Raises `store_newer`, `store_damaged`, `store_busy`, `read_only`, `disk_full`.
    """
    text = str(where)
    database: Database
    if text.startswith(("postgresql://", "postgres://")):
        from stead.store.postgres import Postgres

        database = Postgres(text)
    else:
        from stead.store.sqlite import SQLite

        folder = Path(where)
        if not folder.is_dir():
            from stead.store.safefile import private_folder

            private_folder(folder)
        database = SQLite(folder / "stead.db")
    store = Store(database, features, folder=folder, clock=clock or SystemClock(), ids=ids or RandomIds())
    try:
        store._prepare(migrations)
    except BaseException:
        store.close()
        raise
    return store


def _tables(view: View, database: Database) -> set[str]:
    return database.tables(view._conn)
