"""What opening costs: a page of a long session and a page of many sessions, beside a file of JSON lines, in the same run.

    python bench/open.py [MESSAGES]

A message has three parts, together about 2.3 KB of JSON. Each figure is the median of opening the store (or the file), reading,
and closing, in this process: imports are not counted, the page cache is warm.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import orjson

from stead.app import FEATURES
from stead.domain import sessions
from stead.store import Tx, open_store

SESSION = "session000000000"
PARTS = [
    {"type": "text", "text": "word " * 160},
    {"type": "tool", "call": "c", "tool": "read", "arguments": '{"path":"a.py"}', "status": "done", "output": "line\n" * 200},
    {"type": "step", "model": "m", "tokens": {"input": 1}, "cost": 0.1, "finish": "stop", "note": "x" * 200},
]


def fill(folder: Path, messages: int) -> None:
    """A session of so many messages, and as many sessions with one message each."""
    with open_store(folder, FEATURES) as store:

        def some(tx: Tx, first: int) -> None:
            for n in range(first, min(first + 500, messages)):
                sessions.create(tx, f"other{n:011}", "project", title=f"Session {n}", agent="build", model="m/x")
                number = sessions.add_message(tx, SESSION, "assistant", model="m/x")
                for k, part in enumerate(PARTS):
                    sessions.add_part(tx, SESSION, number, k, part)

        store.write(lambda tx: sessions.create(tx, SESSION, "project", title="Long", agent="build", model="m/x"))
        for first in range(0, messages, 500):
            store.write(lambda tx, first=first: some(tx, first))  # type: ignore[misc]
    with (folder / "messages.jsonl").open("wb") as file:
        for n in range(messages):
            file.write(orjson.dumps({"n": n, "role": "assistant", "parts": PARTS}) + b"\n")


def median(work: Callable[[], Any], rounds: int) -> float:
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as name:
        folder = Path(name)
        fill(folder, count)

        def reading(query: Callable[[Any], Any]) -> Callable[[], None]:
            def work() -> None:
                with open_store(folder, FEATURES) as store, store.view() as view:
                    query(view)

            return work

        def jsonl() -> None:
            with (folder / "messages.jsonl").open("rb") as file:
                [orjson.loads(line) for line in file][-50:]

        def bare() -> None:
            connection = apsw.Connection(str(folder / "stead.db"))
            connection.execute(
                "SELECT e.data FROM parts p JOIN events e ON e.seq=p.seq WHERE session=? AND message>? ORDER BY message, n",
                (SESSION, count - 50),
            ).fetchall()
            connection.close()

        found = {
            "bare apsw: open, 50 messages as bytes": median(bare, 30),
            "JSON lines: the whole file parsed": median(jsonl, 5),
            "stead: open and close": median(reading(lambda view: None), 30),
            "stead: open, newest 50 messages": median(reading(lambda view: sessions.messages(view, SESSION, limit=50)), 30),
            "stead: open, 50 of all sessions": median(reading(lambda view: sessions.page(view, limit=50)), 30),
            "stead: open, all messages as objects": median(reading(lambda view: sessions.messages(view, SESSION)), 3),
        }
    base = found["JSON lines: the whole file parsed"]
    print(f"{f'{count:,} messages of 3 parts':42}{'ms':>9}{'x JSON lines':>14}")
    for title, took in found.items():
        print(f"{title:42}{took:9.2f}{took / base:14.3f}")
    print(
        json.dumps({"open": {title: {"ms": round(took, 3), "over_jsonl": round(took / base, 4)} for title, took in found.items()}})
    )


if __name__ == "__main__":
    main()
