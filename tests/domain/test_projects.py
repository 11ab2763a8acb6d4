from __future__ import annotations

import os
import shutil
import subprocess
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stead.core.clock import ManualClock
from stead.core.errors import SteadError
from stead.domain import projects
from stead.domain.projects import Identity, Project, folders
from stead.domain.projects.folders import SystemDisk
from stead.store import Store


def open_(store: Store, path: str | os.PathLike[str], disk: projects.Disk = projects.DISK) -> str:
    """Open a folder as the doors do: ask the disk, look, write."""
    folder = projects.identify(path, disk=disk)
    listed = projects.find_instructions(folder.folder)
    with store.view() as view:
        found = projects.find(view, folder, disk=disk)
    return store.write(lambda tx: projects.open_project(tx, folder, id=store.ids.new(), found=found, instructions=listed))


def get(store: Store, project: str) -> Project:
    with store.view() as view:
        return projects.get(view, project)


def offered(store: Store, path: Path) -> list[str]:
    with store.view() as view:
        return [one.id for one in projects.candidates(view, projects.identify(path))]


def paths(store: Store) -> list[str]:
    with store.view() as view:
        return [one.path for one in projects.recent(view)]


def code(failed: pytest.ExceptionInfo[SteadError]) -> str:
    return failed.value.code


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(os.path.realpath(tmp_path))


@pytest.fixture
def lamp(root: Path) -> Path:
    (root / "Lamp").mkdir()
    return root / "Lamp"


class FoldingDisk(SystemDisk):
    """A disk that does not tell letter cases and Unicode forms apart below `top`, as APFS, NTFS and WSL's mounts do."""

    def __init__(self, top: Path, *, lists: bool = True) -> None:
        self.top, self.lists = str(top), lists

    def _there(self, path: str) -> str:
        if not path.startswith(self.top + "/"):
            return path
        at = self.top
        for name in path[len(self.top) + 1 :].split("/"):
            at = (
                f"{at}/{next((entry for entry in os.listdir(at) if fold(entry) == fold(name)), name)}"
                if os.path.isdir(at)
                else f"{at}/{name}"
            )
        return at

    def real(self, path: str) -> str:
        there, typed = self._there(os.path.abspath(path)), os.path.abspath(path)
        return os.path.realpath(there) if os.path.realpath(there) != there else typed  # keeps the typed spelling, as realpath does

    def key(self, path: str, *, follow: bool) -> tuple[int, int, int] | None:
        return super().key(self._there(path), follow=follow)

    def names(self, folder: str) -> list[str]:
        return super().names(self._there(folder)) if self.lists else []


def fold(name: str) -> str:
    return unicodedata.normalize("NFC", name).casefold()


# --- one folder, one project --------------------------------------------------------------------------------------------------


def test_a_folder_becomes_a_project_once(store: Store, lamp: Path, clock: ManualClock) -> None:
    first = open_(store, lamp)
    made = get(store, first)
    assert (made.name, made.path, made.encoded, made.spelling) == ("Lamp", str(lamp), False, str(lamp))
    assert (made.created, made.opened, made.owner, made.instructions) == (clock.now(), clock.now(), None, ())
    assert (made.dev, made.ino) == (str(lamp.stat().st_dev), str(lamp.stat().st_ino))
    clock.advance(5000)
    assert open_(store, lamp) == first
    assert (get(store, first).created, get(store, first).opened) == (clock.now() - 5000, clock.now())


def test_the_recent_list_is_ordered_by_opening_not_by_the_clock(store: Store, root: Path, clock: ManualClock) -> None:
    for name in "abc":
        (root / name).mkdir()
        open_(store, root / name)
    clock.advance(-90_000)  # the clock was set back: order comes from the log
    open_(store, root / "a")
    assert paths(store) == [str(root / name) for name in "acb"]


