"""Files on their way to a model: the bytes, or a sentence that stands for them."""

from __future__ import annotations

import base64

from stead.agent.models.base import Request
from stead.core.jsontext import shown
from stead.core.parts import FilePart


def content(request: Request, part: FilePart) -> bytes | None:
    """The bytes of `part`, None when they cannot be had: one lost file never blocks a conversation."""
    if request.load is None:
        return None
    try:
        return request.load(part)
    except Exception:  # whatever the store says, the conversation goes on without this file
        return None


def encoded(request: Request, part: FilePart) -> str | None:
    """The bytes of `part` in base 64, None when they cannot be had."""
    raw = content(request, part)
    return None if raw is None else base64.b64encode(raw).decode()


def as_text(request: Request, part: FilePart) -> str:
    """`part` as words: its text under its name, or a sentence saying that it is not shown."""
    if part["kind"] == "text" and (raw := content(request, part)) is not None:
        return f"File {shown(part['name'])}:\n{raw.decode('utf-8', 'replace')}"
    return f"(File {shown(part['name'])}, {shown(part['mime'])}, {part['size']} bytes, is not shown.)"


def is_image(part: FilePart) -> bool:
    """Whether every image model takes this kind of image."""
    return part["kind"] == "image" and part["mime"] in ("image/png", "image/jpeg", "image/gif", "image/webp")


def is_pdf(part: FilePart) -> bool:
    """Whether the file is a PDF document."""
    return part["mime"] == "application/pdf"
