"""What every surface shows of sessions, messages, runs, changes, asks and events: the shapes of docs/json.md, made in one place.

A door takes these and adds nothing of its own; what one noun alone can say about itself is its own `to_json`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from stead.core.clock import rfc3339
from stead.core.errors import SteadError
from stead.core.events import Event
from stead.core.parts import NO_TOKENS
from stead.core.text import cut_bytes, one_line
from stead.domain import asks, changes, partials, projects, queue, runs, sessions, usage
from stead.store.blobs import Blobs
from stead.store.database import Reads
from stead.store.store import Store

if TYPE_CHECKING:
    from pathlib import Path

TEXT_BYTES = 64 << 10
"""Bytes of a text from which it is cut where it is not wanted whole."""

# --- runs, changes, asks ------------------------------------------------------------------------------------------------------


def run_json(store: Store, run: str) -> dict[str, Any]:
    """A run: `{session, run, outcome, result, error, usage, cost, changes, asks}`; of a prompt that was said in another run, that
    one; of one that waits in the queue, what there is of it. Raises `not_found`."""
    with store.view() as view:
        run = queue.became(view, run)
        try:
            found = runs.get(view, run)
        except SteadError:
            with suppress(SteadError):
                return _unbegun(queue.get(view, run))
            raise
        message = sessions.message(view, found.session, found.message)
        used = usage.of_run(view, run)
        made = changes.listed(view, found.session, run=run)
        open_asks = [ask for ask in asks.open_asks(view, found.session, trashed=True) if ask.run == run]
    return {
        "session": found.session,
        "run": run,
        "outcome": found.outcome or found.status,
        "result": answer([part for _, part in message.parts], store.blobs),
        "error": {"code": found.code, "message": found.error} if found.code else None,
        "usage": used["tokens"],
        "cost": used["cost"],
        **({"estimated": True} if used["estimated"] else {}),
        "changes": [changes.change_json(one, store.blobs.get) for one in changes.net(made, store.blobs.get)],
        "asks": [ask_json(ask, store.blobs) for ask in open_asks],
    }


def _unbegun(prompt: queue.Prompt) -> dict[str, Any]:
    """A run that has not begun, in the shape of one that has."""
    gone = prompt.state == "retracted"
    return {
        "session": prompt.session,
        "run": prompt.id,
        "outcome": "aborted" if gone else "waiting",
        "result": "",
        "error": {"code": "conflict", "message": "The prompt was taken back before it began."} if gone else None,
        "usage": dict(NO_TOKENS),
        "cost": 0.0,
        "changes": [],
        "asks": [],
        "queued": queue_json(prompt),
    }


def queue_json(prompt: queue.Prompt) -> dict[str, Any]:
    """A prompt of the queue: its id (that of the run it becomes), its session, state, why it is held, since when it waits."""
    return {
        "id": prompt.id,
        "session": prompt.session,
        "state": "held" if prompt.held is not None and prompt.state == "queued" else prompt.state,
        "held": prompt.held,
        "now": prompt.now,
        "run": prompt.run,
        "queued": rfc3339(prompt.queued),
    }


def answer(parts: list[dict[str, Any]], blobs: Blobs) -> str:
    """The final answer in a message: the text of the last model call that had any."""
    texts: list[str] = []
    before = None
    for part in parts:
        kind = part.get("type")
        if kind == "step":
            texts.append("")
        elif kind == "text" and isinstance(text := blobs.resolve(part).get("text"), str):
            if before == "text":  # one text in pieces: providers sign or cite a piece of it
                texts[-1] += text
            else:
                texts.append(text)
        before = kind
    last: list[str] = []
    for text in reversed(texts):
        if text:
            last.append(text)
        elif last:
            break
    return "\n\n".join(reversed(last))


def changed_files(store: Store, session: str, *, undone: bool = False) -> list[dict[str, Any]]:
    """The net changes of a session that stand, each with its hunks and its review: pending, kept, or conflict where the disk holds
    something else by now. With `undone` those that were taken back as well."""
    from pathlib import Path

    with store.view() as view:
        rows, agreed = changes.standing(view, session), changes.kept(view, session)
        gone = changes.undone(view, session) if undone else []
        root = Path(projects.get(view, sessions.get(view, session).project).folder)
    load = store.blobs.get
    shown = []
    for one in changes.net(rows, load):
        file = changes.file_json(one, load, agreed.get(one.path))
        shown.append({**file, "review": "conflict"} if _is_other(root, one) else file)
    stand = {file["path"] for file in shown}
    back = [changes.file_json(one, load) for one in changes.net(gone, load) if one.path not in stand]
    return shown + [{**file, "review": "undone", "hunks": _undone(file["hunks"])} for file in back]


def _undone(hunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**hunk, "review": "undone"} for hunk in hunks]


def _is_other(root: Path, one: changes.Net) -> bool:
    """Whether the disk holds neither what the session left nor what was there before; False where the project is not there."""
    if not root.is_dir():
        return False
    from stead.app.undo.disk import place, seen

    try:
        have, _ = seen(place(root, one.path, one.encoded))
    except SteadError:
        return True
    return not changes.same(have, one.after.state) and not changes.same(have, one.before.state)


def patch_of(store: Store, session: str) -> bytes:
    """The same as one patch that `git apply` takes, exact to the byte."""
    with store.view() as view:
        rows = changes.standing(view, session)
    return b"".join(changes.patch_of(one, store.blobs.get) for one in changes.net(rows, store.blobs.get))


def not_covered(view: Reads, session: str) -> list[dict[str, Any]]:
    """What a session changed, or may have changed, and cannot take back."""
    return [one.to_json() for one in changes.unique(changes.uncovered(view, session))]


def ask_json(ask: asks.Ask, blobs: Blobs | None = None) -> dict[str, Any]:
    """An ask: its id, where it belongs, its state, what it is about; once it is answered, how and by whom. With `blobs` its long
    texts are whole; call it outside of a view then."""
    about, answer = (ask.about, ask.answer) if blobs is None else blobs.resolve([ask.about, ask.answer])
    shown = {"id": ask.id, "session": ask.session, "run": ask.run, "kind": ask.kind, "status": ask.status, **about}
    if answer is not None:
        shown["answer"], shown["by"] = answer, ask.answered_by
    return shown


# --- sessions and messages ----------------------------------------------------------------------------------------------------


def sessions_json(view: Reads, found: Sequence[sessions.Session]) -> list[dict[str, Any]]:
    """Sessions as lists show them, in the order given."""
    ids = [one.id for one in found]
    newest, asked = runs.newest(view, ids), asks.waiting(view, ids)
    return [_session_json(view, one, newest.get(one.id), one.id in asked) for one in found]


def session_json(view: Reads, one: sessions.Session) -> dict[str, Any]:
    """A session by itself: as lists show it, with `parent`, `forked_from` and `head`, the id of its last message."""
    newest = sessions.messages(view, one.id, limit=1)
    origin = None if one.forked_from is None else {"session": one.forked_from, "message": f"{one.forked_from}.{one.forked_at}"}
    more = {"parent": one.parent, "forked_from": origin, "head": newest[0].id if newest else None}
    return {**_session_json(view, one, runs.last(view, one.id), one.id in asks.waiting(view, [one.id])), **more}


def tree_json(view: Reads, one: sessions.Session) -> dict[str, Any]:
    """The messages of a session as a tree, without their parts: `{messages: [{id, parent, role, active, created}], forks,
    children}`."""
    messages = [
        {
            "id": message.id,
            "parent": f"{one.id}.{message.parent}" if message.parent else None,
            "role": message.role,
            "active": message.left_by == 0,
            "created": rfc3339(message.created),
            "text": _first_line(message),
        }
        for message in sessions.messages(view, one.id, all_branches=True)
    ]
    forks = [{"id": fork.id, "title": fork.title, "message": f"{one.id}.{fork.forked_at}"} for fork in sessions.forks(view, one.id)]
    children = [{"id": child.id, "title": child.title} for child in sessions.children(view, one.id)]
    return {"messages": messages, "forks": forks, "children": children}


def _first_line(message: sessions.Message) -> str:
    for _, part in message.parts:
        if isinstance(part, dict) and part.get("type") == "text":
            text = part.get("text")
            return one_line(text if isinstance(text, str) else str((text or {}).get("head", "")), 80)
    return ""


def with_open(view: Reads, found: list[sessions.Message]) -> list[sessions.Message]:
    """A page of messages with what still grows in the last of them: open texts and thoughts (`open: true`), the output so far of a
    tool at work. Where a process died and its run could not be closed yet, they are marked as cut instead."""
    if not found or found[-1].run is None:
        return found
    last = found[-1]
    growing = partials.open_parts(view, last.session, last.n)
    tools = partials.tool_calls(view, last.session, last.n)
    if not growing and not tools:
        return found
    mark = {"cut": True} if runs.get(view, found[-1].run).status == "ended" else {"open": True}
    parts = [(n, {**part, "output": tools[n].output, **mark} if n in tools else part) for n, part in last.parts]
    parts += [(n, {**part, **mark}) for n, part in growing if part["text"]]
    return [*found[:-1], dataclasses.replace(last, parts=sorted(parts, key=lambda pair: pair[0]))]


def message_json(one: sessions.Message, blobs: Blobs, *, full: bool = True) -> dict[str, Any]:
    """A message with its moved texts back in place. Without `full`, texts over 64 KiB are cut: such a part has `truncated` and
    `bytes`, the size of the longest before. Reads blobs: call it outside of a view. Raises as `Blobs.get` does."""
    whole = dataclasses.replace(one, parts=[(n, blobs.resolve(part)) for n, part in one.parts])
    body = sessions.message_json(whole)
    if not full:
        for part in body["parts"]:
            _cut(part)
    return body


def _session_json(view: Reads, one: sessions.Session, last: runs.Run | None, asked: bool) -> dict[str, Any]:
    status = runs.session_status(last)
    return {
        "id": one.id,
        "title": one.title,
        "project": one.project,
        "path": projects.get(view, one.project).path,
        "agent": one.agent,
        "model": one.model,
        "status": "waiting" if asked and status == "running" else status,
        "last_run": (last.outcome or last.status) if last else None,
        "created": rfc3339(one.created),
        "updated": rfc3339(one.updated),
        "messages": one.messages,
        "cost": one.cost,
        "pinned": one.pinned,
        "archived": one.archived,
    }


def _cut(part: dict[str, Any]) -> None:
    """Cut the part's long texts, those of its input among them, and say so in the part."""
    longest = _cut_texts(part, ("text", "output", "error", "summary", "arguments"))
    if isinstance(given := part.get("input"), dict):
        longest = max(longest, _cut_texts(given, tuple(given)))
    if longest:
        part["truncated"], part["bytes"] = True, longest


