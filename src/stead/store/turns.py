"""The queue of those who wait to write. SQLite lets in whoever asks at the right moment, so that one process that writes without
a pause shuts all others out for seconds, until their patience ends."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from time import sleep

from stead.core.clock import SystemClock

_HEAD_SECONDS = 0.001
_JITTER_MS = 10


def enter(queue: int, ask: Callable[[], bool], patience: float) -> bool:
    """Call `ask` in turn until it says yes, for `patience` seconds at most. Gives whether it did.

    `queue` is the descriptor of a file or folder whose lock is the head of the queue. Who is not let in at once holds it until it
    is, and the others stand behind: whoever comes back from a commit meets them there. No correctness rests on it: a process
    that stands still at the head is passed by after half of the patience.
    """
    head = _lock(queue)
    try:
        return (head and ask()) or _wait(queue, head, ask, patience)
    finally:
        fcntl.flock(queue, fcntl.LOCK_UN)


def _wait(queue: int, head: bool, ask: Callable[[], bool], patience: float) -> bool:
    clock = SystemClock()
    start = now = clock.monotonic()
    while now - start < patience:
        # By chance, up to 10 ms: the digits behind the microseconds.
        sleep(_HEAD_SECONDS if head else now * 1e6 % _JITTER_MS / 1000)
        head = head or _lock(queue)
        now = clock.monotonic()
        if (head or now - start >= patience / 2) and ask():
            return True
    return False


def _lock(queue: int) -> bool:
    try:
        fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without such locks has no queue
        return True
    return True
