"""The command line inside this process: arguments and stdin in, exit code and both outputs out."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stead.interfaces.cli import entry


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value on stdout; there must be no other and one line end."""
        value, end = json.JSONDecoder().raw_decode(self.out)
        assert self.out[end:] == "\n", self.out
        return value

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


def stead(*arguments: str, stdin: bytes | None = None, cwd: Path | None = None) -> Done:
    """Run `stead ARGUMENTS`; without `stdin` it is /dev/null, with it a file that holds these bytes."""
    with _streams(stdin) as (out, err), _folder(cwd):
        code = entry.run(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        return Done(code, out.getvalue().decode(), err.getvalue().decode())


@contextmanager
def _streams(stdin: bytes | None) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    import tempfile

    before = sys.stdin, sys.stdout, sys.stderr
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    out, err = io.BytesIO(), io.BytesIO()
    with tempfile.TemporaryFile() as given, open(os.devnull, "rb") as null:
        given.write(stdin or b"")
        given.seek(0)
        sys.stdin = io.TextIOWrapper(null if stdin is None else given)  # type: ignore[arg-type]
        sys.stdout, sys.stderr = io.TextIOWrapper(out), io.TextIOWrapper(err)
        try:
            yield out, err
        finally:
            for stream in (sys.stdin, sys.stdout, sys.stderr):
                stream.detach()
            sys.stdin, sys.stdout, sys.stderr = before
            for number, handler in handlers.items():
                signal.signal(number, handler)


@contextmanager
def _folder(cwd: Path | None) -> Iterator[None]:
    if cwd is None:
        yield
        return
    before = os.getcwd()
    os.chdir(cwd)
    try:
        yield
    finally:
        os.chdir(before)


def project(tmp_path: Path, name: str = "proj") -> Path:
    """A project folder with one small file."""
    folder = tmp_path / name
    folder.mkdir()
    (folder / "calc.py").write_text("def add(a, b):\n    return a - b\n")
    return folder


def script(folder: Path, *turns: Any, name: str = "play.yaml", **more: Any) -> str:
    """A script file in the project; gives its model reference."""
    (folder / name).write_text(json.dumps({"turns": list(turns), **more}))
    return f"script/{name}"


def use(tool: str, **given: Any) -> dict[str, Any]:
    """A turn that calls one tool."""
    return {"tools": [{"tool": tool, "input": given}]}


EDIT = use("edit", path="calc.py", old="a - b", new="a + b")


def kinds(lines: Sequence[str]) -> list[str]:
    """The kinds of the events among lines of --stream-json."""
    return [value["kind"] for value in map(json.loads, lines) if "kind" in value]
