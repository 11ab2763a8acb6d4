"""What a reader sees of a house, as plain JSON: the public shapes, not the tables. And how an old one compares with today's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any

from stead.app import Stead, shown
from stead.domain import asks, attachments, changes, people, projects, providers, queue, settings, todos, usage
from stead.domain import sessions as nouns


def seen(house: Stead, sessions: Sequence[str], runs: Sequence[str], files: Sequence[str]) -> dict[str, Any]:
    """Everything that the surfaces show of the house: of these sessions and runs, and of these attachments."""
    store = house.store
    with store.view() as view:
        hashes = [row[0] for row in view.q("SELECT hash FROM blobs ORDER BY hash")]
        everybody = [one.to_json() for one in people.everyone(view)]
        known = [one.to_json() for one in projects.recent(view)]
        listed = shown.sessions_json(view, [*nouns.page(view), *nouns.page(view, trashed=True)])
        keys = {}
        for one in providers.stored_providers(view):
            keys[one.name] = {**one.to_json(), "models_seen": providers.meta_of(view, one.name)}
            if one.has_key:
                keys[one.name]["key"] = providers.key_for(view, one, house.secrets, {})
        layers = {f"{layer} {id}": settings.stored(view, layer, id) for layer, id in _layers(known, sessions)}
        spent = {" ".join(by) or "all": usage.report(view, by) for by in ((), ("day", "model"), ("project",), ("session",))}
    return {
        "people": everybody,
        "projects": known,
        "sessions": {one["id"]: one for one in listed},
        "session": {one: _session(house, one) for one in sessions},
        "runs": {run: house.run_json(run) for run in runs},
        "providers": keys,
        "settings": layers,
        "usage": spent,
        "blobs": {digest: len(store.blobs.get(digest)) for digest in hashes},
        "attachments": {name: _digest(attachments.load(house.data / "attachments", name)) for name in files},
    }


def _layers(known: Sequence[dict[str, Any]], sessions: Sequence[str]) -> list[tuple[Any, str]]:
    return [("global", ""), *(("project", one["id"]) for one in known), *(("session", one) for one in sessions)]


def _session(house: Stead, session: str) -> dict[str, Any]:
    store = house.store
    with store.view() as view:
        about = shown.session_json(view, nouns.get(view, session))
        found = nouns.messages(view, session)
        plan = todos.listed(view, session)
        waiting = [shown.ask_json(ask) for ask in asks.open_asks(view, session)]
        queued = [{**shown.queue_json(one), "parts": queue.content(view, one)[0]} for one in queue.waiting(view, session)]
        made = [(one.path, one.state, one.before_kind, one.after_kind, int(one.in_place)) for one in changes.listed(view, session)]
    return {
        "about": about,
        "messages": [shown.message_json(message, store.blobs) for message in found],
        "todos": plan,
        "asks": waiting,
        "queue": queued,
        "changes": [list(one) for one in made],
        "files": shown.changed_files(store, session),
    }


def log(house: Stead) -> list[list[Any]]:
    """The log as `[seq, kind, version as it is stored]`."""
    with house.store.view() as view:
        return [list(row) for row in view.q("SELECT seq, kind, v FROM events ORDER BY seq")]


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


_HUNK = re.compile(r"\.hunks\[\d+\]\.id$")


def lost(old: Any, new: Any, at: str = "") -> list[str]:
    """Where `new` does not hold what `old` says. Fields may be added to an object; nothing else may differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        missing = [f"{at}.{name} is gone" for name in old if name not in new]
        return missing + [one for name in old if name in new for one in lost(old[name], new[name], f"{at}.{name}")]
    if isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            return [f"{at} had {len(old)} entries and has {len(new)}"]
        return [one for n, (a, b) in enumerate(zip(old, new, strict=True)) for one in lost(a, b, f"{at}[{n}]")]
    if _HUNK.search(at) and isinstance(old, int):  # numbers at first; they are made of the lines since, to stay when others go
        return []
    return [] if type(old) is type(new) and old == new else [f"{at} was {old!r:.60} and is {new!r:.60}"]