def _cut_texts(holder: dict[str, Any], names: Sequence[str]) -> int:
    """Cut the long ones of these texts; the bytes of the longest before, 0 where none was cut."""
    longest = 0
    for name in names:
        text = holder.get(name)
        if isinstance(text, str) and (size := len(text.encode("utf-8", "surrogatepass"))) > TEXT_BYTES:
            holder[name] = cut_bytes(text, TEXT_BYTES)
            longest = max(longest, size)
    return longest


# --- events -------------------------------------------------------------------------------------------------------------------


def event_json(event: Event[Any], blobs: Blobs) -> dict[str, Any]:
    """An event as streams show it. A part has its public shape, and moved text stands in its place again."""
    fields = {name: getattr(event.data, name) for name in type(event.data).fields}
    if "part" in fields and "message" in fields:
        fields["part"] = sessions.part_json(event.stream, fields["message"], fields["n"], blobs.resolve(fields["part"]))
    elif event.kind == "tool.ended":
        fields["result"] = blobs.resolve(fields["result"])
    elif event.kind == "ask.opened":
        fields["about"] = blobs.resolve(fields["about"])
    elif event.kind == "ask.answered":
        fields["answer"] = blobs.resolve(fields["answer"])
    elif event.kind in ("prompt.queued", "prompt.changed"):
        fields["parts"] = blobs.resolve(fields["parts"])
    return {
        "seq": event.seq,
        "kind": event.kind,
        "session": event.stream,
        "run": event.run,
        "time": rfc3339(event.ts),
        "data": fields,
    }
