"""`stead doctor`: is all as it should be? The store's own checks, and what the events of runs and calls must tell together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.core.events import Event
from stead.domain import attachments, runs, sessions
from stead.store import check
from stead.store.check import Check, Walk

if TYPE_CHECKING:
    from stead.app.house import Stead

Progress = Callable[[str, int, int], None]
"""Is told what is looked at, how far it is and how far there is to go."""


def examine(house: Stead, *, repair: bool = False, full: bool = False, progress: Progress | None = None) -> dict[str, Any]:
    """Look at everything: `{"ok", "checks": [{"name", "ok", "detail"}]}`.

    `repair` makes projections again from the log, and missing indexes, removes leftovers and sets modes right, and may be repeated;
    the log is never touched. `full` reads every blob instead of a sample. A check that cannot be made is one that failed.
    """
    checks = list(_checks(house, repair, full, progress or (lambda what, at, total: None)))
    return as_json(checks)


def as_json(checks: list[Check]) -> dict[str, Any]:
    """The checks as every door shows them."""
    shown = [{"name": one.name, "ok": one.ok, "detail": one.detail} for one in checks]
    return {"ok": all(one.ok for one in checks), "checks": shown}


def _checks(house: Stead, repair: bool, full: bool, progress: Progress) -> Iterator[Check]:
    store, story = house.store, Story()
    found = Walk()

    def log() -> Check:
        nonlocal found
        found = check.walk(store, story.look, lambda at, total: progress("log", at, total))
        return check.log(store, found)

    yield Check("place", True, store.caution or f"{store.database.describe()}: nothing is known against this place.")
    yield _made("database", lambda: check.database(store))
    yield _made("log", log)
    yield _made("deleted", lambda: check.deleted(store))
    yield _made("blobs", lambda: check.blobs(store, found.blobs, full, lambda at, total: progress("blobs", at, total)))
    yield _made("attachments", lambda: _attachments(house, story))
    yield _made("runs", lambda: _runs(house, story))
    yield _made("projections", lambda: check.projections(store, repair, lambda at, total: progress("projections", at, total)))
    yield _made("indexes", lambda: check.indexes(store, repair))
    if store.folder is not None:
        yield _made("files", lambda: check.files(store, repair))
        yield _made("leftovers", lambda: check.leftovers(store, repair))
        yield _made("wal", lambda: check.wal(store))
    yield _made("secret", lambda: _secret(house))
    yield _made("configuration", lambda: _configuration(house))


def _made(name: str, make: Callable[[], Check]) -> Check:
    try:
        return make()
    except SteadError as error:
        return Check(name, False, error.message)
    except Exception as error:  # an event that cannot be read, for one: the other checks are made all the same
        return Check(name, False, f"This could not be looked at: {type(error).__name__}: {error}")


class Story:
    """What the events of runs, calls and attachments add up to, told in their order."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.working: dict[str, str] = {}
        self.attachments: dict[str, int] = {}
        self._ends: Counter[str] = Counter()
        self._calls: dict[tuple[str, int, int], str] = {}

    def look(self, event: Event[Any]) -> None:
        """Take in one event."""
        fact = event.data
        if isinstance(fact, (runs.RunStarted, runs.RunResumed)):
            self.working[fact.run] = fact.owner
        elif isinstance(fact, runs.RunWaiting):
            self.working.pop(fact.run, None)
        elif isinstance(fact, runs.RunEnded):
            self._ended(fact.run)
        elif isinstance(fact, sessions.PartAdded):
            self._part(event.stream, fact, event.run or "")
        elif isinstance(fact, sessions.ToolEnded):
            self._calls.pop((event.stream, fact.message, fact.n), None)
        elif isinstance(fact, sessions.StepRetracted):
            for stream, message, n in list(self._calls):
                if (stream, message) == (event.stream, fact.message) and n >= fact.n:
                    del self._calls[stream, message, n]

    def _part(self, stream: str, fact: sessions.PartAdded, run: str) -> None:
        part = fact.part
        if part.get("type") == "tool" and part.get("status") in ("pending", "running"):
            self._calls[stream, fact.message, fact.n] = run
        elif part.get("type") == "file" and isinstance(part.get("id"), str):
            self.attachments[part["id"]] = part.get("size", 0)

    def _ended(self, run: str) -> None:
        self.working.pop(run, None)
        self._ends[run] += 1
        if self._ends[run] == 2:
            self.faults.append(f"run {run} ended more than once")
        for place in [place for place, of in self._calls.items() if of == run]:
            del self._calls[place]
            self.faults.append(f"call {place[0]}.{place[1]}.{place[2]} has no result although its run {run} ended")

    @property
    def ended(self) -> int:
        return len(self._ends)


def _runs(house: Stead, story: Story) -> Check:
    faults = list(story.faults)
    dead = house.life.dead(set(story.working.values()))
    faults += [f"run {run} works under a dead process" for run, owner in story.working.items() if owner in dead]
    said = f"{story.ended:,} ended, each once and with all its calls; {len(story.working):,} at work."
    return Check("runs", not faults, "; ".join(faults[:5]) + "." if faults else said)


def _attachments(house: Stead, story: Story) -> Check:
    faults = []
    for attachment, size in story.attachments.items():
        if fault := attachments.fault(house.data / "attachments", attachment, size):
            faults.append(f"{attachment} {fault}")
    said = f"{len(story.attachments):,} files of prompts are there."
    return Check("attachments", not faults, "; ".join(faults[:5]) + "." if faults else said)


def _secret(house: Stead) -> Check:
    with house.store.view() as view:
        sealed = {version for (version,) in view.q("SELECT DISTINCT key_version FROM secrets")}
    if not sealed:
        return Check("secret", True, "No key is stored.")
    if sealed != {house.secrets.version()}:
        return Check("secret", False, f"Stored keys were sealed with another secret than that of {house.secrets.source}.")
    return Check("secret", True, "It opens the keys that are stored.")


def _configuration(house: Stead) -> Check:
    house.user_file()
    said = (
        "config.toml can be read. No transaction spans it and the database; and a copy of stead.db alone, taken while stead runs,"
        " is no backup."
    )
    return Check("configuration", True, said)
