"""The store: opening, writing, reading, rebuilding. Everything durable goes through one of these."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from stead.core.clock import Clock, SystemClock, rfc3339
from stead.core.errors import SteadError
from stead.core.events import Event
from stead.core.ids import Ids, RandomIds
from stead.store import faults, kernel, rebuild
from stead.store.blobs import Blobs
from stead.store.database import Conn, Database
from stead.store.feature import Feature, projectors_of
from stead.store.log import Listener
from stead.store.reader import Readers, View

if TYPE_CHECKING:
    from concurrent.futures import Future

    from stead.store.filesystem import FileSystem
    from stead.store.holders import Sign
    from stead.store.log import Tx
    from stead.store.sqlite import SQLite
    from stead.store.writer import Writer

T = TypeVar("T")
Progress = Callable[[int, int], None]
_SWAP_TRIES = 20


class Store:
    """An open store. Thread-safe; one process may hold several, and several processes may open one at a time.

    Reading needs no writer: its thread starts with the first write.
    """

    def __init__(
        self,
        database: Database,
        features: Sequence[Feature],
        *,
        folder: Path | None,
        clock: Clock,
        ids: Ids,
        version: int = kernel.KERNEL_VERSION,
    ) -> None:
        self.database = database
        self.features = list(features)
        self.folder = folder
        self.clock = clock
        self.ids = ids
        self.caution: str | None = None
        """What a person should know about the place of the store; None where all is as it should be."""
        self.blobs = Blobs(folder / "blobs" if folder else None, self._find_blob, self._weigh_blob)
        self._projectors = projectors_of(self.features)
        self._readers = Readers(database)
        self._writer: Writer | None = None
        self._listeners: list[Listener] = []
        self._lock = threading.Lock()
        self._held: int | None = None
        self._sign: Sign | None = None
        self._let_go: Callable[[], None] = lambda: None
        self._version = version
        self._closed = False
        self._pid = os.getpid()

    def write(self, job: Callable[[Tx], T], *, actor: str = "system") -> T:
        """Run `job` in a write transaction and give its result when it is durable. Blocks; from a coroutine use `commit`.

        A job may share its commit with others; its exception is its own and undoes only its own changes.
        """
        writer = self.writer()
        if writer.is_this_thread():
            raise SteadError("internal", "A job or a listener cannot wait for another job; use `submit`.")
        result: T = writer.submit(job, actor).result()
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

    def see(self, statement: str) -> None:
        """Have every view from now on begin with `statement`, which makes something of its own connection's."""
        self._readers.begin_with(statement)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(events)` after each commit of this process, in order, on the writer's thread. Gives the way to stop it."""
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def writer(self) -> Writer:
        """The writer; started when first needed."""
        if os.getpid() != self._pid:
            raise SteadError("internal", "This process was forked from one with an open store; start a fresh process.")
        with self._lock:
            if self._closed:
                raise SteadError("internal", "The store is closed.")
            if self._writer is None:
                from stead.store.writer import Writer

                self._writer = Writer(
                    *(self.database.writer, self._projectors, self.clock, self._publish, self._version),
                    {feature.name: feature.version for feature in self.features},
                )
            return self._writer

    def rebuild(self, names: Sequence[str] | None = None, *, progress: Progress | None = None) -> None:
        """Fill the tables of these features (default: all) again from the log, beside those in use, which stay as they are until
        the new ones are whole. Others read and write meanwhile; a rebuild that was broken off goes on where it was.
        `progress(at, total)` is told after each chunk, as `seq`.
        """
        chosen = [feature for feature in self.features if names is None or feature.name in names]
        self._rebuild(lambda tx: chosen, progress)

    def _rebuild(self, choose: Callable[[Tx], Sequence[Feature]], progress: Progress | None) -> None:
        at, total, patience = 0, 1, _SWAP_TRIES
        while at != total:
            try:
                at, total = self.write(lambda tx: rebuild.step(tx, self.database, choose(tx)))
            except SteadError as error:
                patience -= 1
                if error.code != "store_busy" or not patience:
                    raise
                continue
            if progress is not None and total:
                progress(at, total)

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """Every projection's rows, sorted: two stores with equal dumps show the same."""
        with self.view() as view:
            return {
                table: sorted((tuple(row) for row in view.q(f"SELECT * FROM {table}")), key=repr)
                for feature in self.features
                for table in feature.tables
            }

    def close(self) -> None:
        """Commit what waits and close everything. Idempotent. In a forked child it does nothing: all of it is the parent's."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._closed = True
            held, self._held = self._held, None
        if self._writer is not None:
            self._writer.close()
        self._readers.close()
        if held is not None:
            os.close(held)
        if self._sign is not None:
            self._sign.leave()
        let_go, self._let_go = self._let_go, lambda: None
        let_go()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _publish(self, events: Sequence[Event[Any]]) -> None:
        for listener in list(self._listeners):
            try:
                listener(events)
            except BaseException:  # it is not the jobs' fault: they are committed
                import logging

                logging.getLogger("stead.store").exception("a listener failed")

    def _find_blob(self, digest: str) -> tuple[Any, ...] | None:
        with self.view() as view:
            return view.one("SELECT codec, data, size, base FROM blobs WHERE hash=?", digest)

    def _weigh_blob(self, digest: str) -> tuple[int, int]:
        with self.view() as view:
            own = view.one("SELECT stored FROM blobs WHERE hash=?", digest)
            on_it = view.one("SELECT coalesce(sum(stored), 0) FROM blobs WHERE base=?", digest)
        return (int(own[0]) if own else 0) or self.blobs.file_size(digest), int(on_it[0]) if on_it else 0

    def _prepare(self, migrations: Sequence[kernel.Migration], progress: Progress | None) -> None:
        """Make or migrate the kernel, then the features' tables. Reads alone where everything is as it should be."""
        kept = self._belongings()  # before looking for the store: another process may be making it just now
        if self.folder is not None and self.database.writable():
            from stead.store.holders import Sign
            from stead.store.safefile import private_folder

            self._sign = Sign(private_folder(self.folder / "locks"), self._about())
        version, stale = self._found(len(migrations))
        if version == 0 and kept:
            raise SteadError(
                "store_damaged",
                f"{self.database.describe()} is empty or missing, although {kept} shows that there was a store.",
                hint="Put the database back from a backup (see backups/), or move what lies beside it away to begin anew.",
            )
        if version < len(migrations):
            self._migrate(version, migrations)
            version, stale = self._found(len(migrations))
        if self.folder is not None and self.database.writable():
            from stead.store.lock import hold

            self._held = hold(self.folder / "locks")
        if stale and self.write(self._make_tables):
            # Asked again for each chunk: another process may do the same, and be done.
            self._rebuild(self._stale, progress)

    def _make_tables(self, tx: Tx) -> bool:
        """Make the tables of features where the log is empty. True where it is not: they must be filled then. A program that knows
        only the old ones may go on meanwhile: it writes into them until they are exchanged, and is refused from then on."""
        there = self.database.tables(tx._conn)
        old = rebuild.stale(tx, self.features, there)
        for feature in old:
            lost = feature.kept.keys() - there
            if lost and tx.one("SELECT 1 FROM projections WHERE name=? AND version=?", feature.name, feature.version):
                import logging

                logging.getLogger("stead.store").warning("lost and made again empty: %s", ", ".join(sorted(lost)))
        if tx.one("SELECT 1 FROM events LIMIT 1") is None:
            rebuild.create(tx, self.database, old)
            return False
        return bool(old)

    def _stale(self, tx: Tx) -> list[Feature]:
        return rebuild.stale(tx, self.features, self.database.tables(tx._conn))

    def _found(self, ours: int) -> tuple[int, bool]:
        """The kernel version of the store, and whether tables of features must be made or filled anew. Refuses a newer one,
        and one that has lost tables of the kernel."""
        if not self.database.exists():
            return 0, True
        with self.view() as view:
            there = view.tables(self.database)
            found = view.one("SELECT version FROM kernel") if "kernel" in there else None
            version = int(found[0]) if found else 0
            kernel.refuse_torn(there, version, self.database.describe())
            try:
                kernel.refuse_newer(version, ours)
                return version, version < ours or bool(rebuild.stale(view, self.features, there))
            except SteadError as error:
                raise self._with_names(error) from None

    def _about(self) -> dict[str, Any]:
        """What others are told of this process."""
        from stead import __version__

        return {"started": rfc3339(self.clock.now()), "version": __version__}

    def _keep_alone(self, database: SQLite, place: FileSystem) -> None:
        """On a network file system: one process at a time, and no write-ahead log."""
        from stead.store.alone import ELSEWHERE, take

        assert self.folder is not None
        kind = f"a network file system ({place.name})" if place.name else "a network file system"
        self.caution = f"{self.folder} lies on {kind}: stead works there in its safe mode, slower and one process at a time."
        self.caution += f" {ELSEWHERE}"
        if database.writable():
            self._let_go = take(self.folder / "stead.db-lock", self._about())
            if database.exists():
                database.leave_wal()

    def _respect_alone(self) -> None:
        """Who has the store for itself, because to its eyes it lies on a network, has it for itself to everybody's."""
        assert self.folder is not None
        path = self.folder / "stead.db-lock"
        try:
            held = os.stat(path).st_size > 0
        except OSError:
            return
        if held:
            from stead.store.alone import take

            take(path, self._about())()

    def _with_names(self, error: SteadError) -> SteadError:
        """The error, with who has the store open."""
        from stead.store.holders import named, others

        who = others(self.folder / "locks") if self.folder is not None else []
        if self.folder is None or not who:
            return error
        return SteadError(error.code, f"{error.message} It is open in {named(self.folder / 'locks', who)}.", hint=error.hint)

    def _belongings(self) -> str | None:
        """What lies in the folder that only a store can have put there."""
        if self.folder is None or self.database.name != "sqlite":
            return None
        for name in ("blobs", "attachments"):
            try:
                if next(os.scandir(self.folder / name), None):
                    return f"{name}/"
            except OSError:
                continue
        return None

    def _migrate(self, version: int, migrations: Sequence[kernel.Migration]) -> None:
        """Bring the kernel up. A store that holds something is backed up first, by one process, while nobody uses it."""
        if version == 0 or self.folder is None:
            self._step(migrations)
            return
        from stead.store.lock import hold

        def done() -> bool:
            return self._found(len(migrations))[0] == len(migrations)

        held = hold(self.folder / "locks", alone=True, enough=done)
        try:
            if not done():
                backup = self._back_up(version)
                try:
                    faults.point("kernel.backed_up")
                    self._step(migrations)
                except BaseException:
                    if backup is not None:  # the store is as it was: a start that fails again and again must not fill the disk
                        backup.unlink(missing_ok=True)
                    raise
        finally:
            os.close(held)

    def _step(self, migrations: Sequence[kernel.Migration]) -> None:
        conn: Conn = self.database.writer()
        try:
            kernel.migrate(self.database, conn, migrations, store=self.ids.new(), now=self.clock.now())
        finally:
            conn.close()

    def _back_up(self, version: int) -> Path | None:
        from stead.store.safefile import private_folder

        assert self.folder is not None
        backups = private_folder(self.folder / "backups")
        return self.database.backup(backups / f"kernel-{version}-{self.clock.now()}.db")


def open_store(
    where: str | Path,
    features: Sequence[Feature] = (),
    *,
    folder: Path | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    migrations: Sequence[kernel.Migration] = kernel.MIGRATIONS,
    progress: Progress | None = None,
) -> Store:
    """Open a store, making it if it is not there: a folder (SQLite in `stead.db`) or a `postgresql://` address.

    On a network file system it is held by one process at a time and `Store.caution` says so.
    `folder` is where large blobs, locks and backups of a PostgreSQL store lie; without it everything lies in the database.
    `progress(at, total)` is told while tables are filled anew because a feature has a newer version.
    Raises `store_newer`, `store_damaged`, `store_busy`, `read_only`, `disk_full`.
    """
    text = str(where)
    database: Database
    place: FileSystem | None = None
    if text.startswith(("postgresql://", "postgres://")):
        from stead.store.postgres import Postgres

        database = Postgres(text)
    else:
        from stead.store.filesystem import below
        from stead.store.sqlite import SQLite

        folder = Path(where)
        place = below(folder)
        database = sqlite = SQLite(folder / "stead.db")
        sqlite.safe = place.network
        _make_private(folder)
    store = Store(database, features, folder=folder, clock=clock or SystemClock(), ids=ids or RandomIds(), version=len(migrations))
    try:
        if place is not None and place.network:
            store._keep_alone(sqlite, place)
        elif place is not None:
            store._respect_alone()
        store._prepare(migrations, progress)
    except BaseException:
        store.close()
        raise
    return store


def _make_private(folder: Path) -> None:
    """The data folder is entered by its owner alone. One that cannot be changed can still be read."""
    from stead.store.safefile import from_os, private_folder

    try:
        found: os.stat_result | None = os.stat(folder)
    except FileNotFoundError:
        found = None
    except OSError as error:
        raise from_os(error, folder) from error
    if found is None:
        private_folder(folder)
    elif not stat.S_ISDIR(found.st_mode):
        raise SteadError("conflict", f"{folder} is not a folder.", hint="STEAD_DATA names the data folder.")
    elif stat.S_IMODE(found.st_mode) & 0o077 and found.st_uid == os.geteuid():
        with suppress(OSError):
            os.chmod(folder, 0o700)
