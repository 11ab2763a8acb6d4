"""Starting again: what recovery costs when a process died with many runs open, and what a large store costs to open."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import Figures, Table, house, lengthen, medians, name

from stead.domain import runs, sessions
from stead.store import Store, Tx

PROBE = """
import json, sys, time
from pathlib import Path
from stead.app import Stead
from stead.domain import sessions
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) / 1024
before, begin = peak(), time.perf_counter()
house = Stead.open(Path(sys.argv[1]) / "data", config_dir=Path(sys.argv[1]) / "config")
opened = time.perf_counter()
with house.store.view() as view:
    sessions.page(view, limit=50)
    if len(sys.argv) > 2:
        sessions.messages(view, sys.argv[2], limit=50)
read = time.perf_counter()
print(json.dumps({"open ms": (opened - begin) * 1e3, "read ms": (read - opened) * 1e3, "MB more": peak() - before}))
house.store.close()
"""
"""Opens the house in a process of its own: imports are not counted."""


def tables(quick: bool) -> Iterator[Table]:
    """The jobs of starting again."""
    yield _recovery(100 if quick else 1_000)
    yield _large(200 if quick else 1_000, 20 if quick else 200)


def full() -> Iterator[Table]:
    """At full size: 5,000 sessions and 2 GB."""
    yield _large(5_000, 2_000)


def _probe(place: Path, *more: str) -> Figures:
    done = subprocess.run([sys.executable, "-c", PROBE, str(place), *more], capture_output=True, text=True, check=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def _probes(place: Path, times: int, *more: str) -> Figures:
    return medians([_probe(place, *more) for _ in range(times)])


def _recovery(count: int) -> Table:
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as folder:
        place = Path(folder)
        with house(place / "data", count) as store:
            rows = {f"nothing to do, {count:,} sessions": _probes(place, 3)}
            store.write(lambda tx: [_left_open(tx, n) for n in range(count)])
        rows[f"a run of each of {count:,} sessions to close"] = _probe(place)
        rows["again, nothing left to do"] = _probes(place, 3)
    each = (rows[f"a run of each of {count:,} sessions to close"]["open ms"] - rows["again, nothing left to do"]["open ms"]) / count
    return Table(
        "Restart recovery",
        "open ms",
        rows,
        f"{each:.2f} ms for each run that was open; MB more: peak memory over that of the imports",
    )


def _left_open(tx: Tx, n: int) -> None:
    """A run of a process that is gone, in the middle of a tool call."""
    about: dict[str, Any] = {"agent": "build", "model": "m/x", "owner": "0" * 16, "project": "project", "max_steps": 9}
    run = runs.start(tx, f"run{n:013}", name(n), [{"type": "text", "text": "go"}], **about)
    call = {"type": "tool", "call": "c", "tool": "read", "arguments": "{}", "status": "pending"}
    sessions.add_part(tx, name(n), run.message, 0, call, run=run.id)
    tx.append(name(n), sessions.ToolStarted(message=run.message, n=0, call="c"), run=run.id)


def _large(count: int, megabytes: int) -> Table:
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as folder:
        place = Path(folder)
        with house(place / "small" / "data", 10) as store:
            lengthen(store, name(0), 60)
        with house(place / "large" / "data", count) as store:
            lengthen(store, name(0), 2_000)
            _outputs(store, count, megabytes)
        size = sum(file.stat().st_size for file in (place / "large").rglob("*") if file.is_file())
        rows = {
            "10 sessions, 0.3 MB": _probes(place / "small", 5, name(0)),
            f"{count:,} sessions, {size / 1e6:,.0f} MB on disk": _probes(place / "large", 5, name(0)),
        }
    return Table(
        "Start", "open ms", rows, "read: list 50 sessions, newest page of one; MB more: peak memory over that of the imports"
    )


def _outputs(store: Store, count: int, megabytes: int) -> None:
    """Tool output of 1 MB that does not compress, one blob each, in the sessions by turns."""
    import os

    for n in range(megabytes):
        blob = store.blobs.prepare(os.urandom(1 << 20))

        def job(tx: Tx, n: int = n, blob: Any = blob) -> None:
            tx.put(blob)
            output = {"$blob": blob.hash, "size": blob.size, "head": ""}
            part = {"type": "tool", "call": f"c{n}", "tool": "bash", "arguments": "{}", "status": "done", "output": output}
            sessions.add_part(tx, name(n % count), sessions.add_message(tx, name(n % count), "assistant"), 0, part)

        store.write(job)