def test_two_openings_at_once_make_one_project(store: Store, lamp: Path) -> None:
    folder = projects.identify(lamp)
    jobs = [store.submit(lambda tx, n=n: projects.open_project(tx, folder, id=f"p{n}")) for n in range(8)]  # type: ignore[misc]
    assert {job.result() for job in jobs} == {"p0"}


@pytest.mark.parametrize(
    "spelling", ["{p}/", "{p}//", "{p}/.", "{p}/../Lamp", "{r}/./Lamp", "{r}/link", "{r}/link/", "{r}/far/near"]
)
def test_b169_links_slashes_and_dots_are_one_project(store: Store, root: Path, lamp: Path, spelling: str) -> None:
    (root / "link").symlink_to(lamp)
    (root / "far").mkdir()
    (root / "far" / "near").symlink_to("../link")
    first = open_(store, lamp)
    typed = spelling.format(p=lamp, r=root)
    assert open_(store, typed) == first
    assert get(store, first).spelling == typed  # shown as the person wrote it
    assert get(store, first).path == str(lamp)


def test_b169_relative_paths_and_home(store: Store, root: Path, lamp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_(store, lamp)
    monkeypatch.chdir(lamp)
    monkeypatch.setenv("HOME", str(root))
    assert [open_(store, typed) for typed in (".", "../Lamp", "./", "~/Lamp")] == [first] * 4


def test_b169_dots_after_a_link_lead_where_the_system_goes(root: Path, lamp: Path) -> None:
    (lamp / "deep").mkdir()
    (root / "link").symlink_to(lamp / "deep")
    assert projects.identify(root / "link" / "..").path == str(lamp)


@pytest.mark.parametrize("lists", [True, False])
@pytest.mark.parametrize("spelling", ["lamp", "LAMP", "Lamp/", "lAmP"])
def test_b169_letter_case_where_the_disk_does_not_tell(store: Store, root: Path, lamp: Path, spelling: str, lists: bool) -> None:
    disk = FoldingDisk(root, lists=lists)
    first = open_(store, lamp, disk)
    assert open_(store, root / spelling, disk) == first
    assert get(store, first).path == str(lamp)  # one canonical spelling: the disk's own


def test_b169_case_anywhere_in_the_path_and_the_other_spelling_first(store: Store, root: Path) -> None:
    (root / "Work" / "House" / "Ärger").mkdir(parents=True)
    disk = FoldingDisk(root)
    first = open_(store, root / "WORK" / "house" / "äRGER", disk)
    assert get(store, first).path == str(root / "Work" / "House" / "Ärger")
    assert open_(store, root / "work" / "HOUSE" / "ärger", disk) == first


def test_b169_letter_case_where_the_disk_tells_is_two_projects(store: Store, root: Path, lamp: Path) -> None:
    (root / "lamp").mkdir()
    assert open_(store, lamp) != open_(store, root / "lamp")
    (root / "LAMP").symlink_to(root / "lamp")  # a link in another case is still a link
    assert open_(store, root / "LAMP") == open_(store, root / "lamp")


def test_b169_a_folder_in_the_wrong_case_is_missing_where_the_disk_tells(lamp: Path) -> None:
    with pytest.raises(SteadError) as failed:
        projects.identify(lamp.parent / "LAMP")
    assert code(failed) == "project_missing"


@pytest.mark.parametrize("name", ["Café", "Ärger", "각", "ﬁn"])
def test_b169_composed_and_decomposed_names(store: Store, root: Path, name: str) -> None:
    nfc, nfd = (unicodedata.normalize(form, name) for form in ("NFC", "NFD"))
    (root / nfc).mkdir()
    disk = FoldingDisk(root)
    first = open_(store, root / nfd, disk)
    assert open_(store, root / nfc, disk) == first
    assert get(store, first).path == str(root / nfc)
    if nfc != nfd:  # and where the disk keeps both, they are two
        (root / nfd).mkdir()
        assert open_(store, root / nfc) != open_(store, root / nfd)


@pytest.mark.parametrize(
    ("typed", "path"),
    [
        (r"c:\x", "/mnt/c/x"),
        (r"C:\x", "/mnt/c/x"),
        ("C:/x", "/mnt/c/x"),
        ("c:/x/", "/mnt/c/x"),
        ("C:\\\\x\\", "/mnt/c/x"),
        (r"\\?\C:\x", "/mnt/c/x"),
        (r"\\.\c:\x", "/mnt/c/x"),
        ("//?/C:/x", "/mnt/c/x"),
        (r"C:\Users\Ada L\ä b", "/mnt/c/Users/Ada L/ä b"),
        ("D:", "/mnt/d"),
        ("D:\\", "/mnt/d"),
        (r"\\wsl$\Ubuntu\home\ada", "/home/ada"),
        (r"\\wsl.localhost\Ubuntu-24.04\home\ada\\", "/home/ada"),
        (r"\\WSL$\Ubuntu", "/"),
        (r"\\?\UNC\wsl$\Ubuntu\home\ada", "/home/ada"),
        (r"\\server\share\x", None),
        ("c:x", None),  # relative to a drive's own current folder: means nothing here
        ("cd:/x", None),
        ("/mnt/c/x", None),
        ("c/x", None),
        ("", None),
    ],
)
def test_b169_windows_spellings(typed: str, path: str | None) -> None:
    assert projects.from_windows(typed) == path


def test_b169_windows_spellings_are_one_project(store: Store, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "c" / "X").mkdir(parents=True)
    inside = folders.from_windows
    monkeypatch.setattr(folders, "from_windows", lambda text: inside(text, str(root)))
    disk = FoldingDisk(root)
    typed = [r"c:\x", r"C:\X", "C:/x", r"\\?\C:\x", str(root / "c" / "X"), str(root / "c" / "x") + "/"]
    assert len({open_(store, one, disk) for one in typed}) == 1
    assert paths(store) == [str(root / "c" / "X")]


def test_b169_a_folder_that_is_really_called_so_comes_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / r"c:\x").mkdir()
    monkeypatch.chdir(root)
    assert projects.identify(r"c:\x").path == str(root / r"c:\x")


