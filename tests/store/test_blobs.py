"""Blobs: small ones in the database, large ones in files; known by their content, checked when read. On both databases."""

from __future__ import annotations

import os
import random
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stead.core.errors import SteadError
from stead.core.jsontext import dumps
from stead.store import Store, faults, open_store
from stead.store.blobs import HEAD_BYTES, IN_DATABASE_BYTES, MOVED_TEXT_BYTES
from stead.store.log import MAX_EVENT_BYTES
from tests.store.notes import write
from tests.support import scale

Opener = Callable[..., Store]

LARGE = random.Random(1).randbytes(3 * IN_DATABASE_BYTES)  # does not get smaller


def put(store: Store, content: bytes) -> str:
    prepared = store.blobs.prepare(content)
    digest: str = store.write(lambda tx: tx.put(prepared))
    return digest


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "house" / "blobs"


@pytest.mark.parametrize(
    "content", [b"", b"x", b"\0" * 100_000, bytes(range(256)) * 300, LARGE, LARGE + b"\n", b"text\r\n" * 50_000]
)
def test_what_was_stored_comes_back(store: Store, content: bytes) -> None:
    assert store.blobs.get(put(store, content)) == content


def test_small_ones_are_in_the_database_and_large_ones_in_private_files(store: Store, folder: Path) -> None:
    before = os.umask(0)
    try:
        put(store, b"small" * 100)
        assert files(folder) == []
        digest = put(store, LARGE)
    finally:
        os.umask(before)
    assert files(folder) == [folder / digest[:2] / digest[2:]]
    assert stat.S_IMODE(files(folder)[0].stat().st_mode) == 0o600
    for inner in (folder, folder / digest[:2]):
        assert stat.S_IMODE(inner.stat().st_mode) == 0o700
    with store.view() as view:
        assert view.q("SELECT size, codec FROM blobs WHERE data IS NULL") == [(len(LARGE), "raw")]


def test_a_store_without_a_folder_keeps_all_in_the_database(postgres_empty: str) -> None:
    with open_store(postgres_empty) as store:
        assert store.blobs.get(put(store, LARGE)) == LARGE


def test_the_same_content_is_stored_once(store: Store, folder: Path) -> None:
    assert put(store, LARGE) == put(store, LARGE)
    assert put(store, b"twice") == put(store, b"twice")
    assert len(files(folder)) == 1
    with store.view() as view:
        assert view.q("SELECT count(*) FROM blobs") == [(2,)]


def test_what_is_missing_or_damaged_is_said_and_never_shown(store: Store, folder: Path) -> None:
    digest = put(store, LARGE)
    path = files(folder)[0]
    damages: list[Callable[[], Any]] = [
        lambda: path.write_bytes(LARGE[:-1] + b"!"),
        lambda: path.write_bytes(LARGE[:1000]),
        lambda: path.write_bytes(b""),
        path.unlink,
    ]
    for damage in damages:
        damage()
        with pytest.raises(SteadError) as failed:
            store.blobs.get(digest)
        assert failed.value.code == "store_damaged" and digest[:12] in failed.value.message
    with pytest.raises(SteadError) as failed:
        store.blobs.get("0" * 64)
    assert failed.value.code == "not_found"


def test_damage_in_the_database_is_found_as_well(store: Store) -> None:
    digest = put(store, b"a small text, stored as it is")
    store.write(lambda tx: tx.q("UPDATE blobs SET data=? WHERE hash=?", b"another small text, not as is", digest))
    with pytest.raises(SteadError) as failed:
        store.blobs.get(digest)
    assert failed.value.code == "store_damaged"


@pytest.mark.parametrize("damage", [b"", LARGE[:77], b"garbage"])
def test_content_that_is_stored_again_mends_a_damaged_file(store: Store, folder: Path, damage: bytes) -> None:
    digest = put(store, LARGE)
    files(folder)[0].write_bytes(damage)  # a before-image must not rest on this
    put(store, LARGE)
    assert store.blobs.get(digest) == LARGE


def test_the_file_is_durable_before_the_row_and_the_row_before_the_event(store: Store, folder: Path) -> None:
    order: list[str] = []
    faults.watch(order.append)
    prepared = store.blobs.prepare(LARGE)
    assert store.blobs.get is not None and files(folder)
    store.write(lambda tx: write("a", value={"blob": tx.put(prepared)})(tx))
    assert order.index("blobs.file_durable") < order.index("log.blob_put") < order.index("log.appended")  # I4
    assert order.index("log.appended") < order.index("writer.after_commit")


