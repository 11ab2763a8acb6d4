"""What the benchmarks share: timing, the table, and stores to measure. Standard library alone until a store is asked for, so that
the program of the peers can use it in their interpreter."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stead.store import Store, Tx

Figures = dict[str, float]
"""Of one contestant: a figure by the name of its column, which ends with its unit."""


@dataclass
class Table:
    """A job: its contestants' figures. The first is the baseline; `key` is the column whose ratio to it is shown."""

    title: str
    key: str
    rows: dict[str, Figures] = field(default_factory=dict)
    note: str = ""

    def print(self) -> None:
        """Show it as text."""
        columns = list(dict.fromkeys(name for figures in self.rows.values() for name in figures))
        base = next(iter(self.rows.values())).get(self.key)
        print(f"\n{self.title:52}" + "".join(f"{name:>14}" for name in columns) + f"{'x ' + self.key:>16}")
        for name, figures in self.rows.items():
            shown = "".join(f"{_number(figures[column]):>14}" if column in figures else f"{'':14}" for column in columns)
            ratio = f"{figures[self.key] / base:16.2f}" if base and self.key in figures else ""
            print(f"  {name:50}{shown}{ratio}")
        if self.note:
            print(f"  ({self.note})")
        sys.stdout.flush()

    def data(self) -> dict[str, Any]:
        """The same as JSON values."""
        base = next(iter(self.rows.values())).get(self.key)
        rows = {
            name: {**figures, **({f"x {self.key}": round(figures[self.key] / base, 3)} if base and self.key in figures else {})}
            for name, figures in self.rows.items()
        }
        return {"title": self.title, "rows": rows, **({"note": self.note} if self.note else {})}


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def medians(rounds: list[Figures]) -> Figures:
    """The median of each figure over the rounds."""
    return {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}


def compare(contestants: dict[str, Callable[[], Figures]], rounds: int) -> dict[str, Figures]:
    """Run all in turn, round by round, so that a change of the machine's mood meets them alike; medians over the rounds."""
    found: dict[str, list[Figures]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, work in contestants.items():
            found[name].append(work())
    return {name: medians(one) for name, one in found.items()}


def milliseconds(work: Callable[[], Any], times: int) -> Figures:
    """The median time of a call, after one that is not counted."""
    work()
    each = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        each.append(time.perf_counter() - start)
    return {"p50 ms": statistics.median(each) * 1e3}


def written() -> int:
    """Bytes that this process has written; 0 where the system does not tell."""
    try:
        with open("/proc/self/io") as file:
            return int(next(line for line in file if line.startswith("wchar")).split()[1])
    except OSError:
        return 0


class Timed:
    """Collects the time of each operation, and of all of them, and the bytes they wrote."""

    def __init__(self) -> None:
        self.each: list[float] = []
        self._bytes, self._begin = written(), time.perf_counter()

    async def awaited(self, work: Callable[[int], Awaitable[Any]], times: int) -> None:
        """One client that waits for each of its operations before the next."""
        for n in range(times):
            start = time.perf_counter()
            await work(n)
            self.each.append(time.perf_counter() - start)

    def called(self, work: Callable[[int], Any], times: int) -> None:
        """The same for a plain function."""
        for n in range(times):
            start = time.perf_counter()
            work(n)
            self.each.append(time.perf_counter() - start)

    def figures(self) -> Figures:
        """Median and 99th percentile of the latency, rate, and bytes for each."""
        total, size, ordered = time.perf_counter() - self._begin, written() - self._bytes, sorted(self.each)
        return {
            "p50 us": statistics.median(ordered) * 1e6,
            "p99 us": ordered[len(ordered) * 99 // 100] * 1e6,
            "events/s": len(ordered) / total,
            "bytes/event": size / len(ordered),
        }


# --- stores to measure --------------------------------------------------------------------------------------------------------


def text(size: int) -> dict[str, str]:
    """A part whose event is about `size` bytes of JSON."""
    return {"type": "text", "text": "x" * (size - 100)}


def name(session: int) -> str:
    return f"session{session:09}"


@contextmanager
def house(folder: Path, count: int) -> Iterator[Store]:
    """A store with `count` sessions, each with one message."""
    from stead.app import FEATURES
    from stead.domain import sessions
    from stead.store import open_store

    with open_store(folder, FEATURES) as store:

        def begin(tx: Tx) -> None:
            for n in range(count):
                sessions.create(tx, name(n), "project", title=f"Session {n}", agent="build", model="m/x")
                sessions.add_message(tx, name(n), "assistant", model="m/x")

        store.write(begin)
        yield store


PARTS = [
    {"type": "text", "text": "word " * 160},
    {"type": "tool", "call": "c", "tool": "read", "arguments": '{"path":"a.py"}', "status": "done", "output": "line\n" * 200},
    {"type": "step", "model": "m", "tokens": {"input": 1}, "cost": 0.1, "finish": "stop", "note": "x" * 200},
]
"""A message of three parts, together about 2.3 KB of JSON."""


def lengthen(store: Store, session: str, messages: int) -> None:
    """Add so many messages of `PARTS` to a session."""
    from stead.domain import sessions

    def some(tx: Tx, count: int) -> None:
        for _ in range(count):
            number = sessions.add_message(tx, session, "assistant", model="m/x")
            for k, part in enumerate(PARTS):
                sessions.add_part(tx, session, number, k, part)

    while messages:
        count = min(messages, 100)
        store.write(lambda tx, count=count: some(tx, count))  # type: ignore[misc]
        messages -= count
