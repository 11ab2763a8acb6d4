"""From arguments to an exit code: chooses the command, runs it, and says what went wrong in one place and one way."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from stead.core.errors import SteadError
from stead.interfaces.cli import codes, out

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
        _hush()
        return codes.PIPE
    except KeyboardInterrupt:
        return codes.OUTCOMES["aborted"]
    except SteadError as error:
        return _tell(error, args)
    except Exception as error:
        if os.environ.get("STEAD_DEBUG"):
            raise
        return _tell(_fault(error), args)


def _answer(args: list[str]) -> int:
    if args in (["--version"], ["-V"]):
        from stead import __version__

        out.line(f"stead {__version__}")
        return 0
    if COMPLETE in os.environ:
        from typer.completion import get_completion_inspect_parameters

        get_completion_inspect_parameters()  # this is how typer makes its shells known
    elif not args and sys.stdin.isatty() and sys.stdout.isatty():
        args = ["chat"]
    return _dispatch(args)


def _dispatch(args: list[str]) -> int:
    import typer

    from stead.interfaces.cli.tree import HelpWanted, root

    try:
        given = root(rich=out.colours(sys.stdout)).main(args, prog_name="stead", standalone_mode=False)
    except HelpWanted as wanted:
        out.err(wanted.message)
        return 2
    except typer.TyperException as error:
        context = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "stead"
        raise SteadError("usage", error.format_message(), hint=f"`{where} --help` explains it.") from None
    except typer.Abort:
        raise KeyboardInterrupt from None
    return given if isinstance(given, int) else 0


def _tell(error: SteadError, args: Sequence[str]) -> int:
    """The error on stderr as one line (and its hint), and as the one JSON value where JSON was asked for."""
    out.error(error)
    if "--json" in args:
        out.json({"error": error.to_json()})
    elif "--stream-json" in args:
        out.json_line({"error": error.to_json()})
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _hush()
    return codes.of_error(error.code)


def _fault(error: Exception) -> SteadError:
    """An error that nobody foresaw, as one with a code."""
    if isinstance(error, OSError):
        from stead.store.safefile import from_os

        return from_os(error, error.filename or "the file system")
    hint = "Please report it; with STEAD_DEBUG=1 the whole trace is shown."
    return SteadError("internal", f"{type(error).__name__}: {error}", hint=hint)


def _hush() -> None:
    """Let nothing more be written to a pipe that nobody reads, so that the interpreter ends quietly."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
