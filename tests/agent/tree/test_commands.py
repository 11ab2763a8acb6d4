"""Shell commands in every kind of project: the tree finds exactly what a full copy before and after shows, with every content."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stead.agent.tree import Tree
from tests.agent.tree.worlds import KINDS, PATIENT, World, checked, make, renames, settled, sh

COMMANDS = {
    "sed": "sed -i s/two/2/ a.txt",
    "append": "echo more >> a.txt",
    "same size": "printf 'ONE\ntwo\nthree\n' > a.txt",
    "move": "mv a.txt b.txt",
    "move over": "mv a.txt Readme.md",
    "move and edit": "mv a.txt b.txt && echo more >> b.txt",
    "swap": "mv a.txt t && mv notes.txt a.txt && mv t notes.txt",
    "letter case": "mv Readme.md README.md",
    "remove tracked, untracked, ignored": "rm a.txt notes.txt .env",
    "remove a folder": "rm -rf src",
    "make folders": "mkdir -p new/er/est && echo x > new/er/est/f",
    "make and remove": "mkdir tmp && echo x > tmp/x && rm -r tmp",
    "mode": "chmod 755 a.txt && chmod 700 src/deep && chmod 600 notes.txt",
    "link": "ln -s nowhere dangling && ln -sfn src/deep to-src",
    "hard link": "ln a.txt hard && echo more >> hard",
    "touch": "touch a.txt src/app.py notes.txt build/out.o",
    "write the same": "cp a.txt /tmp/same.$$ && cat /tmp/same.$$ > a.txt && rm /tmp/same.$$",
    "secret": "echo KEY=other > .env",
    "ignored": "mkdir -p build/x && echo o > build/x/new.o && echo changed > build/out.o",
    "many": "mkdir many && for i in $(seq 300); do echo $i > many/$i; done && cp -a many again",
    "move a folder": "mv src lib",
    "move a folder into another": "mv src/deep app/deeper && echo 1 > app/deeper/er/z.py",
    "move a folder and remake it": "mv src lib && mkdir src && cp lib/app.py src/app.py",
    "remake a folder": "rm -r src/deep && mkdir src/deep && echo other > src/deep/y.py",
    "file to folder": "rm a.txt && mkdir a.txt && echo in > a.txt/b",
    "folder to file": "rm -r src && echo file > src",
    "file to link": "ln -sf Readme.md a.txt",
    "folder to link": "mv src real && ln -s real src",
    "link to file": "rm link && echo real > link",
    "odd names": "echo x >> $'new\\nline.txt' && mv $'latin-\\xe9.txt' $'latin-\\xe8.txt' && echo y > 'app/[locale]/page.tsx'",
    "through a link": "echo through >> link && echo new > to-src/made.py",
    "formatter": "for f in $(find . -name '*.py' -not -path './.git/*'); do sed -i 's/=/ = /' $f; done",
    "nothing": "true",
    "emptied": ": > a.txt && echo full > emp",
    "replaced by a rename": "echo new > .a.tmp && chmod --reference=a.txt .a.tmp && mv .a.tmp a.txt",
}
GIT_COMMANDS = {
    "checkout": "echo dirty > a.txt && rm -r src && git checkout -q .",
    "checkout undoes mine": "git checkout -q .",
    "stash": "git stash -q",
    "stash with untracked": "git stash -q -u && git stash pop -q",
    "commit": "echo more >> a.txt && git add -A && git commit -qm two && echo again >> a.txt",
    "reset": "git rm -q -r src -f && git commit -qm gone && git reset -q --hard HEAD~1",
    "clean": "git clean -qfdx",
}


@pytest.fixture(params=KINDS)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    return make(request.param, tmp_path)


@pytest.fixture
def tree(world: World, tmp_path: Path) -> Iterator[Tree]:
    tree = Tree(world.root, home=tmp_path / "home", limits=PATIENT)
    yield settled(tree)
    tree.close()


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_command(tree: Tree, command: str) -> None:
    checked(tree, lambda: sh(command, tree.root))


@pytest.mark.parametrize("command", GIT_COMMANDS.values(), ids=GIT_COMMANDS)
def test_a_command_of_git(world: World, tree: Tree, command: str) -> None:
    if not world.has_commit:
        pytest.skip("it needs a commit")
    checked(tree, lambda: sh(command, tree.root))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_a_command_where_no_events_are_told(command: str, tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    tree = settled(Tree(root, home=tmp_path / "home", events=False, limits=PATIENT))
    try:
        checked(tree, lambda: sh(command, root))
        checked(tree, lambda: sh("echo last >> src/deep/er/x.py", root) if (root / "src/deep/er/x.py").exists() else None)
    finally:
        tree.close()


SEQUENCE = (
    "echo 1 >> notes.txt && echo 2 >> a.txt",
    "echo 3 >> notes.txt && echo 4 >> a.txt",
    "mv notes.txt n && mv src lib",
    "echo 5 >> n && echo 6 >> lib/app.py",
    "chmod 600 n a.txt lib/app.py",
    "rm -r n a.txt lib",
    "mkdir n && echo 7 > n/x",
    "echo 8 > n/x && ln -s x n/y",
    "rm -r n",
)


def test_one_command_after_the_other(tree: Tree) -> None:
    """What the last command left is what the next one finds: its content is known, whoever made it."""
    for command in SEQUENCE:
        checked(tree, lambda command=command: sh(command, tree.root))  # type: ignore[misc]


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("mv a.txt b.txt", {"a.txt": "b.txt"}),
        ("mv Readme.md README.md", {"Readme.md": "README.md"}),
        ("mv notes.txt a.txt", {"notes.txt": "a.txt"}),
        ("mv link other", {"link": "other"}),
        ("mv app lib", {"app": "lib", "app/[locale]": "lib/[locale]", "app/[locale]/page.tsx": "lib/[locale]/page.tsx"}),
        ("cp a.txt b.txt && rm a.txt", {}),
        ("rm -r app && mkdir -p lib/[locale]", {}),
    ],
)
def test_b048_a_rename_is_told_as_one(command: str, wanted: dict[str, str], tmp_path: Path) -> None:
    root = make("git", tmp_path).root
    for events in (True, False):
        tree = settled(Tree(root, home=tmp_path / "home", events=events, limits=PATIENT))
        try:
            assert renames(checked(tree, lambda: sh(command, root))) == wanted
        finally:
            tree.close()
        sh("git clean -qfd && git checkout -q . && echo mine > notes.txt", root)


def test_b052_what_a_shell_command_does_to_ignored_files_is_covered(tree: Tree) -> None:
    found = checked(tree, lambda: sh("rm .env && echo 1 > build/made.o && sed -i s/1/2/ src/app.py", tree.root))
    assert [one.path for one in found.seen] == [".env", "build/made.o", "src/app.py"]


def test_b046_what_rm_took_comes_back_whole(tree: Tree) -> None:
    found = checked(tree, lambda: sh("chmod 640 notes.txt; rm a.txt notes.txt .env", tree.root))
    for one in found.seen:
        assert one.before.load is not None
        (tree.root / one.path).write_bytes(one.before.load())
    assert (tree.root / ".env").read_text() == "KEY=secret\n"
