"""`glob` and `grep`: files by name and lines by content.

Both leave out `.git`, what the project's .gitignore files ignore (whether or not there is a repository; global and per-clone
excludes are not looked at), and stead's own data folder. Naming an ignored folder or file outright finds it all the same.
`grep` uses ripgrep where there is one and a search of its own elsewhere; both give the same lines in the same order.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from stead.agent.tools import paths, search
from stead.agent.tools.base import Context, Input, Result, Tool
from stead.agent.tools.cap import cap
from stead.agent.tools.files import OWN_DATA, missing
from stead.core.text import cut
from stead.store import safefile

MOST_FILES = 500
MOST_LINES = 250
SECONDS = 60.0  # a search takes at most
_LINE_CHARS = 300
_RECORD = 8 << 20  # bytes of one answer of the searching process; longer lines are passed over
_MAGIC = re.compile(r"[*?\[{\\]")

FolderField = Annotated[str, Field(description="Folder to look in; default: the project folder.", min_length=1)]


class Glob(Input):
    pattern: Annotated[str, Field(description="E.g. src/**/*.py, relative to path; without a / at any depth.", min_length=1)]
    path: FolderField = "."


class Grep(Input):
    pattern: Annotated[str, Field(description="Regular expression, matched within single lines.", min_length=1)]
    path: Annotated[str, Field(description="File or folder to search; default: the project folder.", min_length=1)] = "."
    glob: Annotated[str, Field(description="Only files with such names, e.g. *.py; with ! in front: all others.")] = ""
    ignore_case: bool = False


@dataclass
class _Found:
    lines: list[str] = field(default_factory=list)
    files: set[str] = field(default_factory=set)
    more: bool = False
    note: str = ""


async def glob(context: Context, given: Glob) -> Result:
    """The files whose path fits the pattern, those changed last first."""
    start = paths.located(context, given.path)
    if paths.inside(start, context.data_dir):
        return Result(error=OWN_DATA)
    if not start.is_dir():
        return Result(error=missing(context, start) if not start.exists() else f"{paths.shown(context, start)} is not a folder.")
    if Path(given.pattern).is_absolute() or ".." in given.pattern.split("/") or given.pattern.startswith("~"):
        return Result(error="The pattern must be relative and without `..`; give the folder to look in as path.")
    stop = threading.Event()
    looking = asyncio.ensure_future(asyncio.to_thread(_matching, context, start, given.pattern, stop.is_set))
    try:
        done, _ = await asyncio.wait([looking], timeout=SECONDS)
    finally:
        stop.set()
    found = await looking
    if not found:
        return Result(output="No files found." + ("" if done else f" The search was stopped after {SECONDS:g} s."))
    lines = [paths.shown(context, path) for _, path in found[:MOST_FILES]]
    if len(found) > MOST_FILES:
        lines.append(f"[the {MOST_FILES} changed last of {len(found):,} files; narrow the pattern for others]")
    if not done:
        lines.append(f"[stopped after {SECONDS:g} s: there may be more; narrow the path]")
    shown, full = cap("\n".join(lines), "narrow the pattern")
    return Result(output=shown, full=full)


def _matching(context: Context, start: Path, pattern: str, stop: Any) -> list[tuple[int, Path]]:
    """(time of change, path) of the files that fit, newest first."""
    base, rest = _split(start, pattern)
    if not rest:  # the pattern is the name of something
        names = [base] if base.is_file() and not paths.left_out(context, base) else []
        return [(name.stat().st_mtime_ns, name) for name in names]
    if paths.inside(base, context.data_dir) or not base.is_dir():
        return []
    found = _walked(context, base, rest, stop)
    if not found and "[" in rest:  # a file name with brackets, written as it is
        found = _walked(context, base, rest.replace("[", "\\["), stop)
    return sorted(found, key=lambda each: (-each[0], os.fsencode(each[1])))


def _walked(context: Context, base: Path, glob: str, stop: Any) -> list[tuple[int, Path]]:
    fits = search.glob_pattern(glob)
    last = glob.rpartition("/")[2]
    found = []
    above = search.chain_above(str(context.root), str(base))
    skip = str(context.data_dir) if context.data_dir else None
    for relative, entry in search.walk(str(base), above, skip, stop, None if _MAGIC.search(last) else last):
        if fits.fullmatch(relative) and not context.denied(base / relative):
            with suppress(OSError):
                found.append((entry.stat(follow_symlinks=False).st_mtime_ns, base / relative))
    return found


def _split(start: Path, pattern: str) -> tuple[Path, str]:
    """The folder that the pattern names outright (a name with brackets counts if it exists), and the rest of it."""
    steps = [step for step in pattern.split("/") if step not in ("", ".")]
    if "/" not in pattern:
        return start, pattern
    base = start
    while steps and (not _MAGIC.search(steps[0]) or os.path.lexists(base / steps[0])):
        base /= steps.pop(0)
    rest = "/".join(steps)
    return base, f"./{rest}" if rest and "/" not in rest else rest  # a `/` in front: only here, not at any depth


async def grep(context: Context, given: Grep) -> Result:
    """The lines that match, as `path:line:text`."""
    path = paths.located(context, given.path)
    if paths.inside(path, context.data_dir):
        return Result(error=OWN_DATA)
    kind = safefile.state(path).kind
    if kind == "absent":
        return Result(error=missing(context, path))
    if kind not in ("file", "directory"):
        return Result(error=f"{paths.shown(context, path)} is neither file nor folder.")
    found, error = None, ""
    if rg := ripgrep(context):
        found, error = await _collected(context, path, given, _ripgrep_command(rg, context, path, given), None)
    if found is None:  # no ripgrep, or an expression that only Python understands
        try:
            re.compile(given.pattern)
        except (re.error, OverflowError, RecursionError) as problem:
            return Result(error=f"The regular expression is not valid: {error or problem}.")
        own = [sys.executable, "-I", search.__file__]
        found, error = await _collected(context, path, given, own, _request(context, path, given))
    if found is None:
        return Result(error=f"The search failed: {error}.")
    return _told(found)


def ripgrep(context: Context) -> str | None:
    """The ripgrep to use: one on the person's PATH, else one that was installed beside stead."""
    beside = Path(sys.executable).parent / "rg"
    return shutil.which("rg", path=context.environ.get("PATH", os.defpath)) or (str(beside) if os.access(beside, os.X_OK) else None)


