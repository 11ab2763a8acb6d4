"""Images that a model may look at: recognised by their first bytes, measured, made smaller when they are too large."""

from __future__ import annotations

import asyncio
import io
import struct
import warnings
from pathlib import Path

from stead.agent.tools import paths
from stead.agent.tools.base import Context, Result
from stead.core.parts import FilePart
from stead.domain.attachments import sniff
from stead.store import safefile

MOST_BYTES = 3_750_000  # 5 MB as base64, the smallest limit among providers
MOST_PIXELS = 2_000  # a side: beyond it some providers refuse requests with many images
SOURCE_BYTES = 32 << 20  # of a file that is read at all
_FORMATS = {"PNG": "image/png", "JPEG": "image/jpeg", "GIF": "image/gif", "WEBP": "image/webp"}


class TooLarge(Exception):
    """The image cannot be sent; the message says why and what would help."""


def kind(start: bytes) -> str | None:
    """The MIME type of an image that models can see, from its first 16 bytes; None for everything else."""
    found, mime = sniff(start)
    return mime if found == "image" else None


def dimensions(raw: bytes) -> tuple[int, int] | None:
    """Width and height in pixels, from the header; None when it cannot be made out."""
    try:
        if raw.startswith(b"\x89PNG"):
            return struct.unpack(">II", raw[16:24])
        if raw.startswith(b"GIF8"):
            return struct.unpack("<HH", raw[6:10])
        return _webp(raw) if raw.startswith(b"RIFF") else _jpeg(raw)
    except (struct.error, IndexError):
        return None


async def shown(context: Context, path: Path, mime: str) -> Result:
    """The result that puts the image before the model."""
    name = paths.shown(context, path)
    raw = await asyncio.to_thread(safefile.read_bytes, path, SOURCE_BYTES + 1, follow=False)
    try:
        content, mime, note = await asyncio.to_thread(fitting, raw, mime)
    except TooLarge as error:
        return Result(error=f"{name} cannot be shown: {error}")
    digest = await context.keep(content)
    part: FilePart = {"type": "file", "name": path.name, "mime": mime, "kind": "image", "size": len(content), "blob": digest}
    measures = "{}×{} pixels, ".format(*found) if (found := dimensions(content)) else ""
    return Result(output=f"Image {name} ({mime}, {measures}{len(content):,} bytes){note}.", files=[part])


def fitting(raw: bytes, mime: str) -> tuple[bytes, str, str]:
    """The image as it may be sent: (bytes, MIME type, note). Raises `TooLarge`."""
    if len(raw) > SOURCE_BYTES:
        raise TooLarge(f"it has more than {SOURCE_BYTES >> 20} MiB.")
    found = dimensions(raw)
    if found is None or 0 in found:
        raise TooLarge("its header is damaged.")
    if max(found) <= MOST_PIXELS and len(raw) <= MOST_BYTES:
        return raw, mime, ""
    limits = f"{found[0]}×{found[1]} pixels, {len(raw):,} bytes; the limits are {MOST_PIXELS} pixels a side, {MOST_BYTES:,} bytes"
    try:
        content, mime = _smaller(raw)
    except ImportError:
        raise TooLarge(f"it has {limits}. Make it smaller with a command, or install stead[images].") from None
    except Exception as error:  # whatever a decoder makes of a hostile file, the conversation goes on
        raise TooLarge(f"it has {limits}, and making it smaller failed ({type(error).__name__}).") from None
    return content, mime, f", made smaller from {found[0]}×{found[1]}"


def _smaller(raw: bytes) -> tuple[bytes, str]:
    from PIL import Image, ImageOps

    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(raw), formats=list(_FORMATS)) as image:
            picture = ImageOps.exif_transpose(image)
    for side in (MOST_PIXELS, 1_400, 1_000, 700):
        picture.thumbnail((side, side))
        through = picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info
        for format_, options in (("PNG", {"optimize": True}), ("JPEG", {"quality": 85})):
            if format_ == "JPEG" and through:
                continue
            out = io.BytesIO()
            ready = picture.convert("RGBA" if through else "RGB")
            ready.save(out, format_, **options)
            if out.tell() <= MOST_BYTES:
                return out.getvalue(), _FORMATS[format_]
    raise ValueError("still too large")


def _jpeg(raw: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 < len(raw):
        if raw[at] != 0xFF:
            return None
        marker = raw[at + 1]
        if marker == 0xFF:  # padding
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", raw[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + struct.unpack(">H", raw[at + 2 : at + 4])[0]
    return None


def _webp(raw: bytes) -> tuple[int, int] | None:
    if raw[12:16] == b"VP8X":
        return 1 + int.from_bytes(raw[24:27], "little"), 1 + int.from_bytes(raw[27:30], "little")
    if raw[12:16] == b"VP8L":
        bits = int.from_bytes(raw[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack("<HH", raw[26:30])
    return width & 0x3FFF, height & 0x3FFF
