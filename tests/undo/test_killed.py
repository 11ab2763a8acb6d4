"""An undo that is killed is finished by whoever opens the store next: everything that could be restored is, and no file is half."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from stead.app.undo import Wish, plan_undo, undo
from stead.domain import changes, rewinds
from stead.store import faults
from tests.agent.house import house
from tests.crash.places import quick_folder
from tests.store.children import Child
from tests.support import scale
from tests.undo.room import bash, edit, room, tree, write

FILES = 40


class Uncovered(Exception):
    """Not everything that the command changed can be taken back."""


async def lived(tmp_path: Path) -> tuple[str, dict[str, tuple[str, int, str]], dict[str, tuple[str, int, str]]]:
    """A session that changed 40 files and some folders; what the tree was before and after."""
    async with room(tmp_path) as here:
        for n in range(FILES - 6):
            (here.folder / f"f{n}").write_text(f"old {n}\n" * 200)
        (here.folder / "linked").write_text("old\n" * 300)
        os.link(here.folder / "linked", here.folder / "twin")
        (here.folder / "run.sh").write_text("#!\n")
        (here.folder / "run.sh").chmod(0o755)
        os.symlink("f0", here.folder / "link")
        before = tree(here.folder)
        await here.turn(
            bash(
                "sleep 0.5; for f in f*; do echo new > $f; done; rm f1 link; chmod -x run.sh; mv f2 'moved f2'; mkdir d; echo > d/x"
            ),
            edit("linked", "old\n" * 300, "new\n" * 500),
            write("deep/er/made", "x\n"),
        )
        assert here.session is not None
        with here.at.store.view() as view:
            if changes.uncovered(view, here.session):
                raise Uncovered
        return here.session, before, tree(here.folder)


def taken_back(tmp_path: Path, session: str) -> None:
    opened = house(tmp_path)
    try:
        undo(opened, plan_undo(opened, session, Wish()), by="local")
    finally:
        opened.close()


def killed_at(work: object, at: int, names: list[str]) -> bool:
    """Run `work` in a child that dies at its `at`th passing of these points; whether it did."""
    pid = os.fork()
    if pid == 0:
        left = at

        def hook(name: str) -> None:
            nonlocal left
            if name.startswith(tuple(names)):
                left -= 1
                if left == 0:
                    faults.kill(name)

        faults.watch(hook)
        try:
            work()  # type: ignore[operator]
        except BaseException:
            os._exit(3)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, status
    return os.WIFSIGNALED(status)


POINTS = ["undo.", "safefile.", "writer.before_commit", "writer.after_commit"]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
async def test_killed_at_any_point_the_next_start_has_everything_back(part: int, tmp_path: Path) -> None:
    import shutil

    with quick_folder(tmp_path) as place:
        trial, pristine = place / "trial", place / "pristine"
        trial.mkdir()
        for _ in range(5):  # what is tried here is the undo: a moment in which the tree was not known is of no use for it
            shutil.rmtree(trial)
            trial.mkdir()
            try:
                session, before, after = await lived(trial)
                break
            except Uncovered:
                continue
        else:
            raise AssertionError("the command's changes were never covered")
        shutil.copytree(trial, pristine, symlinks=True)
        passed = Child(lambda: _count(trial, session)).result()
        assert passed > FILES * 3
        every = max(1, int(passed / 4 // max(3, scale(400))))
        for at in range(1 + part, passed + 1, 4 * every):
            shutil.rmtree(trial)
            shutil.copytree(pristine, trial, symlinks=True)
            os.unlink(trial / "project" / "twin")
            os.link(trial / "project" / "linked", trial / "project" / "twin")
            assert killed_at(lambda: taken_back(trial, session), at, POINTS)
            killed_at(lambda: house(trial).close(), 1 + at % 7, POINTS)  # the recovery may be killed, too
            opened = house(trial)
            try:
                with opened.store.view() as view:
                    found = rewinds.listed(view, session)
                    assert rewinds.open_in(view, session) is None
                now = tree(trial / "project")
                assert not [name for name in now if ".stead-" in name]
                if not found or found[-1].state == "abandoned":
                    assert now == after, "nothing had begun, and something was touched"
                    undo(opened, plan_undo(opened, session, Wish()), by="local")
                assert tree(trial / "project") == before
                assert (trial / "project" / "linked").samefile(trial / "project" / "twin")
                assert plan_undo(opened, session, Wish()).items == []
            finally:
                opened.close()


def _count(place: Path, session: str) -> int:
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name.startswith(tuple(POINTS))

    faults.watch(hook)
    taken_back(place, session)
    faults.watch(None)
    return passed
