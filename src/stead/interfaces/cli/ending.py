"""How a run ended, for stderr: the error or what was refused, the cost, and how to go on."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.domain import changes, queue
from stead.interfaces.cli import out

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.interfaces.cli.turn import Played


def tell(house: Stead, played: Played, *, quiet: bool, session: bool = True) -> None:
    """Say how it ended. Errors and refusals are said also with -q, the summary is not. `session`: name it in the summary."""
    result = played.result
    outcome, failure = result["outcome"], result["error"]
    if outcome == "aborted" and "queued" in result:
        out.err("stead: the prompt was taken back before it began.")
        return
    if failure is not None:
        out.error(SteadError(failure["code"], failure["message"], hint=played.hint))
    go_on = f"stead run -r {result['session']}"
    if outcome == "denied":
        _refused(house, result, played.flags, go_on)
    elif outcome == "waiting" and "queued" in result:
        prompt = result["queued"]
        out.err(f"stead: the prompt waits in the queue. {out.plain(prompt['held'] or '')}".rstrip())
        held = "It is held until you say so: " if prompt["held"] else ""
        out.err(f"  {held}`stead queue send {prompt['id']}` lets it go on, `stead queue remove {prompt['id']}` takes it back.")
    elif outcome == "waiting":
        from stead.interfaces.cli.progress import called

        for ask in result["asks"]:
            about = str(ask["question"]) if ask["kind"] == "question" else called(ask)
            choice = "--text TEXT" if ask["kind"] == "question" else "--allow (or --deny)"
            out.err(f"stead: waits for a person: {out.plain(about)}")
            out.err(f"  `stead inbox answer {ask['id']} {choice}` answers it; `{go_on}` goes on then.")
        out.err(f"  `stead sessions stop {result['session']}` ends the run.")
    elif outcome == "aborted":
        out.err(f"stead: aborted. What was done is kept; `{go_on} PROMPT` goes on.")
    if quiet or "queued" in result:
        return
    out.note(_sum(house, result) + (f"; session {result['session']}" if session else ""))
    with house.store.view() as view:
        lost = changes.unique(changes.uncovered(view, result["session"], run=result["run"]))
        behind = sum(one.held is not None for one in queue.waiting(view, result["session"]))
    if lost:
        shown = ", ".join(out.plain(one.path) for one in lost[:3]) + (f" and {len(lost) - 3} more" if len(lost) > 3 else "")
        out.note(f"Undo does not cover: {shown}. `stead diff --json` says why.")
    if behind and outcome != "waiting":
        waits = "1 held prompt waits" if behind == 1 else f"{behind} held prompts wait"
        out.note(f"{waits}: `stead queue resume {result['session']}` lets them go on.")


def _refused(house: Stead, result: dict[str, Any], flags: list[str], go_on: str) -> None:
    from stead.interfaces.cli.progress import called

    with house.store.view() as view:
        from stead.domain import runs, sessions

        run = runs.get(view, result["run"])
        parts = sessions.message(view, run.session, run.message).parts
    refused = [part for _, part in parts if part.get("type") == "tool" and part.get("status") == "denied"]
    warn = out.style("stead:", "yellow", sys.stderr)
    out.err(f"{warn} refused, because it needs a person's approval and nobody could be asked:")
    for part in refused:
        out.err(f"  {called(part)}")
    allowed = " ".join(flags)
    out.err(f"  To allow it and go on: {out.plain(f'{go_on} {allowed} PROMPT'.replace('  ', ' '))}")


def _sum(house: Stead, result: dict[str, Any]) -> str:
    from stead.domain import runs

    with house.store.view() as view:
        steps = runs.get(view, result["run"]).steps
    pieces = [result["outcome"]]
    if steps:
        pieces.append(f"{steps} step" if steps == 1 else f"{steps} steps")
    if tokens := sum(result["usage"].values()):
        pieces.append(f"{out.count(tokens)} tokens")
    pieces.append("cost unknown" if result["cost"] is None else out.dollars(result["cost"]))
    return ", ".join(pieces)


def write_answer(path: Path, answer: str) -> None:
    """Write the final answer as it is into a file; a device or pipe takes it, too. Raises what `safefile.replace` does."""
    from stead.core.jsontext import shown
    from stead.store import safefile

    content = shown(answer).encode()
    content += b"" if content.endswith(b"\n") or not content else b"\n"
    if not path.exists() or path.is_file():
        safefile.replace(path, content)
        return
    try:
        path.write_bytes(content)
    except OSError as error:
        raise safefile.from_os(error, path) from None
