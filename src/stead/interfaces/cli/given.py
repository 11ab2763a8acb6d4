"""What a run is given: the prompt from the argument and from stdin, and files."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.interfaces.cli import out

if TYPE_CHECKING:
    from stead.app import Stead

_PATIENCE = 3.0  # seconds before a person is told that stdin is being waited for


def texts(argument: str | None, *, stdin_is_file: bool) -> list[str]:
    """The texts of a prompt: the argument, or what was piped; of both the piped one is context. Raises `usage` for none.

    `stdin_is_file`: stdin belongs to `-f -` and is not looked at.
    """
    piped = "" if stdin_is_file or sys.stdin is None or sys.stdin.isatty() else _piped(beside=argument is not None)
    if argument is None:
        if not piped.strip():
            raise _empty()
        return [piped.rstrip("\n")]
    if not argument.strip():
        raise _empty()
    argument = argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return [argument, f"<stdin>\n{piped.rstrip()}\n</stdin>"] if piped.strip() else [argument]


def _empty() -> SteadError:
    return SteadError("usage", "There is no prompt.", hint="Give it as an argument or on stdin: stead run 'What does this do?'")


def _piped(*, beside: bool) -> str:
    """All of stdin. Beside an argument a stdin that is neither a pipe nor a file (cron, services) is not waited for."""
    if beside and not _carries(sys.stdin.fileno()):
        return ""
    return _read_all().decode("utf-8", "replace").removeprefix("\ufeff")


def _carries(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _read_all() -> bytes:
    from select import select

    fd = sys.stdin.fileno()
    if not select([fd], [], [], _PATIENCE)[0]:
        out.note("waiting for the end of stdin …")
    chunks = []
    while chunk := os.read(fd, 1 << 16):
        chunks.append(chunk)
    return b"".join(chunks)


def files(house: Stead, paths: Sequence[str]) -> list[Any]:
    """Each file as a stored attachment's part; `-` is stdin. Raises `not_found`, `usage`."""
    from stead.domain import attachments

    if paths.count("-") > 1:
        raise SteadError("usage", "-f - can be given once: there is one stdin.")
    read = [(path, _content(path)) for path in paths]  # all of them before any is stored
    folder = house.data / "attachments"
    return [
        attachments.add(folder, house.store.ids.new(), "stdin" if path == "-" else out.plain(os.path.basename(path)), content)
        for path, content in read
    ]


def _content(path: str) -> bytes:
    from stead.store.safefile import from_os

    if path == "-":
        if sys.stdin.isatty():
            raise SteadError("usage", "-f - reads stdin, and nothing is piped into it.")
        return _read_all()
    try:
        return Path(path).expanduser().read_bytes()
    except IsADirectoryError:
        raise SteadError("usage", f"{out.plain(path)} is a folder; -f takes files.") from None
    except OSError as error:
        raise from_os(error, Path(path)) from None
