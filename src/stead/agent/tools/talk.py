"""`todo_write` and `ask`: the tools that only talk, to the list that people see and to a person."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field

from stead.agent.tools.base import Context, Input, Result, Tool


class Todo(Input):
    text: Annotated[str, Field(min_length=1)]
    status: Literal["pending", "doing", "done", "dropped"]


class TodoWrite(Input):
    todos: Annotated[list[Todo], Field(description="The whole list; it replaces the one before.")]


class Ask(Input):
    question: Annotated[str, Field(min_length=1)]
    options: Annotated[list[str], Field(default_factory=list, description="Answers to choose from; another may be given too.")]


async def todo_write(context: Context, given: TodoWrite) -> Result:
    """Replace the session's todos."""
    await context.set_todos([{"text": todo.text, "status": todo.status} for todo in given.todos])
    counts = Counter(todo.status for todo in given.todos)
    said = ", ".join(f"{counts[status]} {status}" for status in ("pending", "doing", "done", "dropped") if counts[status])
    return Result(output=f"The list has {len(given.todos)} todos: {said}." if said else "The list is empty.")


async def ask(context: Context, given: Ask) -> Result:
    """Ask the person and give the answer."""
    return Result(output=await context.ask(given.question, given.options or None))


TODO_WRITE = Tool(
    name="todo_write",
    description="Keep the person informed with a list of todos for work of several steps. Send the whole list each time.",
    input=TodoWrite,
    run=todo_write,
    effect="none",
)
ASK = Tool(
    name="ask",
    description="Ask the person a question and wait for the answer. Only for what you cannot find out or decide yourself.",
    input=Ask,
    run=ask,
    effect="none",
)
