"""The agent's own list of things to do in a session. Not the team's board."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypedDict

from stead.core.events import Event, Fact, event
from stead.domain.sessions import SessionDeleted
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx


class Todo(TypedDict):
    id: str
    text: str
    status: Literal["pending", "doing", "done", "dropped"]


@event("todos.replaced")
class TodosReplaced(Fact):
    todos: list[Todo]


FEATURE = Feature(
    "todos",
    tables={
        "todos": """
            session TEXT NOT NULL, n INTEGER NOT NULL, id TEXT NOT NULL, text {blob} NOT NULL,
            status TEXT NOT NULL, PRIMARY KEY(session, n)
        """,
    },
)


@FEATURE.projects(TodosReplaced)
def _replaced(tx: Tx, e: Event[TodosReplaced]) -> None:
    tx.q("DELETE FROM todos WHERE session=?", e.stream)
    for n, todo in enumerate(e.data.todos):
        text = todo["text"].encode("utf-8", "surrogatepass")
        tx.q("INSERT INTO todos(session, n, id, text, status) VALUES(?,?,?,?,?)", e.stream, n, todo["id"], text, todo["status"])


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    tx.q("DELETE FROM todos WHERE session=?", e.data.session)


def replace(
    tx: Tx, session: str, todos: Sequence[tuple[str, Literal["pending", "doing", "done", "dropped"]]], run: str | None = None
) -> list[Todo]:
    """Replace the session's list by these (text, status). An item whose text was in the list keeps its id."""
    known = {todo["text"]: todo["id"] for todo in listed(tx, session)}
    fresh: list[Todo] = [
        {"id": known.pop(text, f"{session}.t{tx.next_seq}.{n}"), "text": text, "status": status}
        for n, (text, status) in enumerate(todos)
    ]
    tx.append(session, TodosReplaced(todos=fresh), run=run)
    return fresh


def listed(view: Reads, session: str) -> list[Todo]:
    """The session's todos in their order."""
    rows = view.q("SELECT id, text, status FROM todos WHERE session=? ORDER BY n", session)
    return [{"id": i, "text": bytes(text).decode("utf-8", "surrogatepass"), "status": status} for i, text, status in rows]
