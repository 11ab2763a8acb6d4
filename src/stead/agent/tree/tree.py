"""The tree of one project: a table of states kept warm by the system's events, asked before and after each command.

While no command runs, what events name is looked at in the background. From `before` to `after` events are only gathered: the first
look at a path is then what the command made of it, and the table still says what it was.
"""

from __future__ import annotations

import logging
import os
import select
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from stead.agent.tree import place
from stead.agent.tree.found import Finder
from stead.agent.tree.mark import Mark
from stead.agent.tree.place import Limited
from stead.agent.tree.reserve import Kept
from stead.agent.tree.shots import Counts, Coverage, Found, Limits, NotCovered, Seen
from stead.agent.tree.watched import Watched, full
from stead.core.clock import Clock, SystemClock

_BATCH = 500  # names a hold of the lock
_STEPS = 20  # of the copies
_COPIES = 50  # of files that changed, in a turn
_COPY_EVERY = 0.2  # seconds
_REST = 0.0005  # seconds between two pieces of background work, so that others have the interpreter
_GATHER, _GATHER_BUSY = 0.03, 0.01  # seconds in which events come together
_PENDING_MS = 100
_TRIES = 10  # to have a queue of events, which all programs of a user share
_LISTEN_EVERY = 5  # seconds between two more tries


