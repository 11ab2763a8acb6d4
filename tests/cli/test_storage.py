"""`stead storage`: what takes room, by table, session and kind; what nothing needs goes; what was deleted is gone everywhere."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from stead.app import Stead
from stead.app.storage import sizes
from stead.domain import changes, sessions
from stead.store import Tx
from stead.store.blobs import Prepared
from stead.store.collect import DAY_MS
from stead.store.log import MAX_EVENT_BYTES
from tests.cli.door import stead
from tests.domain import house as made
from tests.support import run_stead, scale

SESSION = made.SESSION


def noise(name: str, size: int) -> str:
    return "".join(hashlib.sha256(f"{name}.{n}".encode()).hexdigest() for n in range(size // 64 + 1))


def tx_put(prepared: Prepared) -> Callable[[Tx], str]:
    return lambda tx: tx.put(prepared)


def talk(house: Stead, session: str, *texts: str) -> None:
    """A message with these texts; the long ones become blobs."""
    packed = [house.store.blobs.pack({"type": "text", "text": text}) for text in texts]

    def job(tx: Tx) -> None:
        n = sessions.add_message(tx, session, "assistant", model="openai/m")
        for k, one in enumerate(packed):
            sessions.add_part(tx, session, n, k, tx.unpack(one))

    house.store.write(job)


@pytest.fixture
def house(data_dir: Path) -> Path:
    opened = Stead.open(data_dir)
    for name in (SESSION, "session000000002"):
        made.session(opened.store, name, title=f"About {name}")
    talk(opened, SESSION, "short", noise("large", 400_000))
    talk(opened, "session000000002", "short")
    opened.close()
    return data_dir


def test_sizes_by_table_session_and_kind(house: Path) -> None:
    found = stead("storage", "--json").json
    assert set(found) == {"bytes", "tables", "blobs", "wal", "pending_purge", "sessions", "kinds", "undo"}
    assert {"events", "sessions", "parts", "blobs"} <= set(found["tables"]) and all(size > 0 for size in found["tables"].values())
    assert found["blobs"] > 200_000 and found["pending_purge"] == 0
    assert sum(found["tables"].values()) + found["blobs"] <= found["bytes"] + found["wal"] + 8192
    assert [one["session"] for one in found["sessions"]] == [SESSION, "session000000002"]
    assert found["sessions"][0]["bytes"] > found["blobs"] > found["sessions"][1]["bytes"]
    assert {one["kind"]: one["events"] for one in found["kinds"]} == {"session.created": 2, "message.added": 2, "part.added": 3}
    lines = stead("storage").lines
    assert lines[0] == "what\tname\tsize" and any(line.startswith(f"session\t{SESSION} About") for line in lines)


def test_a_blob_is_printed_as_it_is(house: Path) -> None:
    raw = noise("large", 400_000).encode()
    digest = hashlib.sha256(raw).hexdigest()
    for name in (digest, digest[:6]):
        done = run_stead("storage", "blob", name)
        assert done.returncode == 0 and done.stdout == raw
    for name, code in (("0" * 64, 3), ("ab", 3), ("../../x", 3)):
        assert stead("storage", "blob", name).code == code
    assert stead("storage", "blob").code == 2 and stead("storage", "nonsense").code == 2


def test_what_nothing_names_is_shown_and_collected_after_a_day(house: Path) -> None:
    with Stead.open(house).store as store:
        raw = noise("loose", 400_000).encode()
        prepared = store.blobs.prepare(raw)
        store.write(tx_put(prepared))
        del prepared  # while it lives its file is held
    pending = stead("storage", "--json").json["pending_purge"]
    assert pending > 200_000
    assert stead("storage", "--collect", "--json").json["pending_purge"] >= pending  # it may be about to be named
    sql = f"UPDATE blobs SET touched=touched-{DAY_MS} WHERE hash='{hashlib.sha256(raw).hexdigest()}'"
    with Stead.open(house).store as store:
        store.write(lambda tx: tx.q(sql))
    done = stead("storage", "--collect")
    assert "Removed 1 blobs of" in done.err
    after = stead("storage", "--json").json
    assert after["pending_purge"] == 0 and after["wal"] == 0
    assert len([path for path in (house / "blobs").rglob("*") if path.is_file()]) == 1


def test_b021_deleting_what_is_not_there_as_the_first_act_is_not_found(data_dir: Path) -> None:
    for arguments in (["delete", "nosuch-session"], ["delete", "nosuch-session", "--now", "-y"], ["show", "nosuch-session"]):
        for _ in range(2):
            done = stead("sessions", *arguments, "--json")
            assert done.code == 3 and done.json["error"]["code"] == "not_found"
    found = stead("doctor", "--json").json
    assert found["ok"] and stead("storage", "--json").json["kinds"] == []
    with Stead.open(data_dir).store as store, store.view() as view:
        tables = view.tables(store.database)
        assert {table for feature in store.features for table in (*feature.tables, *feature.kept)} <= tables


@pytest.mark.parametrize("large", [False, True])
def test_d13_what_is_deleted_for_good_is_in_no_row_blob_log_or_free_page(data_dir: Path, large: bool) -> None:
    """The sessions are written in turns, so that their rows share pages."""
    house = Stead.open(data_dir)
    secret, other = noise("planted", 64)[:64], noise("stays", 64)[:64]
    for name in (SESSION, "session000000002"):
        made.session(house.store, name, title=secret if name == SESSION else other)
    for n in range(max(scale(1_000), 60)):
        for name, text in ((SESSION, secret), ("session000000002", other)):
            texts = [text * (n % 40 + 1), text + noise(f"{n}", 300)]
            if large and n % 20 == 0:
                texts += [text + " " + "many words " * 2000 + text, text + noise(f"{name}{n}", 300_000)]
            talk(house, name, *texts)
    talk(house, "session000000002", shared := other + noise("shared", 200_000))
    talk(house, SESSION, shared)
    held = [path for path in data_dir.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert held
    assert house.delete(SESSION) == [SESSION]
    found = [path.name for path in data_dir.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert found == []
    assert house.store.blobs.get(hashlib.sha256(shared.encode()).hexdigest()) == shared.encode()
    assert {one["session"] for one in sizes(house)["sessions"]} == {"session000000002"}
    assert sizes(house)["pending_purge"] == 0
    with house.store.view() as view:
        shown = sessions.messages(view, "session000000002")
    assert len(shown) == max(scale(1_000), 60) + 1
    house.close()
    assert stead("doctor", "--full", "--json").code == 0


def test_b029_what_an_edit_adds_is_in_proportion_to_the_edit(data_dir: Path) -> None:
    """Edits of a 1 MB file in a folder of thousands: each adds references to its two states, once each, and a small event."""
    house = Stead.open(data_dir)
    made.session(house.store)
    run = made.start(house.store)
    content = noise("file", 1 << 20)
    edits = max(scale(300), 8)
    before = house.store.blobs.prepare(content.encode())
    for n in range(edits):
        content = content[: n * 100] + f"edit {n:06}" + content[n * 100 + 11 :]
        after = house.store.blobs.prepare(content.encode())

        fact = changes.ChangeCaptured(
            call=f"c{n}",
            message=run.message,
            path="src/large.txt",
            before={"kind": "file", "mode": 0o644, "size": 1 << 20, "blob": before.hash},
            after={"kind": "file", "mode": 0o644, "size": 1 << 20, "blob": after.hash},
        )

        def job(tx: Tx, blobs: tuple[Prepared, ...] = (before, after), fact: changes.ChangeCaptured = fact) -> None:
            for one in blobs:
                tx.put(one)
            tx.append(SESSION, fact, run=run.id)

        house.store.write(job)
        before = after
    found = sizes(house)
    kinds = {one["kind"]: one for one in found["kinds"]}
    assert kinds["change.captured"]["events"] == edits
    assert kinds["change.captured"]["bytes"] < 1000 * edits
    with house.store.view() as view:
        assert view.q("SELECT max(length(data)) FROM events")[0][0] < MAX_EVENT_BYTES
        assert view.q("SELECT count(*) FROM blobs")[0][0] == edits + 1
    assert found["blobs"] < (edits + 1) * (1 << 20) * 0.7
    house.close()