def test_b169_long_paths(store: Store, root: Path) -> None:
    deep = root.joinpath(*["d" * 200] * 18)  # near the system's limit, far over that of an index
    near = root / ("n" * 200) / ("m" * 100)
    for path in (deep, near):
        path.mkdir(parents=True)
        assert open_(store, path) == open_(store, f"{path}/")
    assert set(paths(store)) == {str(deep), str(near)}


def test_a_name_that_is_not_text_is_percent_encoded(store: Store, root: Path) -> None:
    raw = os.fsencode(root) + b"/a%b\xff\xc3\xa9"
    os.mkdir(raw)
    first = open_(store, os.fsdecode(raw))
    made = get(store, first)
    assert made.path == f"{root}/a%25b%FFé" and made.encoded and made.to_json()["encoded"] is True
    assert os.fsencode(made.folder) == raw
    assert open_(store, made.folder + "/") == first
    literal = root / "a%25b%FFé"  # another folder, whose real name is what the first one's looks like
    literal.mkdir()
    assert open_(store, literal) != first
    assert "encoded" not in get(store, open_(store, literal)).to_json()


@pytest.mark.parametrize("path", ["/", "/a b", "/ä", "/%41", "/%", "/\udcff%", "/a\udc80/b%41\udcfe", "/\n"])
def test_encoding_a_path_goes_there_and_back(path: str) -> None:
    shown, encoded = projects.encode_path(path)
    shown.encode()
    assert projects.decode_path(shown, encoded) == path
    assert encoded == ("\udc80" <= max(path) <= "\udcff")


