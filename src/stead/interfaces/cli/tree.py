"""The tree of commands for typer. A group knows the names of its commands and a line of each; what is chosen is loaded."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from stead.interfaces.cli.table import COMMANDS, Entry
from stead.interfaces.cli.values import lighten

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


_MESSAGE = re.compile(r"([a-z0-9]{6,}\.)?[0-9]+")
"""The id of a message, or its number: what an option that may stand alone takes for its value."""


class HelpWanted(typer.TyperException):
    """A group was named without a command. The message is the group's help."""


class Stub(TyperCommand):
    """Stands for a command in lists and help until it is wanted."""

    def __init__(self, name: str, entry: Entry) -> None:
        super().__init__(name, help=entry.help)
        self.entry = entry


class Command(TyperCommand):
    """A command whose options are read by us."""

    def get_params(self, ctx: Any) -> Any:
        """The options and arguments, `--help` with them."""
        params = super().get_params(ctx)
        lighten(params)
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments, an option whose value may be left out with an empty one there."""
        may = {name for param in self.params if str(param.metavar or "").startswith("[") for name in param.opts}
        end = args.index("--") if "--" in args else len(args)
        given = [
            f"{arg}=" if arg in may and at < end and not _MESSAGE.fullmatch(args[at + 1] if at + 1 < end else "") else arg
            for at, arg in enumerate(args)
        ]
        return super().parse_args(ctx, given)


class Group(TyperGroup):
    """A group whose commands are stubs; the one that is chosen is loaded. `default` is the one that runs when none is named."""

    default = ""

    def get_params(self, ctx: Any) -> Any:
        """The options; a group has no other than `--help`."""
        params = super().get_params(ctx)
        lighten(params)
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """The arguments behind this group's name."""
        if self.default and (not args or (args[0].startswith("-") and args[0] not in HELP_NAMES["help_option_names"])):
            args = [self.default, *args]
        if not args and not ctx.resilient_parsing:
            self.rich_markup_mode = None  # it goes to stderr, as plain text
            raise HelpWanted(ctx.get_help())
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The chosen command, loaded."""
        name, found, rest = super().resolve_command(ctx, args)
        if isinstance(found, Stub):
            found = build(found.name or "", found.entry, rich=self.rich_markup_mode is not None)
        return name, found, rest


def build(name: str, entry: Entry, *, rich: bool) -> TyperCommand | TyperGroup:
    """The command or group of an entry."""
    mode: Any = "rich" if rich else None
    if entry.below is not None:
        made_group = group(name, entry.help, entry.below, rich=rich)
        made_group.default = entry.default
        return made_group
    module, function = entry.where.split(":")
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=mode, context_settings=HELP_NAMES)
    app.command(name, cls=Command)(getattr(import_module(f"stead.interfaces.cli.{module}"), function))
    made: Any = typer.main.get_command(app)
    return made  # type: ignore[no-any-return]


def group(name: str, help: str, entries: Mapping[str, Entry], *, rich: bool) -> Group:
    """A group of commands, none of them loaded."""
    return Group(
        name=name,
        help=help,
        commands={name: Stub(name, entry) for name, entry in entries.items()},
        rich_markup_mode="rich" if rich else None,
        context_settings=HELP_NAMES,
    )


def root(*, rich: bool) -> Group:
    """`stead` with all its commands. `rich`: help in colour and boxes, for a terminal."""
    return group("stead", _ABOUT, COMMANDS, rich=rich)


_ABOUT = """A local-first workbench for coding agents.

Without a command, on a terminal: chat. `stead --version` prints the version; `stead COMMAND --help` explains a command.
"""
