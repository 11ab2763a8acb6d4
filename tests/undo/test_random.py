"""Random trees, random agents, random people: an undo gives back what was there, and touches nothing that the agent did not."""

from __future__ import annotations

import hashlib
import os
import random
import shlex
from pathlib import Path
from typing import Any

import pytest

from stead.domain import changes
from tests.support import scale
from tests.undo.room import Room, bash, ready, room, tree, write

NAMES = ["a", "b.txt", "with space", "new\nline", "[x]", "caf\u00e9", "cafe\u0301", "-n", "sub/c", "sub/deep/d", "other/e"]
ODD = b"bad\xff"


def grow(folder: Path, dice: random.Random) -> None:
    """Some files, folders and links."""
    for name in dice.sample(NAMES, 7):
        at = folder / name
        at.parent.mkdir(parents=True, exist_ok=True)
        at.write_bytes(lines(dice))
        at.chmod(dice.choice([0o644, 0o600, 0o755]))
    with open(os.path.join(os.fsencode(folder), ODD), "wb") as file:
        file.write(lines(dice))
    os.symlink(dice.choice(NAMES), folder / "link")
    (folder / "hollow").mkdir()
    if dice.random() < 0.5:
        (folder / "one").write_text("linked\n")
        os.link(folder / "one", folder / "two")


def lines(dice: random.Random) -> bytes:
    ends = [b"\n", b"\r\n", b"\xfe\n"]
    return b"".join(b"line %d" % dice.randrange(9) + dice.choice(ends) for _ in range(dice.randrange(12)))


def files(folder: Path) -> list[str]:
    return [
        name
        for name, (kind, _, _) in tree(folder).items()
        if kind == "file" and name.isprintable() and ODD.decode("latin1") not in name
    ]


def call(folder: Path, dice: random.Random) -> dict[str, Any]:
    """One thing that the agent does."""
    there = [name for name in files(folder) if name.isascii() or "caf" in name] or ["none"]
    one, fresh = dice.choice(there), dice.choice(NAMES)
    quoted, new = shlex.quote(f"./{one}"), shlex.quote(f"./{fresh}")
    commands = [
        f"echo more >> {quoted}",
        f"rm -f {quoted}",
        f"mkdir -p x/y; cp {quoted} x/y/copy",
        f"mv -f {quoted} moved-{dice.randrange(3)}",
        f"chmod {dice.choice(['600', '755', '644'])} {quoted}",
        f"ln -sfn {quoted} link",
        f"sed -i 's/line/LINE/' {quoted}",
        "rm -rf sub",
        "rmdir hollow 2>/dev/null; mkdir -p hollow2",
        f"mkdir -p $(dirname {new}) && printf 'made\\n' > {new}",
        f"rm -f {quoted}; mkdir {quoted}; echo in > {quoted}/in",
        'for f in *; do [ -f "$f" ] && printf \'#\\n\' >> "$f"; done; true',
    ]
    if dice.random() < 0.6:
        return bash(f"{dice.choice(commands)} || true")
    return write(fresh, f"written {dice.randrange(99)}\n")


def person(folder: Path, dice: random.Random) -> None:
    """Somebody works in the same folder."""
    there = files(folder)
    what = dice.randrange(4)
    if what == 0 or not there:
        (folder / f"mine {dice.randrange(5)}").write_text(f"mine {dice.randrange(99)}\n")
        return
    at = folder / dice.choice(there)
    if what == 1:
        at.write_bytes(at.read_bytes() + b"a person's line\n")
    elif what == 2:
        at.unlink()
    else:
        at.chmod(dice.choice([0o600, 0o755]))


async def turn(here: Room, dice: random.Random) -> int:
    return await here.turn(*(call(here.folder, dice) for _ in range(dice.randint(1, 3))))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6 + scale(200)))
async def test_undo_all_then_redo_all_is_where_it_began(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    async with room(tmp_path) as here:
        grow(here.folder, dice)
        await ready(here)
        states, prompts = [tree(here.folder)], []
        for _ in range(dice.randint(2, 4)):
            prompts.append(await turn(here, dice))
            states.append(tree(here.folder))
        assert here.session is not None
        with here.at.store.view() as view:
            assert changes.uncovered(view, here.session) == []
        back = dice.random() < 0.5
        if back:  # one by one
            for state in reversed(states[:-1]):
                assert (await here.undo()).conflicts == []
                assert tree(here.folder) == state
        else:  # at once
            assert (await here.undo(to=prompts[0])).conflicts == []
            assert tree(here.folder) == states[0]
        for state in states[1:] if back else states[-1:]:
            assert (await here.redo()).conflicts == []
            assert tree(here.folder) == state


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6 + scale(200)))
async def test_whatever_a_person_does_between_nothing_of_theirs_is_touched_or_lost(seed: int, tmp_path: Path) -> None:
    dice = random.Random(1_000 + seed)
    async with room(tmp_path) as here:
        grow(here.folder, dice)
        await ready(here)
        prompts = []
        for _ in range(dice.randint(2, 4)):
            prompts.append(await turn(here, dice))
            for _ in range(dice.randrange(3)):
                person(here.folder, dice)
        for _ in range(6):
            before = contents(here.folder)
            how = dice.randrange(4)
            if how == 0:
                done = await here.redo(merge=dice.random() < 0.3)
            elif how == 1:
                done = await here.undo(message=dice.choice(prompts), merge=dice.random() < 0.3)
            else:
                done = await here.undo(what=dice.choice(["files", "both"]), merge=dice.random() < 0.3)
            after = contents(here.folder)
            named = {*done.restored, *touched(here)}
            for name in before.keys() | after.keys():
                if after.get(name) != before.get(name):
                    assert stored_name(name) in named, f"{name!r} was touched"
                    assert stored_name(name) not in {one["path"] for one in done.conflicts}
                    if before.get(name) is not None and before[name][0] == "file":
                        assert here.at.store.blobs.has(before[name][2]), f"what {name!r} held is lost"
            if dice.random() < 0.3:
                person(here.folder, dice)


def contents(folder: Path) -> dict[str, tuple[str, int, str]]:
    return tree(folder)


def touched(here: Room) -> set[str]:
    """The paths that the session's changes name, folders among them."""
    assert here.session is not None
    with here.at.store.view() as view:
        rows = view.q("SELECT DISTINCT path FROM changes WHERE session=?", here.session)
        made = view.q("SELECT DISTINCT path FROM made_folders WHERE session=?", here.session)
    return {path for (path,) in [*rows, *made]}


def stored_name(name: str) -> str:
    from stead.domain.projects.folders import encode_path

    return encode_path(name)[0]


def test_the_hash_of_a_tree_is_that_of_a_blob(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x")
    assert tree(tmp_path)["f"][2] == hashlib.sha256(b"x").hexdigest()
