"""A life whose power fails: played in a child on a modelled disk, and the folder put in the place of the one that was lived in."""

from __future__ import annotations

import os
import random
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw

from stead.core.errors import SteadError
from tests.power.disk import OVER, Disk, attach

EVER = 1 << 60


def lived(place: Path, work: Callable[[], Any], *, cut: int = EVER, seed: int = 0, space: int = EVER) -> bool:
    """Do `work` in a child whose files below `place` lie on a disk: its power fails at the `cut`th operation, or when the work is
    done; `space` bytes fit on it. Afterwards `place` is what is left of it. True when the power failed in the middle.

    Errors of a full disk end the work as they end a program; any other is the caller's.
    """
    after, told = place.with_name(f"{place.name}-after"), place.with_name(f"{place.name}-failed")
    pid = os.fork()
    if pid == 0:
        try:
            _live(place, after, work, cut, seed, space)
        except BaseException:
            told.write_text(traceback.format_exc())
        os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, OVER), told.read_text() if told.exists() else code
    shutil.rmtree(place)
    after.rename(place)
    return code == OVER


def _live(place: Path, after: Path, work: Callable[[], Any], cut: int, seed: int, space: int) -> None:
    disk = Disk(place, limit=cut, space=space)

    def over(code: int = OVER) -> Any:
        disk.cut(after, random.Random(seed))
        os._exit(code)

    disk.over = over
    attach(disk)
    try:
        work()
    except apsw.FullError:
        pass  # closing a connection passes on what the disk's own code raised; a real one would have kept it to itself
    except SteadError as error:
        if error.code != "disk_full":
            raise
    with disk.lock:
        over(0)
