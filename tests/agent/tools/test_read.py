"""read: text as numbered lines, images, and everything that is neither."""

from __future__ import annotations

import hashlib
import io
import os
import struct
import sys
from pathlib import Path

import pytest
from PIL import Image

from stead.agent.tools import images
from tests.agent.tools.context import FakeContext
from tests.agent.tools.test_files import bad, good


@pytest.fixture
def context(tmp_path: Path) -> FakeContext:
    return FakeContext(tmp_path)


async def test_lines_are_numbered(context: FakeContext) -> None:
    (context.root / "f").write_text("a\n\nb")
    assert good(await context.use("read", path="f")) == "     1\ta\n     2\t\n     3\tb"
    assert context.digests[context.root / "f"] == hashlib.sha256(b"a\n\nb").hexdigest()
    assert good(await context.use("read", path=str(context.root / "f"), offset=3)) == "     3\tb"


async def test_pages(context: FakeContext) -> None:
    (context.root / "f").write_text("".join(f"{n}\n" for n in range(1, 3_001)))
    first = good(await context.use("read", path="f"))
    assert first.endswith("  2000\t2000\n[lines 1 to 2,000 of 3,000; go on with offset=2001]")
    last = good(await context.use("read", path="f", offset=2001))
    assert last.startswith("  2001\t2001\n") and last.endswith("  3000\t3000")
    assert good(await context.use("read", path="f", offset=7, limit=1)) == "     7\t7\n[lines 7 to 7 of 3,000; go on with offset=8]"
    assert "has 3,000 lines" in bad(await context.use("read", path="f", offset=3001))
    (context.root / "empty").touch()
    assert good(await context.use("read", path="empty")) == "(the file is empty)"


async def test_b141_a_page_stays_within_its_bytes_and_tokens(context: FakeContext) -> None:
    for char in "a設🎉":
        (context.root / "f").write_text(f"{char * 400}\n" * 3_000)
        output = good(await context.use("read", path="f"))
        assert len(output.encode()) <= 48 << 10
        assert output.count(char) <= 12_000 * (4 if char == "a" else 1)
        assert "go on with offset=" in output.split("\n")[-1]


