"""`python bench [JOB ...] [--quick] [--full] [--json]`: what stead costs, beside baselines measured in the same run.

Jobs: append, open, restart, startup, loop, tree, undo, deltas (default: all). Times are of this machine at this moment; look at the
ratios. `--quick` is for trying the programs out, `--full` adds what takes minutes and 2 GB. `--json` prints JSON instead of
the tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator

import append
import deltas
import loop
import open as reading
import restart
import startup
import tree
import undo
from common import Table

JOBS = {
    "append": append,
    "open": reading,
    "restart": restart,
    "startup": startup,
    "loop": loop,
    "tree": tree,
    "undo": undo,
    "deltas": deltas,
}


def tables(jobs: list[str], quick: bool, full: bool) -> Iterator[Table]:
    for job in jobs:
        yield from JOBS[job].tables(quick)
    if full and "restart" in jobs:
        yield from restart.full()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("job", nargs="*", metavar="JOB", help=", ".join(JOBS))
    for name in ("quick", "full", "json"):
        parser.add_argument(f"--{name}", action="store_true")
    asked = parser.parse_args()
    if unknown := set(asked.job) - set(JOBS):
        parser.error(f"no such job: {sorted(unknown)[0]} (there are {', '.join(JOBS)})")
    found = []
    for table in tables(asked.job or list(JOBS), asked.quick, asked.full):
        found.append(table.data())
        if not asked.json:
            table.print()
    if asked.json:
        json.dump(found, sys.stdout, indent=1)
        print()


if __name__ == "__main__":
    main()
