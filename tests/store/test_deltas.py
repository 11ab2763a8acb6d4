"""Versions of a file are stored as what differs from one of them; each is two decompressions away, and none lives off what is
gone."""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.store import blobs, check, codec, deltas, faults
from stead.store.blobs import Prepared
from stead.store.collect import collect
from stead.store.kernel import MIGRATIONS
from stead.store.store import Store
from tests.store.children import Child
from tests.store.notes import Written, erase_stream
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


Opener = Callable[..., Store]


def put(store: Store, content: bytes, after: str | None = None) -> str:
    prepared = store.blobs.prepare(content, after=after)
    return keep(store, prepared)


def keep(store: Store, prepared: Prepared) -> str:
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
    assert taken < whole * (3 + count * 0.1), "as much as if they were stored whole"
    steps: list[str] = []
    for module, name in ((blobs, "decompress"), (deltas, "decode")):
        monkeypatch.setattr(module, name, counted(getattr(module, name), steps))
    for digest, content in made:
        steps.clear()
        assert store.blobs.get(digest) == content and 1 <= len(steps) <= 2
    bases = {base for _, _, base in rows(store).values() if base is not None}
    assert all(rows(store)[base][2] is None for base in bases), "a delta on a delta"
    assert 1 < len(bases) < count / 5 or count < 100


