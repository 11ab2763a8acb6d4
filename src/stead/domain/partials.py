"""What is on the screen and not yet an event: the open parts of a run, so that a kill loses a moment and not an answer.

These tables are no projections: rows come and go with the work, and are gone once the part is an event or the run has ended.
Writing them is a job like any other. Recovery turns what a dead process left here into parts that are marked as cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from stead.core.events import Event
from stead.core.jsontext import dumps, loads
from stead.domain.runs import Run
from stead.domain.sessions import SessionDeleted
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

Kind = Literal["text", "reasoning"]

FEATURE = Feature(
    "partials",
    kept={
        "partials": """
            session TEXT NOT NULL, message INTEGER NOT NULL, n INTEGER NOT NULL, chunk INTEGER NOT NULL, run TEXT NOT NULL,
            kind TEXT NOT NULL, start BIGINT NOT NULL, text {blob} NOT NULL, PRIMARY KEY(session, message, n, chunk)
        """,
        "open_model_calls": "run TEXT PRIMARY KEY, session TEXT NOT NULL, fact {blob} NOT NULL",
        "open_tool_calls": """
            session TEXT NOT NULL, message INTEGER NOT NULL, n INTEGER NOT NULL, run TEXT NOT NULL, seen BIGINT NOT NULL,
            output {blob} NOT NULL, process {blob}, PRIMARY KEY(session, message, n)
        """,
    },
)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    for table in ("partials", "open_model_calls", "open_tool_calls"):
        tx.q(f"DELETE FROM {table} WHERE session=?", e.data.session)


@dataclass(frozen=True, slots=True)
class Growth:
    """More text of the open part `n`: its piece number `chunk`, which begins at code point `start`."""

    n: int
    chunk: int
    kind: Kind
    start: int
    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """What is known of a tool call at work: output so far (head and tail), the process it started, when that was last seen (ms)."""

    n: int
    output: str
    process: dict[str, Any] | None
    seen: int


def grow(tx: Tx, run: Run, pieces: Sequence[Growth]) -> None:
    """Keep more text of open parts."""
    for piece in pieces:
        tx.q(
            "INSERT INTO partials(session, message, n, chunk, run, kind, start, text) VALUES(?,?,?,?,?,?,?,?)"
            " ON CONFLICT(session, message, n, chunk) DO UPDATE SET text=excluded.text, start=excluded.start",
            *(run.session, run.message, piece.n, piece.chunk, run.id, piece.kind, piece.start, _bytes(piece.text)),
        )


def open_model_call(tx: Tx, run: Run, fact: dict[str, Any]) -> None:
    """Keep what the ledger is to hold of the model call under way, should nobody see its end: the data of a `call.ended`."""
    tx.q(
        "INSERT INTO open_model_calls(run, session, fact) VALUES(?,?,?) ON CONFLICT(run) DO UPDATE SET fact=excluded.fact",
        *(run.id, run.session, dumps(fact)),
    )


def open_tool_call(tx: Tx, run: Run, call: ToolCall) -> None:
    """Keep what is known of a tool call at work."""
    tx.q(
        "INSERT INTO open_tool_calls(session, message, n, run, seen, output, process) VALUES(?,?,?,?,?,?,?)"
        " ON CONFLICT(session, message, n) DO UPDATE SET seen=excluded.seen, output=excluded.output, process=excluded.process",
        *(run.session, run.message, call.n, run.id, call.seen, _bytes(call.output)),
        None if call.process is None else dumps(call.process),
    )


def close_part(tx: Tx, run: Run, n: int) -> None:
    """Part `n` is an event now."""
    tx.q("DELETE FROM partials WHERE session=? AND message=? AND n=?", run.session, run.message, n)


def close_tool_call(tx: Tx, run: Run, n: int) -> None:
    """Tool call `n` has its result."""
    tx.q("DELETE FROM open_tool_calls WHERE session=? AND message=? AND n=?", run.session, run.message, n)


def close_model_call(tx: Tx, run: Run) -> None:
    """The model call is in the ledger; what came of its answer stays open."""
    tx.q("DELETE FROM open_model_calls WHERE run=?", run.id)


def close_answer(tx: Tx, run: Run) -> None:
    """The model call is in the ledger, and nothing of its answer is open any more."""
    close_model_call(tx, run)
    tx.q("DELETE FROM partials WHERE session=? AND message=?", run.session, run.message)


def close_run(tx: Tx, run: Run) -> None:
    """Nothing of the run is open any more, in whichever of its messages."""
    close_model_call(tx, run)
    tx.q("DELETE FROM partials WHERE session=? AND run=?", run.session, run.id)
    tx.q("DELETE FROM open_tool_calls WHERE session=? AND run=?", run.session, run.id)


def open_parts(view: Reads, session: str, message: int) -> list[tuple[int, dict[str, Any]]]:
    """The texts and thoughts of a message that still grow, as far as they are kept: pairs of number and part."""
    found: dict[int, dict[str, Any]] = {}
    rows = view.q("SELECT n, kind, text FROM partials WHERE session=? AND message=? ORDER BY n, chunk", session, message)
    for n, kind, text in rows:
        part = found.setdefault(n, {"type": kind, "text": ""})
        part["text"] += _text(text)
    return list(found.items())


def growth(view: Reads, seen: dict[tuple[str, int, int], int]) -> list[tuple[str, int, str, Growth]]:
    """What has grown of each open part behind the pieces in `seen` (which maps session, message and part to the next piece number;
    it is brought up to date): session, message, run and all that is new as one piece, in order."""
    found = []
    newest = view.q("SELECT session, message, n, max(chunk) FROM partials GROUP BY session, message, n ORDER BY 1, 2, 3")
    for session, message, n, last in newest:
        first = seen.get((session, message, n), 0)
        if last < first:
            continue
        rows = view.q(
            "SELECT chunk, run, kind, start, text FROM partials WHERE session=? AND message=? AND n=? AND chunk>=? ORDER BY chunk",
            *(session, message, n, first),
        )
        _, run, kind, start, _ = rows[0]
        found.append((session, message, run, Growth(n, last, kind, start, "".join(_text(row[-1]) for row in rows))))
    seen.clear()
    seen.update({(session, message, n): last + 1 for session, message, n, last in newest})
    return found


def outputs(view: Reads) -> list[tuple[str, int, int, str, str]]:
    """Of every tool call at work: session, message, part, run and what is kept of its output."""
    rows = view.q("SELECT session, message, n, run, output FROM open_tool_calls ORDER BY 1, 2, 3")
    return [(session, message, n, run, _text(output)) for session, message, n, run, output in rows]


def model_call(view: Reads, run: str) -> dict[str, Any] | None:
    """What the ledger is to hold of the run's model call that nobody saw the end of."""
    row = view.one("SELECT fact FROM open_model_calls WHERE run=?", run)
    return loads(row[0]) if row else None


def tool_calls(view: Reads, session: str, message: int) -> dict[int, ToolCall]:
    """What is known of the message's tool calls at work, by part number."""
    rows = view.q("SELECT n, output, process, seen FROM open_tool_calls WHERE session=? AND message=?", session, message)
    return {n: ToolCall(n, _text(output), None if process is None else loads(process), seen) for n, output, process, seen in rows}


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")  # exactly what came, a lone surrogate and NUL included


def _text(data: bytes) -> str:
    return bytes(data).decode("utf-8", "surrogatepass")
