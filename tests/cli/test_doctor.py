"""`stead doctor`: what is wrong with a store is found, said, and where that is possible made right."""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from stead.app import Stead
from stead.app.doctor import examine
from stead.app.features import FEATURES
from stead.app.storage import sizes
from stead.core.clock import ManualClock, SystemClock
from stead.core.parts import NO_TOKENS
from stead.domain import projects, providers, runs, sessions
from stead.interfaces.cli.waiting import Waiting
from stead.store import Store, Tx
from tests.cli.door import stead
from tests.domain import house as made
from tests.store.children import Child
from tests.support import scale

SESSION = made.SESSION
NAMES = [
    "place", "database", "log", "deleted", "blobs", "attachments", "runs", "projections", "indexes", "files", "leftovers", "wal",
    "secret", "configuration",
]  # fmt: skip


def fill(store: Store, count: int = 60) -> None:
    """A session with a finished run of many parts, one of them large, and fifty-odd more sessions."""
    here = projects.identify(store.folder or Path("."))
    store.write(lambda tx: projects.open_project(tx, here, id=made.PROJECT))
    made.session(store)
    run = made.start(store)
    made.call(store, run, 0, started=True)
    packed = store.blobs.pack({"status": "done", "output": os.urandom(70_000).hex()})
    store.write(
        lambda tx: tx.append(SESSION, sessions.ToolEnded(message=run.message, n=0, call="c1", result=tx.unpack(packed)), run=run.id)
    )
    made.step(store, run, 1, input=5)
    made.end(store, run)

    def more(tx: Tx) -> None:
        for n in range(count):
            sessions.create(tx, f"more{n:012}", made.PROJECT, title=f"Session {n}", agent="build", model="openai/m")
            sessions.add_message(tx, f"more{n:012}", "user")

    store.write(more)


@pytest.fixture
def house(data_dir: Path) -> Path:
    with Stead.open(data_dir).store as store:
        fill(store)
    return data_dir


def checks(*options: str, code: int = 0) -> dict[str, dict[str, Any]]:
    done = stead("doctor", "--json", *options)
    assert done.code == code, done.out
    found = done.json
    assert set(found) == {"ok", "checks"} and found["ok"] is (code == 0)
    assert all(set(one) == {"name", "ok", "detail"} for one in found["checks"])
    return {one["name"]: one for one in found["checks"]}


def bad(*options: str, code: int = 1) -> dict[str, str]:
    return {name: one["detail"] for name, one in checks(*options, code=code).items() if not one["ok"]}


def log_of(data: Path) -> list[Any]:
    with Stead.open(data).store as store, store.view() as view:
        return view.q("SELECT * FROM events ORDER BY seq")


def sql(data: Path, *statements: str) -> None:
    with Stead.open(data).store as store:
        store.write(lambda tx: [tx.q(statement) for statement in statements])


def test_all_is_well(house: Path) -> None:
    before = log_of(house)
    assert list(checks()) == NAMES
    assert list(checks("--full", "--repair")) == NAMES
    assert log_of(house) == before
    lines = stead("doctor").lines
    assert lines[0] == "name\tok\tdetail" and len(lines) == len(NAMES) + 1


def test_b019_missing_and_doubled_rows_are_found_and_made_right_the_same_each_time(house: Path) -> None:
    with Stead.open(house).store as store:
        live, before = store.dump(), log_of(house)
    for _ in range(2):
        columns = (
            "project, title, agent, model, max_steps, parent, parent_call, hidden, pinned, archived, trashed, created, updated,"
        )
        columns += " seq, messages, cost_nano, unpriced"
        sql(
            house,
            "DELETE FROM sessions WHERE id IN (SELECT id FROM sessions WHERE id LIKE 'more%' ORDER BY id LIMIT 50)",
            f"INSERT INTO sessions(id, {columns}) SELECT 'twin' || id, {columns} FROM sessions WHERE id LIKE 'more%' LIMIT 3",
        )
        assert len(stead("sessions", "list", "--all", "--json", "--limit", "200").json["sessions"]) == 14
        assert bad() == {
            "projections": "sessions: 50 rows missing, 3 wrong. `stead doctor --repair` makes them again from the log."
        }
        assert bad() != {}  # looking repairs nothing
        assert "sessions: 50 rows missing, 3 wrong" in checks("--repair")["projections"]["detail"]
        for options in ([], ["--repair"]):
            assert "tables are what the log gives" in checks(*options)["projections"]["detail"]
        with Stead.open(house).store as store:
            assert store.dump() == live
        assert log_of(house) == before
    assert len(stead("sessions", "list", "--all", "--json", "--limit", "200").json["sessions"]) == 61


