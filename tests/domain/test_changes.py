"""Changes of files: said before they happen, settled afterwards, summed to what they come to."""

from __future__ import annotations

from typing import Any

import pytest

from stead.core.errors import SteadError
from stead.domain import changes, runs, sessions
from stead.domain.changes import ChangeApplied, ChangeCaptured, ChangeFailed, FileState
from stead.store import Store, Tx
from tests.domain import house
from tests.domain.house import SESSION


def state(store: Store, content: bytes | None, mode: int = 0o644) -> FileState:
    if content is None:
        return {"kind": "absent"}
    prepared = store.blobs.prepare(content)
    store.write(lambda tx: tx.put(prepared))
    return {"kind": "file", "mode": mode, "size": len(content), "blob": prepared.hash}


def capture(
    store: Store, run: runs.Run, path: str, before: bytes | None, after: bytes | None, mode: int = 0o644, **about: Any
) -> int:
    fact = ChangeCaptured(
        call="c1", message=run.message, path=path, before=state(store, before), after=state(store, after, mode), **about
    )
    return store.write(lambda tx: tx.append(run.session, fact, run=run.id).seq)


def apply(store: Store, run: runs.Run, *change: Any, **about: Any) -> int:
    seq = capture(store, run, *change, **about)
    fact = ChangeApplied(captured=seq, additions=1, deletions=2)
    store.write(lambda tx: tx.append(run.session, fact, run=run.id))
    return seq


def listed(store: Store, **which: Any) -> list[changes.Change]:
    with store.view() as view:
        return changes.listed(view, SESSION, **which)


def net(store: Store) -> dict[str, tuple[str, int, int]]:
    found = [changes.change_json(one, store.blobs.get) for one in changes.net(listed(store), store.blobs.get)]
    return {one["path"]: (one["status"], one["additions"], one["deletions"]) for one in found}


def test_a_change_is_known_before_it_happens_and_counted_after(store: Store, run: runs.Run) -> None:
    seq = capture(store, run, "a.txt", b"old\n", b"new\n", in_place=True)
    with store.view() as view:
        (open_one,) = changes.unsettled(view)
    assert (open_one.seq, open_one.state, open_one.path, open_one.in_place) == (seq, "captured", "a.txt", True)
    assert listed(store) == []
    store.write(lambda tx: tx.append(SESSION, ChangeApplied(captured=seq, additions=1, deletions=1), run="run1"))
    (done,) = listed(store)
    assert (done.state, done.additions, done.deletions, done.run) == ("applied", 1, 1, "run1")
    with store.view() as view:
        assert changes.unsettled(view) == []
    assert store.blobs.get(done.before_blob or "") == b"old\n" and store.blobs.get(done.after_blob or "") == b"new\n"


def test_a_change_that_failed_is_none(store: Store, run: runs.Run) -> None:
    seq = capture(store, run, "a.txt", None, b"new\n")
    store.write(lambda tx: tx.append(SESSION, ChangeFailed(captured=seq, reason="full"), run="run1"))
    with store.view() as view:
        assert changes.unsettled(view) == []
    assert listed(store) == [] and net(store) == {}


def test_f366_a_change_without_its_stored_content_is_refused(store: Store, run: runs.Run) -> None:
    """The before-image is durable with or before the event that names it, and a failing half takes the other with it (I4)."""
    missing: FileState = {"kind": "file", "mode": 0o644, "size": 3, "blob": "f" * 64}
    fact = ChangeCaptured(call="c", message=run.message, path="a", before=missing, after=missing)
    with pytest.raises(SteadError):
        store.write(lambda tx: tx.append(SESSION, fact))

    def job(tx: Tx) -> None:
        tx.put(store.blobs.prepare(b"before"))
        tx.append(SESSION, fact)

    with pytest.raises(SteadError):
        store.write(job)
    with store.view() as view:
        assert view.q("SELECT count(*) FROM blobs") == [(0,)] and changes.unsettled(view) == []


def test_f366_the_result_of_a_file_tool_its_change_and_its_blob_are_in_one_commit_or_none(store: Store, run: runs.Run) -> None:
    house.call(store, run, 0, started=True)
    prepared = store.blobs.prepare(b"content")
    end = sessions.ToolEnded(message=run.message, n=0, call="c1", result={"status": "done", "output": "ok"})
    after: FileState = {"kind": "file", "blob": prepared.hash}
    fact = ChangeCaptured(call="c1", message=run.message, path="a", before={"kind": "absent"}, after=after)
    before = store.dump()

    def job(tx: Tx, fail_behind: int) -> None:
        halves = [lambda: tx.put(prepared), lambda: tx.append(SESSION, fact), lambda: tx.append(SESSION, end)]
        for n, half in enumerate(halves):
            half()
            if n == fail_behind:
                raise ValueError

    for n in range(3):
        with pytest.raises(ValueError):
            store.write(lambda tx, n=n: job(tx, n))
        assert store.dump() == before and not store.write(lambda tx: tx.has_blob(prepared.hash))
    store.write(lambda tx: job(tx, -1))
    assert store.write(lambda tx: tx.has_blob(prepared.hash))


def test_several_changes_of_a_file_come_to_their_first_before_and_their_last_after(store: Store, run: runs.Run) -> None:
    apply(store, run, "new.txt", None, b"1\n")
    apply(store, run, "kept.txt", b"a\nb\n", b"a\nc\n")
    apply(store, run, "new.txt", b"1\n", b"1\n2\n")
    apply(store, run, "gone.txt", b"x\ny\n", None)
    apply(store, run, "brief.txt", None, b"z")
    apply(store, run, "brief.txt", b"z", None)
    apply(store, run, "back.txt", b"same\n", b"other\n")
    apply(store, run, "back.txt", b"other\n", b"same\n")
    apply(store, run, "mode.sh", b"#!\n", b"#!\n", 0o755)
    assert net(store) == {
        "new.txt": ("added", 2, 0),
        "kept.txt": ("modified", 1, 1),
        "gone.txt": ("deleted", 0, 2),
        "mode.sh": ("mode", 0, 0),
    }
    assert list(net(store)) == ["new.txt", "kept.txt", "gone.txt", "mode.sh"]


def test_binary_content_is_said_to_be_binary(store: Store, run: runs.Run) -> None:
    apply(store, run, "a.bin", b"\0\1", b"\0\2")
    (one,) = changes.net(listed(store), store.blobs.get)
    shown = changes.file_json(one, store.blobs.get)
    assert shown["binary"] is True and shown["hunks"] == [] and shown["status"] == "modified"


def test_changes_are_listed_by_run_by_message_and_behind_a_seq(store: Store, run: runs.Run) -> None:
    first = apply(store, run, "a", None, b"1")
    house.end(store, run)
    second_run = house.start(store, "run2")
    second = apply(store, second_run, "a", b"1", b"2")
    assert [one.seq for one in listed(store)] == [first, second]
    assert [one.seq for one in listed(store, run="run2")] == [second]
    assert [one.seq for one in listed(store, message=run.message)] == [first]
    assert [one.seq for one in listed(store, after=first)] == [second]
    house.delete(store)
    assert listed(store) == []
