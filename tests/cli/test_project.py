"""A project whose folder was moved: it is offered, and one command brings its sessions along."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.door import project, script, stead

pytestmark = pytest.mark.usefixtures("data_dir")


@pytest.fixture
def proj(tmp_path: Path) -> Path:
    return project(tmp_path)


def test_b168_a_moved_folder_is_offered_and_brought_along(proj: Path) -> None:
    model = script(proj, {"text": "ok"})
    first = stead("run", "-C", str(proj), "-m", model, "--json", "one").json["session"]
    moved = proj.rename(proj.with_name("elsewhere"))
    lost = stead("run", "-C", str(moved), "-c", "--json", "two")
    assert lost.code == 3 and "stead project relink" in lost.err
    second = stead("run", "-C", str(moved), "-m", model, "--json", "two")
    assert "seems to lie here now" in second.err and second.json["session"] != first
    assert [one["id"] for one in stead("sessions", "list", "--json", cwd=moved).json["sessions"]] == [second.json["session"]]
    named = lost.err.split("relink ")[1].split("`")[0]
    told = stead("project", "relink", named, "-C", str(moved), "--json")
    assert told.code == 0 and told.json["project"]["path"] == str(moved.resolve())
    both = [one["id"] for one in stead("sessions", "list", "--json", cwd=moved).json["sessions"]]
    assert both == [second.json["session"], first]
    again = stead("run", "-C", str(moved), "-c", "--json", "three")
    assert again.code == 0 and again.json["session"] == second.json["session"] and again.err.count("relink") == 0
    assert stead("run", "-C", str(moved), "-r", first, "--json", "four").code == 0


def test_projects_are_listed_with_their_folders(proj: Path) -> None:
    stead("run", "-C", str(proj), "-m", script(proj, {"text": "ok"}), "one")
    found = stead("project", "list", "--json").json["projects"]
    assert [(one["name"], one["path"]) for one in found] == [(proj.name, str(proj.resolve()))]
    assert stead("project", "list").out.splitlines()[0] == "id\tname\tpath\topened"
    assert stead("project", "relink", "nothing-of-that-name").code == 3
