"""The command line as a person meets it: `stead` in a process of its own, keys and prompts over stdin."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import run_stead

KEY = "sk-judges-0123456789abcdef"
NAME = "judged"


@dataclass(frozen=True)
class Seen:
    """A run: its exit code, the one object on stdout, stderr, and the messages that `sessions show` has of it."""

    code: int
    run: dict[str, Any]
    err: str
    messages: list[dict[str, Any]]

    @property
    def parts(self) -> list[dict[str, Any]]:
        """What the model's side said, over all its messages."""
        return [part for message in self.messages if message["role"] == "assistant" for part in message["parts"]]

    def each(self, kind: str) -> list[str]:
        return [part["text"] for part in self.parts if part["type"] == kind]

    def texts(self) -> str:
        return "".join(self.each("text"))

    @property
    def tools(self) -> list[dict[str, Any]]:
        return [part for part in self.parts if part["type"] == "tool"]


def project(folder: Path) -> Path:
    """A project with one small file."""
    made = folder / "proj"
    made.mkdir()
    (made / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    return made


def add_provider(kind: str, url: str) -> None:
    """Make the server at `url` known, its key from stdin."""
    done = run_stead("provider", "add", NAME, "--kind", kind, "--url", url, "--key-stdin", "--json", stdin=KEY + "\n")
    assert done.returncode == 0, done.stderr.decode()
    assert json.loads(done.stdout)["provider"]["has_key"] and KEY.encode() not in done.stdout + done.stderr


def prompt(proj: Path, model: str, text: str, *options: str) -> Seen:
    """`printf TEXT | stead run -C proj -m judged/MODEL --json`, and what the session holds afterwards."""
    done = run_stead("run", "-C", str(proj), "-m", f"{NAME}/{model}", "--json", *options, stdin=text, timeout=80)
    assert done.stdout.count(b"\n") == 1 and done.stdout.endswith(b"\n"), done.stdout  # one object, and nothing beside it
    assert KEY.encode() not in done.stdout + done.stderr
    run = json.loads(done.stdout)
    assert "session" in run, done.stdout + done.stderr
    shown = run_stead("sessions", "show", run["session"], "--full", "--json")
    assert shown.returncode == 0, shown.stderr.decode()
    return Seen(done.returncode, run, done.stderr.decode(), json.loads(shown.stdout)["messages"])
