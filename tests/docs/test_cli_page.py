"""docs/cli.md names every command with its arguments and options, in the words of `--help`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from stead.interfaces.cli.table import COMMANDS, Entry
from stead.interfaces.cli.tree import build, root
from tests.support import ROOT

PAGE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")


def commands(entries: Mapping[str, Entry] = COMMANDS, before: str = "stead") -> Iterator[tuple[str, Entry]]:
    for name, entry in entries.items():
        if entry.below is None:
            yield f"{before} {name}", entry
        else:
            yield from commands(entry.below, f"{before} {name}")


def rows(path: str, entry: Entry) -> list[str]:
    """The table rows of a command: arguments, then options, `--help` left out."""
    command: Any = build(path.split()[-1], entry, rich=False)
    found = []
    for param in command.params:
        if param.param_type_name == "argument":
            name = param.name.upper()
            found.append(f"| `{name if param.required else f'[{name}]'}` | {param.help} |")
        else:
            value = "" if param.is_flag else f" {param.metavar or _choices(param)}"
            long_first = sorted(param.opts, key=lambda opt: not opt.startswith("--"))
            found.append(f"| {', '.join(f'`{opt}{value}`' for opt in long_first)} | {param.help} |")
    return [row.replace("|str", "str") for row in found]


def _choices(param: Any) -> str:
    return ", ".join(param.type_descriptor.choices or ()).replace(", ", "/")


@pytest.mark.parametrize("path, entry", list(commands()), ids=lambda value: value if isinstance(value, str) else "")
def test_every_command_has_its_section(path: str, entry: Entry) -> None:
    section = re.search(rf"^### {re.escape(path)}\n(.*?)(?=^##|\Z)", PAGE, re.M | re.S)
    assert section, f"docs/cli.md has no section '### {path}'"
    listed = [line for line in section[1].splitlines() if line.startswith("| `")]
    assert listed == rows(path, entry), "\n".join(["these rows belong there:", *rows(path, entry)])
    assert entry.help in section[1], f"its first sentence is: {entry.help}"


def test_no_section_is_of_a_command_that_is_not_there() -> None:
    assert set(re.findall(r"^### (stead .*)$", PAGE, re.M)) == {path for path, _ in commands()}


def test_the_list_of_commands_and_their_own_help_say_the_same() -> None:
    for path, entry in commands():
        command = build(path.split()[-1], entry, rich=False)
        assert command.help and command.help.endswith("."), path


def test_the_root_lists_them_all_without_loading_any() -> None:
    tree = root(rich=False)
    assert list(tree.commands) == list(COMMANDS)