def _told(found: _Found) -> Result:
    if not found.lines:
        return Result(output="No matches." + found.note)
    lines = list(found.lines)
    count, files = len(lines), len(found.files)
    if found.more:
        lines.append(f"[the first {count} matching lines, there are more; narrow the pattern, path or glob]")
    else:
        lines.append(f"[{count} matching line{'s' * (count != 1)} in {files} file{'s' * (files != 1)}]")
    shown, full = cap("\n".join(lines) + found.note, "narrow the pattern, path or glob", head=0.9)
    return Result(output=shown, full=full)


def _request(context: Context, path: Path, given: Grep) -> bytes:
    skip = str(context.data_dir) if context.data_dir else None
    asked = {"path": str(path), "top": str(context.root), "skip": skip, "imports": sys.path}
    return json.dumps(given.model_dump() | asked).encode()


def _ripgrep_command(rg: str, context: Context, path: Path, given: Grep) -> list[str]:
    command = [rg, "--json", "--no-config", "--no-messages", "--hidden", "--crlf", "--sort=path", "--no-require-git"]
    # Rules above the folder are applied to what is found, so that both ways of searching leave out the same.
    command += ["--no-ignore-parent", "--no-ignore-global", "--no-ignore-exclude", "--no-ignore-dot", "--glob=!.git"]
    if paths.inside(context.data_dir or Path("/"), path) and context.data_dir:
        command.append("--glob=!/" + re.sub(r"([*?\[\]{}\\!])", r"\\\1", str(context.data_dir.relative_to(path))))
    if given.glob and "/" not in given.glob and not given.glob.startswith("!"):
        command += [f"--type-add=wanted:{given.glob}", "--type=wanted"]  # unlike --glob it does not bring back ignored files
    if given.ignore_case:
        command.append("--ignore-case")
    return [*command, "-e", given.pattern, "--", "./" if path.is_dir() else f"./{path.name}"]


