"""What the model does with a prompt: `p7 file 2` writes a file, `p8 ask 0` asks a person; and where a run stands still on its way.

A run stops at a *gate* before each call of the model and in the *middle* of each text, until it is let through (so many as its
prompt says at once); where a person is asked; and in a command that hangs.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any

from stead.agent.gate import Rule, parse
from stead.agent.models.base import Delta, Item, Request
from stead.agent.models.script import ScriptModel
from stead.agent.models.script_file import Script, ScriptTurn
from stead.agent.models.script_file import parse as parse_script

KINDS = ("talk", "file", "read", "bash", "hang", "ask", "need")
FILES = ("a.txt", "deep/b.txt")
CHUNK, CHUNKS_TO_MIDDLE = 900, 3
TEXT_AT_MIDDLE = CHUNK * CHUNKS_TO_MIDDLE
RAN = "ran.log"

GATES = ("gate", "middle")
_TEXT = ["gate", "middle"]
STOPS: dict[str, list[str]] = {
    "talk": _TEXT,
    "file": ["gate", "gate", *_TEXT],
    "read": ["gate", *_TEXT],
    "bash": ["gate", *_TEXT],
    "hang": ["gate", "hang"],
    "ask": ["gate", "ask", *_TEXT],
    "need": ["gate", "ask", *_TEXT],
}
"""Where a run of each kind stands still, in order."""


def token_of(prompt: str) -> str:
    return prompt.split()[0]


def kind_of(prompt: str) -> str:
    return prompt.split()[1]


def pace_of(prompt: str) -> int:
    """How many gates the prompt's run need not wait at."""
    return int(prompt.split()[2])


def rules_of(kind: str) -> list[Rule]:
    allowed = {"file": ["edit"], "bash": ["bash"], "hang": ["bash"]}
    return [parse(tool, "allow", "flag") for tool in allowed.get(kind, [])]


def text_of(prompt: str) -> str:
    """What the model says in the end."""
    return f"{token_of(prompt)} is done. " + "words " * (CHUNK * 2 * CHUNKS_TO_MIDDLE // len("words "))


def turns_of(prompt: str) -> list[dict[str, Any]]:
    """The script that is played for a prompt."""
    token, kind = token_of(prompt), kind_of(prompt)
    path = FILES[int(token[1:]) % len(FILES)]
    said = f"printf '{token}\\n' >> {RAN}"
    tools: dict[str, list[list[tuple[str, dict[str, Any]]]]] = {
        "talk": [],
        "file": [
            [("write", {"path": path, "content": f"by {token}\nend\n"})],
            [("edit", {"path": path, "old": f"by {token}\n", "new": f"by {token}, twice\n"}), ("read", {"path": path})],
        ],
        "read": [[("read", {"path": "mine.txt"}), ("todo_write", {"todos": [{"text": token, "status": "doing"}]})]],
        "bash": [[("bash", {"command": said}), ("list", {})]],
        "hang": [[("bash", {"command": f"{said}; exec sleep 30"}), ("list", {})]],
        "ask": [[("ask", {"question": f"{token}?"}), ("list", {})]],
        "need": [[("bash", {"command": said}), ("list", {})]],
    }
    turns: list[dict[str, Any]] = [{"tools": [{"tool": tool, "input": given} for tool, given in step]} for step in tools[kind]]
    return [*turns, {"text": text_of(prompt), "chunk": CHUNK}]


class Paced(ScriptModel):
    """The scripted model, which goes on only as far as it is let. `passed` counts the gates behind each run, by the token of its
    prompt; `at` says at which one those stand that stand at one."""

    def __init__(self) -> None:
        import asyncio

        super().__init__(Script("played"))
        self.passed: dict[str, int] = {}
        self.at: dict[str, str] = {}
        self._let: dict[str, int] = {}
        self._opened = asyncio.Event()
        self._turns: dict[str, tuple[ScriptTurn, ...]] = {}

    def let(self, token: str, gates: int) -> None:
        """Let a run through so many more gates."""
        self._let[token] += gates
        opened, self._opened = self._opened, type(self._opened)()
        opened.set()

    def left(self, prompt: str) -> int:
        """How many gates a run may still pass."""
        token = token_of(prompt)
        return self._let.get(token, pace_of(prompt)) - self.passed.get(token, 0)

    def turn(self, request: Request) -> tuple[ScriptTurn, tuple[int, int]]:
        turns = self._turns.setdefault(request.prompt, parse_script(json.dumps({"turns": turns_of(request.prompt)})).turns)
        return turns[min(request.step, len(turns) - 1)], (0, request.step)

    async def stream(self, request: Request) -> AsyncGenerator[Item, None]:
        token = token_of(request.prompt)
        self._let.setdefault(token, pace_of(request.prompt))
        await self._gate(token, "gate")
        texts, said = bool(self.turn(request)[0].text), 0
        async for item in super().stream(request):
            yield item
            said += isinstance(item, Delta)
            if texts and isinstance(item, Delta) and said == CHUNKS_TO_MIDDLE:
                await self._gate(token, "middle")

    async def _gate(self, token: str, which: str) -> None:
        self.at[token] = which
        try:
            while self._let[token] <= self.passed.get(token, 0):
                await self._opened.wait()
            self.passed[token] = self.passed.get(token, 0) + 1
        finally:
            del self.at[token]
