"""`write`, `edit` and `list`: what changes files, through the context so that every change is known before it happens.

Rules for an existing text file, also when it is written anew: its BOM, encoding, line ends and mode stay. So a CRLF file that
is rewritten with LF text stays CRLF; to change the line ends of a whole file a model has to use the shell. A binary file may be
overwritten by `write`, never edited. A file without any write permission is left alone: the model has to run `chmod` first,
which is judged like every command.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import stat
from pathlib import Path
from typing import Annotated

from pydantic import Field

from stead.agent import textfile
from stead.agent.tools import paths
from stead.agent.tools.base import Context, Input, Result, Tool
from stead.agent.tools.cap import cap
from stead.core.text import one_line
from stead.domain import hunks
from stead.store import safefile

MOST_BYTES = 64 << 20  # of a file that is edited or rewritten with its line ends kept
MOST_ENTRIES = 1_000
_NUMBERED = re.compile(r"^ *\d+\t", re.MULTILINE)

PathField = Annotated[str, Field(description="Relative to the project folder, or absolute.", min_length=1)]


class Write(Input):
    path: PathField
    content: Annotated[str, Field(description="The whole new content.")]


class Edit(Input):
    path: PathField
    old: Annotated[str, Field(description="Exact text to replace; must occur once unless all is true. Empty: create a new file.")]
    new: Annotated[str, Field(description="The text that takes its place.")]
    all: Annotated[bool, Field(description="Replace every occurrence.")] = False


class List(Input):
    path: Annotated[str, Field(description="Folder; default: the project folder.", min_length=1)] = "."


async def write(context: Context, given: Write) -> Result:
    """Create the file, or replace its content."""
    path = paths.located(context, given.path)
    if refusal := _write_protected(context, path):
        return Result(error=refusal)
    before = await asyncio.to_thread(_present, path)
    try:
        after, note = await asyncio.to_thread(_rewritten, before, given.content)
    except textfile.Unwritable as error:
        return Result(error=f"{error} Nothing was written. Leave it out, or remove the file first to have it as UTF-8.")
    name = paths.shown(context, path)
    if before == after and len(after) <= MOST_BYTES:
        return Result(output=f"{name} has exactly this content already; nothing was written.")
    await _change(context, path, after)
    lines = textfile.as_lines(given.content)
    count = lines.count("\n") + bool(lines and not lines.endswith("\n"))
    done = "Created" if before is None else "Replaced"
    return Result(output=f"{done} {name}: {_plural(count, 'line')}, {len(after):,} bytes{note}.")


async def edit(context: Context, given: Edit) -> Result:
    """Replace `old` by `new` in the file, byte for byte the same everywhere else."""
    path = paths.located(context, given.path)
    name = paths.shown(context, path)
    if refusal := _write_protected(context, path):
        return Result(error=refusal)
    before = await asyncio.to_thread(_present, path)
    if before is None or not given.old:
        return await _create(context, given, path, before)
    if len(before) > MOST_BYTES:
        return Result(error=f"{name} has more than {MOST_BYTES >> 20} MiB, too much for edit; change it with a command.")
    if given.old == given.new:
        return Result(error="old and new are the same; nothing was changed.")
    try:
        file = await asyncio.to_thread(textfile.parse, before)
        old, new = file.unmarked(given.old, given.new)
        places = file.find(old)
        if len(places) != 1 and not (given.all and places):
            return Result(error=_not_once(name, file, given, places))
        after = await asyncio.to_thread(file.replaced, places, old, new)
    except textfile.NotText as error:
        return Result(error=f"{name} is {error} and cannot be edited as text; nothing was changed.")
    except textfile.Unwritable as error:
        return Result(error=f"{error} Nothing was changed.")
    if after == before:
        return Result(error="The edit changes nothing in the file: old and new differ only in line ends.")
    await _change(context, path, after)
    where = ", ".join(str(file.text.count("\n", 0, place) + 1) for place in places[:5]) + (" …" if len(places) > 5 else "")
    added, gone = await asyncio.to_thread(hunks.count, before, after)
    return Result(output=f"Edited {name} at line {where}: {_plural(len(places), 'place')}, +{added} −{gone} lines.")


async def list_(context: Context, given: List) -> Result:
    """The entries of one folder."""
    path = paths.located(context, given.path)
    if paths.inside(path, context.data_dir):
        return Result(error=OWN_DATA)
    return await asyncio.to_thread(_entries, context, path)


OWN_DATA = "This is stead's own data folder, which is left out here; use history_read or search_sessions to look into sessions."


async def _create(context: Context, given: Edit, path: Path, before: bytes | None) -> Result:
    """An edit with an empty `old`, or of a file that is not there."""
    name = paths.shown(context, path)
    if given.old:
        return Result(error=missing(context, path) + " To create it, use write.")
    if before is not None:
        return Result(error=f"{name} exists already; give the text to replace as old, or use write for the whole file.")
    content = given.new.encode()
    await _change(context, path, content)
    return Result(output=f"Created {name}: {_plural(len(content.splitlines()), 'line')}, {len(content):,} bytes.")


async def _change(context: Context, path: Path, content: bytes) -> None:
    await context.change(path, content)
    context.seen(path, hashlib.sha256(content).hexdigest())


def _write_protected(context: Context, path: Path) -> str | None:
    """Why a file that nobody may write is left alone: somebody protected it, so taking that away is a step to be allowed."""
    found = safefile.state(path)
    if found.kind != "file" or found.mode & 0o222:
        return None
    name = paths.shown(context, path)
    return f"{name} is read-only (mode {found.mode:04o}) and was left alone. If it is meant to change, run chmod u+w on it first."


def _present(path: Path) -> bytes | None:
    """The content of the file, of a huge one the beginning; None when nothing is there. A folder or device is an error."""
    if safefile.state(path).kind == "absent":
        return None
    return safefile.read_bytes(path, MOST_BYTES + 1, follow=False)


def _rewritten(before: bytes | None, content: str) -> tuple[bytes, str]:
    """The bytes for `content` in the manner of the file that it replaces, and what of that a model should know."""
    if not before or len(before) > MOST_BYTES:
        return content.encode(), ""
    try:
        file = textfile.parse(before)
    except textfile.NotText:
        return content.encode(), " (it was binary)"
    kept = [file.encoding] if file.encoding != "utf-8" else []
    kept += ["BOM"] * bool(file.bom) + [{"\r\n": "CRLF", "\r": "CR"}.get(file.line_end, "")] * (file.line_end != "\n")
    return file.rewritten(content), f" ({', '.join(kept)} kept)" if kept else ""


def _not_once(name: str, file: textfile.TextFile, given: Edit, places: list[int]) -> str:
    if places:
        lines = [str(file.text.count("\n", 0, place) + 1) for place in places[:10]]
        more = f" and {len(places) - 10} more" if len(places) > 10 else ""
        return (
            f"old occurs {len(places)} times in {name}, at lines {', '.join(lines)}{more}; nothing was changed. "
            "Give more of the surrounding text so that it is unique, or set all to true."
        )
    return f"old does not occur in {name}; nothing was changed.{_hint(file, given.old)}"


def _hint(file: textfile.TextFile, old: str) -> str:
    """What is probably wrong with an `old` that was not found."""
    unnumbered = _NUMBERED.sub("", old)
    if unnumbered != old and file.find(unnumbered):
        return " It was given with the line numbers that read shows; leave them out."
    wanted = [" ".join(line.split()) for line in textfile.as_lines(old).strip("\n").split("\n")]
    if any(wanted):
        lines = file.text.split("\n")
        bare = [" ".join(line.split()) for line in lines]
        for at in range(len(bare) - len(wanted) + 1):
            if bare[at] == wanted[0] and bare[at : at + len(wanted)] == wanted:
                there = cap("\n".join(lines[at : at + len(wanted)]), "", limit=2_000)[0]
                return f" Only spaces or tabs differ from line {at + 1}; the file has there:\n{there}"
        first = next(line for line in wanted if line)
        if near := [str(number) for number, line in enumerate(bare, 1) if line == first][:5]:
            return f" Its first line is found at line {', '.join(near)}, what follows differs; read the file again."
    return " Read the file again: it may have changed."


def missing(context: Context, path: Path) -> str:
    """A sentence that says that `path` is not there, with names like it."""
    from difflib import get_close_matches

    text = f"{paths.shown(context, path)} does not exist."
    folder = path.parent
    try:
        names = sorted(os.listdir(folder))[:5_000]
    except OSError:
        return text + (f" Nor does the folder {paths.shown(context, folder)}." if not folder.is_dir() else "")
    lower = {name.lower(): name for name in names}
    near = [lower[name] for name in get_close_matches(path.name.lower(), lower, n=3, cutoff=0.6)]
    return text + (f" In the same folder: {', '.join(map(paths.quoted, near))}." if near else "")


def _entries(context: Context, path: Path) -> Result:
    try:
        with os.scandir(path) as found:
            entries = [entry for entry in found if not paths.left_out(context, Path(entry.path))]
    except FileNotFoundError:
        return Result(error=missing(context, path))
    except NotADirectoryError:
        return Result(error=f"{paths.shown(context, path)} is not a folder; use read.")
    except PermissionError:
        return Result(error=f"{paths.shown(context, path)} cannot be listed: permission denied.")
    entries.sort(key=lambda entry: (not entry.is_dir(follow_symlinks=False), os.fsencode(entry.name)))
    lines = [_entry(entry) for entry in entries[:MOST_ENTRIES]]
    if len(entries) > MOST_ENTRIES:
        lines.append(f"[… {len(entries) - MOST_ENTRIES:,} more of {len(entries):,} entries; use glob with a pattern]")
    shown, full = cap("\n".join(lines) or "(the folder is empty)", "use glob with a pattern")
    return Result(output=shown, full=full)


def _entry(entry: os.DirEntry[str]) -> str:
    name = paths.quoted(entry.name)
    if entry.is_symlink():
        return f"{name} -> {paths.quoted(os.readlink(entry.path))}"
    try:
        found = entry.stat(follow_symlinks=False)
    except OSError:
        return name
    if stat.S_ISDIR(found.st_mode):
        return f"{name}/"
    return f"{name} ({size(found.st_size)})" if stat.S_ISREG(found.st_mode) else f"{name} (special file)"


def size(count: int) -> str:
    """A number of bytes as people write it: `812 B`, `3.4 KiB`."""
    if count < 1024:
        return f"{count} B"
    power = min((count.bit_length() - 1) // 10, 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {one_line(noun, 40)}{'' if count == 1 else 's'}"


WRITE = Tool(
    name="write",
    description="Create a file or replace its whole content. Missing folders are made. Use edit for a change in part of a file.",
    input=Write,
    run=write,
    effect="edit",
    paths=lambda given: [given.path],
)
EDIT = Tool(
    name="edit",
    description=(
        "Replace text in a file. `old` must be copied exactly, with its indentation, without the line numbers that read shows. "
        "The file's encoding and line ends are kept; write line ends as \\n."
    ),
    input=Edit,
    run=edit,
    effect="edit",
    paths=lambda given: [given.path],
)
LIST = Tool(
    name="list",
    description="List one folder: folders first, with a / at the end, then files with their sizes.",
    input=List,
    run=list_,
    effect="read",
    paths=lambda given: [given.path],
)
