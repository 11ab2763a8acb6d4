"""`stead` as others see it: a process that can be killed, what it told before, and what the command line says afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agent.house import house, project, provide
from tests.agent.servers import MODELS
from tests.cli import door
from tests.restart.slow import Stamping
from tests.support import stead_command


class Place:
    """A data folder, a project and a model for one test. The command line is used in the project's folder."""

    def __init__(self, root: Path, env: dict[str, str] | None = None) -> None:
        self.root = root
        self.folder = project(root)
        self.env = {"STEAD_DATA": str(root / "data"), "STEAD_CONFIG": str(root / "config")} if env is None else env

    def provide(self, server: Stamping) -> str:
        """Save the server as a provider; gives the model to name."""

        async def save() -> None:
            async with house(self.root) as at:
                await provide(at, server)

        asyncio.run(save())
        return f"{server.kind}/{MODELS[server.kind]}"

    def start(self, *arguments: str) -> Process:
        """Start `stead ARGUMENTS` as a process of its own."""
        return Process(self, arguments)

    def stead(self, *arguments: str) -> door.Done:
        """What `stead ARGUMENTS` says, run to its end in this process."""
        before = {name: os.environ.get(name) for name in self.env}
        os.environ.update(self.env)
        try:
            return door.stead(*arguments, cwd=self.folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.update({name: value})

    def sessions(self) -> list[dict[str, Any]]:
        """What `stead sessions list --json` lists."""
        done = self.stead("sessions", "list", "--json")
        assert done.code == 0, done
        return list(done.json["sessions"])

    def show(self, session: str) -> dict[str, Any]:
        """What `stead sessions show --json` says of a session."""
        done = self.stead("sessions", "show", session, "--json")
        assert done.code == 0, done
        return dict(done.json)


class Process:
    """`stead` at work. `lines` are the values it printed so far, each with the time at which it was read."""

    def __init__(self, place: Place, arguments: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            stead_command(*arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=place.folder,
            env={**os.environ, **place.env},
        )
        self.lines: list[tuple[float, dict[str, Any]]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.endswith(b"\n"):  # the last one may be torn by the kill
                self.lines.append((time.monotonic(), json.loads(line)))

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events that it told."""
        return [value for _, value in self.lines if "kind" in value]

    def told(self, kind: str) -> bool:
        """Whether it told an event of this kind, or showed a frame of it."""
        return any(kind in (value.get("kind"), value.get("frame")) for _, value in self.lines)

    def until(self, true: Callable[[], Any], seconds: float = 15.0) -> None:
        """Wait for something that this process is to bring about."""
        end = time.monotonic() + seconds
        while not true():
            if self.process.poll() is not None:
                self._reader.join(5)  # what it said last may not have been read yet
                assert true(), f"it ended with {self.process.returncode}"
                return
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.001)

    def kill(self) -> float:
        """SIGKILL; gives the time right before."""
        at = time.monotonic()
        self.process.send_signal(signal.SIGKILL)
        self.close()
        return at

    def close(self) -> None:
        """See it gone."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@dataclass
class Stored:
    """What is stored of a run: the parts of its answer, the log of its session, its rows in the ledger."""

    session: str
    parts: list[dict[str, Any]]
    events: list[dict[str, Any]]
    ledger: list[dict[str, Any]]
    left: int
    """Rows of what is on the screen only."""

    def text(self, kind: str) -> str:
        """The text of all parts of a kind."""
        return "".join(part["text"] for part in self.parts if part["type"] == kind)

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event for event in self.events if event["kind"] == kind]


def stored(place: Place, session: str, message: int = 1) -> Stored:
    """Look into the session; `message` counts from 0, 1 is the first answer."""
    from stead.app.shown import event_json
    from tests.agent.house import calls, events

    parts = place.show(session)["messages"][message]["parts"]
    at = house(place.root)
    try:
        log = events(at, session)
        told = [event_json(event, at.store.blobs) for event in log]
        runs = [event.data.run for event in log if event.kind == "run.started"]
        ledger = calls(at, runs[0])
        with at.store.view() as view:
            tables = ("partials", "open_model_calls", "open_tool_calls")
            left = sum(row[0] for table in tables for row in view.q(f"SELECT count(*) FROM {table}"))
    finally:
        at.close()
    return Stored(session, parts, told, ledger, left)