def test_a_failed_job_leaves_no_row_behind(store: Store) -> None:
    prepared = store.blobs.prepare(b"lost")

    def job(tx: Any) -> None:
        tx.put(prepared)
        raise ValueError

    with pytest.raises(ValueError):
        store.write(job)
    assert not store.write(lambda tx: tx.has_blob(prepared.hash))


# --- long strings -------------------------------------------------------------------------------------------------------------


def through(store: Store, value: Any) -> Any:
    """Pack, store, read and resolve; and the event was below the cap."""
    packed = store.blobs.pack(value)
    seq = store.write(lambda tx: write("a", value=tx.unpack(packed))(tx))
    with store.view() as view:
        return store.blobs.resolve(view.events(after=seq - 1, limit=1)[0].data.value)


@pytest.mark.parametrize(
    "value",
    [
        "x" * MOVED_TEXT_BYTES,
        "x" * (MOVED_TEXT_BYTES + 1),
        {"text": "ä€😀" * 40_000, "n": 1},
        ["\0" * MOVED_TEXT_BYTES] * 9,  # six bytes each in JSON
        [f"{n}" * 1_000 for n in range(10, 99)],  # many middling strings
        [["ab" * 30] * 900],  # so short that moving them would only make it longer
        {"deep": {"deeper": ["\ud83d" * 30_000, "\udc00"]}},
        {"$blob": "a key of their own", "$$blob": {"$blob": 1}, "blob": "no hash"},
        {"$blob": "0" * 64, "size": 3, "head": "xyz"},
    ],
)
def test_packing_shortens_nothing(store: Store, value: Any) -> None:
    if isinstance(value, dict) and "blob" in value:
        value = {**value, "blob": 3}  # `blob` with a text is a reference of ours
    assert through(store, value) == value


def test_a_moved_string_shows_its_size_and_its_head(store: Store) -> None:
    text = "é" * 10_000
    moved = store.blobs.pack({"text": text}).value["text"]
    assert moved["size"] == 20_000 and text.startswith(moved["head"])
    assert HEAD_BYTES - 2 <= len(moved["head"].encode()) <= HEAD_BYTES


def test_strings_that_fit_stay_where_they_are(store: Store) -> None:
    value = {"text": "x" * MOVED_TEXT_BYTES, "list": [1, "y" * 100]}
    packed = store.blobs.pack(value)
    assert packed.value == value and packed.blobs == ()


_texts = st.text(max_size=20) | st.text(min_size=1, max_size=3).map(lambda text: text * 9_000)
_values = st.recursive(
    _texts | st.integers(-9, 9),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.sampled_from(["$blob", "$$blob", "a", "size", "head"]) | st.text(max_size=5), inner, max_size=4)
    ),
    max_leaves=10,
)


_CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(suppress_health_check=_CHECKS, max_examples=scale(3_000))
@given(value=_values)
def test_any_value_comes_back_from_pack_and_resolve(store: Store, value: Any) -> None:
    packed = store.blobs.pack(value)
    store.write(lambda tx: tx.unpack(packed))
    assert store.blobs.resolve(packed.value) == value


def test_no_event_holds_the_content_of_a_file(store: Store) -> None:
    marker = "the content of a file, line by line\n"
    packed = store.blobs.pack({"output": marker * 1_000})
    store.write(lambda tx: write("a", value=tx.unpack(packed))(tx))
    with store.view() as view:
        ((data,),) = view.q("SELECT data FROM events")
    assert bytes(data).count(marker.strip().encode()) <= HEAD_BYTES // len(marker)  # F369: the head alone
    assert len(data) < MAX_EVENT_BYTES // 8


def test_a_list_of_very_many_short_texts_is_moved_whole(store: Store) -> None:
    value = {
        "type": "patch",
        "files": [{"path": f"{'name' * 30}{n}", "additions": n} for n in range(900)],
        "small": [1, {"$blob": "x"}],
    }
    packed = store.blobs.pack(value)
    assert len(dumps(packed.value)) < 48 << 10 and packed.value["files"]["json"]
    store.write(lambda tx: tx.unpack(packed))
    assert store.blobs.resolve(packed.value) == value
