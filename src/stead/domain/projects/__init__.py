"""Projects: one for each folder, whatever way its path is spelled.

The rule. A project is its folder's **canonical path**: absolute, links and `..` resolved, each name as the disk itself spells
it (`X` and `x`, or the composed and the decomposed form of a letter, are one name where the disk says so). What the folder
contains plays no part: two clones, a copy and a worktree are three projects; `git init`, orphan branches and shallow clones
change nothing; nothing is written into the folder.

Device and inode are a **hint** beside the path. They answer two questions only:

- Is this path, at this moment, the same folder as a known project's path (a bind mount, a spelling that could not be made
  canonical)? Then it is that project.
- Was a known folder moved here? Its path is gone and its device and inode stand here: `candidates` offers it, and only
  `relink` (the person's word) makes it so. Until then the new place is a project of its own, and the old one keeps its sessions.

A different folder at a known path (made anew, restored from a backup, another disk mounted there) is the project of that path.
docs/decisions/0010-project-identity.md says why.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.core.jsontext import dumps, loads
from stead.domain.projects.folders import (
    DISK,
    Disk,
    Identity,
    Instruction,
    decode_path,
    encode_path,
    find_instructions,
    from_windows,
    identify,
    place_of,
)
from stead.store.database import Reads, Row
from stead.store.feature import Feature
from stead.store.log import Tx

SHORTEST_PREFIX = 6


@event("project.added")
class ProjectAdded(Fact):
    """A folder became a project. `path` is canonical and percent-encoded where `encoded`; `spelling` is what was typed."""

    path: str
    encoded: bool
    spelling: str
    name: str
    dev: str
    ino: str
    owner: str | None
    instructions: list[Instruction]


@event("project.opened")
class ProjectOpened(Fact):
    """Work in the folder began. `instructions` is None where they are as they were."""

    spelling: str
    dev: str
    ino: str
    instructions: list[Instruction] | None = None


@event("project.renamed")
class ProjectRenamed(Fact):
    name: str


@event("project.moved")
class ProjectMoved(Fact):
    """The person said that the folder now lies elsewhere."""

    path: str
    encoded: bool
    spelling: str
    dev: str
    ino: str


@event("project.joined")
class ProjectJoined(Fact):
    """This project gave its folder to `into`; its sessions are shown with that project's."""

    into: str


@event("project.removed")
class ProjectRemoved(Fact):
    """In the system stream: what remains of a removed project."""

    project: str


__all__ = ["DISK", "Disk", "Identity", "Instruction", "decode_path", "encode_path", "find_instructions", "from_windows", "identify"]

FEATURE = Feature(
    "projects",
    tables={
        "projects": "id TEXT PRIMARY KEY, name TEXT NOT NULL, path TEXT NOT NULL, encoded INTEGER NOT NULL, place TEXT NOT NULL,"
        " spelling TEXT NOT NULL, dev TEXT NOT NULL, ino TEXT NOT NULL, instructions TEXT NOT NULL, owner TEXT,"
        " created BIGINT NOT NULL, opened BIGINT NOT NULL, opened_seq BIGINT NOT NULL, joined TEXT",
    },
    indexes={"projects_place": "projects(place)", "projects_ino": "projects(ino)"},
)

_COLUMNS = "id, name, path, encoded, spelling, dev, ino, instructions, owner, created, opened, joined"


# --- projectors ---------------------------------------------------------------------------------------------------------------


@FEATURE.projects(ProjectAdded)
def _added(tx: Tx, e: Event[ProjectAdded]) -> None:
    d = e.data
    row = (e.stream, d.name, d.path, int(d.encoded), place_of(d.path, d.encoded), d.spelling, d.dev, d.ino)
    tx.q(
        "INSERT INTO projects(id, name, path, encoded, place, spelling, dev, ino, instructions, owner, created, opened, opened_seq)"
        " VALUES(?,?,?,?,?,?,?,?,?,?,?,?,?)",
        *(*row, _text(d.instructions), d.owner, e.ts, e.ts, e.seq),
    )


@FEATURE.projects(ProjectOpened)
def _opened(tx: Tx, e: Event[ProjectOpened]) -> None:
    d = e.data
    row = (d.spelling, d.dev, d.ino, e.ts, e.seq, e.stream)
    tx.q("UPDATE projects SET spelling=?, dev=?, ino=?, opened=?, opened_seq=? WHERE id=?", *row)
    if d.instructions is not None:
        tx.q("UPDATE projects SET instructions=? WHERE id=?", _text(d.instructions), e.stream)


@FEATURE.projects(ProjectRenamed)
def _renamed(tx: Tx, e: Event[ProjectRenamed]) -> None:
    tx.q("UPDATE projects SET name=? WHERE id=?", e.data.name, e.stream)


