"""A house with a project for tests of the loop, and short words for looking into what was stored."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stead.agent.models.script import ScriptModel
from stead.agent.models.script_file import parse
from stead.app import RunHandle, Stead
from stead.core.events import Event
from stead.domain import providers, runs, sessions
from tests.agent.servers import KEY, MODELS, Server
from tests.support import ROOT

ENVIRON = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}


def project(tmp_path: Path) -> Path:
    """A project folder with one small file."""
    folder = tmp_path / "project"
    folder.mkdir(exist_ok=True)
    (folder / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    return folder


def house(tmp_path: Path, **more: Any) -> Stead:
    """The house in `tmp_path/data`; opened again, the same one."""
    return Stead.open(tmp_path / "data", config_dir=tmp_path / "config", **{"environ": ENVIRON, **more})


async def provide(opened: Stead, server: Server, name: str | None = None) -> str:
    """Save the server as a provider with a stored key; gives the model reference to use."""
    name = name or server.kind
    with opened.store.view() as view:
        key = providers.seal_key(view, opened.secrets, name, KEY)
    await opened.store.commit(lambda tx: providers.save(tx, name, kind=server.kind, url=server.url, key=key))
    return f"{name}/{MODELS[server.kind]}"


def script(turns: Any, **more: Any) -> dict[str, Any]:
    """`models=` for a house: the provider `fake` plays these turns."""
    return {"fake": ScriptModel(parse(json.dumps({"turns": turns, **more})))}


def write_script(folder: Path, turns: Any, name: str = "play.yaml") -> str:
    """A script file in the project; gives its model reference."""
    (folder / name).write_text(json.dumps({"turns": turns}))
    return f"script/{name}"


def use(tool: str, **input: Any) -> dict[str, Any]:
    """A tool call in a script."""
    return {"tool": tool, "input": input}


def parts(opened: Stead, run: RunHandle | str) -> list[dict[str, Any]]:
    """The parts of the run's answer as they are stored, long strings in their place."""
    with opened.store.view() as view:
        found = runs.get(view, run if isinstance(run, str) else run.id)
        stored = sessions.message(view, found.session, found.message).parts
    return [opened.store.blobs.resolve(part) for _, part in stored]


def tools(opened: Stead, run: RunHandle | str) -> list[dict[str, Any]]:
    return [part for part in parts(opened, run) if part["type"] == "tool"]


def kinds(opened: Stead, run: RunHandle | str) -> list[str]:
    return [part["type"] for part in parts(opened, run)]


def events(opened: Stead, stream: str | None = None, kind: str | None = None) -> list[Event[Any]]:
    with opened.store.view() as view:
        found = view.events(stream=stream, limit=100_000)
    return [event for event in found if kind in (None, event.kind)]


def calls(opened: Stead, run: str) -> list[dict[str, Any]]:
    """The run's rows in the usage ledger."""
    with opened.store.view() as view:
        rows = view.q("SELECT purpose, estimated, input, output, cost_nano FROM usage_calls WHERE run=? ORDER BY seq", run)
    return [dict(zip(("purpose", "estimated", "input", "output", "nano"), row, strict=True)) for row in rows]


def status(opened: Stead, session: str) -> str:
    with opened.store.view() as view:
        return runs.session_status(runs.last(view, session))


async def until(true: Callable[[], Any], seconds: float = 4.0) -> None:
    """Wait for something that a test made happen."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.01)


class Child:
    """A process of its own that runs `program` (Python; `house`, `project`, `data` and everything of this module are at hand in
    it) as the body of a coroutine. What it prints are lines for `line`."""

    def __init__(self, tmp_path: Path, program: str, env: dict[str, str] | None = None) -> None:
        body = "\n".join(f"        {line}" for line in program.strip("\n").split("\n"))
        whole = (
            "import asyncio, sys\nfrom pathlib import Path\nfrom tests.agent.house import *\n"
            f"tmp = Path({str(tmp_path)!r})\n"
            f"async def main():\n    async with house(tmp) as at:\n{body}\n"
            "asyncio.run(main())\n"
        )
        paths = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
        self.process = subprocess.Popen(
            [sys.executable, "-c", whole],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": paths, **(env or {})},
            cwd=ROOT,
        )

    def line(self) -> Any:
        """The next thing that it told."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline()
        assert text, f"the process ended with {self.process.wait()}"
        return json.loads(text)

    async def told(self) -> Any:
        return await asyncio.to_thread(self.line)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.close()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def tell(value: Any) -> None:
    """What a `Child` says with it, its `line` gives."""
    print(json.dumps(value), flush=True)
