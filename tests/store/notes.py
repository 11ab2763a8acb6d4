"""A small feature for the tests of the store: notes in streams. The store knows it as little as it knows the real ones."""

from __future__ import annotations

from typing import Any

from stead.core.events import Event, Fact, event
from stead.store import Feature, Tx


@event("note.written")
class Written(Fact):
    text: str
    value: Any = None


@event("note.erased")
class Erased(Fact):
    seq: int


@event("notebook.gone")
class Gone(Fact):
    stream: str
    notes: int


NOTES = Feature(
    "notes",
    tables={
        "notes": "seq {key}, stream TEXT NOT NULL, text TEXT NOT NULL, size INTEGER NOT NULL",
        "notebooks": "stream TEXT NOT NULL, year INTEGER NOT NULL, notes INTEGER NOT NULL, PRIMARY KEY(stream, year)",
    },
    indexes={"notes_stream": "notes(stream, seq)"},
)


@NOTES.projects(Written)
def _written(tx: Tx, e: Event[Written]) -> None:
    tx.q("INSERT INTO notes(seq, stream, text, size) VALUES(?,?,?,?)", e.seq, e.stream, e.data.text, len(e.data.text))
    tx.q(
        "INSERT INTO notebooks(stream, year, notes) VALUES(?,1,1) ON CONFLICT(stream, year) DO UPDATE SET notes=notebooks.notes+1",
        e.stream,
    )


@NOTES.projects(Erased)
def _erased(tx: Tx, e: Event[Erased]) -> None:
    tx.q("DELETE FROM notes WHERE seq=? AND stream=?", e.data.seq, e.stream)


@NOTES.projects(Gone)
def _gone(tx: Tx, e: Event[Gone]) -> None:
    for table in ("notes", "notebooks"):
        tx.q(f"DELETE FROM {table} WHERE stream=?", e.data.stream)


def write(stream: str, text: str = "a note", value: Any = None, expect: int | None = None) -> Any:
    """A job that appends one note and gives its seq."""
    return lambda tx: tx.append(stream, Written(text=text, value=value), expect=expect).seq


def erase_stream(stream: str) -> Any:
    """A job that deletes a stream for good."""

    def job(tx: Tx) -> None:
        count = (tx.one("SELECT count(*) FROM notes WHERE stream=?", stream) or (0,))[0]
        tx.forget_stream(stream)
        tx.append("system", Gone(stream=stream, notes=count))

    return job
