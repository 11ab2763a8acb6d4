"""Attachments: files that a person gives to a prompt. The content lies under `attachments/<id>.att`, never in an event; the table
says which sessions refer to it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from stead.core.errors import SteadError
from stead.core.events import Event
from stead.core.parts import FilePart
from stead.domain.queue import PromptChanged, PromptQueued
from stead.domain.sessions import PartAdded, SessionDeleted
from stead.store import safefile
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx
from stead.store.safefile import private_folder, write_private

MAX_BYTES = 32 << 20

FEATURE = Feature("attachments", tables={"attachments": "id TEXT NOT NULL, session TEXT NOT NULL, PRIMARY KEY(id, session)"})


@FEATURE.projects(PartAdded)
def _part(tx: Tx, e: Event[PartAdded]) -> None:
    _refer(tx, e.stream, [e.data.part])


@FEATURE.projects(PromptQueued, PromptChanged)
def _prompt(tx: Tx, e: Event[PromptQueued | PromptChanged]) -> None:
    _refer(tx, e.stream, e.data.parts)


@FEATURE.projects(SessionDeleted)
def _deleted(tx: Tx, e: Event[SessionDeleted]) -> None:
    tx.q("DELETE FROM attachments WHERE session=?", e.data.session)


def _refer(tx: Tx, session: str, parts: Iterable[Any]) -> None:
    for part in parts:
        if isinstance(part, dict) and part.get("type") == "file" and isinstance(part.get("id"), str):
            tx.q("INSERT INTO attachments(id, session) VALUES(?,?) ON CONFLICT(id, session) DO NOTHING", part["id"], session)


def only_of(view: Reads, sessions: Sequence[str]) -> list[str]:
    """The attachments that these sessions refer to and no other does."""
    marks = ",".join("?" * len(sessions))
    rows = view.q(
        f"SELECT DISTINCT id FROM attachments a WHERE session IN ({marks})"
        f" AND NOT EXISTS (SELECT 1 FROM attachments o WHERE o.id=a.id AND o.session NOT IN ({marks}))",
        *(*sessions, *sessions),
    )
    return [attachment for (attachment,) in rows]


_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def add(folder: Path, attachment: str, name: str, content: bytes) -> FilePart:
    """Store `content` durably under a fresh id and give the part that refers to it. The name is display text only.

    Raises `usage` above 32 MiB. Write it before the prompt's job: the part must not commit before its file exists.
    """
    if len(content) > MAX_BYTES:
        raise SteadError("usage", f"{name} has {len(content):,} bytes; a file of a prompt may have {MAX_BYTES:,}.")
    private_folder(folder)
    write_private(_path(folder, attachment), content)
    kind, mime = sniff(content)
    return {"type": "file", "id": attachment, "name": name, "mime": mime, "kind": kind, "size": len(content)}


def load(folder: Path, attachment: str, size: int | None = None) -> bytes:
    """The content of an attachment; `size` bytes of it where that is known, for a power cut may leave NUL behind them. Raises
    `not_found`, without touching the disk for what cannot be an id."""
    if not _may_be(attachment):
        raise SteadError("not_found", "There is no such attachment.")
    try:
        return _path(folder, attachment).read_bytes()[:size]
    except FileNotFoundError:
        raise SteadError("not_found", "There is no such attachment.") from None


def fault(folder: Path, attachment: str, size: int) -> str | None:
    """What is wrong with the file of an attachment of `size` bytes; None where `load` gives all of it. NUL behind its end is no
    fault: a power cut leaves that."""
    if not _may_be(attachment):
        return "cannot be the name of a file"
    try:
        with _path(folder, attachment).open("rb") as file:
            there = file.seek(0, 2)
            file.seek(size)
            clean = there >= size and not any(piece.strip(b"\0") for piece in iter(lambda: file.read(1 << 20), b""))
    except FileNotFoundError:
        return "is missing"
    return None if clean else f"has {there:,} bytes instead of {size:,}"


def remove(folder: Path, attachment: str) -> None:
    """Remove an attachment that nothing refers to any more; quiet when it is gone."""
    if _may_be(attachment):
        safefile.remove(_path(folder, attachment))


def sniff(content: bytes) -> tuple[Literal["image", "text", "other"], str]:
    """What bytes are, from the bytes alone: (kind, mime)."""
    for magic, mime in _MAGIC:
        if content.startswith(magic):
            return ("image" if mime.startswith("image/") else "other"), mime
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        return "image", "image/webp"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "other", "application/octet-stream"
    return ("other", "application/octet-stream") if b"\0" in content else ("text", "text/plain")


def _may_be(attachment: str) -> bool:
    """Whether this can be an id: nothing else is looked for on the disk."""
    return attachment.isalnum() and attachment.isascii() and len(attachment) <= 64


def _path(folder: Path, attachment: str) -> Path:
    return folder / f"{attachment}.att"
