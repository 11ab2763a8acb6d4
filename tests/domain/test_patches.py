"""Patches that git applies, forwards and backwards, to the byte; and merges that git agrees with."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.domain.merge import merge
from stead.domain.patches import FileDiff, git_patch

NAMES = [b"plain", b"a b", b"x\ny", b'q"q', b"caf\xc3\xa9", b"bad\xff", b"tab\t", b"[z]", b"back\\slash", b"d/e f"]
TEXT = st.lists(st.sampled_from([b"a\n", b"b\r\n", b"c\xff\n", b"\n", b"dd\n"]), max_size=25).map(b"".join)
CONTENT = st.one_of(TEXT, st.builds(lambda text: text + b"end", TEXT), st.binary(max_size=200), st.just(b""))
MODES = st.sampled_from([0o100644, 0o100755])


def put(folder: Path, name: bytes, content: bytes | None, mode: int) -> None:
    at = os.path.join(os.fsencode(folder), name)
    os.makedirs(os.path.dirname(at), exist_ok=True)
    if content is None:
        return
    if mode == 0o120000:
        os.symlink(content, at)
        return
    Path(os.fsdecode(at)).write_bytes(content)
    os.chmod(at, mode & 0o777)


def there(folder: Path) -> dict[bytes, tuple[object, bytes]]:
    found: dict[bytes, tuple[object, bytes]] = {}
    for top, folders, files in os.walk(os.fsencode(folder)):
        folders[:] = [name for name in folders if name != b".git"]
        for name in files:
            at = os.path.join(top, name)
            key = os.path.relpath(at, os.fsencode(folder))
            link = os.path.islink(at)
            found[key] = ("link", os.readlink(at)) if link else (os.stat(at).st_mode & 0o100, Path(os.fsdecode(at)).read_bytes())
    return found


def check(diff: FileDiff) -> None:
    """The patch leads from one state to the other and back."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        put(folder, diff.origin or diff.path, diff.before, diff.before_mode)
        before = there(folder)
        patch = git_patch(diff)
        for way, wanted in (([], (diff.path, diff.after, diff.after_mode)), (["-R"], None)):
            done = subprocess.run(
                ["git", "apply", "--whitespace=nowarn", *way, "-"], cwd=folder, input=patch, capture_output=True, check=False
            )
            assert done.returncode == 0, (done.stderr, patch)
            if wanted is None:
                assert there(folder) == before
            elif wanted[1] is None:
                assert there(folder) == {}
            else:
                mode = wanted[2]
                assert there(folder) == {wanted[0]: ("link" if mode == 0o120000 else mode & 0o100, wanted[1])}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(NAMES), st.one_of(st.none(), CONTENT), st.one_of(st.none(), CONTENT), MODES, MODES)
def test_a_patch_is_one_that_git_applies_and_takes_back(
    name: bytes, before: bytes | None, after: bytes | None, old: int, new: int
) -> None:
    if (before, old) != (after, new) and (before is not None or after is not None):
        check(FileDiff(name, before, after, old, new))


@pytest.mark.parametrize("name", NAMES)
def test_renames_and_links_are_patches_too(name: bytes) -> None:
    check(FileDiff(name, b"one\ntwo\nthree\n", b"one\n2\nthree\n", 0o100644, 0o100755, origin=b"was/here"))
    check(FileDiff(name, b"same\n", b"same\n", origin=b"before"))
    check(FileDiff(name, b"to/here", b"to/there", 0o120000, 0o120000))
    check(FileDiff(name, b"file\n", b"target", 0o100644, 0o120000))


def git_merge(base: bytes, ours: bytes, theirs: bytes) -> bytes | None:
    with tempfile.TemporaryDirectory() as place:
        names = []
        for name, content in (("ours", ours), ("base", base), ("theirs", theirs)):
            (Path(place) / name).write_bytes(content)
            names.append(name)
        done = subprocess.run(["git", "merge-file", "-p", *names], cwd=place, capture_output=True, check=False)
        return done.stdout if done.returncode == 0 else None


@given(TEXT, TEXT)
def test_a_side_that_changed_nothing_gives_the_other(base: bytes, other: bytes) -> None:
    assert merge(base, base, other) == merge(base, other, base) == merge(base, other, other) == other


UNIQUE = [b"line %d\n" % n for n in range(30)]
PLACES = st.lists(st.integers(0, 29), max_size=4, unique=True)


def changed(places: list[int], word: bytes) -> bytes:
    return b"".join(word + line if n in places else line for n, line in enumerate(UNIQUE))


@settings(max_examples=60, deadline=None)
@given(PLACES, PLACES)
def test_what_is_merged_is_what_git_merges(mine: list[int], other: list[int]) -> None:
    base, ours, theirs = b"".join(UNIQUE), changed(mine, b"mine "), changed(other, b"other ")
    merged = merge(base, ours, theirs)
    assert merged == git_merge(base, ours, theirs)
    near = any(abs(a - b) <= 1 for a in mine for b in other)
    assert (merged is None) == near


def test_binary_content_is_merged_only_where_one_side_is_unchanged() -> None:
    assert merge(b"a\0", b"b\0", b"c\0") is None
    assert merge(b"a\0", b"b\0", b"a\0") == b"b\0"
