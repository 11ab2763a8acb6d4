"""`stead run`: one prompt, seen through to its end."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from stead.core.errors import SteadError
from stead.interfaces.cli import given, out
from stead.interfaces.cli.options import Agent, Folder, Model
from stead.interfaces.cli.place import offer_relink, opened, project_here

if TYPE_CHECKING:
    from stead.agent.gate import Rule
    from stead.app import RunHandle, Stead
    from stead.interfaces.cli.turn import Played, Wanted

OnAsk = Literal["deny", "allow", "wait"]
_NAMES = {"json": "--json", "stream_json": "--stream-json", "go_on": "-c", "resume": "-r", "quiet": "-q", "verbose": "-v"}


def run(
    prompt: Annotated[
        str | None, typer.Argument(help="What to do. Piped text is the prompt, too; beside this one its context.")
    ] = None,
    folder: Folder = ".",
    model: Model = None,
    agent: Agent = None,
    go_on: Annotated[bool, typer.Option("--continue", "-c", help="Go on with the session last used in this project.")] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", "-r", metavar="SESSION", help="Go on with this one: id, start of the id, or title.")
    ] = None,
    fork: Annotated[
        str | None,
        typer.Option("--fork", metavar="[MESSAGE]", help="Not in that session but in a fork of it, at its end or at MESSAGE."),
    ] = None,
    files: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="PATH", help="Give a file along; - is stdin. May be repeated.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option("--allow", metavar="RULE", help="Let calls that fit RULE happen unasked. May be repeated.")
    ] = None,
    deny: Annotated[
        list[str] | None, typer.Option("--deny", metavar="RULE", help="Never let calls that fit RULE happen. May be repeated.")
    ] = None,
    on_ask: Annotated[
        OnAsk | None, typer.Option("--on-ask", help="Instead of asking a person. Default: ask on a terminal, else deny.")
    ] = None,
    max_steps: Annotated[int | None, typer.Option("--max-steps", metavar="N", min=1, help="The most model calls.")] = None,
    max_cost: Annotated[float | None, typer.Option("--max-cost", metavar="DOLLARS", min=0, help="The most money.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object about the run.")] = False,
    stream_json: Annotated[bool, typer.Option("--stream-json", help="Print each event as a line of JSON.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the final answer into FILE, too.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress on stderr.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show reasoning and the output of tools.")] = False,
) -> int:
    """Give the agent a prompt and see it through.

    stdout has the final answer alone, stderr the progress. Ctrl-C aborts the run and keeps the session.
    """
    _check(json=json, stream_json=stream_json, go_on=go_on, resume=resume, fork=fork, quiet=quiet, verbose=verbose, output=output)
    rules = _rules(allow or [], deny or [])
    texts = _texts(prompt, None if fork is not None else resume, stdin_is_file="-" in (files or ()))
    with opened() as house:
        session = _session(house, folder, go_on=go_on, resume=resume)
        if fork is not None and session is not None:
            session = house.fork(session, fork or None)
        wanted = _wanted(house, folder, session, texts or [], files or [])
        wanted.model, wanted.agent, wanted.max_steps, wanted.max_cost, wanted.rules = model, agent, max_steps, max_cost, rules
        answered = session is not None and texts is None and not files
        if answered:
            _refuse_new_terms(model=model, agent=agent, max_steps=max_steps, max_cost=max_cost)
        shown = {"json": json, "stream_json": stream_json, "quiet": quiet, "verbose": verbose}
        try:
            played = _play(house, wanted, on_ask, resume=answered, **shown)
        except SteadError as error:
            if not answered or error.code != "conflict" or "run" not in (error.details or {}):
                raise
            return _still_waits(house, error, json=json)
        return _tell(house, played, output, json=json, stream_json=stream_json, quiet=quiet)


# --- before -------------------------------------------------------------------------------------------------------------------


def _check(**options: Any) -> None:
    """Refuse options that do not go together."""
    for one, other in (("json", "stream_json"), ("go_on", "resume"), ("quiet", "verbose")):
        if options[one] and options[other]:
            raise SteadError("usage", f"{_NAMES[one]} and {_NAMES[other]} cannot be used together.")
    if options["fork"] is not None and not options["go_on"] and options["resume"] is None:
        raise SteadError("usage", "--fork needs a session to fork.", hint="-c is the last one of this project, -r SESSION any.")
    if options["output"] is not None:
        path = Path(options["output"]).expanduser()
        if path.is_dir() or not path.parent.is_dir():
            raise SteadError("usage", f"-o cannot write {out.plain(str(path))}: there is no such folder, or it is one.")


def _refuse_new_terms(**options: Any) -> None:
    """A run that goes on with its answer goes on as it began; only rules may be added."""
    for name, value in options.items():
        if value is not None:
            flag = f"--{name.replace('_', '-')}"
            hint = "With a prompt it holds for the run of that prompt."
            raise SteadError("usage", f"{flag} cannot change a run that goes on where it stopped.", hint=hint)


def _rules(allow: list[str], deny: list[str]) -> list[Rule]:
    if not allow and not deny:
        return []
    from stead.agent.gate import broad, parse

    rules = [parse(text, "allow", "flag", "--allow") for text in allow] + [parse(text, "deny", "flag", "--deny") for text in deny]
    for rule in rules:
        if (warning := broad(rule)) and rule.pattern is not None:
            out.note(f"--allow {rule.text}: {warning}")
    return rules


def _texts(prompt: str | None, resume: str | None, *, stdin_is_file: bool) -> list[str] | None:
    """The texts of the prompt; None where there is none and none is needed, because a run is to go on with its answer."""
    try:
        return given.texts(prompt, stdin_is_file=stdin_is_file)
    except SteadError:
        if prompt is None and resume is not None:
            return None
        raise


def _session(house: Stead, folder: str, *, go_on: bool, resume: str | None) -> str | None:
    """The session to go on with, None for a new one. Raises `not_found`, `ambiguous`, `project_missing`."""
    if not go_on and resume is None:
        return None
    from stead.interfaces.cli.place import session_named

    with house.store.view() as view:
        return session_named(view, resume, folder).id


def _wanted(house: Stead, folder: str, session: str | None, texts: list[str], files: list[str]) -> Wanted:
    from stead.interfaces.cli.turn import Wanted

    if session is None:
        offer_relink(house, folder)  # also: refuse a folder that does not exist before files are taken in
    parts: list[Any] = [{"type": "text", "text": text} for text in texts]
    return Wanted(session=session, parts=[*parts, *given.files(house, files)], project=folder)


# --- the run ------------------------------------------------------------------------------------------------------------------


def _play(
    house: Stead, wanted: Wanted, on_ask: OnAsk | None, *, resume: bool, json: bool, stream_json: bool, quiet: bool, verbose: bool
) -> Played:
    """See the run through: that of a new prompt, or the one that waits in the session for an answer."""
    import asyncio

    from stead.interfaces.cli.asking import at_terminal, can_ask
    from stead.interfaces.cli.progress import Progress
    from stead.interfaces.cli.stream import Lines
    from stead.interfaces.cli.turn import Both, play

    live = not json and not stream_json and sys.stdout.isatty() and sys.stderr.isatty()
    progress = Progress(house, quiet=quiet, verbose=verbose, live=live)
    sink = Both(Lines(house.store.blobs), progress) if stream_json else progress
    choice = on_ask or _setting(house, wanted, "on_ask")
    wanted.on_ask = choice or (at_terminal(house, progress.clear) if can_ask() else "deny")

    async def begin(house: Stead) -> RunHandle:
        if not resume:
            return await wanted.send(house)
        assert wanted.session is not None
        return await house.resume(wanted.session, on_ask=wanted.on_ask, rules=wanted.rules)

    try:
        played = asyncio.run(play(house, begin, sink))
    except SteadError as error:
        if error.code == "no_key":
            from stead.interfaces.cli.first import way_in

            raise way_in(house, error) from None
        raise
    progress.clear()
    return played


def _still_waits(house: Stead, error: SteadError, *, json: bool) -> int:
    """The run that is to go on has no answer yet: say so as it was said when it began to wait."""
    from stead.interfaces.cli.codes import OUTCOMES

    out.error(error)
    if json:
        out.json(house.run_json(str((error.details or {})["run"])))
    return OUTCOMES["waiting"]


def _setting(house: Stead, wanted: Wanted, name: str) -> Any:
    from stead.domain import sessions, settings

    with house.store.view() as view:
        if wanted.session:
            project: str | None = sessions.get(view, wanted.session).project
        else:
            here = project_here(view, wanted.project)
            project = here.id if here else None
        values = settings.effective(view, project=project, session=wanted.session, file_layer=house.user_file().settings)
    return values[name].value


# --- after --------------------------------------------------------------------------------------------------------------------


def _tell(house: Stead, played: Played, output: str | None, *, json: bool, stream_json: bool, quiet: bool) -> int:
    from stead.interfaces.cli import ending

    result, unwritten = played.result, None
    if output is not None:
        try:
            ending.write_answer(Path(output).expanduser(), result["result"])
        except SteadError as error:  # the run and its answer are there all the same
            unwritten = error
            result["error"] = result["error"] or {"code": error.code, "message": error.message}
    if json:
        out.json(result)
    elif not stream_json and not (not quiet and sys.stdout.isatty() and sys.stderr.isatty()) and result["result"]:
        out.line(out.plain(result["result"]))
    sys.stdout.flush()
    ending.tell(house, played, quiet=quiet)
    return played.exit_code or int(unwritten is not None)
