"""What tests share. Import it as `from tests.support import scale, stead_command`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"


def scale(n: int) -> int:
    """`n` in `make long` (STEAD_SCALE=1), otherwise a hundredth of it, and never less than 1."""
    return max(1, round(n * float(os.environ.get("STEAD_SCALE", "0.01"))))


def stead_command(*arguments: str) -> list[str]:
    """The command line that runs this checkout's stead, for subprocesses of a test."""
    return [sys.executable, "-m", "stead", *arguments]


def run_stead(
    *arguments: str, stdin: str | bytes = b"", cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 20
) -> subprocess.CompletedProcess[bytes]:
    """Run stead in a process of its own and give what it printed (bytes) and its exit code. `env` is added to the environment."""
    return subprocess.run(
        stead_command(*arguments),
        input=stdin.encode() if isinstance(stdin, str) else stdin,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        capture_output=True,
        timeout=timeout,
    )


def imported_by(arguments: Sequence[str], *, cwd: Path | None = None, timeout: float = 20) -> tuple[int, set[str]]:
    """The exit code of `python -m stead ARGUMENTS` and the names of all modules that were loaded when it ended."""
    program = (
        "import atexit, json, os, runpy, sys\n"
        "def tell():\n"
        "    with open(os.environ['_STEAD_MODULES'], 'w') as file:\n"
        "        file.write(json.dumps(sorted(sys.modules)))\n"
        "before = set(sys.modules)\n"
        "atexit.register(tell)\n"
        "sys.argv = ['stead', *sys.argv[1:]]\n"
        "runpy.run_module('stead', run_name='__main__', alter_sys=True)\n"
    )
    with_file = Path(os.environ["STEAD_DATA"]).parent / f"modules-{os.getpid()}.json"
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=cwd,
        env={**os.environ, "_STEAD_MODULES": str(with_file)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
    )
    assert with_file.exists(), f"{arguments}: ended before its exit handlers ran\n{done.stderr.decode(errors='replace')}"
    try:
        return done.returncode, set(json.loads(with_file.read_text()))
    finally:
        with_file.unlink()