@FEATURE.projects(ProjectMoved)
def _moved(tx: Tx, e: Event[ProjectMoved]) -> None:
    d = e.data
    tx.q(
        "UPDATE projects SET path=?, encoded=?, place=?, spelling=?, dev=?, ino=? WHERE id=?",
        *(d.path, int(d.encoded), place_of(d.path, d.encoded), d.spelling, d.dev, d.ino, e.stream),
    )


@FEATURE.projects(ProjectJoined)
def _joined(tx: Tx, e: Event[ProjectJoined]) -> None:
    tx.q("UPDATE projects SET joined=? WHERE id=? OR joined=?", e.data.into, e.stream, e.stream)


@FEATURE.projects(ProjectRemoved)
def _removed(tx: Tx, e: Event[ProjectRemoved]) -> None:
    tx.q("DELETE FROM projects WHERE id=? OR joined=?", e.data.project, e.data.project)


def _text(instructions: list[Instruction]) -> str:
    return dumps(instructions).decode()


# --- queries ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Project:
    """A project. `path` is text for people and programs (percent-encoded where `encoded`); times are milliseconds in UTC."""

    id: str
    name: str
    path: str
    encoded: bool
    spelling: str
    dev: str
    ino: str
    instructions: tuple[Instruction, ...]
    owner: str | None
    created: int
    opened: int
    joined: str | None
    """The project that took this one's folder over, None for all others."""

    @property
    def folder(self) -> str:
        """The path as the operating system takes it."""
        return decode_path(self.path, self.encoded)

    def to_json(self) -> dict[str, Any]:
        """The project as every surface shows it; times are RFC 3339."""
        from stead.core.clock import rfc3339

        shown = {"id": self.id, "name": self.name, "path": self.path, "spelling": self.spelling, "owner": self.owner}
        more = {"encoded": True} if self.encoded else {}
        instructions = [dict(item) for item in self.instructions]
        return {**shown, **more, "instructions": instructions, "created": rfc3339(self.created), "opened": rfc3339(self.opened)}


def get(view: Reads, project: str) -> Project:
    """The project with this id; one that was joined into another gives that other. Raises `not_found`."""
    row = view.one(f"SELECT {_COLUMNS} FROM projects WHERE id=?", project)
    if row is None:
        raise SteadError("not_found", f"There is no project {project}.")
    found = _project(row)
    return get(view, found.joined) if found.joined else found


def members(view: Reads, project: str) -> list[str]:
    """The ids whose sessions belong to this project: its own first, then those joined into it."""
    return [project, *(row[0] for row in view.q("SELECT id FROM projects WHERE joined=? ORDER BY opened_seq", project))]


def recent(view: Reads, limit: int = 100) -> list[Project]:
    """Projects by when they were last opened, the newest first."""
    return [
        _project(row)
        for row in view.q(f"SELECT {_COLUMNS} FROM projects WHERE joined IS NULL ORDER BY opened_seq DESC LIMIT ?", limit)
    ]


def find(view: Reads, folder: Identity | str | os.PathLike[str], *, disk: Disk = DISK) -> Project | None:
    """The project of exactly this folder, None when it has none. Raises `project_missing` for a text that names no folder.

    A path that is not there any more finds its project by the text of its canonical path.
    """
    if not isinstance(folder, Identity):
        typed = os.fspath(folder)
        try:
            folder = identify(typed, disk=disk)
        except SteadError:
            if (known := _at(view, *encode_path(disk.real(os.path.expanduser(typed))))) is not None:
                return known
            raise
    return _at(view, folder.path, folder.encoded) or _same_folder(view, folder, disk)


def candidates(view: Reads, folder: Identity, *, disk: Disk = DISK) -> list[Project]:
    """The projects that may have been moved to this folder: same device and inode, and nothing left at their own path."""
    rows = view.q(
        f"SELECT {_COLUMNS} FROM projects WHERE ino=? AND dev=? AND joined IS NULL ORDER BY opened_seq DESC", folder.ino, folder.dev
    )
    found = [_project(row) for row in rows]
    return [project for project in found if project.path != folder.path and disk.key(project.folder, follow=True) is None]


