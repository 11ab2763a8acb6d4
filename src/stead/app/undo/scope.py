"""What is to be taken back: the changes and messages that a person's words mean."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from stead.core.errors import SteadError
from stead.domain import changes, rewinds, sessions
from stead.domain.changes import Change
from stead.store.database import Reads

What = Literal["files", "conversation", "both"]


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks for. Without `to`, `message`, `calls` and `paths`: the last user message that is not undone, with all
    after it.

    `to`: a user message; the state just before it. `message`, `calls`: only what that message (of the user: its run) or these tool
    calls changed; the conversation stays. `paths`: only these, of whatever else is named, else of the whole session; `hunks`:
    of a path only these. `force`: paths that are restored whatever stands there now (it is kept first); `merge`: where lines
    can be merged, they are.
    """

    to: str | int | None = None
    message: str | int | None = None
    calls: Sequence[str] = ()
    what: What = "both"
    paths: Sequence[str] = ()
    hunks: dict[str, Sequence[str]] | None = None
    force: Collection[str] = ()
    merge: bool = False

    @property
    def files(self) -> bool:
        """Whether files are meant."""
        return self.what != "conversation"

    @property
    def conversation(self) -> bool:
        """Whether the conversation is meant."""
        narrow = self.message is not None or bool(self.calls) or bool(self.paths)
        return self.what != "files" and not narrow


@dataclass(frozen=True, slots=True)
class Scope:
    """The changes, and the messages that go from or come back to the conversation; `of` is the undo that is redone."""

    rows: list[Change]
    messages: list[int]
    about: str | None = None
    of: str | None = None
    folders: dict[str, int] = field(default_factory=dict)
    """Folders that were made for files, with the change that they were made for."""
    uncovered: list[changes.Uncovered] = field(default_factory=list)
    hunks: Callable[[str], Sequence[str] | None] | None = None
    force: Collection[str] = ()
    merge: bool = False
    redo: bool = False
    closed: bool = False
    """The conversation cannot be redone any more: something was said since."""


def undo_scope(view: Reads, session: str, wish: Wish) -> Scope:
    """What an undo of `wish` covers. Raises `not_found`, `ambiguous`, `usage`."""
    found: list[Change] = []
    messages: list[int] = []
    uncovered: list[changes.Uncovered] = []
    about: str | None = None
    if wish.message is not None or wish.calls:
        found, uncovered, about = _named(view, session, wish)
    elif wish.paths:
        found, uncovered = changes.standing(view, session), changes.uncovered(view, session)
    elif (first := _first(view, session, wish)) is not None:
        found, uncovered = changes.standing(view, session, since=first), changes.uncovered(view, session, since=first)
        active = sessions.numbers(view, session, since=first)
        messages, about = active if first in active else [], str(first)  # of what was left before only the files are meant
    if wish.paths:
        found = [row for row in found if row.path in wish.paths]
        uncovered = [one for one in uncovered if one.path in wish.paths]
    folders = changes.made_folders(view, [row.seq for row in found])
    return Scope(
        rows=found if wish.files else [],
        messages=messages if wish.conversation else [],
        about=about,
        folders=folders if wish.files else {},
        uncovered=uncovered if wish.files else [],
        hunks=wish.hunks.get if wish.hunks else None,
        force=wish.force,
        merge=wish.merge,
    )


def redo_scope(view: Reads, session: str, wish: Wish) -> Scope:
    """What a redo covers: the newest undo of which something is left to redo. Nothing where there is none."""
    undo = rewinds.newest_undo(view, session)
    if undo is None:
        return Scope([], [], redo=True)
    rows: list[Change] = []
    messages: list[int] = []
    closed = False
    if wish.files and undo.files_open:
        rows = [row for row in changes.of_rewind(view, session, undo.id) if row.state == "applied" and row.undone is None]
    if wish.conversation and undo.conversation_open and undo.branch is not None:
        closed = not sessions.may_resume(view, session, undo.branch)
        messages = [] if closed else sessions.numbers(view, session, left=undo.branch)
    if wish.paths:
        rows = [row for row in rows if row.path in wish.paths]
    return Scope(rows, messages, about=undo.about, of=undo.id, force=wish.force, merge=wish.merge, redo=True, closed=closed)


def _first(view: Reads, session: str, wish: Wish) -> int | None:
    """The user message from which on everything goes; None when there is none."""
    if wish.to is not None:
        found = sessions.message(view, session, sessions.number(session, wish.to))
        if found.role != "user":
            raise SteadError("usage", f"{found.id} is not a message of the user.", hint="`stead sessions show` has their ids.")
        return found.n
    before = None
    if wish.what == "files":  # what was taken back of files only is still in the conversation
        done = [one for one in rewinds.listed(view, session) if one.what == "undo" and one.files_open and one.branch is None]
        before = min((int(one.about) for one in done if one.about is not None and one.about.isdigit()), default=None)
    return sessions.last_user(view, session, before=before)


def _named(view: Reads, session: str, wish: Wish) -> tuple[list[Change], list[changes.Uncovered], str]:
    """The changes of one message, or of some calls."""
    standing, uncovered = changes.standing(view, session), changes.uncovered(view, session)
    if wish.message is not None:
        found = sessions.message(view, session, sessions.number(session, wish.message))
        if found.role == "user":

            def fits(row: Any) -> bool:
                return found.run is not None and bool(row.run == found.run)
        else:

            def fits(row: Any) -> bool:
                return bool(row.message == found.n)

        about = found.id
    else:
        wanted = {_call(view, session, text) for text in wish.calls}

        def fits(row: Any) -> bool:
            return (row.message, row.call) in wanted

        about = " ".join(wish.calls)
    return [row for row in standing if fits(row)], [one for one in uncovered if fits(one)], about


def _call(view: Reads, session: str, text: str) -> tuple[int, str]:
    """The message and the name of a tool call, from its name, or from the id of its part. Raises `not_found`, `ambiguous`."""
    found = sessions.calls_named(view, session, text)
    if not found:
        raise SteadError("not_found", f"There is no tool call {text!r} in session {session}.")
    if len(found) > 1:
        there = [{"id": f"{session}.{message}.{n}"} for message, n, _ in found]
        raise SteadError("ambiguous", f"{text!r} fits {len(found)} tool calls.", details={"candidates": there})
    message, _, call = found[0]
    return message, call
