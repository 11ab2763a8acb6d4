"""Migrations of the store's own tables: by number, after a backup, all or nothing, once. On both databases."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.store import Store, faults, open_store
from stead.store.database import Conn
from stead.store.kernel import MIGRATIONS, Migration
from tests.store.children import Child, Gate
from tests.store.notes import NOTES, write

Opener = Callable[..., Store]


def _second(conn: Conn, types: dict[str, str]) -> None:
    conn.q("ALTER TABLE tombstones ADD COLUMN why TEXT")
    conn.q("CREATE TABLE extra(id TEXT PRIMARY KEY)")
    conn.q("INSERT INTO extra(id) VALUES('made once')")


def _breaks(conn: Conn, types: dict[str, str]) -> None:
    conn.q("DROP TABLE tombstones")
    conn.q("UPDATE events SET data=?", (b"",))
    conn.q("SELECT * FROM no_such_table")


SECOND: Sequence[Migration] = (*MIGRATIONS, _second)
BROKEN: Sequence[Migration] = (*SECOND, _breaks)


def everything(store: Store) -> dict[str, Any]:
    with store.view() as view:
        return {name: sorted(view.q(f"SELECT * FROM {name}"), key=repr) for name in sorted(view.tables(store.database))}


def version(store: Store) -> int:
    with store.view() as view:
        return int(view.q("SELECT version FROM kernel")[0][0])


@pytest.fixture
def old(opener: Opener) -> dict[str, Any]:
    """A store of the kernel before, with something in it; what it holds."""
    store = opener()
    store.write(lambda tx: [write("a", str(n))(tx) for n in range(20)])
    held = everything(store)
    store.close()
    return held


def backups(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "house" / "backups").glob("*"))


def test_an_old_store_is_backed_up_and_then_migrated(opener: Opener, old: dict[str, Any], where: str, tmp_path: Path) -> None:
    store = opener(migrations=SECOND)
    assert version(store) == len(SECOND)
    now = everything(store)
    assert now["events"] == old["events"] and now["notes"] == old["notes"] and now["extra"] == [("made once",)]
    assert store.write(write("a", "goes on"))
    if where.startswith("/"):
        (backup,) = backups(tmp_path)
        kept = tmp_path / "kept"
        kept.mkdir()
        (kept / "stead.db").write_bytes(backup.read_bytes())
        with open_store(kept, [NOTES]) as restored:
            assert everything(restored) == old


@pytest.mark.parametrize("attempts", [3])
def test_a_migration_that_fails_leaves_all_as_it_was(opener: Opener, old: dict[str, Any], tmp_path: Path, attempts: int) -> None:
    for _ in range(attempts):
        with pytest.raises(Exception, match="no_such_table"):
            opener(migrations=BROKEN)
    assert backups(tmp_path) == []  # a start that fails again and again does not fill the disk
    store = opener()
    assert everything(store) == old and store.write(write("a"))
    store.close()
    assert version(opener(migrations=SECOND)) == len(SECOND)


@pytest.mark.parametrize("point", ["kernel.backed_up", "kernel.before_commit", "sqlite.backup_written"])
def test_a_migration_that_was_killed_is_done_by_the_next_start(
    opener: Opener, old: dict[str, Any], where: str, tmp_path: Path, point: str
) -> None:
    folder = None if where.startswith("/") else tmp_path / "house"

    def start() -> None:
        faults.arm(point)
        open_store(where, [NOTES], folder=folder, migrations=SECOND)

    if not Child(start).killed():  # no copy is made of a database on a server
        assert point == "sqlite.backup_written" and not where.startswith("/")
        return
    store = opener()  # the older program still finds its store
    assert everything(store) == old
    store.close()
    assert everything(opener(migrations=SECOND))["events"] == old["events"]


def test_an_older_program_refuses_a_newer_store_and_touches_nothing(opener: Opener, old: dict[str, Any]) -> None:
    opener(migrations=SECOND).close()
    newer = opener(migrations=SECOND)
    held = everything(newer)
    for _ in range(2):
        with pytest.raises(SteadError) as failed:
            opener()
        assert failed.value.code == "store_newer"
    assert everything(newer) == held  # I12


def start_together(where: str, folder: Path | None, migrations: Sequence[Migration], count: int = 6) -> list[tuple[int, int]]:
    """Open the store in several processes at the same instant and write once in each: the kernel versions and the seqs."""
    gate = Gate()

    def work() -> tuple[int, int]:
        gate.wait()
        with open_store(where, [NOTES], folder=folder, migrations=migrations) as store:
            seq: int = store.write(write("a"))
            return version(store), seq

    children = [Child(work) for _ in range(count)]
    gate.open()
    return [child.result() for child in children]


def test_b013_simultaneous_first_starts_all_succeed(where: str, tmp_path: Path) -> None:
    folder = None if where.startswith("/") else tmp_path / "house"
    found = start_together(where, folder, MIGRATIONS)
    assert {one for one, _ in found} == {len(MIGRATIONS)}
    assert sorted(seq for _, seq in found) == list(range(1, 7))


def test_b013_simultaneous_migrations_happen_once(opener: Opener, old: dict[str, Any], where: str, tmp_path: Path) -> None:
    folder = None if where.startswith("/") else tmp_path / "house"
    found = start_together(where, folder, SECOND)
    assert {one for one, _ in found} == {len(SECOND)}
    assert len({seq for _, seq in found}) == 6
    assert len(backups(tmp_path)) == (1 if where.startswith("/") else 0)
    assert everything(opener(migrations=SECOND))["extra"] == [("made once",)]


def test_a_migration_waits_for_who_uses_the_store_and_says_who_it_is(
    opener: Opener, old: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    from stead.store import lock

    monkeypatch.setattr(lock, "WAIT_SECONDS", 0.1)
    user = opener()
    with pytest.raises(SteadError) as failed:
        opener(migrations=SECOND)
    assert failed.value.code == "store_busy" and str(os.getpid()) in failed.value.message
    user.close()
    assert version(opener(migrations=SECOND)) == len(SECOND)
