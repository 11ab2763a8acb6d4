"""`stead sessions`: listing, showing, changing, deleting."""

from __future__ import annotations

import json
import resource
import signal
from pathlib import Path

import pytest

from stead.app import Stead
from tests.cli.door import EDIT, Done, project, script, stead
from tests.store.children import Child

SHAPE = {
    "id", "title", "project", "path", "agent", "model", "status", "last_run", "created", "updated", "messages", "cost", "pinned",
    "archived",
}  # fmt: skip


@pytest.fixture
def proj(tmp_path: Path, data_dir: Path) -> Path:
    return project(tmp_path)


def ran(proj: Path, prompt: str = "go", *turns: object) -> str:
    """A session with one run in it."""
    return str(stead("run", "-C", str(proj), "-m", script(proj, *(turns or ({"text": "ok"},))), "--json", prompt).json["session"])


def test_the_list_is_of_this_project_last_used_first(proj: Path, tmp_path: Path) -> None:
    other = project(tmp_path, "other")
    first, second, third = ran(proj, "one"), ran(proj, "two"), ran(other, "three")
    found = stead("sessions", "list", "--json", cwd=proj).json
    assert [one["id"] for one in found["sessions"]] == [second, first] and found["next"] is None
    assert set(found["sessions"][0]) >= SHAPE
    assert found["sessions"][0]["path"] == str(proj) and found["sessions"][0]["status"] == "idle"
    assert found["sessions"][0]["last_run"] == "done"
    for arguments, cwd in ((["--all"], proj), ([], tmp_path)):
        ids = [one["id"] for one in stead("sessions", "list", "--json", *arguments, cwd=cwd).json["sessions"]]
        assert ids == [third, second, first]
    for name in (str(other), "other"):
        assert [one["id"] for one in stead("sessions", "list", "--json", "--project", name, cwd=proj).json["sessions"]] == [third]
    assert stead("sessions", "list", "--project", "nosuch").code == 3


def test_pages(proj: Path) -> None:
    made = [ran(proj, f"number {n}") for n in range(5)]
    seen: list[str] = []
    cursor: list[str] = []
    while True:
        page = stead("sessions", "list", "--json", "--limit", "2", *cursor, cwd=proj).json
        seen += [one["id"] for one in page["sessions"]]
        if page["next"] is None:
            break
        cursor = ["--cursor", page["next"]]
    assert seen == made[::-1]
    assert stead("sessions", "list", "--cursor", "nonsense").code == 2


def test_the_table_for_programs_escapes_what_would_break_it(proj: Path) -> None:
    session = ran(proj)
    stead("sessions", "rename", session, "a\\b c")
    header, row = stead("sessions", "list", cwd=proj).lines
    cells = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert set(cells) == SHAPE
    assert (cells["title"], cells["status"], cells["last_run"], cells["pinned"]) == ("a\\\\b c", "idle", "done", "false")
    assert cells["updated"].endswith("Z") and "T" in cells["updated"]


def test_cells_of_a_table() -> None:
    from stead.interfaces.cli.tables import cell

    assert [cell(value) for value in ("a\tb\nc\\d", None, True, 1, 0.1, 1e-9, "\ud800")] == [
        "a\\tb\\nc\\\\d", "", "true", "1", "0.1", "0.000000001", "�",
    ]  # fmt: skip


def test_the_list_is_shown_on_a_full_disk(proj: Path) -> None:
    def work() -> tuple[Done, ...]:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3, resource.RLIM_INFINITY))
        return stead("sessions", "list", "--json", cwd=proj), stead("sessions", "show", session, "--json", cwd=proj)

    session = ran(proj)
    listed, shown = Child(work).result()
    assert listed.code == 0 and [one["id"] for one in listed.json["sessions"]] == [session], listed
    assert shown.code == 0 and shown.json["session"]["id"] == session, shown


def test_an_empty_store(data_dir: Path, tmp_path: Path) -> None:
    assert stead("sessions", "list", "--json", cwd=tmp_path).json == {"sessions": [], "next": None}
    assert len(stead("sessions", "list", cwd=tmp_path).lines) == 1


def test_showing_gives_messages_with_their_parts(proj: Path) -> None:
    session = ran(proj, "mend", {"reasoning": "Hm.", "text": "So.", **EDIT}, {"text": "Done."})
    found = stead("sessions", "show", session[:6], "--json").json
    assert found["session"]["id"] == session and {"parent", "forked_from", "head"} <= set(found["session"])
    assert [message["role"] for message in found["messages"]] == ["user", "assistant"]
    assert found["session"]["head"] == found["messages"][1]["id"] == f"{session}.2"
    parts = found["messages"][1]["parts"]
    assert [part["type"] for part in parts] == ["reasoning", "text", "tool", "step", "text", "step"]
    assert {"call", "tool", "input", "status", "error"} <= set(parts[2]) and parts[2]["status"] == "denied"
    assert len({part["id"] for part in parts}) == len(parts)


