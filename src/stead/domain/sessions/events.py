"""What is said of sessions, messages and parts in the log."""

from __future__ import annotations

from typing import Any, Literal

from stead.core.events import Fact, event
from stead.core.parts import Tokens

Role = Literal["user", "assistant", "system"]


@event("session.created")
class SessionCreated(Fact):
    """`forked_from`: the session of which it is to be a copy, up to the message `forked_at` (0: of nothing). It is hidden until
    it is one."""

    project: str
    title: str
    agent: str
    model: str | None
    max_steps: int | None = None
    parent: str | None = None
    parent_call: str | None = None
    hidden: bool = False
    forked_from: str | None = None
    forked_at: int | None = None


@event("session.changed")
class SessionChanged(Fact):
    """Only the changed fields: title, agent, model, max_steps, pinned, archived, trashed."""

    values: dict[str, Any]


@event("session.forked")
class SessionForked(Fact):
    """The copy is whole: `count` messages."""

    count: int


@event("branch.left")
class BranchLeft(Fact):
    """The conversation goes on before message `first`: that one and what was said behind it stays readable and is not sent any
    more."""

    first: int
    rewind: str


@event("branch.resumed")
class BranchResumed(Fact):
    """The messages that the `branch.left` of this `seq` left are part of the conversation again."""

    left: int


@event("session.deleted")
class SessionDeleted(Fact):
    """In the system stream: what remains of a session deleted for good. `usage` are the sums that the ledger keeps."""

    session: str
    usage: list[dict[str, Any]]


@event("message.added")
class MessageAdded(Fact):
    """`parent`: the message before it on its branch, 0 for none (None: the number before). `created`: when it was said, where
    that was not now: in a fork."""

    n: int
    role: Role
    author: str | None = None
    model: str | None = None
    parent: int | None = None
    created: int | None = None


@event("part.added")
class PartAdded(Fact):
    message: int
    n: int
    part: Any


@event("tool.started")
class ToolStarted(Fact):
    message: int
    n: int
    call: str


@event("tool.ended")
class ToolEnded(Fact):
    """The one result of a call. `result` holds status and, where there are any, output, error, duration_ms, files, cut."""

    message: int
    n: int
    call: str
    result: dict[str, Any]


@event("step.ended")
class StepEnded(Fact):
    """A model call that answered: its step part, and what the usage ledger needs with it. `model` is the one that was asked for,
    where its own answer calls it differently."""

    message: int
    n: int
    part: Any
    project: str
    provider: str
    model: str | None = None


@event("call.ended")
class CallEnded(Fact):
    """A model call that gave no step: it failed, was aborted, or served another purpose (a title). `tokens` as far as known."""

    purpose: Literal["failed", "aborted", "title"]
    project: str
    provider: str
    model: str
    tokens: Tokens
    cost: float | None
    estimated: bool
    code: str | None = None


@event("step.retracted")
class StepRetracted(Fact):
    """The parts of a message from number `n` on belong to an attempt that failed: they are not shown and not sent."""

    message: int
    n: int
    reason: str
