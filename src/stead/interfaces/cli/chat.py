"""`stead chat`: a conversation at the terminal, a line a prompt."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.interfaces.cli import ending, faults, out
from stead.interfaces.cli.options import Agent, Folder, Model
from stead.interfaces.cli.place import opened, session_named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from stead.app import RunHandle, Stead
    from stead.domain.asks import Ask
    from stead.interfaces.cli.turn import Wanted

HELP = """/diff [--patch]     what this session changed in files
/model [NAME]       the model: see it, or take another
/agent [NAME]       the agent: see it, or take another
/undo               take back your last message and what came of it: files and conversation
/redo               take an undo back
/fork               go on in a copy of this conversation
/help               this list
/exit               leave (Ctrl-D too); the session stays

A line that ends in \\ goes on in the next one. Ctrl-C aborts what the agent does."""


def chat(
    session: Annotated[str | None, typer.Argument(help="Go on with this session: id, start of the id, or title.")] = None,
    folder: Folder = ".",
    model: Model = None,
    agent: Agent = None,
) -> int:
    """Talk with the agent, line by line. What it wants to do is asked here; /help lists the commands."""
    if not sys.stdin.isatty():
        raise SteadError("usage", "chat needs a terminal.", hint="For programs there is `stead run`.")
    from stead.domain import projects
    from stead.interfaces.cli.turn import Wanted

    with opened() as house:
        with house.store.view() as view:
            found = session_named(view, session, folder) if session is not None else None
        if found is None:
            projects.identify(folder)  # refuse a folder that does not exist before anybody types
        wanted = Wanted(
            session=found.id if found else None,
            parts=[],
            project=folder,
            model=model,
            agent=agent,
        )
        with asyncio.Runner() as runner:
            _talk(house, wanted, runner)
    return 0


def _talk(house: Stead, wanted: Wanted, runner: asyncio.Runner) -> None:
    _edit_lines()
    out.note(f"{_place(house, wanted)}. /help lists the commands; Ctrl-D leaves.")
    _take_up(house, wanted, runner)
    while (text := _prompt()) is not None:
        if not text.strip():
            continue
        try:
            if text.startswith("/"):
                if _command(house, wanted, text[1:].split()) == "exit":
                    break
            else:
                wanted.parts = [{"type": "text", "text": text}]
                _turn(house, wanted, wanted.send, runner)
        except SteadError as error:
            out.error(error)
        except Exception as error:  # the conversation goes on, whatever one turn met
            out.error(faults.as_error(error))
    if wanted.session is not None:
        out.note(f"`stead chat {wanted.session}` goes on.")


def _edit_lines() -> None:
    """Give the line arrows and a history, for as long as the process lives. Nothing of it is written to a file."""
    try:
        import readline
    except ImportError:
        return
    readline.set_auto_history(True)


def _place(house: Stead, wanted: Wanted) -> str:
    from stead.domain import projects

    return f"In {projects.identify(wanted.project).path}" + (f", session {wanted.session}" if wanted.session else ", a new session")


def _prompt() -> str | None:
    """The next prompt, None at the end. Ctrl-C drops what was typed."""
    lines: list[str] = []
    while True:
        try:
            line = input("… " if lines else "> ")
        except EOFError:
            out.err()
            return None
        except KeyboardInterrupt:
            out.err()
            lines.clear()
            continue
        line = line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        if not line.endswith("\\"):
            return "\n".join([*lines, line])
        lines.append(line[:-1])


def _take_up(house: Stead, wanted: Wanted, runner: asyncio.Runner) -> None:
    """Go on with a run that waits for this person since before the program last ended; say so if another process has one."""
    from stead.domain import runs

    session = wanted.session
    if session is None:
        return
    with house.store.view() as view:
        run = runs.active(view, session)
    if run is not None and run.status == "running":
        out.note("Another process works on this session just now; what you say here waits for its turn.")
    if run is None or run.status != "waiting":
        return
    out.note("A run of this session waits for you; it goes on where it stopped.")

    async def resume(house: Stead) -> RunHandle:
        return await house.resume(session, on_ask=wanted.on_ask)

    try:
        _turn(house, wanted, resume, runner)
    except SteadError as error:
        out.error(error)


def _turn(house: Stead, wanted: Wanted, begin: Callable[[Stead], Awaitable[RunHandle]], runner: asyncio.Runner) -> None:
    """One turn of the conversation: begun by `begin`, seen through, shown."""
    from stead.interfaces.cli.asking import at_terminal
    from stead.interfaces.cli.progress import Progress
    from stead.interfaces.cli.turn import play

    progress = Progress(house, live=sys.stderr.isatty() and sys.stdout.isatty())
    asked = at_terminal(house, progress.clear)

    async def ask(found: Ask) -> dict[str, Any] | None:
        answer = await asked(found)
        _keep(wanted, answer)
        return answer

    async def begun(house: Stead) -> RunHandle:
        handle = await begin(house)
        wanted.session = handle.session  # at once: a turn that ends in a fault is one of this conversation all the same
        wanted.model = wanted.agent = None  # they are the session's from now on
        return handle

    wanted.on_ask = ask
    try:
        played = runner.run(play(house, begun, progress, last=False))
    except SteadError as error:
        if error.code != "no_key":
            raise
        from stead.interfaces.cli.first import way_in

        raise way_in(house, error, runner) from None
    progress.clear()
    if not progress.live and played.result["result"]:
        out.line(out.plain(played.result["result"]))
    ending.tell(house, played, quiet=False, session=False)


def _keep(wanted: Wanted, answer: dict[str, Any] | None) -> None:
    """Rules that the person gave for this session hold for the next prompts, too, until this process ends."""
    from stead.agent.gate import parse

    for rule in (answer or {}).get("rules") or ():
        wanted.rules.append(parse(rule, "allow", "session", "approval"))


def _command(house: Stead, wanted: Wanted, words: list[str]) -> str | None:
    name, *rest = words or ["help"]
    if name in ("exit", "quit"):
        return "exit"
    if name == "help":
        out.err(HELP)
    elif name in ("undo", "redo", "fork"):
        _take_back(house, wanted, name)
    elif name == "diff":
        _diff(house, wanted, patch="--patch" in rest or "-p" in rest)
    elif name in ("model", "agent"):
        _choose(house, wanted, name, rest[0] if rest else None)
    else:
        raise SteadError("usage", f"There is no command /{out.plain(name)}.", hint="/help lists them.")
    return None


def _diff(house: Stead, wanted: Wanted, *, patch: bool) -> None:
    from stead.app.shown import changed_files, patch_of
    from stead.interfaces.cli.diff import write_patch

    files = changed_files(house.store, wanted.session) if wanted.session is not None else []
    if patch and wanted.session is not None:
        write_patch(patch_of(house.store, wanted.session))
    for file in files if not patch else ():
        out.line(f"{file['status']:9} +{file['additions']} -{file['deletions']}  {out.plain(file['path'])}")
    if not files:
        out.note("No file was changed.")


def _take_back(house: Stead, wanted: Wanted, name: str) -> None:
    from stead.app.undo import Wish, foreseen, plan_redo, plan_undo, undo
    from stead.domain.people import LOCAL_ACTOR
    from stead.interfaces.cli.undo import confirm, preview, tell

    if wanted.session is None:
        out.note("Nothing was said yet.")
    elif name == "fork":
        wanted.session = house.fork(wanted.session)
        out.note(f"In session {wanted.session} from now on.")
    else:
        plan = (plan_undo if name == "undo" else plan_redo)(house, wanted.session, Wish())
        preview(house, plan, foreseen(plan))
        if not plan.silent:
            confirm(plan)
            tell(plan, undo(house, plan, by=LOCAL_ACTOR))


def _choose(house: Stead, wanted: Wanted, name: str, value: str | None) -> None:
    from stead.domain import sessions
    from stead.domain.providers.addresses import parse_ref

    if value is None:
        now = getattr(wanted, name)
        if now is None and wanted.session is not None:
            with house.store.view() as view:
                now = getattr(sessions.get(view, wanted.session), name)
        out.note(f"{name}: {now or 'the default'}")
        return
    if name == "model":
        parse_ref(value)
    setattr(wanted, name, value)
    out.note(f"{name}: {value}, from the next prompt on")
