"""Records a golden data folder: `python -m tests.golden.record NAME`, from the code of the release that it is to stand for.

A folder of a release is recorded once and never again: it is what people have on their disks, not what today's code would make.
If a test of an old folder fails, the code is wrong. The recorder refuses a name that is there; a newer release gets a new name.

NAME.zip holds the folder as a killed process left it, NAME.json what a reader saw in it the moment before.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import sys
import tempfile
import zipfile
from pathlib import Path

import apsw

from stead.core.clock import ManualClock
from tests.golden import life, shapes

HERE = Path(__file__).parent


def record(name: str) -> None:
    """Write NAME.zip and NAME.json beside this file."""
    packed, told = HERE / f"{name}.zip", HERE / f"{name}.json"
    if packed.exists() or told.exists():
        raise SystemExit(f"{name} was recorded and is never recorded again; give a new release its own name.")
    place = Path(tempfile.mkdtemp(prefix="stead-golden-"))
    try:
        data = place / "data"
        child = os.fork()
        if child == 0:
            _live(data, place / "seen.json")
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            raise SystemExit("the life did not come to its end")
        store = apsw.Connection(str(data / "stead.db"))
        store.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        store.close()
        for lock in (data / "locks").iterdir():  # whose machine it was is nobody's business
            if about := lock.read_bytes():
                lock.write_text(json.dumps({**json.loads(about), "pid": 4_194_000, "boot": "an earlier one"}))
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(path for path in data.rglob("*") if path.is_file()):
                entry = zipfile.ZipInfo(path.relative_to(data).as_posix(), (2026, 1, 1, 0, 0, 0))
                entry.external_attr = 0o600 << 16
                archive.writestr(entry, path.read_bytes(), zipfile.ZIP_DEFLATED)
        shutil.copyfile(place / "seen.json", told)
    finally:
        shutil.rmtree(place)
    print(f"{packed.name}: {packed.stat().st_size:,} bytes, {told.name}: {told.stat().st_size:,} bytes")


def _live(data: Path, told: Path) -> None:
    """The life, what was seen at its end, and a death without a farewell."""
    try:
        data.mkdir(mode=0o700)
        (data / "secret.key").write_bytes(base64.urlsafe_b64encode(bytes(range(32))) + b"\n")
        clock = ManualClock()
        house = life.opened(data, clock)
        lived = life.live(house, clock)
        seen = shapes.seen(house, life.SESSIONS, lived.runs, life.FILES)
        with_cut = shapes.seen(house, life.IN_FLIGHT, [], [])["session"]
        whole = {
            "log": shapes.log(house),
            "ended_or_waiting": lived.runs,
            "sessions": life.SESSIONS,
            "in_flight": with_cut,
            "attachments": life.FILES,
            "seen": seen,
        }
        told.write_text(json.dumps(whole, indent=None, separators=(",", ":"), sort_keys=True) + "\n")
        os.kill(os.getpid(), signal.SIGKILL)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(1)


if __name__ == "__main__":
    record(sys.argv[1])
