"""The background copies: what git does not hold is read while nothing else happens, what is worth most first."""

from __future__ import annotations

import heapq
import threading
from collections.abc import Callable, Iterator
from typing import Literal

from stead.agent.tree.index import Index
from stead.agent.tree.reading import read
from stead.agent.tree.repository import Held, Repositories
from stead.agent.tree.reserve import Reserve, worth_of
from stead.agent.tree.shots import Counts, Limits
from stead.agent.tree.stamps import is_file, unpacked

_PIECE = 1_000
Outcome = Literal["done", "full", "later"]


class Copier:
    """Copies files into a reserve. `lock` guards index and reserve; a file is read without it. `busy` says whether a path may be at
    work just now, so that what it holds is not what its state says."""

    def __init__(
        self,
        index: Index,
        reserve: Reserve,
        repositories: Repositories,
        limits: Limits,
        counts: Counts,
        lock: threading.RLock,
        busy: Callable[[str], bool],
    ) -> None:
        self._index, self._reserve, self._repositories = index, reserve, repositories
        self._limits, self._counts, self._lock, self._busy = limits, counts, lock, busy
        self._skips = _matcher(limits.skip)

    def all(self) -> Iterator[str | None]:
        """Copy what there is, in small steps: a step after some files that were looked at, and after each that was read. Gives the
        path of one that was being written to."""
        if self._limits.off:
            return
        for repository in self._repositories:
            if repository.index is not None:
                repository.index.warm()
        best: list[tuple[tuple[bool, int], str]] = []
        clean: list[tuple[str, bytes, Held]] = []
        for number, (path, state) in enumerate(self._index.files()):
            if not number % _PIECE:
                yield None
            about = unpacked(state)
            if about.kind != "file" or about.size > self._limits.file_bytes:
                continue
            held = self._repositories.held(path, state)
            if held is not None:
                if held.repository.converts:
                    clean.append((path, state, held))
            elif not self._skips(path):
                self._consider(best, path, state)
        for start in range(0, len(clean), _PIECE):
            some = clean[start : start + _PIECE]
            whole = self._repositories.whole([held for _, _, held in some])
            for path, state, held in some:
                if held not in whole and not self._skips(path):
                    self._consider(best, path, state)
            yield None
        for _, path in sorted(best, reverse=True):
            outcome = self.one(path)
            if outcome == "full":
                return
            yield path if outcome == "later" else None

    def one(self, path: str, *, now: bool = False) -> Outcome:
        """Copy a file that is not known elsewhere: `full` when there is no room, `later` when it is being written to. `now`: as it
        is at this moment, whoever may be at work on it. A path with nothing to copy is `done`."""
        with self._lock:
            state = self._index.get(path)
            if state is None or self._limits.off or not is_file(state):
                return "done"
            if unpacked(state).size > self._limits.file_bytes or self._reserve.get(path, state) is not None:
                return "done"
            if self._busy(path) and not now:
                return "later"
            held = self._repositories.held(path, state)
        if (held is not None and self._repositories.whole([held])) or self._skips(path):
            return "done"
        self._counts.files_read += 1
        found = read(self._index.root / path, self._limits.file_bytes)
        if found is None or found.content is None:
            return "done"
        with self._lock:
            if self._index.get(path) != found.state or (self._busy(path) and not now):
                return "later"  # what was read may be what a command made of it
            return "done" if self._reserve.copy(path, found.state, found.digest, found.content) else "full"

    def _consider(self, best: list[tuple[tuple[bool, int], str]], path: str, state: bytes) -> None:
        entry = (worth_of(path, unpacked(state), self._limits), path)
        if len(best) < self._limits.files:
            heapq.heappush(best, entry)
        else:
            heapq.heappushpop(best, entry)


def _matcher(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    if not patterns:
        return lambda path: False
    import pathspec

    matches: Callable[[str], bool] = pathspec.PathSpec.from_lines("gitignore", patterns).match_file
    return matches
