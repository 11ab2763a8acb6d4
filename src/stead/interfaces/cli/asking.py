"""Asking a person at the terminal: approvals and questions, without a thread that could outlive the question."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stead.core.errors import SteadError
from stead.interfaces.cli import out
from stead.interfaces.cli.effect import effect

if TYPE_CHECKING:
    from stead.agent.calls import Ask as Asking
    from stead.app import Stead
    from stead.domain.asks import Ask


def can_ask() -> bool:
    """Whether a person sits at this terminal and can answer."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def at_terminal(house: Stead, before: Any = None) -> Asking:
    """The function that shows an ask here and gives the person's answer. `before()` is called first, to clear the line."""

    async def ask(found: Ask) -> dict[str, Any] | None:
        if before is not None:
            before()
        about = await asyncio.to_thread(house.store.blobs.resolve, found.about)
        if found.kind == "question":
            return await _question(about)
        return await _approval(about, _root(house, found.session))

    return ask


def _root(house: Stead, session: str) -> Path:
    from stead.domain import projects, sessions

    with house.store.view() as view:
        return Path(projects.get(view, sessions.get(view, session).project).folder)


async def _approval(about: dict[str, Any], root: Path) -> dict[str, Any]:
    out.err()
    out.err(out.style(f"The agent wants to use {out.plain(about['tool'])}:", "bold", sys.stderr))
    for line in effect(about["tool"], about["arguments"], root):
        out.err(f"  {line}")
    out.note(about["why"])
    for gap in about.get("not_covered") or ():
        out.note(out.plain(gap))
    while True:
        answer = await _line("[y] once  [a] for this session  [n] no > ")
        choice = (answer or "").strip().lower()
        if answer is None or choice in ("n", "no"):
            reason = "" if answer is None else (await _line("Why not? (the agent reads it; Enter: no reason) > ") or "").strip()
            return {"allow": False, **({"reason": reason} if reason else {})}
        if choice in ("y", "yes"):
            return {"allow": True}
        if choice == "a":
            rule = await _rule(about.get("rules") or [about["tool"]])
            if rule is not None:
                return {"allow": True, "rules": [rule]}


async def _rule(offered: list[str]) -> str | None:
    """The rule to keep for this session: one of those offered, or one that the person writes. None: think again."""
    from stead.agent.gate import broad, parse

    for number, rule in enumerate(offered, 1):
        out.err(f"  {number}  {out.plain(rule)}")
    while True:
        answer = await _line("Which? A number, or another rule (Enter: 1) > ")
        if answer is None:
            return None
        text = answer.strip() or "1"
        text = offered[int(text) - 1] if text.isdecimal() and 0 < int(text) <= len(offered) else text
        try:
            written = parse(text, "allow", "session", "approval")
        except SteadError as error:
            out.error(error)
            continue
        if warning := broad(written):
            out.note(warning)
            if (await _line("Really? [y/n] > ") or "").strip().lower() not in ("y", "yes"):
                return None
        return text


async def _question(about: dict[str, Any]) -> dict[str, Any] | None:
    options = [out.plain(str(option)) for option in about.get("options") or []]
    out.err()
    out.err(out.style(out.plain(str(about["question"])), "bold", sys.stderr))
    for number, option in enumerate(options, 1):
        out.err(f"  {number}  {option}")
    answer = await _line("A number or text > " if options else "> ")
    if answer is None:
        return None
    text = answer.strip()
    return {"text": about["options"][int(text) - 1] if text.isdecimal() and 0 < int(text) <= len(options) else text}


async def _line(prompt: str) -> str | None:
    """A line from the terminal, None at its end. What was typed before the question is no answer to it."""
    import termios

    fd = sys.stdin.fileno()
    termios.tcflush(fd, termios.TCIFLUSH)
    out.say(prompt)
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()
    taken = bytearray()

    def ready() -> None:
        piece = os.read(fd, 1 << 16)
        taken.extend(piece)
        if (not piece or b"\n" in piece) and not came.done():
            came.set_result(bytes(taken))

    loop.add_reader(fd, ready)
    try:
        raw = await came
    finally:
        loop.remove_reader(fd)
    if not raw.endswith(b"\n"):
        out.err()
        return None
    return raw.decode("utf-8", "replace").splitlines()[0] if raw.strip() else ""