def test_a_dropped_or_reshaped_table_is_made_again(house: Path) -> None:
    with Stead.open(house).store as store:
        live = store.dump()
    sql(house, "DROP TABLE todos", "ALTER TABLE runs ADD COLUMN strange TEXT")
    assert "runs: 1 rows missing, 1 wrong" in bad()["projections"]
    checks("--repair")
    with Stead.open(house).store as store:
        assert store.dump() == live


KERNEL = ["kernel", "events", "blobs", "projections", "tombstones", "rebuilds"]


@pytest.mark.parametrize("table", KERNEL)
def test_a_table_of_the_kernel_that_is_lost_is_named_with_a_next_step_and_nothing_is_changed(house: Path, table: str) -> None:
    sql(house, f"DROP TABLE {table}")
    before = (house / "stead.db").read_bytes()
    for options in ([], ["--repair"]):
        found = bad(*options)
        assert list(found) == ["open"] and f"stead.db has lost its table {table}." in found["open"] and "backup" in found["open"]
    for command in ("sessions list", "usage", "storage", "project list"):
        done = stead(*command.split(), "--json")
        assert done.code == 1 and done.json["error"]["code"] == "store_damaged", command
    assert (house / "stead.db").read_bytes() == before


@pytest.mark.parametrize("table", [table for feature in FEATURES for table in (*feature.tables, *feature.kept)])
def test_a_lost_table_of_a_feature_is_filled_again_by_whatever_command_comes_next(house: Path, table: str) -> None:
    with Stead.open(house).store as store:
        live = store.dump()
    sql(house, f"DROP TABLE {table}")
    assert stead("sessions", "list", "--all", "--json").code == 0
    assert list(checks()) == NAMES
    with Stead.open(house).store as store:
        assert store.dump() == live


def test_a_table_that_no_log_can_fill_again_is_told_in_our_own_log(house: Path, caplog: pytest.LogCaptureFixture) -> None:
    sql(house, "DROP TABLE passwords")
    with caplog.at_level("WARNING", "stead.store"):
        Stead.open(house).close()
    assert "passwords" in caplog.text
    caplog.clear()
    Stead.open(house).close()
    assert "passwords" not in caplog.text


def test_lost_indexes_are_named_and_made_again(house: Path) -> None:
    with Stead.open(house).store as store, store.view() as view:
        indexes = store.database.indexes(view._conn)
    assert {"events_stream": "events", "sessions_listed": "sessions"}.items() <= indexes.items()
    sql(house, "DROP INDEX events_stream", "DROP INDEX sessions_listed")
    said = bad()["indexes"]
    assert "events_stream of events is missing" in said and "sessions_listed of sessions is missing" in said and "--repair" in said
    assert bad() != {}  # looking repairs nothing
    assert checks("--repair")["indexes"]["detail"] == "Made again: events_stream, sessions_listed."
    for options in ([], ["--repair"]):
        assert checks(*options)["indexes"]["detail"] == "All are there."
    with Stead.open(house).store as store, store.view() as view:
        assert store.database.indexes(view._conn) == indexes


def test_an_index_that_only_a_table_being_filled_has_is_missing_all_the_same(house: Path) -> None:
    """Also while the name of the one that is missing is taken."""
    from stead.store import check, rebuild

    with Stead.open(house).store as store:
        store.write(lambda tx: [tx.q("DROP INDEX sessions_listed"), rebuild.fill(tx, store.database, [sessions.FEATURE])])
        assert not check.indexes(store, False).ok and check.indexes(store, True).ok and check.indexes(store, False).ok
        store.write(lambda tx: rebuild.swap(tx, store.database, [sessions.FEATURE]))
        assert check.indexes(store, False).ok