class Tree:
    """The changes of one project folder (`root`, a real path), for one process. Thread-safe.

    `data_dir`, where it lies in the project, and every `.git` are left alone. `blob_of` gives the content of a stored blob by its
    SHA-256; it is asked for content that `note` and `keep` named. `events=False` compares the whole tree around each command
    instead of listening; so it is where the system has no inotify.
    """

    def __init__(
        self,
        root: Path,
        *,
        data_dir: Path | None = None,
        limits: Limits | None = None,
        blob_of: Callable[[str], bytes] | None = None,
        home: Path | None = None,
        clock: Clock | None = None,
        events: bool = True,
    ) -> None:
        """Reads nothing of the project; `start` does."""
        self.root = Path(os.path.realpath(root))
        self._clock = clock or SystemClock()
        self._limits, self._blob_of = limits or Limits(), blob_of
        self._home = home or Path.home()
        self._watched = Watched(self.root, data_dir, self._limits, self._clock, events)
        self._thread: threading.Thread | None = None
        self._closing = threading.Event()
        self._pause = threading.Event()
        self._copies: Iterator[str | None] | None = None
        self._not_before = self._deaf_until = 0.0
        self._wake_read, self._wake_write = -1, -1

    @property
    def counts(self) -> Counts:
        """What was read so far."""
        return self._watched.counts

    def start(self) -> None:
        """Begin to read the tree, in a thread of its own that gives way to others. Idempotent; does not wait."""
        with self._watched.lock:
            if self._thread is None and not self._closing.is_set():
                self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC) if hasattr(os, "pipe2") else os.pipe()
                self._thread = threading.Thread(target=self._run, name="stead-tree", daemon=True)
                self._thread.start()

    def wait_ready(self, seconds: float) -> str | None:
        """Wait until every state is known, at most so long; starts if nobody did. None when they are; `limited` when only those of
        tracked and noted files will ever be; `index_not_ready` when it takes longer."""
        self.start()
        watched = self._watched
        with watched.lock:
            if watched.ready.is_set() and not watched.marks and watched.lost():
                watched.ready.clear()
                self._wake()
        if not watched.ready.wait(seconds):
            return "index_not_ready"
        return "limited" if watched.limited is not None else None

    def coverage(self) -> Coverage:
        """What will be known of a command's changes; for the text of an approval."""
        watched = self._watched
        why = watched.limited
        if why is None and self._thread is None:
            why = place.refusal(self.root, self._home)
        return Coverage("full" if why is None else "limited", why, watched.ready.is_set(), watched.copied and not watched.fresh)

    def before(self) -> Mark:
        """Just before a command: what happened until now is not its doing. Cheap: a look at what was touched since the last one,
        for at most `Limits.fresh_seconds`. (Without events, and where coverage is limited, all that is known is looked at.)

        Give the mark to `after`, or to `drop` when there was no command.
        """
        watched = self._watched
        with watched.lock:
            watched.drain()
            if watched.ready.is_set():
                self._up_to_now(watched)
            elif watched.listens:
                watched.apply()
            mark = Mark(watched.ready.is_set(), watched.index.born)
            watched.marks.append(mark)
        return mark

    def _up_to_now(self, watched: Watched) -> None:
        if watched.lost():
            watched.ready.clear()
            self._wake()
        elif not watched.listens:
            self._limits_seen(watched.compare)
            watched.copy_fresh(self._limits.fresh_files, self._clock.monotonic() + self._limits.fresh_seconds)
        elif watched.marks:  # another command runs: all of it may be its doing
            self._limits_seen(watched.apply)
            watched.copy_fresh(self._limits.fresh_files, self._clock.monotonic() + self._limits.fresh_seconds)
        else:
            self._limits_seen(watched.catch_up)

    def after(self, mark: Mark) -> Found:
        """Just after the command: what changed since the mark. Takes time for what was touched, whatever the size of the tree; for
        all of it when events were lost. Uses the mark up; of one that is used up nothing is found."""
        watched = self._watched
        with watched.lock:
            if mark not in watched.marks:
                return Found()
            watched.drain()
            if not watched.ready.is_set():
                self._limits_seen(watched.apply)
            elif watched.lost():
                watched.counts.overflows += 1
                for one in watched.marks:
                    one.overflowed = True
                self._limits_seen(watched.compare)
            elif not watched.listens:
                self._limits_seen(watched.compare)
            else:
                watched.settle_stale()
                self._limits_seen(watched.apply)
            watched.marks.remove(mark)
            if not mark.ready:
                mark.unsure.setdefault("", "index_not_ready")
            items = watched.items(mark)
            if watched.fresh:
                self._wake()
        if watched.repositories is None:
            return Found(not_covered=[NotCovered("", "index_not_ready")])
        finder = Finder(self.root, self._limits, watched.counts, watched.repositories, self._blob_of, self._carry)
        return finder.found(mark, items)

    def drop(self, mark: Mark) -> None:
        """There was no command: forget the mark. Idempotent."""
        with self._watched.lock:
            if mark in self._watched.marks:
                self._watched.marks.remove(mark)

    def keep(self, seen: Iterable[Seen]) -> None:
        """The store holds the content of these after-states: a later before-state may name the blob instead of a copy."""
        with self._watched.lock:
            for one in seen:
                if one.after.kind == "file" and one.after.digest is not None and one.after.state is not None:
                    self._watched.point(one.path, one.after.state, one.after.digest)

    def note(self, path: Path | str, digest: str | None = None) -> None:
        """Our own tools read or wrote this path (absolute, without links in it, or relative to the project): what it is now is no
        command's doing. `digest`: the store holds what it holds now. A path outside of the project is ignored."""
        name = full(path, self.root)
        if name is not None:
            with self._watched.lock:
                self._watched.note(name, digest)

    def close(self) -> None:
        """End the thread and git's processes, and give every descriptor back. Idempotent. Contents are not loaded any more."""
        self._closing.set()
        self._pause.set()
        self._wake()
        if self._thread is not None:
            self._thread.join()
        with self._watched.lock:
            self._watched.close()
            for fd in (self._wake_read, self._wake_write):
                if fd >= 0:
                    os.close(fd)
            self._wake_read = self._wake_write = -1

    # ---- in the background ----

    def _run(self) -> None:
        try:
            self._build()
            while not self._closing.is_set():
                self._turn()
        except Exception:
            logging.getLogger("stead.agent").exception("the tree of %s is not watched any more", self.root)
            with self._watched.lock:
                self._watched.limit("It could not be read.")

    def _build(self) -> None:
        watched = self._watched
        refused = place.refusal(self.root, self._home)
        watch = watched.listen(_TRIES) if refused is None else None
        with watched.lock:
            watched.open(refused, watch)
        self._look_at_all()
        with watched.lock:
            watched.built()
        if watched.copier is not None:
            self._copies = watched.copier.all()

    def _look_at_all(self) -> None:
        """Take every state anew, in pieces; again when events were lost meanwhile."""
        watched = self._watched
        pieces = watched.pieces()
        while not self._closing.is_set():
            with watched.lock:
                try:
                    more = self._piece(pieces)
                    watched.drain()
                    if more is None:
                        if watched.overflow:
                            watched.overflow = False
                            pieces = watched.pieces()
                        else:
                            watched.apply()
                            return
                except Limited as limited:
                    watched.limit(str(limited))
                    pieces = watched.pieces()
            self._pause.wait(_REST)

    def _piece(self, pieces: Iterator[int]) -> int | None:
        done = 0
        while done < _BATCH:
            step = next(pieces, None)
            if step is None:
                return None
            done += step + 1
        return done

    def _turn(self) -> None:
        """Take events, look at what they name, copy what changed, go on with the copies; then wait."""
        watched = self._watched
        with watched.lock:
            watched.drain()
            idle = not watched.marks
            lost = idle and (watched.lost() or self._listen_again(watched))
            if lost:
                watched.ready.clear()
                watched.overflow = False
            elif idle and watched.listens:
                self._limits_seen(lambda: watched.apply(most=_BATCH))
            if idle and watched.repositories is not None:  # while a command runs, git's index is what it was before
                watched.repositories.refresh()
            pending = bool(watched.touched)
        if lost:
            self._look_at_all()
            watched.ready.set()
        if idle and not pending:
            pending = self._copy_changed(watched)
        self._go_on_copying(watched)
        self._wait(idle, self._copies is not None or watched.again or (idle and pending))

    def _listen_again(self, watched: Watched) -> bool:
        """Where there was no queue to be had, there may be one by now: then everything is looked at once more."""
        now = self._clock.monotonic()
        if watched.listens or watched.limited is not None or now < self._deaf_until:
            return False
        self._deaf_until = now + _LISTEN_EVERY
        watched.index.watch = watched.listen()
        return watched.listens

    def _go_on_copying(self, watched: Watched) -> None:
        """Some steps of the copies that are made after the start, and when git's attributes changed."""
        if watched.again and self._copies is None and watched.copier is not None:
            watched.again, watched.copied = False, False
            self._copies = watched.copier.all()
        for _ in range(_STEPS):
            if self._copies is None or self._closing.is_set():
                return
            step = next(self._copies, self)
            if isinstance(step, str):
                with watched.lock:
                    watched.want(step)
            elif step is self:
                watched.copied, self._copies = True, None

    def _copy_changed(self, watched: Watched) -> bool:
        """Copy some of the files that changed; whether there are more. Not often, for files that are always written to."""
        now = self._clock.monotonic()
        if not watched.fresh or watched.repositories is None or now < self._not_before:
            return False
        for repository in watched.repositories:
            if repository.index is not None:
                repository.index.warm()
        more = len(watched.fresh) > _COPIES
        watched.copy_fresh(_COPIES)
        if not more:
            self._not_before = now + _COPY_EVERY
        return more

    def _wait(self, idle: bool, more: bool) -> None:
        if more:
            self._pause.wait(_REST)
            return
        if self._pause.wait(_GATHER if idle else _GATHER_BUSY):
            return
        watched = self._watched
        watch = watched.index.watch
        waiting = select.poll()
        waiting.register(self._wake_read, select.POLLIN)
        if watch is not None and watch.fd >= 0:
            waiting.register(watch.fd, select.POLLIN)
        waiting.poll(None if idle and not watched.marks and not watched.fresh else _PENDING_MS)
        with suppress(OSError):
            os.read(self._wake_read, 64)

    def _wake(self) -> None:
        if self._wake_write >= 0:
            with suppress(OSError):
                os.write(self._wake_write, b"x")

    def _limits_seen(self, work: Callable[[], None]) -> None:
        """Do it; when the tree turns out to have grown too large, it is given up as a whole."""
        watched = self._watched
        try:
            work()
        except Limited as limited:
            for mark in watched.marks:
                mark.unsure[""] = "budget"
            watched.limit(str(limited))
            for _ in watched.pieces():
                pass

    def _carry(self, kept: Kept, path: str, state: bytes) -> None:
        with self._watched.lock:
            if self._watched.index.get(path) == state:
                self._watched.reserve.carry(kept, path, state)
                self._watched.fresh.pop(path, None)


__all__ = ["Mark", "Tree"]
