"""Deleting a session for good: its runs end, one job forgets it, its files go. Its sums stay in the ledger."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from stead.core.errors import SteadError
from stead.domain import attachments, queue, rewinds, runs, sessions, settings, usage
from stead.store.collect import names_in
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.app.house import Stead

_WAITS, _WAIT_SECONDS = 50, 0.1
DELETED = "Its session is being deleted."


def delete(house: Stead, session: str, by: str) -> list[str]:
    """See `Stead.delete`."""
    with house.store.view() as view:
        family = sessions.with_children(view, session)
        keep = settings.effective(view, file_layer=house.user_file().settings)["attachments.on_delete"].value == "keep"
    held: list[str] = []
    try:
        for one in family:  # what waits does not begin behind what is stopped
            held += house.store.write(lambda tx, one=one: queue.hold_session(tx, one, DELETED), actor=by)  # type: ignore[misc]
            house.stop(one, by=by)
        _wait_for_ends(house, session)
        gone, files, blobs = house.store.write(lambda tx: _forget(tx, session, keep), actor=by)
    except SteadError:
        with suppress(SteadError):  # a store that takes nothing keeps them held
            house.store.write(lambda tx: queue.let_go(tx, held, DELETED), actor=by)
        raise
    for attachment in files:
        attachments.remove(house.data / "attachments", attachment)
    _purge(house, blobs)
    return gone


def _wait_for_ends(house: Stead, session: str) -> None:
    """Give the runs in it a moment to end."""
    for _ in range(_WAITS):
        with house.store.view() as view:
            if not any(runs.active(view, one) for one in sessions.with_children(view, session)):
                return
        threading.Event().wait(_WAIT_SECONDS)


def _purge(house: Stead, blobs: set[str]) -> None:
    """What was deleted is gone from blobs, free pages and the write-ahead log as well: without the day's grace of an ordinary
    collection, for what is about to be stored again is put there anew."""
    from stead.store.collect import collect

    if not collect(house.store, age_ms=0, among=blobs)["whole"]:
        import logging

        logging.getLogger("stead").warning(
            "what was deleted stays in free room of the store until nobody reads it and there is space to clean up"
        )


def _forget(tx: Tx, session: str, keep: bool) -> tuple[list[str], list[str], set[str]]:
    gone = sessions.with_children(tx, session)
    blobs = {digest for one in gone for digest in names_in(data for (data,) in tx.q("SELECT data FROM events WHERE stream=?", one))}
    files = [] if keep else attachments.only_of(tx, gone)
    for one in gone:
        rewinds.refuse_under_way(tx, one)
        if runs.active(tx, one) is not None:
            raise SteadError("conflict", f"Session {one} has a run that does not end.", hint="Try again in a moment.")
        settings.forget(tx, "session", one)
        tx.append("system", sessions.SessionDeleted(session=one, usage=usage.sums_of(tx, one)))
        tx.forget_stream(one)
    return gone, files, blobs
