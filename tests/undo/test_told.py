"""What undo will not cover is said before the person relies on it: in the approval, on the turn, in the preview."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stead.agent import workspace
from stead.app.shown import not_covered
from stead.domain import asks
from tests.agent.house import house, script, use


async def told(tmp_path: Path, *calls: dict[str, Any]) -> tuple[list[list[str]], list[dict[str, Any]]]:
    """What the approvals of these calls said of undo, and what the session does not cover afterwards."""
    said: list[list[str]] = []

    async def ask(found: asks.Ask) -> dict[str, Any]:
        said.append(found.about.get("not_covered", []))
        return {"allow": True}

    (tmp_path / "project").mkdir(exist_ok=True)
    turns = [*({"tools": [call]} for call in calls), {"text": "end"}]
    async with house(tmp_path, models=script(turns)) as at:
        run = await at.prompt(None, "go", project=tmp_path / "project", model="fake/m", on_ask=ask)
        await run.ended()
        with at.store.view() as view:
            return said, not_covered(view, run.session)


async def test_what_lies_outside_of_the_project_is_named(tmp_path: Path) -> None:
    away = tmp_path / "elsewhere.txt"
    said, lost = await told(tmp_path, use("bash", command=f"echo x > {away}"))
    assert any(str(away) in line and "cannot be undone" in line for line in said[0])
    assert {"path": str(away), "why": "outside"} in lost and away.read_text() == "x\n"


async def test_b064_a_file_too_large_to_be_kept_is_named(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with (tmp_path / "project" / "huge").open("wb") as file:
        file.truncate(workspace.MOST_BYTES + 1)
    said, lost = await told(tmp_path, use("write", path="huge", content="x"), use("write", path="small", content="x"))
    assert "too large" in said[0][0] and said[1] == []
    assert lost == [{"path": "huge", "why": "too_large"}]


async def test_a_home_folder_is_not_walked_and_the_approval_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "project"))
    said, _ = await told(tmp_path, use("bash", command="true"))
    assert any("only files that git tracks" in line for line in said[0])


def test_a_house_that_is_closed_watches_nothing_even_if_somebody_asks_late(tmp_path: Path) -> None:
    from stead.domain import settings

    opened = house(tmp_path)
    with opened.store.view() as view:
        values = settings.effective(view)
    opened.close()
    (tmp_path / "project").mkdir()
    late = opened.tree(tmp_path / "project", values)
    late.start()
    assert late._thread is None and late.counts.directories_read == 0
