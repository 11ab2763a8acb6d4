"""A fork: a session of its own that begins with the messages of another, up to one of them. Files are not touched.

It copies: the stored bodies stand again in the new stream, blobs and attachments are shared by reference, so the fork reads on
when the other is deleted. What the messages cost stays with the other. It is written in small jobs and hidden until it is
whole; what a fork that was killed left is removed by the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.domain import runs, sessions, settings, todos
from stead.domain.sessions import Session
from stead.store import faults

if TYPE_CHECKING:
    from stead.app.house import Stead
    from stead.store.database import Reads
    from stead.store.log import Tx

_SHARE_EVENTS, _SHARE_BYTES = 100, 256 << 10
_LEFTOVER_MS = 24 * 60 * 60 * 1000


def fork(house: Stead, session: str, message: str | int | None, title: str | None, by: str) -> str:
    """See `Stead.fork`. It waits for the disk: from a coroutine, call it in a thread."""
    _sweep(house)
    with house.store.view() as view:
        source = sessions.in_use(view, session)
        numbers = _prefix(view, source, message)
    title = title or f"{source.title} (fork)"
    return _copy(house, source, numbers, house.store.ids.new(), by, title=title, parent=None, call=None)


def _prefix(view: Reads, source: Session, message: str | int | None) -> list[int]:
    """The numbers of the messages to copy, oldest first. Raises `not_found`, and `conflict` for a message that is still written."""
    run = runs.active(view, source.id)
    if message is None:
        active = sessions.numbers(view, source.id)
        return [n for n in active if run is None or n < run.prompt]
    found = sessions.message(view, source.id, sessions.number(source.id, message))
    if run is not None and found.role != "user" and found.n >= run.prompt:
        raise SteadError("conflict", f"{found.id} is still written.", hint="Fork when its run has ended, or an earlier message.")
    return sessions.up_to(view, source.id, found.parent if found.role == "user" else found.n)


def _copy(
    house: Stead, source: Session, numbers: list[int], new: str, by: str, *, title: str, parent: str | None, call: str | None
) -> str:
    """Copy these messages, and the children that were begun in them, into a session of this id."""
    store = house.store

    def begin(tx: Tx) -> None:
        sessions.create(
            tx,
            new,
            source.project,
            title=title,
            agent=source.agent,
            model=source.model,
            max_steps=source.max_steps,
            parent=parent,
            parent_call=call,
            forked_from=source.id,
            forked_at=numbers[-1] if numbers else 0,
        )
        if values := settings.stored(tx, "session", source.id):
            settings.change(tx, layer="session", id=new, values=values)
        if listed := todos.listed(tx, source.id):
            todos.replace(tx, new, [(todo["text"], todo["status"]) for todo in listed])

    store.write(begin, actor=by)
    faults.point("fork.begun")
    calls: set[str] = set()
    for share in _shares(house, source.id, numbers, calls):
        store.write(lambda tx, share=share: [add(tx, new) for add in share], actor=by)  # type: ignore[misc]
        faults.point("fork.share")
    with store.view() as view:
        children = [one for one in sessions.children(view, source.id) if one.parent_call in calls]
        prefixes = [_prefix(view, child, None) for child in children]
    for child, prefix in zip(children, prefixes, strict=True):
        _copy(house, child, prefix, store.ids.new(), by, title=child.title, parent=new, call=child.parent_call)
    store.write(lambda tx: tx.append(new, sessions.SessionForked(count=len(numbers))), actor=by)
    return new


Add = Callable[["Tx", str], Any]


def _shares(house: Stead, source: str, numbers: list[int], calls: set[str]) -> Iterator[list[Add]]:
    """What is to be appended, in jobs of a bounded size. The calls that are met are put into `calls`."""
    share: list[Add] = []
    size = 0
    for k, n in enumerate(numbers, 1):
        with house.store.view() as view:
            found = sessions.stored(view, source, n)
        for fact, weight in _facts(found, k, calls):
            share.append(lambda tx, new, fact=fact: tx.append(new, fact))  # type: ignore[misc]
            size += weight
            if len(share) >= _SHARE_EVENTS or size >= _SHARE_BYTES:
                yield share
                share, size = [], 0
    if share:
        yield share


def _facts(found: sessions.Stored, k: int, calls: set[str]) -> Iterator[tuple[Any, int]]:
    """The facts of a message as number `k` of the copy, each with its size. A step is copied as a part: it cost what it cost
    once."""
    yield (
        sessions.MessageAdded(n=k, role=found.role, author=found.author, model=found.model, parent=k - 1, created=found.created),
        200,
    )
    for part in found.parts:
        yield sessions.PartAdded(message=k, n=part.n, part=part.part), part.size
        if part.call is not None:
            calls.add(part.call)
            if part.started:
                yield sessions.ToolStarted(message=k, n=part.n, call=part.call), 100
            if part.result is not None:
                yield sessions.ToolEnded(message=k, n=part.n, call=part.call, result=part.result), part.size


def _sweep(house: Stead) -> None:
    """Remove what forks that were killed left, once nobody can be at work on them any more."""
    before = house.store.clock.now() - _LEFTOVER_MS
    with house.store.view() as view:
        left = sessions.unfinished(view, before=before)
    for one in left:
        house.delete(one)
