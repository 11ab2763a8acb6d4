"""`stead queue`: the prompts that wait for the run before them to end."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.app.shown import queue_json
from stead.core.text import one_line
from stead.domain import queue, runs, sessions
from stead.domain.people import LOCAL_ACTOR
from stead.interfaces.cli import ending, out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import one_of, opened, session_named
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.domain.queue import Prompt
    from stead.interfaces.cli.turn import Played
    from stead.store.database import Reads

Which = Annotated[str, typer.Argument(help="Which: the id, or its first letters.")]
LINE = 200
NOT_DONE = "The prompt before it did not come to a good end."


def list_queue(
    session: Annotated[str | None, typer.Option("--session", metavar="SESSION", help="Only of this session.")] = None,
    json: Json = False,
) -> int:
    """List the prompts that wait, session by session, in the order in which they begin."""
    with opened() as house:
        with house.store.view() as view:
            found = queue.waiting(view, session_named(view, session).id if session is not None else None)
            shown = [
                {**queue_json(one), "text": text_of(view, one), "title": sessions.get(view, one.session).title} for one in found
            ]
    if json:
        out.json({"prompts": shown})
        return 0
    if not shown and sys.stdout.isatty():
        out.note("No prompt waits.")
    rows = [[one["id"], one["state"], one_line(one["text"], LINE), one["title"], one["session"]] for one in shown]
    table(["id", "state", "text", "title", "session"], rows)
    return 0


def edit(prompt: Which, text: Annotated[str, typer.Argument(help="What it is to say instead.")], json: Json = False) -> int:
    """Change what a waiting prompt says. Its files stay."""
    with opened() as house:
        found = _named(house, prompt)
        with house.store.view() as view:
            parts, _ = queue.content(view, found)
        from stead.agent.begin import prompt_parts

        files = [part for part in parts if part.get("type") == "file"]
        packed = house.store.blobs.pack(prompt_parts([{"type": "text", "text": text}, *files]))
        house.store.write(lambda tx: queue.edit(tx, found.id, tx.unpack(packed)), actor=LOCAL_ACTOR)
        return _told(house, found.id, json, "Changed")


def move(prompt: Which, place: Annotated[int, typer.Argument(help="Its place; 1 is next.", min=1)], json: Json = False) -> int:
    """Give a waiting prompt another place in its session's queue."""
    with opened() as house:
        found = _named(house, prompt)
        house.store.write(lambda tx: queue.move(tx, found.id, place), actor=LOCAL_ACTOR)
        return _told(house, found.id, json, "Moved")


def remove(prompt: Which, json: Json = False) -> int:
    """Take a waiting prompt back."""
    with opened() as house:
        found = _named(house, prompt)
        house.store.write(lambda tx: queue.retract(tx, found.id, by=LOCAL_ACTOR), actor=LOCAL_ACTOR)
        return _told(house, found.id, json, "Taken back")


def send(prompt: Which, json: Json = False) -> int:
    """Send a waiting prompt now. A run at work takes it up behind its present step; else it begins here, as the next."""
    with opened() as house:
        found = _named(house, prompt)
        with house.store.view() as view:
            before = runs.active(view, found.session)
        if before is not None and before.status == "waiting":
            house.store.write(lambda tx: queue.send(tx, found.id), actor=LOCAL_ACTOR)
            return _told(house, found.id, json, "The run waits for a person (`stead inbox`); it hears it when it goes on:")
        return _play(house, [found.id], json, now=True)


def resume(
    session: Annotated[
        str | None, typer.Argument(help="Which: id, start of the id, or title. Default: the one last used here.")
    ] = None,
    json: Json = False,
) -> int:
    """Let the held prompts of a session go on, here and in their order, one after the other."""
    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session)
            waiting = [one.id for one in queue.waiting(view, found.id) if one.owner is None or not house.alive(one.owner)]
        if not waiting:
            out.note("No prompt waits in that session.")
            return _play(house, [], json)
        owner = house.owner()
        house.store.write(lambda tx: queue.resume(tx, waiting, owner), actor=LOCAL_ACTOR)  # at once: nothing comes between them
        try:
            return _play(house, waiting, json)
        finally:
            house.store.write(lambda tx: queue.hold_of(tx, [owner], NOT_DONE))


def text_of(view: Reads, prompt: Prompt) -> str:
    """What a waiting prompt says; of a long text the beginning."""
    parts, _ = queue.content(view, prompt)
    texts = [part["text"] if isinstance(part["text"], str) else part["text"]["head"] for part in parts if part["type"] == "text"]
    return "\n".join(texts)


def _play(house: Stead, prompts: list[str], json: bool, *, now: bool = False) -> int:
    """Work on these prompts, one after the other, up to the first that does not come to a good end. `now`: send them now."""
    import asyncio

    from stead.interfaces.cli.asking import at_terminal, can_ask
    from stead.interfaces.cli.progress import Progress
    from stead.interfaces.cli.turn import play

    progress = Progress(house, live=not json and sys.stdout.isatty() and sys.stderr.isatty())
    ask = at_terminal(house, progress.clear) if can_ask() else None
    results: list[dict[str, Any]] = []
    code = 0
    for prompt in prompts:
        with house.store.view() as view:
            if queue.get(view, prompt).state != "queued" and len(prompts) > 1:
                continue  # begun elsewhere, or taken back, while those before it ran
        played: Played = asyncio.run(play(house, lambda home, prompt=prompt: home.begin(prompt, on_ask=ask, now=now), progress))  # type: ignore[misc]
        progress.clear()
        results.append(played.result)
        if not json and not progress.live and played.result["result"]:
            out.line(out.plain(played.result["result"]))
        ending.tell(house, played, quiet=False)
        code = played.exit_code
        if code:
            break
    if json:
        out.json({"runs": results})
    return code


def _named(house: Stead, text: str) -> Prompt:
    """The waiting prompt that `text` names; one that waits no more is found by its whole id. Raises `not_found`, `ambiguous`."""
    with house.store.view() as view:
        found = {one.id: one for one in queue.waiting(view)}
        named = one_of(text, found, "prompts", lambda prompt: one_line(text_of(view, found[prompt]), LINE))
        return queue.get(view, named or text)


def _told(house: Stead, prompt: str, json: bool, said: str) -> int:
    with house.store.view() as view:
        now = queue.get(view, prompt)
        text = text_of(view, now)
    if json:
        out.json({"prompt": {**queue_json(now), "text": text}})
    else:
        out.note(f"{said} {one_line(out.plain(text), 60)} ({now.id}).")
    return 0