def test_repair_killed_at_any_moment_is_finished_by_the_next(house: Path) -> None:
    from stead.store import faults

    with Stead.open(house).store as store:
        live = store.dump()
    for point, count in (("rebuild.chunk", 1), ("rebuild.swapped", 1), ("writer.before_commit", 1), ("writer.after_commit", 1)):
        sql(house, "DELETE FROM messages")

        def repair(point: str = point, count: int = count) -> None:
            with Stead.open(house).store as store:
                faults.arm(point, count=count)
                from stead.store.check import projections

                projections(store, True)

        assert Child(repair).killed(), point
        checks("--repair")
        with Stead.open(house).store as store:
            assert store.dump() == live


def test_events_that_cannot_be_read_are_named_and_left_as_they_are(house: Path) -> None:
    sql(house, "UPDATE events SET data=x'7b' WHERE seq=3", "UPDATE events SET kind='session.from_the_future' WHERE seq=5")
    before = log_of(house)
    found = bad("--repair")
    assert found["log"].startswith("event 3 (") and "event 5" not in found["log"]
    assert log_of(house) == before


def test_a_number_that_could_be_given_twice_is_found(house: Path) -> None:
    with Stead.open(house).store as store:
        made.delete(store, "more000000000059")
    sql(
        house,
        "UPDATE kernel SET seq=1",
        "INSERT INTO events SELECT 9999, 'more000000000059', kind, v, ts, actor, run, op, data"
        " FROM events WHERE kind='message.added' LIMIT 1",
    )
    found = bad()
    assert "the store remembers 1" in found["log"] and "more000000000059" in found["deleted"]


@pytest.mark.parametrize("harm", ["missing row", "missing file", "cut file", "empty file"])
def test_a_blob_that_is_not_what_was_stored_is_named(house: Path, harm: str) -> None:
    file = next(path for path in (house / "blobs").rglob("*") if path.is_file())
    digest = file.parent.name + file.name
    if harm == "missing row":
        sql(house, f"DELETE FROM blobs WHERE hash='{digest}'")
    elif harm == "missing file":
        file.unlink()
    else:
        os.truncate(file, 0 if harm == "empty file" else 100)
    assert digest[:12] in bad("--full")["blobs"] and digest[:12] in bad("--repair")["blobs"]


def test_runs_that_end_twice_or_with_an_open_call_or_under_nobody_are_named(data_dir: Path) -> None:
    house = Stead.open(data_dir)
    made.session(house.store)
    first = made.start(house.store, owner=house.owner())
    made.call(house.store, first, 0, started=True)
    made.end(house.store, first)
    house.store.write(lambda tx: tx.append(SESSION, runs.RunEnded(run=first.id, outcome="done", steps=1), run=first.id))
    made.start(house.store, "run2", owner="nobody")
    found = {one["name"]: one for one in examine(house)["checks"]}["runs"]
    assert not found["ok"]
    assert f"run {first.id} ended more than once" in found["detail"]
    assert f"call {SESSION}.{first.message}.0 has no result" in found["detail"]
    assert "run run2 works under a dead process" in found["detail"] and f"run {first.id} works" not in found["detail"]
    house.close()


def test_modes_are_found_and_set_right(house: Path) -> None:
    (house / "stead.db").parent.chmod(0o700)
    file = next(path for path in (house / "blobs").rglob("*") if path.is_file())
    file.chmod(0o644)
    file.parent.chmod(0o755)
    assert "644 instead of 600" in bad()["files"] and "755 instead of 700" in bad()["files"]
    assert checks("--repair")["files"]["detail"] == "2 modes were set right."
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    checks()


def test_b003_leftovers_and_tails_of_a_power_cut_are_found_and_removed(house: Path) -> None:
    """Side files that end in NUL bytes, an old lock and half-written files stop nothing; what nobody needs goes."""
    before = log_of(house)
    old = SystemClock().now() / 1000 - 3600
    for path in (house / "blobs" / ".x.stead-0123456789abcdef.tmp", house / ".stead.db.part"):
        path.write_bytes(b"half")
        path.chmod(0o600)
        os.utime(path, (old, old))
    young = house / ".y.stead-0123456789abcdef.tmp"
    young.write_bytes(b"somebody writes this just now")
    young.chmod(0o600)
    writing = os.open(young, os.O_RDONLY)
    fcntl.flock(writing, fcntl.LOCK_EX)
    locks = house / "locks"
    (locks / "deadowner0000001").write_bytes(b'{"pid":1}' + b"\0" * 1206)
    (locks / "maintenance").write_bytes(b"\0" * 1206)
    for path in locks.iterdir():
        path.chmod(0o600)
    said = bad()["leftovers"]
    assert ".stead.db.part" in said and young.name not in said
    assert not (house / "blobs" / ".x.stead-0123456789abcdef.tmp").exists()  # it goes with its process
    assert "were removed" in checks("--repair")["leftovers"]["detail"]
    checks()
    assert young.exists() and not (locks / "deadowner0000001").exists()
    os.close(writing)
    assert log_of(house) == before


