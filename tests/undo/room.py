"""A session in a project whose turns are scripted, and everything that an undo may do with it."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stead.agent.gate import parse
from stead.app import Stead
from stead.app.undo import Plan, Result
from stead.domain import runs, sessions
from tests.agent.house import house, script, until, use

RULES = ("edit", "bash", "edit(/**)")
GIT = ["git", "-c", "user.email=a@b", "-c", "user.name=a", "-c", "commit.gpgsign=false", "-c", "init.defaultBranch=main"]


class Room:
    """One session of one project."""

    def __init__(self, at: Stead, folder: Path, session: str | None = None) -> None:
        self.at = at
        self.folder = folder
        self.session = session

    async def turn(self, *calls: dict[str, Any], text: str = "go") -> int:
        """A prompt in whose answer these tools are used; gives the number of the prompt's message."""
        self.at.models = script([*({"tools": [call]} for call in calls), {"text": "done"}])
        rules = [parse(rule, "allow", "flag") for rule in RULES]
        run = await self.at.prompt(self.session, text, project=self.folder, model="fake/m", rules=rules)
        self.session = run.session
        assert (await run.result())["outcome"] == "done"
        with self.at.store.view() as view:
            return runs.get(view, run.id).prompt

    async def plan(self, **wish: Any) -> Plan:
        assert self.session is not None
        return await self.at.plan_undo(self.session, **wish)

    async def undo(self, **wish: Any) -> Result:
        return await self.at.undo(await self.plan(**wish))

    async def redo(self, **wish: Any) -> Result:
        assert self.session is not None
        return await self.at.undo(await self.at.plan_redo(self.session, **wish))

    def said(self) -> list[int]:
        """The numbers of the messages of the active branch."""
        assert self.session is not None
        with self.at.store.view() as view:
            return [message.n for message in sessions.messages(view, self.session)]


async def ready(here: Room) -> None:
    """A turn behind which the tree is known, with copies of what git does not hold."""
    await here.turn(bash("true"))
    (watched,) = here.at._trees.values()
    assert watched.wait_ready(20) is None
    await until(lambda: watched.coverage().copied, 20)


@asynccontextmanager
async def room(
    tmp_path: Path, url: str | None = None, folder: Path | None = None, session: str | None = None
) -> AsyncIterator[Room]:
    """A house with a project; opened again with `session`, the same one."""
    folder = folder or tmp_path / "project"
    folder.mkdir(exist_ok=True)
    async with house(tmp_path, database_url=url) as at:
        yield Room(at, folder, session)


def write(path: str, content: str) -> dict[str, Any]:
    return use("write", path=path, content=content)


def edit(path: str, old: str, new: str) -> dict[str, Any]:
    return use("edit", path=path, old=old, new=new)


def bash(command: str) -> dict[str, Any]:
    return use("bash", command=command)


def git(folder: Path, *arguments: str) -> str:
    """Run git there, as somebody."""
    done = subprocess.run([*GIT, *arguments], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode()


def tree(folder: Path, *, leave: tuple[str, ...] = (".git",)) -> dict[str, tuple[str, int, str]]:
    """Everything below a folder: kind, permission bits, content (of a link its target)."""
    found: dict[str, tuple[str, int, str]] = {}
    for top, folders, files in os.walk(os.fsencode(folder)):
        folders[:] = [name for name in folders if os.fsdecode(name) not in leave]
        for name in [*folders, *files]:
            path = os.path.join(top, name)
            seen = os.lstat(path)
            kind = {stat.S_IFREG: "file", stat.S_IFLNK: "link", stat.S_IFDIR: "folder"}.get(stat.S_IFMT(seen.st_mode), "other")
            what = ""
            if kind == "file":
                with open(path, "rb") as file:
                    what = hashlib.sha256(file.read()).hexdigest()
            elif kind == "link":
                what = os.fsdecode(os.readlink(path))
            mode = 0 if kind == "link" else stat.S_IMODE(seen.st_mode)
            found[os.fsdecode(os.path.relpath(path, os.fsencode(folder)))] = (kind, mode, what)
    return found
