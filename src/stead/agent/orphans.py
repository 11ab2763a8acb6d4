"""What dead processes left running: the commands of calls that nobody sees to any more are found, ended, and told of.

Each child of a tool carries `STEAD_CALL=<mark>` in its environment and so do its own children; its shell leads a session of its
own, and what is known of the shell (`describe`) is kept with the call. A process belongs to a call when its environment says so, or
when it is in the session of a shell that is still the one that was started: its leader has the same start time, or a member
has the mark. (No pid is given again while a session of that number has members. macOS hides the environment of most processes,
so that only the session speaks there.) Everything else is somebody else's, whatever its pid.

What is in the command's own session is ended. What left it (`setsid`, a daemon) meant to outlive it and is only told of.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.core.clock import SystemClock
from stead.core.text import one_line
from stead.store.alone import boot

if TYPE_CHECKING:
    import psutil

MARK = "STEAD_CALL"
"""The environment variable that names the call a process belongs to."""
_GRACE = 2.0  # seconds between TERM and KILL
_KILLED = 1.0  # seconds that a killed process may take to be gone
_NAMED = 8  # processes that are told of by name
_NAMED_IN_ENVIRON = re.compile(rb"\0" + MARK.encode() + rb"=([^\0]*)")


Known = Mapping[str, Any]
"""What is kept of a shell, `{"pid", "started", "boot"}`: its pid, when it was started in the system's own count (to compare only;
0 where it had ended before anybody looked), and in which boot of the machine."""


def describe(pid: int) -> dict[str, Any]:
    """What has to be known of a process to recognise it later, as JSON. Costs two small reads; does not fail."""
    return {"pid": pid, "started": _started(pid), "boot": boot()}


def end(calls: Mapping[str, Known | None]) -> dict[str, str]:
    """End what the calls of dead processes left running: TERM, after 2 s KILL, for all of them together.

    `calls` are the marks of calls that had started and whose process is dead, with what was kept of their shells (None: it died
    before that was kept). Gives a sentence for each call's result, which says what was still running and was ended and what
    still runs; "" where nothing was found. Returns within 4 s, at once where nothing runs. This process and those it descends
    from are left alone. Idempotent; being killed in between leaves the rest to the next time.
    """
    said = dict.fromkeys(calls, "")
    here = boot()
    possible = {mark: shell for mark, shell in calls.items() if shell is None or shell.get("boot") == here}
    if not possible:  # nothing outlives its boot
        return said
    found = _find(possible)
    if any(left.own for left in found.values()):
        _stop(found)
    return said | {mark: _told(left) for mark, left in found.items()}


def outside(mark: str, session: int) -> str:
    """A note about the living processes of a call that are not in its own session (`session`: its shell's pid); "" for none."""
    left = _find({mark: None}).get(mark) if mark else None
    if left is None:
        return ""
    away = {pid: about for pid, about in (left.own | left.away).items() if _session(pid) not in (0, session)}
    return f"[still running, in a session of its own: {_names(away)}]" if away else ""


@dataclass(slots=True)
class _Left:
    """What lives of a call: by pid the processes of the command's own session, and those that left it; with their names.
    `session` is the number of that session, 0 where it is not certain."""

    session: int
    own: dict[int, tuple[psutil.Process, str]]
    away: dict[int, tuple[psutil.Process, str]]


def _find(calls: Mapping[str, Known | None], sure: Mapping[str, int] | None = None) -> dict[str, _Left]:
    """One look at all processes of this user. `sure` are sessions of calls that are known to be still theirs."""
    import psutil

    marked: dict[str, dict[int, int]] = defaultdict(dict)  # mark -> pid -> session
    sessions: dict[int, list[int]] = defaultdict(list)
    for pid in psutil.pids():
        with suppress(OSError, psutil.Error):
            sessions[session := os.getsid(pid)].append(pid)
            if (mark := _mark(pid)) in calls:
                marked[mark][pid] = session
    found = {}
    for mark, shell in calls.items():
        mine = marked[mark]
        own = (sure or {}).get(mark) or _own_session(shell, mine)
        members = [pid for pid in sessions.get(own, ()) if own]
        left = _Left(own, _living(members), _living(pid for pid, session in mine.items() if session != own))
        if left.own or left.away:
            found[mark] = left
    return found


def _own_session(shell: Known | None, marked: Mapping[int, int]) -> int:
    """The session of the command's shell, if it is certainly still that; 0 where it is not. `marked`: session by pid."""
    if shell is not None:
        pid, started = int(shell.get("pid") or 0), shell.get("started") or 0
        return pid if (started and _started(pid) == started) or pid in marked.values() else 0
    # Nothing was kept of the shell: it is what the others came from, so the oldest, and looks like one.
    oldest = min(marked, key=lambda pid: (_started(pid), pid), default=0)
    return oldest if marked.get(oldest) == oldest and _is_shell(oldest) else 0


def _is_shell(pid: int) -> bool:
    import psutil

    try:
        words = psutil.Process(pid).cmdline()
    except psutil.Error:
        return False
    return len(words) == 3 and words[0] in ("/bin/bash", "/bin/sh") and words[1] == "-c"


def _stop(found: dict[str, _Left]) -> None:
    """End what is in the commands' own sessions; adds to `found` what came to light meanwhile."""
    import psutil

    spared = {os.getpid(), *(parent.pid for parent in psutil.Process().parents())}

    def targets() -> list[psutil.Process]:
        own = (process for left in found.values() for pid, (process, _) in left.own.items() if pid not in spared)
        return [process for process in own if lives(process)]

    _send(targets(), signal.SIGTERM)
    _wait(targets(), _GRACE)
    for _ in range(3):  # who forks faster than we look is met again
        sure = {mark: left.session for mark, left in found.items() if any(lives(process) for process, _ in left.own.values())}
        for mark, left in _find({mark: {"pid": left.session} for mark, left in found.items()}, sure).items():
            found[mark].own |= left.own
            found[mark].away |= left.away
        if not (rest := targets()):
            return
        _send(rest, signal.SIGKILL)
        _wait(rest, _KILLED / 3)


def _send(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.Error):  # psutil refuses a pid that is another process's by now
            process.send_signal(number)


def _wait(processes: Iterable[psutil.Process], seconds: float) -> None:
    import time

    clock, rest = SystemClock(), list(processes)
    until = clock.monotonic() + seconds
    while (rest := [process for process in rest if lives(process)]) and clock.monotonic() < until:
        time.sleep(0.02)


def lives(process: psutil.Process) -> bool:
    """Whether it still runs: is the same process, and does not only wait to be collected."""
    import psutil

    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _living(pids: Iterable[int]) -> dict[int, tuple[psutil.Process, str]]:
    return {pid: about for pid in sorted(pids) if (about := _alive(pid)) is not None}


def _alive(pid: int) -> tuple[psutil.Process, str] | None:
    import psutil

    try:
        process = psutil.Process(pid)
        return (process, process.name()) if lives(process) else None
    except psutil.Error:
        return None


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return 0


def _mark(pid: int) -> str:
    """The call that a process says it belongs to; "" where it says nothing, or does not tell us."""
    if sys.platform == "linux":
        with open(f"/proc/{pid}/environ", "rb") as file:
            found = _NAMED_IN_ENVIRON.search(b"\0" + file.read())
        return found[1].decode("utf-8", "replace") if found else ""
    import psutil

    return str(psutil.Process(pid).environ().get(MARK, ""))


def _started(pid: int) -> int:
    """When a process was started: clock ticks since the boot on Linux, elsewhere microseconds of the clock on the wall, which the
    system keeps as they were. 0 when there is none."""
    try:
        if sys.platform == "linux":
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return int(fields[19])
        import psutil

        return round(psutil.Process(pid).create_time() * 1_000_000)
    except Exception:  # it is gone, or it is not ours
        return 0


def _told(left: _Left) -> str:
    stays = {pid: about for pid, about in left.own.items() if lives(about[0])}
    ended = {pid: about for pid, about in left.own.items() if pid not in stays}
    away = {pid: about for pid, about in left.away.items() if lives(about[0])}
    words = []
    if ended:
        words.append(f"What it had left running was ended: {_names(ended)}.")
    if stays:
        words.append(f"Still running and could not be ended: {_names(stays)}.")
    if away:
        words.append(f"Still running, in a session of its own: {_names(away)}.")
    return " ".join(words)


def _names(processes: Mapping[int, tuple[psutil.Process, str]]) -> str:
    shown = [f"{one_line(name, 40)} (pid {pid})" for pid, (_, name) in list(processes.items())[:_NAMED]]
    more = len(processes) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
