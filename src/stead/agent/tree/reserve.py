"""Contents that are known beside git's: copies in memory, and names of blobs that stead's store holds. Nothing lies on a disk."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stead.agent.tree.shots import Limits
from stead.agent.tree.stamps import Stamp, same_content, unpacked

if TYPE_CHECKING:
    from stead.agent.tree.repository import Held

_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """The content of a path while its state is `state`: a compressed copy, a blob of stead's store, or an object of git."""

    state: bytes
    size: int
    digest: str | None = None
    copy: bytes | None = None
    held: Held | None = None

    def content(self) -> bytes:
        """The content of a copy."""
        assert self.copy is not None
        return bytes(_zstd().decompress(self.copy))


class Reserve:
    """What is kept, by path, within limits: what is least worth goes first. Not thread-safe."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._kept: dict[str, Kept] = {}
        self._order: list[tuple[tuple[bool, int], str, bytes]] = []  # a heap of copies; some of them are not kept any more
        self.bytes = 0
        self.files = 0

    def get(self, path: str, state: bytes) -> Kept | None:
        """What is kept of `path` in this state; its mode does not matter."""
        kept = self._kept.get(path)
        return kept if kept is not None and same_content(kept.state, state) else None

    def copy(self, path: str, state: bytes, digest: str, content: bytes) -> bool:
        """Keep a copy. False when there is no room that is not worth more for others."""
        size = len(content)
        self.forget(path)
        worth = worth_of(path, unpacked(state), self._limits)
        if size > self._limits.file_bytes or not self._room(size, worth):
            return False
        self._kept[path] = Kept(state, size, digest, copy=_zstd().compress(content, _LEVEL))
        self.bytes += size
        self.files += 1
        heapq.heappush(self._order, (worth, path, state))
        if len(self._order) > 2 * self.files + 100:
            self._order = [one for one in self._order if self._is_copy(one)]
            heapq.heapify(self._order)
        return True

    def point(self, path: str, kept: Kept) -> None:
        """Remember where content of `path` can be had that takes no room here."""
        self.forget(path)
        self._kept[path] = kept

    def carry(self, kept: Kept, path: str, state: bytes) -> None:
        """The same content has another path or state by now."""
        if kept.copy is not None:
            self.copy(path, state, kept.digest or "", kept.content())
        else:
            self.point(path, Kept(state, kept.size, kept.digest, held=kept.held))

    def restamp(self, path: str, old: bytes, new: bytes) -> None:
        """The state changed and the content did not."""
        kept = self.get(path, old)
        if kept is not None:
            self._kept[path] = Kept(new, kept.size, kept.digest, kept.copy, kept.held)
            if kept.copy is not None:
                heapq.heappush(self._order, (worth_of(path, unpacked(new), self._limits), path, new))

    def forget(self, path: str) -> None:
        """Keep nothing of `path`."""
        kept = self._kept.pop(path, None)
        if kept is not None and kept.copy is not None:
            self.bytes -= kept.size
            self.files -= 1

    def _room(self, size: int, worth: tuple[bool, int]) -> bool:
        while self.bytes + size > self._limits.all_bytes or self.files >= self._limits.files:
            while self._order and not self._is_copy(self._order[0]):
                heapq.heappop(self._order)
            if not self._order or self._order[0][0] >= worth:
                return False
            self.forget(heapq.heappop(self._order)[1])
        return True

    def _is_copy(self, one: tuple[tuple[bool, int], str, bytes]) -> bool:
        kept = self._kept.get(one[1])
        return kept is not None and kept.copy is not None and kept.state == one[2]


def worth_of(path: str, state: Stamp, limits: Limits) -> tuple[bool, int]:
    """What a copy is worth: newer is more, and what can be made again less than everything else."""
    return not any(name in limits.heavy for name in path.split("/")[:-1]), state.mtime


def _zstd() -> Any:
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd
