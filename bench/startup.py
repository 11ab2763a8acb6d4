"""Start-up: `stead --version` beside bare Python, `sessions list` and `show` beside a bare typer program with as many commands.

Targets: --version within 2.0 of bare Python, the reading commands within 1.3 of the bare program with the same query.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from common import Figures, Table, compare

from stead.interfaces.cli.table import COMMANDS

ROUNDS = 25
SESSIONS = 200
STEAD = [sys.executable, "-m", "stead"]

BARE = """
from typing import Annotated
import apsw, typer

app = typer.Typer(add_completion=False)
group = typer.Typer()
app.add_typer(group, name="sessions")
DB = {db!r}

def query(sql, *args):
    connection = apsw.Connection(DB, flags=apsw.SQLITE_OPEN_READONLY)
    for row in connection.execute(sql, args):
        print("\\t".join(map(str, row)))

@group.command("list")
def listed(limit: Annotated[int, typer.Option("--limit")] = 50, json: bool = False):
    query("SELECT id, title, project, model, created, updated, messages FROM sessions ORDER BY updated DESC LIMIT ?", limit)

@group.command("show")
def show(session: str, limit: Annotated[int | None, typer.Option("--limit")] = None, json: bool = False):
    query("SELECT p.message, p.n, e.data FROM parts p JOIN events e ON e.seq=p.seq WHERE p.session=?", session)

def other(name: str, limit: Annotated[int, typer.Option("--limit")] = 5, json: bool = False, quiet: bool = False):
    print(name)

for n in range({count} - 2):
    app.command(f"command{{n}}")(other)

app()
"""


def tables(quick: bool) -> Iterator[Table]:
    """All jobs of starting."""
    rounds = 5 if quick else ROUNDS
    with tempfile.TemporaryDirectory(prefix="stead-bench-") as folder:
        place = Path(folder)
        environ = {**os.environ, "STEAD_DATA": str(place / "data"), "STEAD_CONFIG": str(place / "config")}
        session = fill(place)
        count = sum(len(entry.below) if entry.below else 1 for entry in COMMANDS.values())
        bare = place / "bare.py"
        bare.write_text(BARE.format(db=str(place / "data" / "stead.db"), count=count))
        launcher = Path(sys.executable).with_name("stead")
        yield _compare(
            "--version",
            {
                "python -c pass": [sys.executable, "-c", "pass"],
                "python -m stead --version": [*STEAD, "--version"],
                **({"stead --version (launcher)": [str(launcher), "--version"]} if launcher.exists() else {}),
            },
            environ,
            rounds,
        )
        for command in (["list"], ["show", session]):
            yield _compare(
                f"sessions {command[0]}",
                {
                    f"bare typer program, {count} commands": [sys.executable, str(bare), "sessions", *command],
                    f"stead sessions {command[0]}": [*STEAD, "sessions", *command],
                },
                environ,
                rounds,
            )


def fill(place: Path) -> str:
    """A store with some sessions; gives the id of the last."""
    from stead.app import Stead
    from stead.domain import projects

    project = place / "project"
    project.mkdir()
    with Stead.open(place / "data", config_dir=place / "config").store as store:
        new, folder = store.ids.new, projects.identify(project)
        known = store.write(lambda tx: projects.open_project(tx, folder, id=new()))
        session = ""
        for n in range(SESSIONS):
            session = new()
            store.write(lambda tx, id=session, n=n: add(tx, id, known, n))  # type: ignore[misc]
    return session


def add(tx: object, session: str, project: str, n: int) -> None:
    """One session with two short messages."""
    from typing import cast

    from stead.domain import sessions
    from stead.store.log import Tx

    job = cast(Tx, tx)
    sessions.create(job, session, project, title=f"session {n}", agent="build", model="script/none")
    for role in ("user", "assistant"):
        message = sessions.add_message(job, session, role)  # type: ignore[arg-type]
        sessions.add_part(job, session, message, 0, {"type": "text", "text": json.dumps(list(range(40)))})


def _compare(title: str, commands: dict[str, Sequence[str]], environ: dict[str, str], rounds: int) -> Table:
    """The wall time of each command; a first round warms up and is not counted."""

    def run(command: Sequence[str]) -> Figures:
        begin = time.perf_counter()
        subprocess.run(command, env=environ, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, check=True)
        return {"p50 ms": (time.perf_counter() - begin) * 1e3}

    work = {label: (lambda command=command: run(command)) for label, command in commands.items()}  # type: ignore[misc]
    compare(work, 1)
    return Table(f"Start-up: {title}", "p50 ms", compare(work, rounds))