def resolve(view: Reads, text: str, *, disk: Disk = DISK) -> Project:
    """The project that a person means by an id, a unique prefix of one (6 letters or more), a path or an exact name.

    Raises `not_found`, or `ambiguous` with what fits in `details`.
    """
    if view.one("SELECT 1 FROM projects WHERE id=?", text):
        return get(view, text)
    if text and (text[0] in "/.~" or "/" in text or "\\" in text):
        try:
            found = find(view, text, disk=disk)
        except SteadError:
            found = None
        if found is None:
            raise SteadError("not_found", f"The folder {encode_path(text)[0]} is no project.")
        return found
    rows = view.q(f"SELECT {_COLUMNS} FROM projects WHERE name=? AND joined IS NULL ORDER BY opened_seq DESC", text)
    if not rows and len(text) >= SHORTEST_PREFIX and re.fullmatch("[0-9a-z]+", text):
        rows = view.q(f"SELECT {_COLUMNS} FROM projects WHERE id LIKE ? ORDER BY opened_seq DESC", f"{text}%")
    if not rows:
        raise SteadError(
            "not_found", f"There is no project {encode_path(text)[0]!r}.", hint="`stead sessions list --all` names their folders."
        )
    if len(rows) > 1:
        fitting = [{"id": row[0], "name": row[1], "path": row[2]} for row in rows]
        raise SteadError(
            "ambiguous", f"{text!r} fits {len(rows)} projects.", hint="Name it by its id.", details={"fitting": fitting}
        )
    return get(view, rows[0][0])


def _at(view: Reads, path: str, encoded: bool) -> Project | None:
    row = view.one(f"SELECT {_COLUMNS} FROM projects WHERE place=? AND joined IS NULL", place_of(path, encoded))
    return _project(row) if row else None


def _same_folder(view: Reads, folder: Identity, disk: Disk) -> Project | None:
    """The project whose own path is, right now, this very folder. A disk without inodes (all 0) never says so."""
    if folder.ino == "0":
        return None
    for row in view.q(f"SELECT {_COLUMNS} FROM projects WHERE ino=? AND joined IS NULL ORDER BY opened_seq DESC", folder.ino):
        project = _project(row)
        found = disk.key(project.folder, follow=True)
        if found is not None and (str(found[0]), str(found[1])) == (folder.dev, folder.ino):
            return project
    return None


def _project(row: Row) -> Project:
    id, name, path, encoded, spelling, dev, ino, instructions, owner, created, opened, joined = row
    return Project(id, name, path, bool(encoded), spelling, dev, ino, tuple(loads(instructions)), owner, created, opened, joined)


# --- commands -----------------------------------------------------------------------------------------------------------------


def open_project(
    tx: Tx,
    folder: Identity,
    *,
    id: str,
    found: Project | None = None,
    owner: str | None = None,
    name: str | None = None,
    instructions: Iterable[Instruction] | None = None,
) -> str:
    """Note that work in this folder begins, making its project if it has none; gives the project's id.

    `found` is what `find` said just before (it asks the disk, which a job must not); `id` is used if a project is made;
    `instructions` is what `find_instructions` gave, None to leave them as they are. Idempotent but for the time of opening.
    """
    listed = None if instructions is None else list(instructions)
    known = _at(tx, folder.path, folder.encoded) or (get(tx, found.id) if found and _exists(tx, found.id) else None)
    if known is None:
        called = name or os.path.basename(folder.path) or folder.path
        tx.append(
            id,
            ProjectAdded(
                path=folder.path,
                encoded=folder.encoded,
                spelling=folder.spelling,
                name=called,
                dev=folder.dev,
                ino=folder.ino,
                owner=owner,
                instructions=listed or [],
            ),
        )
        return id
    changed = listed if listed is not None and listed != list(known.instructions) else None
    tx.append(known.id, ProjectOpened(spelling=folder.spelling, dev=folder.dev, ino=folder.ino, instructions=changed))
    return known.id


def relink(tx: Tx, project: str, folder: Identity, *, join: bool = False) -> None:
    """The person said: this project's folder now lies here. Its id, sessions and settings stay.

    If the place has a project of its own by now, `join` gives that one's sessions to this project; without it: `conflict`.
    """
    moved = get(tx, project)
    other = _at(tx, folder.path, folder.encoded)
    if other is not None and other.id != moved.id:
        if not join:
            raise SteadError(
                "conflict",
                f"{folder.path} has a project of its own by now ({other.id}).",
                hint="Join them to show both their sessions as one project's.",
                details={"project": other.id},
            )
        tx.append(other.id, ProjectJoined(into=moved.id))
    tx.append(
        moved.id,
        ProjectMoved(path=folder.path, encoded=folder.encoded, spelling=folder.spelling, dev=folder.dev, ino=folder.ino),
    )


def rename(tx: Tx, project: str, name: str) -> None:
    """Give the project another name to be shown by. Raises `not_found`, `usage` for an empty one."""
    if not name.strip():
        raise SteadError("usage", "A project's name cannot be empty.")
    tx.append(get(tx, project).id, ProjectRenamed(name=name.strip()))


def remove(tx: Tx, project: str) -> None:
    """Forget a project for good, and those joined into it; nothing on the disk is touched. Its sessions must be gone before."""
    for one in members(tx, get(tx, project).id):
        tx.append("system", ProjectRemoved(project=one))
        tx.forget_stream(one)


def _exists(tx: Tx, project: str) -> bool:
    return tx.one("SELECT 1 FROM projects WHERE id=?", project) is not None
