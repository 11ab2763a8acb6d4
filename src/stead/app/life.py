"""Signs of life: this process's own, as the owner of runs, and those of others. Who gives none any more is dead, and recovered.

On SQLite every process of a store is on this machine, and a lock that can be had has a dead owner. On PostgreSQL they may be
anywhere: each beats in the database, and one that was silent for the length of its lease is dead, even if it only stood still.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from stead.core.clock import rfc3339
from stead.domain import owners
from stead.store.lock import dead_owners, forget_owner, last_seen, living, read_lock
from stead.store.store import Store

if TYPE_CHECKING:
    from stead.agent.closing import Fate
    from stead.store.lock import ProcessLock

LEASE_MS = 15_000
_BEATS_PER_LEASE = 4
_OUTCOMES = ("error", "aborted", "limit", "done", "denied")


class Life:
    """Who lives. Thread-safe. `lease` is how long (ms) others wait for a sign of this process before they take it for dead."""

    def __init__(self, store: Store, locks: Path, lease: int = LEASE_MS) -> None:
        self._store = store
        self._locks = locks
        self._lease = lease
        self._lock: ProcessLock | None = None
        self._over = threading.Event()
        self._heart: threading.Thread | None = None
        self.each_second: Callable[[], None] = lambda: None
        """Called by the thread that gives the signs."""

    @property
    def id(self) -> str | None:
        """This process's name as the owner of runs; None while it works on nothing."""
        return self._lock.id if self._lock is not None else None

    def owner(self) -> str:
        """This process's name as the owner of runs; from the first call on it gives signs of life. It waits for the disk."""
        if self._lock is None:
            from stead import __version__
            from stead.store.lock import ProcessLock

            about = {"started": rfc3339(self._store.clock.now()), "version": __version__}
            lock = ProcessLock(self._locks, self._store.ids.new(), about)
            if self._store.database.shared:
                try:
                    self._beat(lock.id)
                except BaseException:  # without a first sign of life there is no name
                    lock.release()
                    raise
            self._lock = lock
            self._heart = threading.Thread(target=self._live, name="stead-life", daemon=True)
            self._heart.start()
        return self._lock.id

    def alive(self, owner: str) -> bool:
        """Whether the process of this name lives."""
        if owner == self.id:
            return True
        if owner in self._local():
            return not self._store.database.shared or owner in self._heard()
        return self._store.database.shared and owner not in self._fallen() and owner in self._heard()

    def dead(self, known: Iterable[str]) -> set[str]:
        """Those that live no more: of the owners `known`, and of all that left a trace here."""
        fallen = self._fallen()
        missing = set(known) - fallen - ({self.id} if self.id else set())
        if missing:
            missing -= self._heard() if self._store.database.shared else self._local()
        if self._store.database.shared:
            with self._store.view() as view:
                missing |= owners.silent(view, self._clock) - {self.id or ""}
        return fallen | missing

    def last_seen(self, owner: str) -> int | None:
        """When an owner last gave a sign of life (ms in UTC); None where that is not known."""
        if self._store.database.shared:
            with self._store.view() as view:
                return owners.last_beat(view, owner)
        return last_seen(self._locks, owner)

    def leave_word(self, fates: Mapping[str, Fate]) -> None:
        """Leave with the lock how runs ended whose end cannot be stored now: its file has its room also on a full disk."""
        if self._lock is not None:
            words = {run: {"outcome": outcome, "error": error} for run, (outcome, error) in fates.items()}
            self._lock.tell({"ended": words})

    def word(self, owner: str, run: str) -> Fate | None:
        """How a run of a dead process ended, where that was left with its lock."""
        told = read_lock(self._locks, owner).get("ended")
        word = told.get(run) if isinstance(told, dict) else None
        return (word["outcome"], word["error"]) if isinstance(word, dict) and word.get("outcome") in _OUTCOMES else None

    def forget(self, owner: str) -> None:
        """Remove the traces of a dead process whose work has been closed."""
        if self._store.database.shared:
            self._store.write(lambda tx: owners.forget(tx, owner))
        forget_owner(self._locks, owner)

    def end(self) -> None:
        """Give no more signs of life."""
        self._over.set()
        if self._heart is not None:
            self._heart.join()

    def release(self, *, forget: bool) -> None:
        """Give the name back, behind `end`. `forget` False: this process leaves work open, for whoever opens next to close."""
        if self._lock is not None:
            self._lock.release(forget=forget)
            self._lock = None

    # --- signs ----------------------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        pause = self._lease / _BEATS_PER_LEASE / 1000 if self._store.database.shared else 1.0
        wait = min(pause, 1.0)
        looks = 0
        while not self._over.wait(wait):
            looks += 1
            try:
                if self._lock is not None:
                    self._lock.touch()
                if self._store.database.shared and self.id is not None and looks % max(1, round(pause / wait)) == 0:
                    self._beat(self.id)
                self.each_second()
            except Exception as error:  # a database that is away for a moment must not end the beating
                import logging

                logging.getLogger("stead").warning("no sign of life could be given: %s", error)

    def _beat(self, owner: str) -> None:
        clock = self._clock
        self._store.write(lambda tx: owners.beat(tx, owner, self._lease, clock))

    @property
    def _clock(self) -> str:
        return self._store.database.types["now_ms"]

    def _local(self) -> set[str]:
        return {about["id"] for about in living(self._locks)}

    def _heard(self) -> set[str]:
        with self._store.view() as view:
            return owners.living(view, self._clock)

    def _fallen(self) -> set[str]:
        with suppress(OSError):
            return set(dead_owners(self._locks)) if self._locks.is_dir() else set()
        return set()