@settings(derandomize=True, max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.binary(max_size=40))
def test_no_two_paths_are_encoded_alike(one: bytes, two: bytes) -> None:
    one, two = (b"/" + raw.replace(b"\0", b"%") for raw in (one, two))
    shown = [projects.encode_path(os.fsdecode(raw)) for raw in (one, two)]
    assert [os.fsencode(projects.decode_path(*each)) for each in shown] == [one, two]
    assert (shown[0] == shown[1]) == (one == two)


@pytest.mark.parametrize("typed", ["", "nowhere", "/no/such/place", "a\0b", "\ud800", "x" * 5000, r"q:\nowhere"])
def test_a_missing_folder_is_said_so(typed: str) -> None:
    with pytest.raises(SteadError) as failed:
        projects.identify(typed)
    assert code(failed) == "project_missing"


def test_a_file_is_no_folder(root: Path) -> None:
    (root / "note").write_text("x")
    with pytest.raises(SteadError, match="is not a folder") as failed:
        projects.identify(root / "note")
    assert code(failed) == "project_missing"


# --- many folders, many projects ----------------------------------------------------------------------------------------------


def git(folder: Path, *arguments: str) -> None:
    always = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *always, "-C", str(folder), *arguments], check=True, capture_output=True)


@pytest.fixture
def repo(root: Path) -> Path:
    folder = root / "repo"
    folder.mkdir()
    git(folder, "init")
    (folder / "a").write_text("a")
    git(folder, "add", "a")
    git(folder, "commit", "-m", "one")
    return folder


def test_b168_clones_copies_and_worktrees_are_their_own(store: Store, root: Path, repo: Path) -> None:
    git(root, "clone", str(repo), "clone1")
    git(root, "clone", str(repo), "clone2")
    git(root, "clone", "--depth", "1", f"file://{repo}", "shallow")
    git(repo, "worktree", "add", "-b", "side", str(root / "tree"))
    shutil.copytree(repo, root / "copy", symlinks=True)
    names = ("repo", "clone1", "clone2", "shallow", "tree", "copy")
    first = {name: open_(store, root / name) for name in names}
    assert len(set(first.values())) == len(names)
    assert {name: open_(store, root / name) for name in names} == first


def test_b168_what_git_does_inside_changes_nothing(store: Store, root: Path, lamp: Path) -> None:
    first = open_(store, lamp)
    git(lamp, "init")
    assert open_(store, lamp) == first
    git(lamp, "commit", "--allow-empty", "-m", "one")
    git(lamp, "checkout", "--orphan", "gh-pages")
    git(lamp, "commit", "--allow-empty", "-m", "pages")
    assert open_(store, lamp) == first
    git(lamp, "fetch", "--depth", "1", f"file://{lamp}")
    shutil.rmtree(lamp / ".git")
    assert open_(store, lamp) == first
    assert offered(store, lamp) == []


def test_b168_a_folder_inside_a_project_is_its_own(store: Store, repo: Path) -> None:
    (repo / "src").mkdir()
    assert open_(store, repo) != open_(store, repo / "src")


def test_b168_a_moved_folder_is_offered_and_never_mixed(store: Store, root: Path, lamp: Path) -> None:
    first = open_(store, lamp)
    moved = root / "Lantern"
    lamp.rename(moved)
    assert offered(store, moved) == [first]
    with store.view() as view:
        assert projects.find(view, moved) is None  # not by itself
        gone = projects.find(view, lamp)  # and the old place is still known
        assert gone is not None and gone.id == first
    store.write(lambda tx: projects.relink(tx, first, projects.identify(moved)))
    assert open_(store, moved) == first
    assert (get(store, first).path, get(store, first).name) == (str(moved), "Lamp")
    assert offered(store, moved) == []


