"""Named places where a test may end the process or fill the disk: the boundaries between two durable steps.

Nothing is armed unless a test arms it, in the process (`arm`) or from outside (`STEAD_FAULT=name[:count][=kill|enospc]`).
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable

Action = Callable[[str], None]

_armed: dict[str, tuple[int, Action]] = {}
_hook: Action | None = None


def point(name: str) -> None:
    """A boundary. Does nothing unless this name is armed."""
    if _hook is not None:
        _hook(name)
    if name in _armed:
        left, action = _armed[name]
        if left > 1:
            _armed[name] = (left - 1, action)
        else:
            del _armed[name]
            action(name)


def arm(name: str, action: Action | None = None, *, count: int = 1) -> None:
    """Run `action` (default: SIGKILL this process) when `name` is passed for the `count`th time."""
    _armed[name] = (count, action or kill)


def watch(hook: Action | None) -> None:
    """Call `hook` at every point, or stop doing so."""
    global _hook
    _hook = hook


def disarm() -> None:
    """Forget everything that was armed."""
    _armed.clear()
    watch(None)


def kill(name: str) -> None:
    """The action of a crash: no handler runs, nothing is flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


def enospc(name: str) -> None:
    """The action of a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)


def _from_environment(text: str) -> None:
    spec, _, action = text.partition("=")
    name, _, count = spec.partition(":")
    arm(name, enospc if action == "enospc" else kill, count=int(count or 1))


if os.environ.get("STEAD_FAULT"):
    _from_environment(os.environ["STEAD_FAULT"])
