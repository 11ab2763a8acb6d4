"""Other programs that keep conversations, where they are installed: `ask` has them measured in their own interpreter.

STEAD_BENCH_PEERS names that interpreter (default: this one); bench/requirements-peers.txt is what it needs. Each peer appends in
the way that costs it least. This file is also the program that runs there, and imports nothing of stead.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import Figures, Timed, medians


def ask(job: dict[str, Any], rounds: int) -> dict[str, Figures]:
    """The figures of each installed peer for a job; those that fail are told of and left out."""
    python = os.environ.get("STEAD_BENCH_PEERS", sys.executable)
    found: dict[str, Figures] = {}
    for who in PEERS:
        asked = [python, __file__, json.dumps({**job, "peer": who, "rounds": rounds})]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=900)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no reason given"]
            print(f"  {who} failed: {lines[-1][:200]}", file=sys.stderr)
        elif figures := json.loads(done.stdout.splitlines()[-1]):
            found[who] = figures
    return found


class LangGraph:
    """AsyncSqliteSaver under a graph whose state is a list of messages; a step is one update of the state."""

    needs = "langgraph.checkpoint.sqlite"

    async def open(self, folder: Path, sessions: int) -> None:
        from langchain_core.messages import AIMessage
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
        from langgraph.graph import END, START, MessagesState, StateGraph

        self.message = AIMessage
        self.context = AsyncSqliteSaver.from_conn_string(str(folder / "peer.db"))
        saver = await self.context.__aenter__()
        graph = StateGraph(MessagesState)
        graph.add_node("agent", lambda state: {})
        graph.add_edge(START, "agent")
        graph.add_edge("agent", END)
        self.graph = graph.compile(checkpointer=saver)

    async def add(self, session: int, texts: list[str]) -> None:
        where: Any = {"configurable": {"thread_id": f"s{session}"}}
        await self.graph.aupdate_state(where, {"messages": [self.message(one) for one in texts]}, as_node="agent")

    async def whole(self, session: int) -> int:
        state = await self.graph.aget_state({"configurable": {"thread_id": f"s{session}"}})
        return len(state.values["messages"])

    page = whole  # it has no pages

    async def close(self) -> None:
        await self.context.__aexit__(None, None, None)


class OpenAIAgents:
    """SQLiteSession, one for each conversation, on one file."""

    needs = "agents.memory"

    async def open(self, folder: Path, sessions: int) -> None:
        from agents import SQLiteSession

        self.sessions = [SQLiteSession(f"s{n}", str(folder / "peer.db")) for n in range(sessions)]

    async def add(self, session: int, texts: list[str]) -> None:
        await self.sessions[session].add_items([{"role": "assistant", "content": one} for one in texts])

    async def whole(self, session: int) -> int:
        return len(await self.sessions[session].get_items())

    async def page(self, session: int) -> int:
        return len(await self.sessions[session].get_items(limit=50))

    async def close(self) -> None:
        for session in self.sessions:
            session.close()


class GoogleADK:
    """DatabaseSessionService on an SQLite file."""

    needs = "google.adk.sessions"

    async def open(self, folder: Path, sessions: int) -> None:
        from google.adk.events.event import Event
        from google.adk.sessions.base_session_service import GetSessionConfig
        from google.adk.sessions.database_session_service import DatabaseSessionService
        from google.genai import types

        self.event, self.types, self.config = Event, types, GetSessionConfig
        self.service = DatabaseSessionService(f"sqlite+aiosqlite:///{folder / 'peer.db'}")
        self.sessions = [await self.service.create_session(app_name="a", user_id="u", session_id=f"s{n}") for n in range(sessions)]

    async def add(self, session: int, texts: list[str]) -> None:
        for one in texts:
            content = self.types.Content(role="model", parts=[self.types.Part(text=one)])
            await self.service.append_event(self.sessions[session], self.event(author="agent", content=content))

    async def _read(self, session: int, config: Any) -> int:
        found = await self.service.get_session(app_name="a", user_id="u", session_id=f"s{session}", config=config)
        return len(found.events)

    async def whole(self, session: int) -> int:
        return await self._read(session, None)

    async def page(self, session: int) -> int:
        return await self._read(session, self.config(num_recent_events=50))

    async def close(self) -> None:
        pass


PEERS: dict[str, Any] = {
    "langgraph-checkpoint-sqlite": LangGraph,
    "openai-agents SQLiteSession": OpenAIAgents,
    "google-adk DatabaseSessionService": GoogleADK,
}


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


async def _run(job: dict[str, Any], folder: Path) -> Figures:
    peer = PEERS[job["peer"]]()
    clients = job.get("clients", 1)
    await peer.open(folder, clients)
    text = "x" * (job["size"] - 100)
    try:
        for n in range(clients):
            await peer.add(n, ["first"])
        if length := job.get("length", 0):
            for _ in range(0, length - 1, 100):
                await peer.add(0, [text] * min(100, length - 1))
        if job["job"] == "open":
            found: Figures = {}
            for column, work in (("page ms", peer.page), ("whole ms", peer.whole)):
                timed = Timed()
                await timed.awaited(lambda _, work=work: work(0), 5)  # type: ignore[misc]
                found[column] = timed.figures()["p50 us"] / 1e3
            return found
        timed = Timed()
        await asyncio.gather(*(timed.awaited(lambda n, k=k: peer.add(k, [text]), job["each"]) for k in range(clients)))  # type: ignore[misc]
        return timed.figures()
    finally:
        await peer.close()


def main() -> None:
    """Measure one job of one peer and print its figures, `{}` where it is not installed."""
    job = json.loads(sys.argv[1])
    if not _installed(PEERS[job["peer"]].needs):
        print("{}")
        return
    rounds = []
    for _ in range(job["rounds"]):
        with tempfile.TemporaryDirectory(prefix="stead-bench-") as folder:
            rounds.append(asyncio.run(_run(job, Path(folder))))
    print(json.dumps(medians(rounds)))


if __name__ == "__main__":
    main()
