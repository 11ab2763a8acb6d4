"""`stead demo`: a scripted session in a small project of its own. No key, no network, and nothing of yours is touched."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.interfaces.cli import out
from stead.interfaces.cli.demo_text import FILES, PROMPT, SCRIPT

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.domain.asks import Ask
    from stead.interfaces.cli.turn import Played


def demo(keep: Annotated[bool, typer.Option("--keep", help="Keep the folder with the project and its data.")] = False) -> int:
    """Watch a scripted session: the agent reads, edits, runs a command and asks once. No key and no network are needed."""
    import tempfile

    folder = Path(tempfile.mkdtemp(prefix="stead-demo-")).resolve()
    try:
        code = _show(folder, keep)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return code


def _show(folder: Path, keep: bool) -> int:
    from stead.app import Stead

    project = folder / "tally"
    project.mkdir()
    for name, text in FILES.items():
        (project / name).write_text(text, encoding="utf-8")
    (folder / "script.yaml").write_text(SCRIPT, encoding="utf-8")
    _title("A project", f"{project}: {', '.join(FILES)}")
    _title("A prompt", PROMPT)
    with_keys_away = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")}
    house = Stead.open(folder / "data", config_dir=folder / "config", environ=with_keys_away)
    try:
        played = _play(house, project, folder / "script.yaml")
        _show_end(house, played)
    finally:
        house.close()
    if played.exit_code == 0:
        _show_way_on(folder, project, played.result["session"], keep)
    return played.exit_code


def _play(house: Stead, project: Path, script: Path) -> Played:
    from stead.agent.gate import parse
    from stead.interfaces.cli.asking import at_terminal, can_ask
    from stead.interfaces.cli.progress import Progress
    from stead.interfaces.cli.turn import Wanted, play

    _title("The agent at work", "every step is stored before the next one begins")
    progress = Progress(house, live=sys.stdout.isatty() and sys.stderr.isatty())
    wanted = Wanted(session=None, parts=[{"type": "text", "text": PROMPT}], project=str(project), model=f"script/{script}")
    wanted.rules = [parse("edit", "allow", "flag", "demo")]
    wanted.on_ask = at_terminal(house, progress.clear) if can_ask() else _answered_by_itself(house)
    played = asyncio.run(play(house, wanted.send, progress))
    progress.clear()
    return played


def _answered_by_itself(house: Stead) -> Any:
    """Where nobody can be asked: the answer that a person might give, and said so."""

    async def ask(found: Ask) -> dict[str, Any]:
        about = house.store.blobs.resolve(found.about)
        from stead.interfaces.cli.progress import called

        out.err(f"? May the agent use {called(about)}")
        out.err("  (nobody is at the terminal; the demo answers: yes, once)")
        return {"allow": True, "by": "demo"}

    return ask


def _show_end(house: Stead, played: Played) -> None:
    from stead.app.shown import patch_of
    from stead.interfaces.cli import ending
    from stead.interfaces.cli.diff import write_patch

    result = played.result
    if not (sys.stdout.isatty() and sys.stderr.isatty()) and result["result"]:
        _title("The answer", "")
        out.line(out.plain(result["result"]))
    patch = patch_of(house.store, result["session"])
    if patch:
        _title("What changed", "stead diff --patch")
        write_patch(patch)
    tokens, cost = sum(result["usage"].values()), result["cost"]
    _title("What it cost", f"{out.count(tokens)} tokens, {out.dollars(cost)} (a scripted model is free)")
    if played.exit_code:
        sys.stdout.flush()
        ending.tell(house, played, quiet=True)


def _show_way_on(folder: Path, project: Path, session: str, keep: bool) -> None:
    _title("How to go on", "")
    if keep:
        out.line(f"  This demo stays in {folder}. Look at it with:")
        place = f"STEAD_DATA={folder / 'data'} STEAD_CONFIG={folder / 'config'}"
        out.line(f"    {place} stead sessions show {session}")
        out.line(f"    {place} stead diff -C {project} --patch")
        out.line()
    out.line("  With a model of your own:")
    out.line("    stead provider add anthropic        (or openai, openrouter, gemini, ollama)")
    out.line("    stead chat -m anthropic/MODEL       a conversation in the current folder")
    out.line('    stead run -m anthropic/MODEL "…"    one prompt, for scripts')
    if not keep:
        out.line("  The demo's folder is removed now; `stead demo --keep` keeps it.")


def _title(head: str, text: str) -> None:
    sys.stdout.write("\n")
    out.line(f"{out.style(head, 'bold', sys.stdout)}{': ' if text else ''}{text}")
    sys.stdout.flush()