def test_a_page_of_messages(proj: Path) -> None:
    session = ran(proj)
    for n in range(3):
        stead("run", "-r", session, f"more {n}")

    def ids(*arguments: str) -> list[int]:
        messages = stead("sessions", "show", session, "--json", *arguments).json["messages"]
        return [int(message["id"].rpartition(".")[2]) for message in messages]

    assert ids() == [1, 2, 3, 4, 5, 6, 7, 8]
    assert ids("--limit", "3") == [6, 7, 8]
    assert ids("--limit", "3", "--before", f"{session}.6") == [3, 4, 5]
    assert ids("--before", "3") == [1, 2]
    assert stead("sessions", "show", session, "--before", "x.y").code == 3


def test_long_texts_are_cut_unless_all_is_wanted(proj: Path) -> None:
    text = "é" * 50_000
    session = ran(proj, "go", {"text": text}, {"text": "ok"})
    part = stead("sessions", "show", session, "--json").json["messages"][1]["parts"][0]
    assert part["truncated"] is True and part["bytes"] == 100_000 and part["text"] == "é" * 32_768
    part = stead("sessions", "show", session, "--json", "--full").json["messages"][1]["parts"][0]
    assert part["text"] == text and "truncated" not in part


def test_a_text_that_was_moved_and_is_not_long_is_whole(proj: Path) -> None:
    session = ran(proj, "go", {"text": "y" * 30_000})
    part = stead("sessions", "show", session, "--json").json["messages"][1]["parts"][0]
    assert part["text"] == "y" * 30_000 and "truncated" not in part


def test_odd_text_is_shown_and_kept(proj: Path) -> None:
    (proj / "odd.yaml").write_text('turns:\n  - text: "a\\ud800b\\u0000c"\n')
    done = stead("run", "-C", str(proj), "-m", "script/odd.yaml", "--json", "go")
    if done.code == 0:  # a script file may refuse what YAML cannot hold
        part = stead("sessions", "show", done.json["session"], "--json").json["messages"][1]["parts"][0]
        assert part["text"] == "a�b\0c"


def test_the_rows_for_programs(proj: Path) -> None:
    session = ran(proj, "two\nlines")
    lines = stead("sessions", "show", session).lines
    assert lines[0].split("\t") == ["part", "role", "created", "type", "tool", "status", "text"]
    assert lines[1].split("\t")[0::6] == [f"{session}.1.0", "two\\nlines"]


def test_renaming_archiving_and_the_trash(proj: Path) -> None:
    session = ran(proj)
    assert stead("sessions", "rename", session, "Better", "--json").json["session"]["title"] == "Better"
    assert stead("sessions", "rename", "Better", "  ").code == 2
    assert stead("sessions", "archive", "Better", "--json").json["session"]["archived"] is True
    assert stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]["archived"] is True
    assert stead("sessions", "unarchive", session, "--json").json["session"]["archived"] is False
    assert stead("sessions", "delete", session, "--json").json["session"]["trashed"] is True
    assert stead("sessions", "list", "--json", cwd=proj).json["sessions"] == []
    assert [one["id"] for one in stead("sessions", "list", "--json", "--trash", cwd=proj).json["sessions"]] == [session]
    assert stead("sessions", "restore", session).code == 0
    assert [one["id"] for one in stead("sessions", "list", "--json", cwd=proj).json["sessions"]] == [session]


def test_stopping_where_nothing_runs(proj: Path) -> None:
    assert stead("sessions", "stop", ran(proj), "--json").json["stopped"] is False


def test_deleting_for_good_wants_a_yes_and_leaves_the_sums(proj: Path, data_dir: Path) -> None:
    (proj / "notes.txt").write_text("attached")
    model = script(proj, {"text": "ok", "usage": {"input": 11, "output": 2}})
    session = stead("run", "-C", str(proj), "-m", model, "-f", str(proj / "notes.txt"), "--json", "unmistakable").json["session"]
    before = stead("usage", "--json").json
    done = stead("sessions", "delete", session, "--now", "--json")
    assert (done.code, done.json["error"]["code"]) == (2, "confirm_required")
    assert stead("sessions", "show", session).code == 0
    assert stead("sessions", "delete", session, "--now", "-y", "--json").json == {"deleted": [session]}
    assert stead("sessions", "show", session).code == 3
    assert stead("usage", "--json").json == before and before["total"]["input"] == 11
    assert list((data_dir / "attachments").iterdir()) == []
    with Stead.open(data_dir).store as store, store.view() as view:
        assert view.events(stream=session) == []
        assert "unmistakable" not in json.dumps([str(row) for row in view.q("SELECT data FROM events")])


def test_a_deleted_session_is_gone_from_a_rebuild_too(proj: Path, data_dir: Path) -> None:
    session = ran(proj)
    stead("config", "set", "model", "a/b", "--session", session)
    stead("sessions", "delete", session, "--now", "-y")
    with Stead.open(data_dir).store as store:
        before = store.dump()
        store.rebuild()
        assert store.dump() == before
