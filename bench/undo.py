"""What an edit by a tool costs, and what taking it back costs, beside what the disk must do for it in any case."""

from __future__ import annotations

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import Figures, Table

from stead.agent.gate import parse
from stead.agent.models.script import ScriptModel
from stead.agent.models.script_file import parse as script
from stead.app import Stead

EDITS = 60
CONTENT = "def f(x):\n    return x + 1\n" * 200


def floor(folder: Path, rounds: int) -> Figures:
    """A file written beside, synced, renamed, its folder synced."""
    times = []
    for n in range(rounds):
        begun = time.perf_counter()
        temp = folder / "floor.tmp"
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, f"{CONTENT}# {n}\n".encode())
        os.fsync(fd)
        os.close(fd)
        os.rename(temp, folder / "floor.py")
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        times.append(time.perf_counter() - begun)
    return {"ms": statistics.median(times) * 1000}


async def edits(place: Path, folder: Path, rounds: int) -> tuple[Figures, Figures, Figures]:
    """Edits by the tool in one run, then plans and undos of single calls."""
    from stead.agent.changing import Writer
    from stead.app.undo import Wish, carry_out, plan_undo

    (folder / "code.py").write_text(CONTENT)
    models: Any = {"fake": ScriptModel(script('{"turns": [{"text": "ok"}]}'))}
    async with Stead.open(place / "data", config_dir=place / "config", models=models) as house:
        run = await house.prompt(None, "go", project=folder, model="fake/m", rules=[parse("edit", "allow", "flag")])
        await run.ended()
        assert run.run is not None
        writer = Writer(house.store, house.store.commit, run.run, folder, "call", 1 << 30)
        times, plans, undos = [], [], []
        for n in range(rounds):
            begun = time.perf_counter()
            await writer.change(folder / "code.py", f"{CONTENT}# {n}\n".encode(), None)
            times.append(time.perf_counter() - begun)
        for _ in range(rounds):
            begun = time.perf_counter()
            plan = plan_undo(house, run.session, Wish(paths=["code.py"]))
            plans.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            done = carry_out(house.store, plan, rewind=house.store.ids.new(), owner=house.owner(), actor="local")
            undos.append(time.perf_counter() - begun)
            assert done.restored == ["code.py"]
            await writer.change(folder / "code.py", f"{CONTENT}# again\n".encode(), None)
    return tuple({"ms": statistics.median(one) * 1000} for one in (times, plans, undos))  # type: ignore[return-value]


def tables(quick: bool) -> Iterator[Table]:
    """The table of this job."""
    rounds = EDITS // 4 if quick else EDITS
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        folder = place / "project"
        folder.mkdir()
        base = floor(folder, rounds)
        edit, plan, undo = asyncio.run(edits(place, folder, rounds))
    rows = {
        "a file replaced durably, nothing else": base,
        "the same as a tool's edit: before kept, log, after noted": edit,
        "an undo planned": plan,
        "an undo carried out": undo,
    }
    yield Table("one edit of a file of 5 KB, and its undo", "ms", rows)