def test_b168_a_second_project_at_the_new_place_is_joined_only_when_asked(store: Store, root: Path, lamp: Path) -> None:
    first = open_(store, lamp)
    moved = root / "Lantern"
    lamp.rename(moved)
    second = open_(store, moved)
    assert second != first and offered(store, moved) == [first]
    folder = projects.identify(moved)
    with pytest.raises(SteadError) as failed:
        store.write(lambda tx: projects.relink(tx, first, folder))
    assert code(failed) == "conflict"
    assert get(store, first).path == str(lamp)
    store.write(lambda tx: projects.relink(tx, first, folder, join=True))
    assert open_(store, moved) == first
    assert get(store, second).id == first  # whoever still has the other id finds the project
    with store.view() as view:
        assert projects.members(view, first) == [first, second]
        assert [one.id for one in projects.recent(view)] == [first]
        assert projects.resolve(view, second).id == first


def test_b168_a_project_joined_twice_over_stays_found(store: Store, root: Path) -> None:
    (root / "a").mkdir()
    ids = [open_(store, root / "a")]
    for before, after in (("a", "b"), ("b", "c")):
        (root / before).rename(root / after)
        ids.append(open_(store, root / after))
        folder = projects.identify(root / after)
        store.write(lambda tx, folder=folder: projects.relink(tx, ids[-2], folder, join=True))  # type: ignore[misc]
        ids[-1] = ids[-2]
    with store.view() as view:
        assert [one.path for one in projects.recent(view)] == [str(root / "c")]
        assert len(projects.members(view, ids[0])) == 3


def test_b168_another_folder_at_the_same_path_is_the_same_project(store: Store, root: Path, lamp: Path) -> None:
    first = open_(store, lamp)
    before = get(store, first).ino
    lamp.rename(root / "old")
    lamp.mkdir()
    assert open_(store, lamp) == first
    assert get(store, first).ino == str(lamp.stat().st_ino) != before
    assert open_(store, root / "old") != first
    assert offered(store, root / "old") == []  # nothing is gone


def test_b168_a_copy_beside_a_removed_original_is_not_offered(store: Store, root: Path, lamp: Path) -> None:
    open_(store, lamp)
    shutil.copytree(lamp, root / "copy")
    assert offered(store, root / "copy") == []


def test_b168_a_given_away_inode_number_only_offers(store: Store, root: Path, lamp: Path) -> None:
    first = open_(store, lamp)
    folder = projects.identify(lamp)
    lamp.rmdir()
    (root / "new").mkdir()
    reused = Identity(str(root / "new"), False, "new", folder.dev, folder.ino)
    with store.view() as view:
        assert projects.find(view, reused) is None
        assert [one.id for one in projects.candidates(view, reused)] == [first]


def test_b168_a_second_way_to_the_same_folder_is_one_project(store: Store, root: Path, lamp: Path) -> None:
    """A bind mount: two real paths, one folder. Played by a disk that answers for the second path with the first one's key."""

    class Mounted(SystemDisk):
        def key(self, path: str, *, follow: bool) -> tuple[int, int, int] | None:
            return super().key(str(lamp) if path == "/srv/lamp" else path, follow=follow)

    first = open_(store, lamp, Mounted())
    folder = projects.identify("/srv/lamp", disk=Mounted())
    with store.view() as view:
        found = projects.find(view, folder, disk=Mounted())
    assert found is not None and found.id == first
    assert store.write(lambda tx: projects.open_project(tx, folder, id="other", found=found)) == first
    assert get(store, first).path == str(lamp)


def test_b168_a_disk_without_inodes_mixes_nothing(store: Store, root: Path) -> None:
    class Flat(SystemDisk):
        def key(self, path: str, *, follow: bool) -> tuple[int, int, int] | None:
            found = super().key(path, follow=follow)
            return found and (found[0], 0, found[2])

    for name in ("a", "b"):
        (root / name).mkdir()
    assert open_(store, root / "a", Flat()) != open_(store, root / "b", Flat())


# --- finding and naming -------------------------------------------------------------------------------------------------------