async def _collected(
    context: Context, path: Path, given: Grep, command: list[str], request: bytes | None
) -> tuple[_Found | None, str]:
    """What the searching process found; (None, why) when it did not understand the request."""
    folder = path if path.is_dir() else path.parent
    above = search.chain_above(str(context.root), str(folder)) if path.is_dir() else []
    names = search.glob_pattern(given.glob.removeprefix("!")) if given.glob and path.is_dir() else None
    found, seen = _Found(), dict[str, bool]()
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=dict(context.environ),
        stdin=asyncio.subprocess.DEVNULL if request is None else asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_RECORD,
    )
    try:
        async with asyncio.timeout(SECONDS):
            if process.stdin is not None and request is not None:
                process.stdin.write(request)
                process.stdin.close()
            async for name, record in _records(process):
                if names and (names.fullmatch(name) is None) != given.glob.startswith("!"):
                    continue
                if name not in seen:
                    seen[name] = paths.left_out(context, folder / name) or bool(above and search.ignored(above, name))
                if seen[name]:
                    continue
                if len(found.lines) == MOST_LINES:
                    found.more = True
                    break
                found.files.add(name)
                found.lines.append(f"{paths.shown(context, folder / name)}:{record['line_number']}:{_line(record)}")
            else:
                problem = (await process.stderr.read(4_000)).decode("utf-8", "replace").strip() if process.stderr else ""
                if await process.wait() not in (0, 1) and problem and not found.lines:
                    return None, problem
    except TimeoutError:
        found.note = f"\n[stopped after {SECONDS:g} s: there may be more; narrow the path or glob]"
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    return found, ""


async def _records(process: asyncio.subprocess.Process) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """(path relative to the folder, data) of each match that the process reports."""
    assert process.stdout is not None
    while True:
        try:
            line = await process.stdout.readline()
            if not line:
                return
            record = json.loads(line)
        except ValueError:  # a line too long to be taken in, or the rest of one
            continue
        if record.get("type") == "match" and record["data"]["path"]:
            yield os.fsdecode(_bytes(record["data"]["path"])).removeprefix("./"), record["data"]


def _bytes(value: dict[str, str]) -> bytes:
    return value["text"].encode("utf-8", "surrogateescape") if "text" in value else base64.b64decode(value["bytes"])


def _line(record: dict[str, Any]) -> str:
    """The found line, of a long one the part around the match."""
    raw = _bytes(record["lines"]).rstrip(b"\r\n")
    text = raw.decode("utf-8", "replace")
    if len(text) > _LINE_CHARS:
        start = record["submatches"][0]["start"] if record["submatches"] else 0
        begin = len(cut(text, max(len(raw[:start].decode("utf-8", "replace")) - _LINE_CHARS // 3, 0)))
        end = begin + len(cut(text[begin:], _LINE_CHARS))
        text = "…" * (begin > 0) + text[begin:end] + " [… long line cut]"
    return text.replace("\0", "␀")


GLOB = Tool(
    name="glob",
    description="Find files by name, those changed last first. Files ignored by .gitignore are left out unless named outright.",
    input=Glob,
    run=glob,
    effect="read",
    paths=lambda given: [given.path],
)
GREP = Tool(
    name="grep",
    description="Search file contents by regular expression; gives path:line:text. Files ignored by .gitignore are left out.",
    input=Grep,
    run=grep,
    effect="read",
    paths=lambda given: [given.path],
)