def test_b005_every_empty_file_is_reported_and_stops_nothing_but_an_empty_database(house: Path, tmp_path: Path) -> None:
    with Stead.open(house).store as store:
        store.write(lambda tx: providers.save(tx, "mine", kind="openai", url="http://127.0.0.1:1/v1", no_key=True))
    from stead.domain.attachments import load

    config = Path(os.environ["STEAD_CONFIG"])
    config.mkdir(exist_ok=True)
    attachments = house / "attachments"
    attachments.mkdir(mode=0o700)
    part = {"type": "file", "id": "picture", "name": "p.png", "mime": "image/png", "kind": "image", "size": 9}
    (attachments / "picture.att").write_bytes(b"123456789")
    (attachments / "picture.att").chmod(0o600)
    with Stead.open(house).store as store:

        def add(tx: Tx) -> None:
            n = sessions.add_message(tx, SESSION, "user")
            sessions.add_part(tx, SESSION, n, 0, part)

        store.write(add)
    for tail, code in ((b"\0" * 3_000_000, 0), (b"\0" * 2_000_000 + b"x", 1), (b"\0" * 7, 0), (b"x", 1)):
        (attachments / "picture.att").write_bytes(b"123456789" + tail)
        assert set(bad(code=code)) == ({"attachments"} if code else set()), len(tail)
        assert load(attachments, "picture", 9) == b"123456789"
    (attachments / "picture.att").write_bytes(b"123456789")
    checks()
    blob = next(path for path in (house / "blobs").rglob("*") if path.is_file())
    reported = {attachments / "picture.att": "attachments", blob: "blobs"}
    for path in (config / "config.toml", house / "stead.db-wal", house / "stead.db-shm", house / "locks" / "gone", *reported):
        kept = path.read_bytes() if path.exists() else None
        path.write_bytes(b"")
        path.chmod(0o600)
        assert len(stead("sessions", "list", "--all", "--json", "--limit", "200").json["sessions"]) == 61, path
        assert set(bad("--full", code=1 if path in reported else 0)) == ({reported[path]} if path in reported else set()), path
        if kept is not None:
            path.write_bytes(kept)
    (house / "stead.db").write_bytes(b"")
    assert stead("sessions", "list").code == 1
    found = bad()
    assert list(found) == ["open"] and "there was a store" in found["open"]
    assert (house / "stead.db").read_bytes() == b""


@pytest.mark.parametrize("harm", ["header", "middle"])
def test_b010_a_store_that_became_unreadable_is_never_an_empty_list(house: Path, harm: str) -> None:
    """Also in a process that has it open already."""
    opened = Stead.open(house)
    opened.store.database.shrink()
    with (house / "stead.db").open("r+b") as file:
        file.seek(0 if harm == "header" else 2048)
        file.write(b"\xff" * (200 if harm == "header" else 2048 * 30))
    told = examine(opened)
    assert not told["ok"] and not next(one for one in told["checks"] if one["name"] == "database")["ok"]
    opened.close()
    for arguments in (["sessions", "list", "--all", "--json"], ["usage", "--json"], ["sessions", "show", SESSION, "--json"]):
        done = stead(*arguments)
        assert done.code == 1 and done.json["error"]["code"] == "store_damaged", (arguments, done)
    assert bad() != {}


def test_b010_a_file_that_may_not_be_read_is_said(house: Path) -> None:
    from tests.store.children import as_nobody

    if os.geteuid() == 0:
        for path in (house, *house.rglob("*")):
            os.chown(path, 65534, 65534)
        for path in (house.parent, *house.parent.parents):
            if path != Path("/") and path.stat().st_mode & 0o005 != 0o005 and str(path).startswith("/tmp/"):
                path.chmod(path.stat().st_mode | 0o055)
    (house / "stead.db").chmod(0)
    found = as_nobody(lambda: (stead("doctor", "--json"), stead("sessions", "list", "--json")))
    doctor, listed = found
    assert doctor.code == 1 and doctor.json["ok"] is False and listed.code == 1
    assert listed.json["error"]["code"] in ("read_only", "store_damaged")