@pytest.mark.parametrize("unit", ["x", "👨‍👩‍👧‍👦", "e\u0301", "🇩🇪", "設"])
async def test_b145_long_lines_are_cut_between_characters(context: FakeContext, unit: str) -> None:
    (context.root / "f").write_text(unit * 3_000 + "\nend\n")
    lines = good(await context.use("read", path="f")).split("\n")
    body = lines[0].split("\t", 1)[1].removesuffix(" [… line cut]")
    assert body == unit * (len(body) // len(unit)) and 1_900 < len(body) <= 2_000
    assert lines[1] == "     2\tend" and "longer than 2,000 characters" in lines[2]


async def test_b149_a_line_of_a_megabyte_and_odd_characters(context: FakeContext) -> None:
    (context.root / "f").write_bytes(b"x" * (1 << 20) + b"\nmiddle \xef\xbb\xbf bom \xe2\x80\xa8 sep \x1a\n")
    output = good(await context.use("read", path="f"))
    assert len(output) < 3_000 and "     2\tmiddle \ufeff bom \u2028 sep \x1a" in output


async def test_other_encodings_are_named(context: FakeContext) -> None:
    (context.root / "f").write_bytes("Größe und Maß\n".encode("cp1252"))
    assert good(await context.use("read", path="f")) == "     1\tGröße und Maß\n[encoding cp1252, kept by edit and write]"
    (context.root / "g").write_bytes("ü\n".encode() + b"\xff\n")
    assert "U+FFFD stands for bytes" in good(await context.use("read", path="g"))


async def test_missing_files_come_with_names_like_them(context: FakeContext) -> None:
    (context.root / "README.md").touch()
    (context.root / "other.py").touch()
    assert bad(await context.use("read", path="Readme.md")) == "Readme.md does not exist. In the same folder: README.md."
    assert "Nor does the folder no/such." in bad(await context.use("read", path="no/such/file"))


async def test_what_is_no_file_is_refused_without_hanging(context: FakeContext) -> None:
    os.mkfifo(context.root / "pipe")
    (context.root / "folder").mkdir()
    assert "pipe" in bad(await context.use("read", path="pipe"))
    assert "use list" in bad(await context.use("read", path="folder"))
    assert "device" in bad(await context.use("read", path="/dev/zero"))


async def test_binary_files_are_named(context: FakeContext) -> None:
    (context.root / "f.pdf").write_bytes(b"%PDF-1.7\n\0\0")
    assert bad(await context.use("read", path="f.pdf")).startswith("f.pdf is a PDF document (11 B), not text")
    (context.root / "f").write_bytes(b"\0" * 3000)
    assert "binary data (2.9 KiB)" in bad(await context.use("read", path="f"))


async def test_a_file_too_large_to_hold_is_read_line_by_line(context: FakeContext) -> None:
    with open(context.root / "big", "wb") as file:
        for _ in range(34):
            file.write(b"y" * ((1 << 20) - 1) + b"\n")
        file.write("end ü\n".encode())
    assert "    35\tend ü" in good(await context.use("read", path="big", offset=34))
    assert "go on with offset=3" in good(await context.use("read", path="big", limit=2))
    assert "has 35 lines" in bad(await context.use("read", path="big", offset=40))
    with open(context.root / "sparse", "wb") as file:
        file.truncate(3 << 30)
    assert "3.0 GiB" in bad(await context.use("read", path="sparse"))


# ---- images ----


def png(width: int, height: int, *, mode: str = "RGB") -> bytes:
    out = io.BytesIO()
    Image.new(mode, (width, height), 1).save(out, "PNG")
    return out.getvalue()


@pytest.mark.parametrize(("suffix", "format_"), [("png", "PNG"), ("jpg", "JPEG"), ("gif", "GIF"), ("webp", "WEBP")])
async def test_images_are_given_as_they_are(context: FakeContext, suffix: str, format_: str) -> None:
    out = io.BytesIO()
    Image.new("RGB", (30, 20), (200, 10, 10)).save(out, format_)
    (context.root / "wrong.txt").write_bytes(out.getvalue())  # the first bytes decide, not the name
    result = await context.use("read", path="wrong.txt")
    mime = f"image/{'jpeg' if suffix == 'jpg' else suffix}"
    assert good(result) == f"Image wrong.txt ({mime}, 30×20 pixels, {len(out.getvalue()):,} bytes)."
    [part] = result.files
    assert part["kind"] == "image" and part["mime"] == mime and part["size"] == len(out.getvalue())
    assert context.blobs[part["blob"]] == out.getvalue()


@pytest.mark.parametrize("lossless", [True, False])
def test_the_kinds_of_webp_are_measured(lossless: bool) -> None:
    for mode in ("RGB", "RGBA"):
        out = io.BytesIO()
        Image.new(mode, (301, 17)).save(out, "WEBP", lossless=lossless)
        assert images.dimensions(out.getvalue()) == (301, 17)


@pytest.mark.parametrize(
    ("width", "height", "seen"), [(2_400, 1_200, (2_000, 1_000)), (9_000, 30, (2_000, 7)), (30, 30_000, (2, 2_000))]
)
async def test_b143_images_with_long_sides_are_made_smaller(
    context: FakeContext, width: int, height: int, seen: tuple[int, int]
) -> None:
    (context.root / "i.png").write_bytes(png(width, height))
    result = await context.use("read", path="i.png")
    assert f"made smaller from {width}×{height}" in good(result)
    assert images.dimensions(context.blobs[result.files[0]["blob"]]) == seen


async def test_b143_without_pillow_large_images_are_refused_clearly(context: FakeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    (context.root / "i.png").write_bytes(png(2_400, 10))
    (context.root / "small.png").write_bytes(png(2_000, 10))
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "stead[images]" in bad(await context.use("read", path="i.png"))
    good(await context.use("read", path="small.png"))


async def test_b143_damaged_and_hostile_images_are_errors(context: FakeContext) -> None:
    (context.root / "cut.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    assert "damaged" in bad(await context.use("read", path="cut.png"))
    bomb = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 100_000, 100_000) + b"\x08\x02\0\0\0" + b"\0" * 40
    (context.root / "bomb.png").write_bytes(bomb)
    assert "100000×100000" in bad(await context.use("read", path="bomb.png"))
