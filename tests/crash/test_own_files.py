"""A process is killed in the middle of writing one of its own files: what stands there is the old or the new one, and whole.

Nothing of ours is kept as a second copy that could be forgotten: no `.bak`, no `~`. `config.toml` is the person's own and is only
ever read, so there is no write to be killed in.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stead.config.secrets import Secrets
from stead.core.clock import ManualClock
from stead.core.jsontext import loads
from stead.domain import attachments
from stead.store import faults, open_store, safefile
from stead.store.lock import ProcessLock
from tests.crash import scenario
from tests.store.children import Child
from tests.store.notes import NOTES, write
from tests.support import scale

pytestmark = pytest.mark.crash
SIZES = (3, 70_000, 700)


def content(n: int) -> bytes:
    """Version `n`: it says itself whether it is whole."""
    body = hashlib.sha256(str(n).encode()).hexdigest().encode() * SIZES[n % len(SIZES)]
    return hashlib.sha256(body).hexdigest().encode() + body


def is_whole(data: bytes) -> bool:
    return hashlib.sha256(data[64:]).hexdigest().encode() == data[:64]


@dataclass(frozen=True)
class File:
    """A file of stead's: where it lies, how version `n` is written over it (or it is made, once), and when it is whole."""

    path: str
    write: Callable[[Path, int], Any]
    whole: Callable[[bytes], bool] = is_whole


def _backup(path: Path, n: int) -> None:
    with open_store(path.parent.parent, [NOTES], clock=ManualClock()) as store:
        store.write(write("a", "x" * 1_000))
        store.database.backup(path)


FILES = {
    "private": File("private", lambda path, n: safefile.write_private(path, content(n))),
    "once": File("once", lambda path, n: safefile.create_private(path, content(n))),
    "user": File("user.txt", lambda path, n: safefile.replace(path, content(n))),
    "secret": File(
        "secret.key",
        lambda path, n: Secrets(path.parent, environ={}).master(create=True),
        lambda data: len(data) == 45,
    ),
    "attachment": File("attachments/file.att", lambda path, n: attachments.add(path.parent, "file", "a name", content(n))),
    "lock": File(
        "locks/owner0000000001",
        lambda path, n: ProcessLock(path.parent, path.name, {"n": "x" * 300}).release(forget=False),
        lambda data: loads(data)["n"] == "x" * 300,
    ),
    "backup": File("backups/before.db", _backup, lambda data: data[:16] == b"SQLite format 3\0"),
}


def rubbish(folder: Path) -> list[Path]:
    """What nobody asked for: temporary files, and copies kept for a bad day."""
    return [
        path for path in folder.rglob("*") if path in safefile.leftovers(path.parent) or path.name.endswith((".bak", "~", ".part"))
    ]


def written(file: File, folder: Path, versions: range) -> None:
    (folder / file.path).parent.mkdir(exist_ok=True, mode=0o700)
    for n in versions:
        file.write(folder / file.path, n)


def check(file: File, folder: Path) -> None:
    path = folder / file.path
    if path.exists():
        assert file.whole(path.read_bytes()), f"{file.path} is neither the old nor the new one"
        assert path.suffix == ".txt" or path.stat().st_mode & 0o077 == 0
    assert len(rubbish(folder)) <= 1, "what killed writers left behind piles up"


@pytest.mark.parametrize("name", FILES)
def test_b004_killed_at_each_point_of_a_write_the_file_is_the_old_or_the_new_one(name: str, place: Path) -> None:
    file = FILES[name]
    passed = 0
    while True:
        passed += 1

        def work(at: int = passed) -> None:
            seen = 0

            def passing(point: str) -> None:
                nonlocal seen
                seen += 1
                if seen == at:
                    faults.kill(point)

            faults.watch(passing)
            written(file, place, range(at, at + 2))

        killed = Child(work).killed()
        check(file, place)
        if not killed:
            break
        if name in ("secret", "once"):  # made once: each time anew, beside what was left before
            (place / file.path).unlink(missing_ok=True)
    assert passed > 3 and (place / file.path).exists()
    safefile.sweep((place / file.path).parent)
    assert rubbish(place) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in FILES if name not in ("secret", "once")])
def test_b004_killed_at_any_moment_the_file_is_the_old_or_the_new_one(name: str, place: Path) -> None:
    file, rng = FILES[name], random.Random(name)
    for n in range(scale(1_000)):
        child = Child(lambda n=n: written(file, place, range(n, 1_000_000)))  # type: ignore[misc]
        time.sleep(rng.random() * 0.02)
        child.kill()
        check(file, place)
    written(file, place, range(1))
    safefile.sweep(place, below=True)
    assert rubbish(place) == []


def test_b004_what_killed_writers_of_many_files_left_is_swept_at_once(place: Path) -> None:
    """Attachments and blobs have a new name each, so nobody comes by again to take their temporary files away."""
    for n in range(6):

        def work(n: int = n) -> None:
            faults.arm("safefile.synced")
            attachments.add(place / "attachments", f"file{n}", "a name", content(n))

        assert Child(work).killed()
    assert len(safefile.leftovers(place / "attachments")) == 6
    assert safefile.sweep(place, below=True) == 6 and os.listdir(place / "attachments") == []


def test_b004_a_living_writers_temporary_file_is_not_swept_away(place: Path) -> None:
    def slowly() -> None:
        faults.watch(lambda name: (Path(place / name).touch(), time.sleep(0.1)) if name == "safefile.written" else None)
        safefile.write_private(place / "f", b"whole")

    child = Child(slowly)
    while not (place / "safefile.written").exists():
        time.sleep(0.001)
    assert safefile.sweep(place) == 0 and len(safefile.leftovers(place)) == 1
    safefile.write_private(place / "f", b"another's")  # takes a temporary name of its own
    child.result()
    assert (place / "f").read_bytes() == b"whole" and safefile.leftovers(place) == []


def test_b004_of_many_who_make_a_file_one_does_and_all_see_it_whole(place: Path) -> None:
    def make(n: int) -> tuple[bool, bytes]:
        return safefile.create_private(place / "f", content(n)), (place / "f").read_bytes()

    told = [child.result() for child in [Child(lambda n=n: make(n)) for n in range(8)]]  # type: ignore[misc]
    assert sum(made for made, _ in told) == 1 and len({data for _, data in told}) == 1 and is_whole(told[0][1])
    assert os.listdir(place) == ["f"]


def test_b004_files_that_a_start_reads_have_no_second_copy(place: Path) -> None:
    """A whole prompt's life leaves no kept copies that nobody would read; the backup of a migration has a name of its own."""
    scenario.prepare(place / "project")
    Child(lambda: scenario.play(place / "data", place / "project", os.open(os.devnull, os.O_WRONLY))).result()
    assert rubbish(place / "data") == []
    names = {path.relative_to(place / "data").parts[0] for path in (place / "data").rglob("*")}
    assert names <= {"attachments", "backups", "blobs", "locks", "secret.key", "stead.db", "stead.db-wal", "stead.db-shm"}