def test_a_secret_that_is_not_the_one_is_said(house: Path) -> None:
    assert stead("provider", "add", "openai", "--key-stdin", stdin=b"a-key-for-tests").code == 0
    checks()
    (house / "secret.key").write_bytes(b"")
    assert set(bad()) == {"secret"}


def test_what_a_rebuild_and_a_doctor_cost_grows_with_the_log_alone(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The jobs of a rebuild are as many as its chunks: none of them grows with the log."""
    from stead.store import rebuild

    with Stead.open(data_dir).store as store:
        counts = []
        for _ in range(2):
            fill_more(store, max(scale(50_000), 1500))
            told: list[tuple[int, int]] = []
            store.rebuild(progress=lambda *how, told=told: told.append(how))
            with store.view() as view:
                events = view.q("SELECT count(*) FROM events")[0][0]
            counts.append((len(told), -(-events // rebuild._CHUNK)))
        assert all(0 <= jobs - chunks <= 1 for jobs, chunks in counts)


def fill_more(store: Store, events: int) -> None:
    with store.view() as view:
        begun = view.one("SELECT 1 FROM sessions WHERE id=?", SESSION)
    if not begun:
        made.session(store)

    def job(tx: Tx) -> None:
        n = sessions.add_message(tx, SESSION, "assistant", model="openai/m")
        for k in range(98):
            sessions.add_part(tx, SESSION, n, k, {"type": "text", "text": "x" * 300})
        part = {"type": "step", "model": "m", "tokens": NO_TOKENS, "cost": 0.1, "finish": "stop"}
        tx.append(SESSION, sessions.StepEnded(message=n, n=98, part=part, project=made.PROJECT, provider="openai"))

    for _ in range(events // 100):
        store.write(job)


def test_what_a_doctor_that_was_broken_off_left_is_used_and_removed(house: Path) -> None:
    with Stead.open(house).store as store:
        store.write(lambda tx: _shadow(tx, store))
    checks()
    with Stead.open(house).store as store, store.view() as view:
        assert not {name for name in view.tables(store.database) if "__new" in name}
        assert view.q("SELECT * FROM rebuilds") == []


def _shadow(tx: Tx, store: Store) -> None:
    from stead.store import rebuild

    rebuild.fill(tx, store.database, [projects.FEATURE, sessions.FEATURE])


def test_who_waits_is_told_once_a_second(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock()
    waiting = Waiting(clock)
    for at in range(0, 4000, 250):
        waiting.told("Looking at the log", at, 4000)
        clock.advance(250)
    assert capsys.readouterr().err.splitlines() == [f"Looking at the log: {at} %" for at in (25, 50, 75)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_both_databases_are_looked_at_repaired_measured_and_cleaned(
    request: pytest.FixtureRequest, data_dir: Path, kind: str
) -> None:
    url = request.getfixturevalue("postgres_empty") if kind == "postgres" else None
    house = Stead.open(data_dir, database_url=url)
    fill(house.store)
    assert examine(house)["ok"]
    live = house.store.dump()
    for _ in range(2):
        house.store.write(lambda tx: [tx.q("DELETE FROM parts"), tx.q("UPDATE sessions SET title='wrong' WHERE id LIKE 'more%'")])
        assert {one["name"] for one in examine(house)["checks"] if not one["ok"]} == {"projections"}
        assert examine(house, repair=True, full=True)["ok"] and house.store.dump() == live
    house.store.write(lambda tx: [tx.q("DROP INDEX events_stream"), tx.q("DROP INDEX sessions_listed")])
    assert {one["name"] for one in examine(house)["checks"] if not one["ok"]} == {"indexes"}
    assert examine(house, repair=True)["ok"] and examine(house)["ok"]
    before = sizes(house)
    assert before["tables"]["events"] > 0 and before["blobs"] > 60_000 and before["sessions"][0]["session"] == SESSION
    assert house.delete(SESSION) == [SESSION]
    after = sizes(house)
    assert after["blobs"] == after["pending_purge"] == 0 and SESSION not in {one["session"] for one in after["sessions"]}
    assert examine(house)["ok"]
    house.close()
