"""`read`: a file for a model's eyes, as numbered lines or as an image."""

from __future__ import annotations

import asyncio
import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from stead.agent import textfile
from stead.agent.tools import images, paths
from stead.agent.tools.base import Context, Input, Result, Tool
from stead.agent.tools.cap import BYTES, TOKENS, estimated_tokens
from stead.agent.tools.files import PathField, missing, size
from stead.core.text import cut
from stead.store import safefile

WHOLE_BYTES = 32 << 20  # larger files are read line by line, as UTF-8
LINE_CHARS = 2_000
DEFAULT_LINES = 2_000

_MAGIC = (
    (b"%PDF-", "a PDF document"),
    (b"PK\x03\x04", "a zip archive or office document"),
    (b"\x7fELF", "a program"),
    (b"\x1f\x8b", "gzip data"),
    (b"SQLite format 3\0", "an SQLite database"),
    (b"\x28\xb5\x2f\xfd", "zstd data"),
    (b"II*\0", "a TIFF image"),
    (b"MM\0*", "a TIFF image"),
    (b"BM", "a BMP image"),
)


class Read(Input):
    path: PathField
    offset: Annotated[int, Field(description="First line to show, from 1.", ge=1)] = 1
    limit: Annotated[int, Field(description="Number of lines.", ge=1)] = DEFAULT_LINES


@dataclass(frozen=True)
class _Page:
    """Lines from `offset` on; `total` is None when the end of the file was not reached."""

    lines: list[str]
    total: int | None
    notes: list[str]


async def read(context: Context, given: Read) -> Result:
    """Show the lines of a text file, or an image."""
    path = paths.located(context, given.path)
    name = paths.shown(context, path)
    found = safefile.state(path)
    if found.kind == "absent":
        return Result(error=missing(context, path))
    if found.kind == "directory":
        return Result(error=f"{name} is a folder; use list.")
    if found.kind != "file":
        return Result(error=f"{name} is a {_special(path)}, which cannot be read.")
    start = await asyncio.to_thread(safefile.read_bytes, path, 16, follow=False)
    if kind := images.kind(start):
        return await images.shown(context, path, kind)
    try:
        if found.size > WHOLE_BYTES:
            page = await asyncio.to_thread(_large, path, given)
        else:
            raw = await asyncio.to_thread(safefile.read_bytes, path, follow=False)
            page = await asyncio.to_thread(_whole, raw, given)
            context.seen(path, hashlib.sha256(raw).hexdigest())
    except textfile.NotText:
        what = next((text for magic, text in _MAGIC if start.startswith(magic)), "binary data")
        return Result(error=f"{name} is {what} ({size(found.size)}), not text; use a command to look into it.")
    return _numbered(page, given, name)


def _whole(raw: bytes, given: Read) -> _Page:
    file = textfile.parse(raw)
    lines = file.text.split("\n")
    if not lines[-1]:
        lines.pop()
    notes = []
    if file.encoding != "utf-8":
        notes.append(f"encoding {file.encoding}, kept by edit and write")
    if file.has_odd_bytes:
        notes.append("U+FFFD stands for bytes that are not valid text; edits elsewhere leave them as they are")
    begin = given.offset - 1
    return _Page(lines[begin : begin + given.limit], len(lines), notes)


def _large(path: Path, given: Read) -> _Page:
    """The page of a file too large to hold: only the asked lines are kept, each at most a little longer than it is shown."""
    lines: list[str] = []
    last = given.offset + given.limit
    number, room = 1, 2 * BYTES
    with open(safefile.opened(path), "rb") as file:
        if b"\0" in file.read(64 << 10):
            raise textfile.NotText
        file.seek(0)
        while number < last and room > 0:
            line = file.readline(8 * LINE_CHARS)
            if not line:
                return _Page(lines, number - 1, [])
            ended = line.endswith(b"\n")
            text = line.rstrip(b"\r\n").decode("utf-8", "replace")
            while not ended and (more := file.readline(1 << 20)):
                ended = more.endswith(b"\n")
                text = text[: LINE_CHARS + 1]
            if number >= given.offset:
                lines.append(text)
                room -= len(text)
            number += 1
    return _Page(lines, None, ["a large file: shown as UTF-8"])


def _numbered(page: _Page, given: Read, name: str) -> Result:
    """The page with line numbers, as many lines as fit, and a note on where to go on."""
    if not page.lines:
        if page.total == 0:
            return Result(output="(the file is empty)")
        return Result(error=f"{name} has {page.total:,} lines; offset {given.offset:,} is behind its end.")
    shown: list[str] = []
    room, tokens, cuts = BYTES - 500, TOKENS - 200, 0
    for number, line in enumerate(page.lines, given.offset):
        if len(line) > LINE_CHARS:
            line, cuts = f"{cut(line, LINE_CHARS)} [… line cut]", cuts + 1
        text = f"{number:>6}\t{line}"
        room -= len(text.encode("utf-8", "replace")) + 1
        tokens -= estimated_tokens(text) + 1
        if shown and (room < 0 or tokens < 0):
            break
        shown.append(text)
    last = given.offset + len(shown) - 1
    notes = list(page.notes)
    if page.total is None or last < page.total:
        of = f" of {page.total:,}" if page.total is not None else ""
        notes.insert(0, f"lines {given.offset:,} to {last:,}{of}; go on with offset={last + 1}")
    if cuts:
        notes.append(f"{cuts:,} lines are longer than {LINE_CHARS:,} characters and cut; use grep or a command for their rest")
    return Result(output="\n".join([*shown, *(f"[{note}]" for note in notes)]))


def _special(path: Path) -> str:
    mode = path.lstat().st_mode
    if stat.S_ISFIFO(mode):
        return "pipe"
    return "socket" if stat.S_ISSOCK(mode) else "device"


READ = Tool(
    name="read",
    description=(
        f"Read a file: text as numbered lines (up to {DEFAULT_LINES:,}, from `offset`), or an image (PNG, JPEG, GIF, WebP). "
        "The number and the tab in front of each line are not part of the file."
    ),
    input=Read,
    run=read,
    effect="read",
    paths=lambda given: [given.path],
)
