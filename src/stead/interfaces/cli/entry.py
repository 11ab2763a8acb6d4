"""From arguments to an exit code: chooses the command, runs it, and says what went wrong in one place and one way."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from stead.core.errors import SteadError
from stead.interfaces.cli import codes, faults, out

COMPLETE = "_STEAD_COMPLETE"
"""The variable by which a shell's completion script asks."""


def run(arguments: Sequence[str]) -> int:
    """Run `stead ARGUMENTS` and give its exit code. Nothing is raised but what the interpreter itself needs."""
    out.prepare()
    args = list(arguments)
    try:
        code = _answer(args)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        out.give_up()
        return codes.PIPE
    except KeyboardInterrupt:
        return codes.OUTCOMES["aborted"]
    except SteadError as error:
        return _tell(error, args)
    except Exception as error:
        if os.environ.get("STEAD_DEBUG"):
            raise
        return _tell(faults.as_error(error), args)


def _answer(args: list[str]) -> int:
    if args in (["--version"], ["-V"]):
        from stead import __version__

        out.line(f"stead {__version__}")
        return 0
    if COMPLETE in os.environ:
        return _complete(args)
    if not args and sys.stdin.isatty() and sys.stdout.isatty():
        args = ["chat"]
    return _dispatch(args)


def _complete(args: list[str]) -> int:
    """Offer a shell what may come next."""
    from typer.completion import get_completion_inspect_parameters

    from stead.interfaces.cli.tree import root

    get_completion_inspect_parameters()  # this is how typer makes its shells known
    try:
        root(rich=False).main(args, prog_name="stead", complete_var=COMPLETE)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def _dispatch(args: list[str]) -> int:
    import typer

    from stead.interfaces.cli.tree import HelpWanted, root

    tree = root(rich=out.colours(sys.stdout))
    try:  # not tree.main(): that has its own ideas about broken pipes and errors
        with tree.make_context("stead", args) as context:
            given = tree.invoke(context)
    except HelpWanted as wanted:
        out.err(wanted.message)
        return 2
    except typer.Exit as ended:
        return ended.exit_code
    except typer.TyperException as error:
        where = getattr(getattr(error, "ctx", None), "command_path", "stead")
        raise SteadError("usage", error.format_message(), hint=f"`{where} --help` explains it.") from None
    except typer.Abort:
        return codes.OUTCOMES["aborted"]
    return given if isinstance(given, int) else 0


def _tell(error: SteadError, args: Sequence[str]) -> int:
    """The error on stderr as one line (and its hint), and as the one JSON value where JSON was asked for."""
    out.error(error)
    try:
        if "--json" in args:
            out.json({"error": error.to_json()})
        elif "--stream-json" in args:
            out.json_line({"error": error.to_json()})
        sys.stdout.flush()
    except OSError:  # it may be stdout itself that the error is about
        out.give_up()
    return codes.of_error(error.code)