def test_resolve_by_id_prefix_name_and_path(store: Store, root: Path, lamp: Path) -> None:
    first = open_(store, lamp)
    (root / "other").mkdir()
    open_(store, root / "other")
    with store.view() as view:
        for text in (first, first[:6], "Lamp", str(lamp), f"{lamp}/."):
            assert projects.resolve(view, text).id == first
        for text in (first[:5], "lamp", "Lam", str(root), "", "%", "______", "nowhere/at/all"):
            with pytest.raises(SteadError) as failed:
                projects.resolve(view, text)
            assert code(failed) == "not_found", text


def test_resolve_says_what_fits(store: Store, root: Path) -> None:
    both = []
    for parent in "ab":
        (root / parent / "same").mkdir(parents=True)
        both.append(open_(store, root / parent / "same"))
    with store.view() as view, pytest.raises(SteadError) as failed:
        projects.resolve(view, "same")
    assert code(failed) == "ambiguous"
    assert {one["id"] for one in failed.value.to_json()["details"]["fitting"]} == set(both)


def test_rename_and_remove(store: Store, lamp: Path) -> None:
    first = open_(store, lamp)
    store.write(lambda tx: projects.rename(tx, first, " Light "))
    assert get(store, first).name == "Light"
    with pytest.raises(SteadError):
        store.write(lambda tx: projects.rename(tx, first, " "))
    store.write(lambda tx: projects.remove(tx, first))
    with pytest.raises(SteadError) as failed:
        get(store, first)
    assert code(failed) == "not_found"
    assert lamp.is_dir()
    assert open_(store, lamp) != first  # removed for good: the folder may become a project anew


def test_nothing_is_written_into_the_folder(store: Store, lamp: Path) -> None:
    before = lamp.stat()
    open_(store, lamp)
    open_(store, lamp)
    assert list(lamp.iterdir()) == [] and lamp.stat().st_mtime_ns == before.st_mtime_ns


# --- instructions -------------------------------------------------------------------------------------------------------------


def test_instructions_up_to_the_root_of_the_repository(store: Store, root: Path, repo: Path) -> None:
    (root / "AGENTS.md").write_text("above the repository")
    (repo / "AGENTS.md").write_text("all")
    (repo / "pkg" / "sub").mkdir(parents=True)
    (repo / "pkg" / "CLAUDE.md").write_text("päckage")
    (repo / "pkg" / "sub" / "AGENTS.md").write_text("")
    made = get(store, open_(store, repo / "pkg" / "sub"))
    assert [(one["path"], one["size"]) for one in made.instructions] == [
        ("AGENTS.md", 0),
        ("../CLAUDE.md", 8),
        ("../../AGENTS.md", 3),
    ]
    assert all(len(one["hash"]) == 64 for one in made.instructions)
    assert [one["path"] for one in get(store, open_(store, repo)).instructions] == ["AGENTS.md"]


def test_instructions_outside_a_repository_are_the_folders_own(root: Path, lamp: Path) -> None:
    (root / "AGENTS.md").write_text("above")
    assert projects.find_instructions(str(lamp)) == []
    (lamp / "CLAUDE.md").write_text("own")
    assert [one["path"] for one in projects.find_instructions(str(lamp))] == ["CLAUDE.md"]


def test_instructions_that_are_no_files_are_passed_over(lamp: Path) -> None:
    os.mkfifo(lamp / "AGENTS.md")  # opening it must not wait for a writer
    (lamp / "CLAUDE.md").mkdir()
    assert projects.find_instructions(str(lamp)) == []


def test_a_changed_instruction_is_noticed_at_the_next_opening(store: Store, lamp: Path) -> None:
    (lamp / "AGENTS.md").write_text("one")
    first = open_(store, lamp)
    before = get(store, first).instructions
    open_(store, lamp)
    with store.view() as view:
        assert view.events(stream=first)[-1].data.instructions is None  # unchanged ones are not written again
    (lamp / "AGENTS.md").write_text("two")
    open_(store, lamp)
    assert get(store, first).instructions != before
    (lamp / "AGENTS.md").unlink()
    open_(store, lamp)
    assert get(store, first).instructions == ()