def counted(real: Callable[..., Any], steps: list[str]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        steps.append(real.__name__)
        return real(*arguments, **named)

    return call


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


# --- what lies where ----------------------------------------------------------------------------------------------------------


def noise(size: int, changed: int = 0, seed: int = 1) -> bytes:
    """Bytes that do not get smaller, of which the first are others."""
    raw = random.Random(seed).randbytes(size)
    return random.Random(seed + 1000).randbytes(changed) + raw[changed:]


def test_a_large_delta_lies_in_a_file_of_its_own(store: Store, tmp_path: Path) -> None:
    first, second = noise(600_000), noise(600_000, 100_000)
    key = put(store, first)
    digest = put(store, second, key)
    assert rows(store)[digest][2] == key and 100_000 <= rows(store)[digest][0] < 102_000
    names = dict(store.blobs.file_names())
    assert names == {key: 600_000, f"{digest}-{key[:16]}": rows(store)[digest][0]}
    assert dict(store.blobs.files())[digest] == rows(store)[digest][0]
    assert store.blobs.get(digest) == second == b"".join(store.blobs.chunks(digest))
    _named(store, digest)
    collect(store, age_ms=0)
    assert set(dict(store.blobs.file_names())) == {digest} and store.blobs.get(digest) == second


def test_the_two_forms_of_a_content_never_mix(store: Store) -> None:
    """Two processes make the same content ready, one as a delta, one whole; whoever is first, its row says how it lies."""
    for n, size in ((0, 20_000), (1, 600_000)):
        for first in ("delta", "whole"):
            base = noise(size, seed=2 * n + (first == "whole"))
            content = noise(size, size // 5, seed=2 * n + (first == "whole"))
            key = put(store, base)
            forms = {"delta": store.blobs.prepare(content, after=key), "whole": store.blobs.prepare(content)}
            assert forms["delta"].base == key and forms["whole"].base is None
            for form in (first, *forms):
                digest = keep(store, forms[form])
                assert store.blobs.get(digest) == content
                assert (rows(store)[digest][2] is not None) is (first == "delta")
            _named(store, digest)
            del forms
    collect(store, age_ms=0)
    kept = rows(store)
    assert set(dict(store.blobs.files())) == {digest for digest, (stored, _, _) in kept.items() if stored > 64 << 10}
    assert all(hashlib.sha256(store.blobs.get(digest)).hexdigest() == digest for digest in kept)


def test_a_key_that_came_back_as_a_delta_is_no_key(store: Store) -> None:
    """So that nothing is ever more than two decompressions away, and no circle can be."""
    content = source(20_000)
    key = put(store, content)
    prepared = store.blobs.prepare(edited(content, 1), after=key)
    collect(store, age_ms=0)
    other = put(store, edited(content, 2))
    assert put(store, content, other) == key and rows(store)[key][2] == other
    digest = keep(store, prepared)
    assert rows(store)[digest][2] is None and store.blobs.get(digest) == edited(content, 1)


def test_what_was_found_stored_and_went_before_it_was_put_is_put_whole(store: Store) -> None:
    made = versions(store, 2)
    ready = [store.blobs.prepare(content) for _, content in made]
    assert all(prepared.known for prepared in ready)
    collect(store, age_ms=0)
    assert rows(store) == {}
    for prepared, (digest, content) in zip(ready, made, strict=True):
        assert keep(store, prepared) == digest and store.blobs.get(digest) == content


def test_what_is_found_stored_is_young_again(store: Store) -> None:
    digest = put(store, b"a before-image " * 10)
    store.write(lambda tx: tx.q("UPDATE blobs SET touched=0"))
    assert put(store, b"a before-image " * 10) == digest
    assert collect(store)["blobs"] == 0


@pytest.mark.parametrize("size", [20_000, 600_000])
@pytest.mark.parametrize("whose", ["its own", "its key's"])
def test_content_that_is_stored_again_mends_what_is_damaged(store: Store, tmp_path: Path, size: int, whose: str) -> None:
    first, second = noise(size), noise(size, size // 5)
    key = put(store, first)
    digest = put(store, second, key)
    harmed = digest if whose == "its own" else key
    store.write(lambda tx: tx.q("UPDATE blobs SET data=? WHERE hash=? AND data IS NOT NULL", b"x" * 100, harmed))
    for path in (tmp_path / "house" / "blobs").rglob("*"):
        if path.is_file() and harmed[2:] in path.name:
            path.write_bytes(b"x" * 100)
    with pytest.raises(SteadError):
        store.blobs.get(digest)
    assert put(store, second, key) == digest and store.blobs.get(digest) == second
    assert put(store, first) == key and store.blobs.get(key) == first


def test_a_store_of_the_kernel_before_has_only_whole_blobs_and_goes_on(opener: Opener, tmp_path: Path) -> None:
    small, large = source(20_000), noise(200_000)
    names = [hashlib.sha256(raw).hexdigest() for raw in (small, large)]
    with opener(migrations=MIGRATIONS[:2]) as store:
        insert = "INSERT INTO blobs(hash, size, stored, codec, data, touched) VALUES(?,?,?,?,?,1)"
        packed = codec.compress(small)
        store.write(lambda tx: tx.q(insert, names[0], len(small), len(packed), "zstd", packed))
        store.write(lambda tx: tx.q(insert, names[1], len(large), 0, "raw", None))  # a file's size was not noted then
        store.write(lambda tx: [_name(tx, name) for name in names])
        path = tmp_path / "house" / "blobs" / names[1][:2] / names[1][2:]
        path.parent.mkdir(parents=True)
        path.write_bytes(large)
    store = opener()
    assert [store.blobs.get(name) for name in names] == [small, large]
    after = [put(store, edited(small, 1), names[0]), put(store, large + b"more", names[1])]
    assert [rows(store)[name][2] for name in after] == names
    assert store.blobs.get(after[1]) == large + b"more"
    assert check.blobs(store, {*names, *after}, full=True).ok


# --- what is damaged ----------------------------------------------------------------------------------------------------------


def test_the_check_tells_a_lost_base_once_with_what_lies_on_it(store: Store) -> None:
    made = versions(store, 6)
    key, named = made[0][0], {digest for digest, _ in made[1:]}
    assert check.blobs(store, named, full=True).ok
    store.write(lambda tx: tx.q("UPDATE blobs SET data=? WHERE hash=?", b"damaged", key))
    for full in (True, False):
        said = check.blobs(store, named, full)
        assert not said.ok and said.detail.count(key[:12]) == 1 and "and 5 more" in said.detail
    store.write(lambda tx: tx.q("DELETE FROM blobs WHERE hash=?", key))
    said = check.blobs(store, named, full=False)
    assert not said.ok and f"{key[:12]} is not stored, and with it" in said.detail and "and 5 more" in said.detail


def test_the_check_finds_a_base_and_a_delta_without_their_files(store: Store, tmp_path: Path) -> None:
    key = put(store, noise(600_000))
    digest = put(store, noise(600_000, 100_000), key)
    for lost in (digest, key):
        next(path for path in (tmp_path / "house" / "blobs").rglob("*") if lost[2:] in path.name).unlink()
        said = check.blobs(store, {digest}, full=False)
        assert not said.ok and f"{lost[:12]} has no file" in said.detail


def test_a_damaged_key_stops_no_collection(store: Store) -> None:
    made = versions(store, 3)
    _named(store, made[1][0])
    loose = put(store, b"nothing names this " * 100)
    store.write(lambda tx: tx.q("UPDATE blobs SET data=? WHERE hash=?", b"damaged", made[0][0]))
    done = collect(store, age_ms=0)
    assert set(rows(store)) == {made[0][0], made[1][0]} and loose not in rows(store) and not done["whole"]


# --- collections --------------------------------------------------------------------------------------------------------------


def _name(tx: Any, digest: str, stream: str = "s") -> None:
    tx.append(stream, Written(text="x", value={"blob": digest}))


def test_a_reader_does_not_stumble_over_a_base_that_goes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = versions(store, 2)
    digest, content = made[2]
    _named(store, digest)
    real = store.blobs._find
    begun: list[str] = []

    def find(name: str) -> Any:
        row = real(name)
        if not begun:
            begun.append(name)
            collect(store, age_ms=0)  # between the look at the delta and that at its base
        return row

    monkeypatch.setattr(store.blobs, "_find", find)
    assert rows(store)[digest][2] == made[0][0] and store.blobs.get(digest) == content
    assert rows(store)[digest][2] is None


def test_what_lay_on_one_key_is_not_made_whole_one_by_one(store: Store) -> None:
    """A key that goes has as many others behind it as are needed: what differs from it in other places differs more from each
    other."""
    raw, part = noise(40_000), 3_200
    key = put(store, raw)
    made = {}
    for n in range(11):
        content = raw[: n * part] + noise(part, seed=50 + n) + raw[(n + 1) * part :]
        made[put(store, content, key)] = content
    assert {base for _, _, base in rows(store).values()} == {None, key}
    for digest in made:
        _named(store, digest)
    assert collect(store, age_ms=0)["blobs"] == 1
    assert sum(base is None for _, _, base in rows(store).values()) == 2
    assert all(store.blobs.get(digest) == content for digest, content in made.items())


def test_b063_freeing_what_lies_on_keys_grows_by_one_key_at_most(store: Store, tmp_path: Path) -> None:
    size = 400_000
    for n in range(8):
        key = put(store, noise(size, seed=n))
        _named(store, put(store, noise(size, 3_000, seed=n), key))
        put(store, noise(size, seed=100 + n))  # nothing names it, and it goes first
    before = peak = _taken(tmp_path)

    def measure(name: str) -> None:
        nonlocal peak
        peak = max(peak, _taken(tmp_path))

    faults.watch(measure)
    assert collect(store, age_ms=0)["whole"]
    faults.disarm()
    assert peak <= before and len(list(store.blobs.files())) == 8 and _taken(tmp_path) < before * 0.6


def _taken(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "house" / "blobs").rglob("*") if path.is_file())


def test_a_full_disk_while_a_key_is_freed_costs_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made = versions(store, 3)
    _named(store, made[2][0])

    def full(*_: Any) -> Any:
        raise SteadError("disk_full", "There is no space.")

    with monkeypatch.context() as patched:
        patched.setattr(store.blobs, "remade", full)
        done = collect(store, age_ms=0)
    assert not done["whole"] and set(rows(store)) == {made[0][0], made[2][0]}
    assert collect(store, age_ms=0)["whole"] and set(rows(store)) == {made[2][0]}
    assert store.blobs.get(made[2][0]) == made[2][1]


def test_a_collection_of_keys_killed_at_any_point_is_finished_by_the_next(opener: Opener) -> None:
    kept: dict[str, bytes] = {}

    def fill(at: int) -> None:
        kept.clear()
        with opener() as store:
            for size in (3_000, 200_000):
                base = noise(size, seed=at)
                key = put(store, base)
                for n in range(1, 4):
                    content = noise(size, size // 4, seed=at) + b"%d" % n
                    digest = put(store, content, key)
                    assert rows(store)[digest][2] in (key, None)
                    if n > 1:
                        store.write(partial(_name, digest=digest, stream=f"s{at}"))
                        kept[digest] = content

    def run(at: int) -> None:
        store, left = opener(), at

        def passing(name: str) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                faults.kill(name)

        faults.watch(passing)
        collect(store, age_ms=0)

    at, step = 1, 1 if scale(100) > 1 else 5
    fill(at)
    while Child(partial(run, at)).killed():
        with opener() as store:
            assert all(store.blobs.get(digest) == content for digest, content in kept.items())
            assert collect(store, age_ms=0)["whole"] and set(rows(store)) == set(kept)
            assert all(store.blobs.get(digest) == content for digest, content in kept.items())
            files = {digest for digest, (stored, _, _) in rows(store).items() if stored > 64 << 10}
            assert {digest for digest, _ in store.blobs.files()} == files
            store.write(erase_stream(f"s{at}"))
        at += step
        fill(at)
    assert at > 10


def test_versions_stored_beside_a_collection_are_never_lost(store: Store) -> None:
    over, errors = threading.Event(), list[BaseException]()

    def collecting() -> None:
        try:
            while not over.is_set():
                collect(store, age_ms=0)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=collecting)
    thread.start()
    try:
        content, last = source(4_000), None
        for n in range(max(60, scale(500))):
            content = edited(content, n)
            prepared = store.blobs.prepare(content, after=last)

            def job(tx: Any, prepared: Prepared = prepared, n: int = n) -> str:
                digest = str(tx.put(prepared))
                _name(tx, digest, f"s{n}")
                return digest

            last = store.write(job)
            assert store.blobs.get(last) == content
            if n % 3:
                store.write(erase_stream(f"s{n}"))
            else:
                assert store.blobs.has(last)
    finally:
        over.set()
        thread.join()
    assert errors == []
    with store.view() as view:
        named = [value for (value,) in view.q("SELECT data FROM events WHERE kind='note.written'")]
    assert len(named) >= 20 and check.blobs(store, set(rows(store)), full=True).ok
