"""Versions of a file are stored as what differs from one of them; each is two decompressions away, and none lives off what is
gone."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.store import codec, deltas
from stead.store.collect import collect
from stead.store.store import Store
from tests.store.notes import Written
from tests.support import scale


def source(size: int, seed: int = 1) -> bytes:
    """Text that looks like a program's."""
    dice = random.Random(seed)
    lines: list[str] = []
    while sum(map(len, lines)) < size:
        lines.append(f"    value_{dice.randrange(10**6)} = call_{dice.randrange(10**4)}(argument={dice.random()})\n")
    return "".join(lines).encode()


def edited(content: bytes, n: int) -> bytes:
    """One line of it changed."""
    lines = content.split(b"\n")
    lines[(n * 7919) % len(lines)] = b"    changed_%d = %d" % (n, n * n)
    return b"\n".join(lines)


def put(store: Store, content: bytes, after: str | None = None) -> str:
    prepared = store.blobs.prepare(content, after=after)
    return str(store.write(lambda tx: tx.put(prepared)))


def versions(store: Store, count: int, size: int = 20_000) -> list[tuple[str, bytes]]:
    content, made = source(size), []
    digest = put(store, content)
    made.append((digest, content))
    for n in range(count):
        content = edited(content, n)
        digest = put(store, content, digest)
        made.append((digest, content))
    return made


def rows(store: Store) -> dict[str, tuple[int, str, str | None]]:
    with store.view() as view:
        return {row[0]: (row[1], row[2], row[3]) for row in view.q("SELECT hash, stored, codec, base FROM blobs")}


@pytest.mark.parametrize("size", [20_000, 150_000])
def test_small_edits_take_little_and_each_version_comes_back(store: Store, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    count = 40 + scale(400)
    made = versions(store, count, size)
    taken = sum(stored or store.blobs.file_size(digest) for digest, (stored, _, _) in rows(store).items())
    whole = len(codec.compress(made[-1][1]))
    assert taken < whole * (3 + count * 0.05), "as much as if they were stored whole"
    steps = 0
    real = store.blobs._find

    def counted(digest: str) -> Any:
        nonlocal steps
        steps += 1
        return real(digest)

    monkeypatch.setattr(store.blobs, "_find", counted)
    for digest, content in made:
        steps = 0
        assert store.blobs.get(digest) == content and steps <= 2


def test_what_is_small_large_or_of_another_kind_is_stored_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    small = put(store, b"x" * 100)
    other = put(store, b"y" * 100, small)
    one = put(store, source(9_000, 1))
    two = put(store, random.Random(3).randbytes(9_000), one)
    three = put(store, edited(source(9_000, 1), 3), "f" * 64)
    monkeypatch.setattr(deltas, "MOST_BYTES", 8_000)
    four = put(store, edited(source(9_000, 1), 4), one)
    assert {rows(store)[digest][2] for digest in (small, other, one, two, three, four)} == {None}


def test_a_damaged_key_is_named_with_what_lies_on_it(store: Store) -> None:
    (key, _), *rest = versions(store, 3)
    store.write(lambda tx: tx.q("UPDATE blobs SET data=? WHERE hash=?", b"damaged", key))
    for digest, _ in rest:
        with pytest.raises(SteadError) as failed:
            store.blobs.get(digest)
        assert failed.value.code == "store_damaged" and key[:12] in failed.value.message
    fresh = put(store, edited(source(20_000), 99), key)
    assert rows(store)[fresh][2] is None and store.blobs.get(fresh)


def test_a_base_that_went_in_the_last_moment_is_no_loss(store: Store) -> None:
    content = source(20_000)
    key = put(store, content)
    prepared = store.blobs.prepare(edited(content, 1), after=key)
    assert prepared.base == key
    collect(store, age_ms=0)
    store.write(lambda tx: tx.put(prepared))
    assert store.blobs.get(prepared.hash) == edited(content, 1) and rows(store)[prepared.hash][2] is None


def test_what_lies_on_a_key_that_goes_gets_another(store: Store) -> None:
    made = versions(store, 12)
    lasting = made[3:9]
    for digest, _ in lasting:
        _named(store, digest)
    gone = collect(store, age_ms=0)
    left = rows(store)
    assert set(left) == {digest for digest, _ in lasting} and gone["blobs"] == len(made) - len(lasting)
    assert sum(base is None for _, _, base in left.values()) == 1  # one is the key of the others
    assert {base for _, _, base in left.values() if base} <= set(left)
    for digest, content in lasting:
        assert store.blobs.get(digest) == content


def _named(store: Store, digest: str) -> None:
    """An event that names the blob, as those of changes do."""
    store.write(lambda tx: tx.append("s", Written(text="x", value={"blob": digest})))


@pytest.mark.parametrize("seed", range(scale(300)))
def test_any_order_of_putting_naming_and_collecting_loses_nothing_named(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    content = source(4_000, seed)
    last: str | None = None
    named: dict[str, bytes] = {}
    for _ in range(25):
        what = dice.random()
        if what < 0.7:
            content = edited(content, dice.randrange(1_000))
            last = put(store, content, last)
            assert last == hashlib.sha256(content).hexdigest()
            if dice.random() < 0.5:
                _named(store, last)
                named[last] = content
        elif what < 0.9:
            collect(store, age_ms=0)
        else:
            last = dice.choice([*named, None]) if named else None
    collect(store, age_ms=0)
    assert set(rows(store)) == set(named)
    assert all(store.blobs.get(digest) == text for digest, text in named.items())
