"""`stead undo`, `redo`, `keep` and what `diff` shows of them; forks and branches on the command line."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.door import EDIT, project, script, stead, use
from tests.cli.terminal import Terminal
from tests.undo.room import tree

THIRTY = "".join(f"line {n}\n" for n in range(30))
SHAPE = {"restored", "conflicts", "not_covered", "dry_run", "messages", "while_command"}


@pytest.fixture
def proj(tmp_path: Path, data_dir: Path) -> Path:
    return project(tmp_path)


def play(proj: Path, *turns: dict[str, Any], more: tuple[str, ...] = ()) -> str:
    """A run in which these tools are used; gives its session. The script stands beside the project."""
    model = f"script/{proj.parent / 'play.yaml'}"
    script(proj.parent, *turns, {"text": "done"})
    done = stead("run", "-m", model, "--allow", "edit", *more, "--json", "go", cwd=proj)
    assert done.code == 0, done.err
    return str(done.json["session"])


def long(proj: Path) -> Path:
    """A file of thirty lines, of which a session changes two that are far apart."""
    at = proj / "long.txt"
    at.write_text(THIRTY)
    play(proj, use("edit", path="long.txt", old="line 2\n", new="two\n"), use("edit", path="long.txt", old="line 27\n", new="x\n"))
    return at


def hunks(proj: Path, *arguments: str) -> list[dict[str, Any]]:
    (file,) = stead("diff", *arguments, "--json", cwd=proj).json["files"]
    found: list[dict[str, Any]] = file["hunks"]
    return found


# ---- undo and redo ----


def test_undo_and_redo_tell_what_they_did_in_the_shape_of_the_page(proj: Path) -> None:
    before = tree(proj)
    session = play(proj, EDIT, use("write", path="new/file", content="x\n"))
    after = tree(proj)
    done = stead("undo", "-y", "--json", cwd=proj)
    assert done.code == 0 and set(done.json) == SHAPE | {"rewind"}
    assert done.json["restored"] == ["calc.py", "new/file"] and done.json["messages"] == [1, 2]
    assert (done.json["conflicts"], done.json["not_covered"], done.json["dry_run"]) == ([], [], False)
    assert tree(proj) == before
    assert stead("sessions", "show", session, "--json", cwd=proj).json["messages"] == []
    again = stead("redo", "-y", "--json", cwd=proj)
    assert again.code == 0 and set(again.json) == SHAPE | {"rewind"} and again.json["rewind"] != done.json["rewind"]
    assert again.json["restored"] == ["calc.py", "new/file"] and tree(proj) == after
    assert len(stead("sessions", "show", session, "--json", cwd=proj).json["messages"]) == 2


def test_where_there_is_nothing_to_do_it_says_so_and_all_is_well(proj: Path) -> None:
    play(proj)
    assert stead("redo", cwd=proj).code == 0 and "nothing to" in stead("redo", cwd=proj).err
    assert stead("undo", "-y", cwd=proj).code == 0  # the conversation goes
    empty = stead("undo", "--json", cwd=proj)  # no -y: nothing is asked where nothing would be done
    assert empty.code == 0 and set(empty.json) == SHAPE and empty.json["restored"] == empty.json["messages"] == []
    assert "nothing to undo" in stead("undo", cwd=proj).err


def test_without_a_yes_nothing_is_done(proj: Path) -> None:
    play(proj, EDIT)
    after = tree(proj)
    for arguments in (["undo"], ["undo", "--json"], ["undo", "--files"], ["undo", "--path", "calc.py"]):
        done = stead(*arguments, cwd=proj, stdin=b"y\n")  # a pipe is nobody who could be asked
        assert done.code == 2 and "confirm_required" in done.out + done.err, arguments
        assert tree(proj) == after
    assert len(hunks(proj)) == 1


def test_a_dry_run_shows_the_same_and_writes_nothing(proj: Path) -> None:
    play(proj, EDIT)
    after = tree(proj)
    shown = stead("undo", "--dry-run", cwd=proj)
    assert shown.code == 0 and shown.out == "" and "calc.py" in shown.err and "2 messages leave" in shown.err
    dry = stead("undo", "--dry-run", "--json", cwd=proj).json
    assert dry["dry_run"] is True and "rewind" not in dry and tree(proj) == after
    done = stead("undo", "-y", "--json", cwd=proj).json
    assert {**dry, "dry_run": False, "rewind": done["rewind"]} == done
    undone = tree(proj)
    assert stead("redo", "--dry-run", "--json", cwd=proj).json["restored"] == ["calc.py"] and tree(proj) == undone


def test_a_conflict_is_code_1_and_force_takes_it_and_redo_gives_it_back(proj: Path) -> None:
    before = tree(proj)
    session = play(proj, EDIT, use("write", path="new.txt", content="x\n"))
    (proj / "calc.py").write_text("mine alone\n")
    mine = tree(proj)
    dry = stead("undo", "--dry-run", "--json", cwd=proj)
    assert dry.code == 1 and [one["path"] for one in dry.json["conflicts"]] == ["calc.py"] and tree(proj) == mine
    done = stead("undo", "-y", cwd=proj)
    assert done.code == 1 and "left alone calc.py" in done.err
    assert (proj / "calc.py").read_text() == "mine alone\n" and not (proj / "new.txt").exists()
    blob = dry.json["conflicts"][0]["blob"]
    assert "a - b" in stead("storage", "blob", blob, cwd=proj).out  # both versions can be had
    advice = next(line for line in done.err.splitlines() if "--force PATH" in line and session in line)
    arguments = advice.split("`")[1].replace("PATH", "calc.py").split()[1:]
    forced = stead(*arguments, "-y", "--json", cwd=proj)
    assert forced.code == 0 and forced.json["restored"] == ["calc.py"] and tree(proj) == before
    assert stead("redo", "-y", cwd=proj).code == 0 and (proj / "calc.py").read_text() == "mine alone\n"


def test_merge_keeps_what_the_person_wrote_in_other_lines(proj: Path) -> None:
    at = long(proj)
    at.write_text(at.read_text().replace("line 15\n", "mine\n"))
    mine = at.read_text()
    left = stead("undo", "-y", "--files", "--json", cwd=proj)
    assert left.code == 1 and left.json["conflicts"][0]["merge"] is True and at.read_text() == mine
    done = stead("undo", "-y", "--files", "--merge", "--json", cwd=proj)
    assert done.code == 0 and done.json["restored"] == ["long.txt"]
    assert at.read_text() == THIRTY.replace("line 15\n", "mine\n")
    assert stead("redo", "-y", cwd=proj).code == 0 and at.read_text() == mine


def test_files_and_conversation_apart(proj: Path) -> None:
    before = tree(proj)
    session = play(proj, EDIT)
    after = tree(proj)
    said = stead("undo", "-y", "--conversation", "--json", cwd=proj).json
    assert (said["restored"], said["messages"]) == ([], [1, 2]) and tree(proj) == after
    assert stead("redo", "-y", "--conversation", "--json", cwd=proj).json["messages"] == [1, 2]
    files = stead("undo", "-y", "--files", "--json", cwd=proj).json
    assert (files["restored"], files["messages"]) == (["calc.py"], []) and tree(proj) == before
    assert len(stead("sessions", "show", session, "--json", cwd=proj).json["messages"]) == 2
    assert stead("undo", "--files", "--both", cwd=proj).code == 2


# ---- what is named ----


def test_to_a_message_takes_all_from_it_on(proj: Path) -> None:
    session = play(proj, EDIT)
    middle = tree(proj)
    play(proj, use("write", path="b", content="b\n"), more=("-c",))
    play(proj, use("write", path="c", content="c\n"), more=("-c",))
    done = stead("undo", "-y", "--to", f"{session}.3", "--json", cwd=proj)
    assert done.json["restored"] == ["b", "c"] and done.json["messages"] == [3, 4, 5, 6] and tree(proj) == middle
    again = stead("undo", "-y", "--to", f"{session}.3", "--json", cwd=proj)
    assert (again.code == 2 or again.json["restored"] == again.json["messages"] == []) and tree(proj) == middle  # gone already
    assert stead("undo", "-y", "--to", f"{session}.2", cwd=proj).code == 2  # no message of the person
    assert stead("undo", "-y", "--to", f"{session}.99", cwd=proj).code == 3


def test_one_message_or_one_call_alone(proj: Path) -> None:
    session = play(proj, EDIT, use("write", path="b", content="b\n"))
    play(proj, use("write", path="c", content="c\n"), more=("-c",))
    one = stead("undo", "-y", "--call", f"{session}.2.3", "--json", cwd=proj)
    assert (one.json["restored"], one.json["messages"]) == (["b"], []) and (proj / "c").exists()
    other = stead("undo", "-y", "--message", f"{session}.1", "--json", cwd=proj)
    assert other.json["restored"] == ["calc.py"] and (proj / "c").exists()
    assert stead("redo", "-y", "--json", cwd=proj).json["restored"] == ["calc.py"]
    assert stead("redo", "-y", "--json", cwd=proj).json["restored"] == ["b"]
    assert stead("undo", "-y", "--call", f"{session}.2.99", cwd=proj).code == 3
    assert stead("undo", "-y", "--call", f"{session}.2.3", "--message", f"{session}.1", cwd=proj).code == 2


def test_one_path_alone_also_named_from_another_folder(proj: Path) -> None:
    play(proj, EDIT, use("write", path="sub/b c", content="b\n"), use("write", path="[x]", content="c\n"))
    done = stead("undo", "-y", "--path", "b c", "--json", "-C", str(proj / "sub"), cwd=proj)
    assert done.code == 3 or done.json["restored"] == []  # no session was used there
    session = stead("sessions", "list", "--json", cwd=proj).json["sessions"][0]["id"]
    there = stead("undo", session, "-y", "--path", "b c", "--json", "-C", str(proj / "sub")).json
    assert there["restored"] == ["sub/b c"] and there["messages"] == []
    assert stead("undo", "-y", "--path", "./[x]", "--json", cwd=proj).json["restored"] == ["[x]"]
    assert "a + b" in (proj / "calc.py").read_text()
    assert stead("undo", "-y", "--path", "no such", "--json", cwd=proj).json["restored"] == []


def test_an_empty_redo_is_told_as_a_redo(proj: Path) -> None:
    play(proj)
    assert "nothing to redo" in stead("redo", cwd=proj).err


def test_one_hunk_alone_and_back(proj: Path) -> None:
    at = long(proj)
    both = at.read_text()
    _, second = hunks(proj)
    assert stead("undo", "-y", "--hunk", second["id"], cwd=proj).code == 2  # of which file?
    done = stead("undo", "-y", "--path", "long.txt", "--hunk", second["id"], "--json", cwd=proj)
    assert done.code == 0 and done.json["restored"] == ["long.txt"]
    assert at.read_text() == THIRTY.replace("line 2\n", "two\n")
    assert stead("redo", "-y", cwd=proj).code == 0 and at.read_text() == both
    stead("undo", "-y", "--path", "long.txt", "--hunk", "nonsense", cwd=proj)
    assert at.read_text() == both and len(hunks(proj)) == 2


def test_what_one_hunk_less_leaves_is_shown_and_can_be_taken_back(proj: Path) -> None:
    at = long(proj)
    first, second = hunks(proj)
    stead("undo", "-y", "--path", "long.txt", "--hunk", second["id"], cwd=proj)
    assert [one["id"] for one in hunks(proj)] == [first["id"]]
    assert "-line 2\n+two\n" in stead("diff", "--patch", cwd=proj).out
    assert stead("undo", "-y", "--files", cwd=proj).code == 0 and at.read_text() == THIRTY
    assert stead("redo", "-y", cwd=proj).code == 0 and at.read_text() == THIRTY.replace("line 2\n", "two\n")


def test_an_unknown_hunk_is_not_taken_for_a_missing_content(proj: Path) -> None:
    long(proj)
    done = stead("undo", "-y", "--path", "long.txt", "--hunk", "nonsense", cwd=proj)
    assert done.code == 3 and "no hunk 'nonsense'" in done.err


# ---- review ----


def test_keep_a_file_or_a_hunk_and_a_later_change_is_pending_again(proj: Path) -> None:
    at = long(proj)
    content = at.read_text()
    first, _ = hunks(proj)
    assert stead("keep", "long.txt", "--hunk", first["id"], "--json", cwd=proj).json == {"kept": ["long.txt"]}
    assert [one["review"] for one in hunks(proj)] == ["kept", "pending"]
    assert stead("keep", "--json", cwd=proj).json == {"kept": ["long.txt"]} and at.read_text() == content
    assert stead("diff", cwd=proj).lines[1].split("\t")[-1] == "kept"
    play(proj, use("edit", path="long.txt", old="line 15\n", new="fifteen\n"), more=("-c",))
    assert [one["review"] for one in hunks(proj)] == ["kept", "pending", "kept"]
    assert stead("keep", "no such", cwd=proj).code == 3 and stead("keep", "--hunk", "x", cwd=proj).code == 2


def test_what_was_undone_is_shown_when_asked_for(proj: Path) -> None:
    play(proj, EDIT)
    stead("undo", "-y", "--files", cwd=proj)
    assert stead("diff", "--json", cwd=proj).json["files"] == []
    (file,) = stead("diff", "--all", "--json", cwd=proj).json["files"]
    assert (file["path"], file["review"]) == ("calc.py", "undone")


def test_the_patch_taken_back_by_git_gives_the_tree_of_before(proj: Path) -> None:
    long_text = proj / "crlf"
    long_text.write_bytes(b"a\r\nb\r\nc")
    (proj / "run.sh").write_text("#!/bin/sh\n")
    (proj / "run.sh").chmod(0o755)
    (proj / "name with blanks").write_text("1\n2\n3\n")
    (proj / "caf\u00e9").write_bytes(b"\xff\n")
    before = tree(proj)
    play(
        proj,
        EDIT,
        use("write", path="crlf", content="a\nB\nc\n"),
        use("edit", path="run.sh", old="/bin/sh", new="/bin/bash"),
        use("edit", path="name with blanks", old="2\n", new=""),
        use("write", path="caf\u00e9", content="text\n"),
        use("write", path="new", content="no end"),
        use("write", path="empty", content=""),
    )
    assert tree(proj) != before
    patch = subprocess.run(  # the bytes as another program gets them
        [*_program(), "diff", "--patch"], cwd=proj, stdin=subprocess.DEVNULL, capture_output=True, check=True
    ).stdout
    subprocess.run(["git", "apply", "-R", "--whitespace=nowarn", "-"], input=patch, cwd=proj, check=True)
    assert tree(proj) == before


def _program() -> list[str]:
    from tests.support import stead_command

    return stead_command()


# ---- at a terminal ----


@pytest.mark.slow
def test_at_a_terminal_no_is_the_default_and_yes_does_it(proj: Path) -> None:
    before = tree(proj)
    play(proj, EDIT)
    after = tree(proj)
    for answer in ("\n", "n\n", "what\n"):
        with Terminal("undo", cwd=proj) as at:
            shown = at.until("Undo this? [y/N] > ")
            assert "calc.py" in shown and "+1 −1" in shown and "2 messages leave" in shown
            at.send(answer)
            at.until("Nothing was done")
            assert at.end() == 2
        assert tree(proj) == after
    with Terminal("undo", cwd=proj) as at:
        at.until("[y/N] > ")
        at.send("y\n")
        at.until("stead redo")
        assert at.end() == 0
    assert tree(proj) == before
    with Terminal("redo", cwd=proj) as at:
        at.until("Redo this? [y/N] > ")
        at.send("yes\n")
        at.until("Brought back")
        assert at.end() == 0
    assert tree(proj) == after


# ---- branches and forks ----


def test_a_fork_by_command_and_in_a_run(proj: Path) -> None:
    session = play(proj, EDIT)
    play(proj, use("write", path="b", content="b\n"), more=("-c",))
    files = tree(proj)
    whole = stead("sessions", "fork", session, "--title", "another", "--json", cwd=proj).json["session"]
    assert whole["title"] == "another" and whole["messages"] == 4
    assert whole["forked_from"] == {"session": session, "message": f"{session}.4"} and tree(proj) == files
    plain = stead("sessions", "fork", session, "--message", f"{session}.3", cwd=proj)
    assert plain.code == 0 and len(plain.lines) == 1
    assert [m["role"] for m in stead("sessions", "show", plain.lines[0], "--json").json["messages"]] == ["user", "assistant"]
    new = play(proj, more=("-r", session, "--fork", f"{session}.2"))
    assert new not in (session, whole["id"])
    shown = stead("sessions", "show", new, "--json").json
    assert shown["session"]["forked_from"]["message"] == f"{session}.2" and len(shown["messages"]) == 4
    assert len(stead("sessions", "show", session, "--json").json["messages"]) == 4
    assert stead("run", "--fork", "", "go", cwd=proj).code == 2
    assert stead("sessions", "fork", session, "--message", f"{session}.99").code == 3
    drawn = stead("sessions", "show", session, "--tree").out
    assert all(f"⑂ {fork}" in drawn for fork in (whole["id"], plain.lines[0], new))


def test_a_branch_that_was_left_stays_readable(proj: Path) -> None:
    session = play(proj, EDIT)
    play(proj, more=("-c",))
    stead("undo", "-y", cwd=proj)
    play(proj, more=("-c",))
    ids = [m["id"] for m in stead("sessions", "show", session, "--json").json["messages"]]
    assert ids == [f"{session}.{n}" for n in (1, 2, 5, 6)]
    every = stead("sessions", "show", session, "--all-branches", "--json").json["messages"]
    assert [m["id"] for m in every] == [f"{session}.{n}" for n in range(1, 7)]
    lines = stead("sessions", "show", session, "--tree").lines
    marks = {int(line.split(f"{session}.")[1].split()[0]): line.split(f" {session}.")[0][-1] for line in lines}
    assert marks == {1: "●", 2: "●", 3: "○", 4: "○", 5: "●", 6: "●"}
