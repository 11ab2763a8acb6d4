"""Attachments: what a person gives to a prompt, known by its bytes, kept in private files."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from stead.core.errors import SteadError
from stead.domain import attachments
from stead.store import faults

ID = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "attachments"


@pytest.mark.parametrize("content", [b"", b"x", b"\0\xff" * 99, "ü\n".encode()])
def test_what_was_given_comes_back(folder: Path, content: bytes) -> None:
    part = attachments.add(folder, ID, "../../any name\0.txt", content)
    assert part["size"] == len(content) and part["id"] == ID and part["name"] == "../../any name\0.txt"
    assert attachments.load(folder, ID) == content
    (path,) = folder.iterdir()
    assert path.name == f"{ID}.att" and stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("content", "kind", "mime"),
    [
        (b"\x89PNG\r\n\x1a\nrest", "image", "image/png"),
        (b"\xff\xd8\xff\xe0", "image", "image/jpeg"),
        (b"GIF89a..", "image", "image/gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "image", "image/webp"),
        (b"RIFF\0\0\0\0WAVE", "other", "application/octet-stream"),
        (b"%PDF-1.7", "other", "application/pdf"),
        (b"<svg/>", "text", "text/plain"),
        ("漢字".encode(), "text", "text/plain"),
        (b"caf\xe9", "other", "application/octet-stream"),
        (b"a\0b", "other", "application/octet-stream"),
        (b"", "text", "text/plain"),
    ],
)
def test_bytes_are_what_they_are_whatever_they_are_called(content: bytes, kind: str, mime: str) -> None:
    assert attachments.sniff(content) == (kind, mime)


def test_a_file_too_large_is_refused_and_nothing_is_written(folder: Path) -> None:
    with pytest.raises(SteadError) as failed:
        attachments.add(folder, ID, "big", b"\0" * (attachments.MAX_BYTES + 1))
    assert failed.value.code == "usage" and not folder.exists()


@pytest.mark.parametrize("name", ["", "x", "../secret", "a/b", "é", "x" * 65, ".", "a.att", "a\0b"])
def test_what_cannot_be_an_id_is_not_found_without_a_look(folder: Path, name: str) -> None:
    folder.mkdir()
    (folder.parent / "secret.att").write_bytes(b"no")
    with pytest.raises(SteadError) as failed:
        attachments.load(folder, name)
    assert failed.value.code == "not_found"
    attachments.remove(folder, name)
    assert (folder.parent / "secret.att").exists()


def test_a_removed_one_is_gone_and_removing_it_again_is_quiet(folder: Path) -> None:
    attachments.add(folder, ID, "n", b"x")
    for _ in range(2):
        attachments.remove(folder, ID)
    with pytest.raises(SteadError):
        attachments.load(folder, ID)


@pytest.mark.parametrize("point", ["safefile.created", "safefile.written", "safefile.synced"])
def test_a_full_disk_leaves_no_half_file(folder: Path, point: str) -> None:
    faults.arm(point, faults.enospc)
    with pytest.raises(SteadError) as failed:
        attachments.add(folder, ID, "n", b"x")
    faults.disarm()
    assert failed.value.code == "disk_full" and list(folder.iterdir()) == []
