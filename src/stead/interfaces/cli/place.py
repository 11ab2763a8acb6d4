"""Where a command works: the open house, the project of a folder, the session that a person means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from stead.core.errors import SteadError
from stead.domain import projects, sessions

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.domain.projects import Project
    from stead.domain.sessions import Session
    from stead.store.database import Reads


@contextmanager
def opened() -> Iterator[Stead]:
    """The person's own house. What they should know of the place of their data is said once, on stderr."""
    from stead.app import Stead
    from stead.app.retention import announcement

    house = Stead.open(progress=_progress())
    try:
        if house.store.caution is not None:
            from stead.interfaces.cli import out

            out.note(house.store.caution)
        if (news := announcement(house)) is not None:
            from stead.interfaces.cli import out

            out.note(news)
        yield house
    finally:
        house.close()


def _progress() -> Callable[[int, int], None]:
    """Tells a person what the start takes so long for, if it does."""
    told: Callable[[int, int], None] | None = None

    def progress(at: int, total: int) -> None:
        nonlocal told
        if told is None:
            from stead.core.clock import SystemClock
            from stead.interfaces.cli.waiting import Waiting

            told = partial(Waiting(SystemClock()).told, "Bringing the store up to date")
        told(at, total)

    return progress


def project_here(view: Reads, folder: str = ".") -> Project | None:
    """The project of exactly this folder: one above it is another project. Raises `project_missing`."""
    return projects.find(view, projects.identify(folder))


def offer_relink(house: Stead, folder: str) -> None:
    """Tell of projects that seem to have been moved to this folder, which has none yet. Raises `project_missing`."""
    from stead.interfaces.cli import out

    here = projects.identify(folder)
    with house.store.view() as view:
        found = projects.candidates(view, here) if projects.find(view, here) is None else []
    for one in found:
        out.note(f"The project {one.name} was at {one.path} and seems to lie here now:")
        out.note(f"  `stead project relink {one.id}` brings its sessions along.")


def session_named(view: Reads, text: str | None, folder: str = ".") -> Session:
    """The session that `text` names, without one the last used in this folder's project. Raises `not_found`, `ambiguous`."""
    try:
        project = project_here(view, folder)
    except SteadError:
        if text is None:
            raise
        project = None
    if text is not None:
        return sessions.resolve(view, text, project=project.id if project else None)
    found = sessions.latest(view, *projects.members(view, project.id)) if project else None
    if found is None:
        moved = projects.candidates(view, projects.identify(folder))
        hint = (
            f"The project {moved[0].name} seems to lie here now: `stead project relink {moved[0].id}` brings its sessions along."
            if moved
            else "`stead sessions list --all` shows those of other projects."
        )
        raise SteadError("not_found", "There is no session in this project.", hint=hint)
    return found


def one_of(text: str, ids: Iterable[str], what: str, title: Callable[[str], str]) -> str | None:
    """The one of `ids` that `text` names, whole or by its first letters; None when it names none. Raises `ambiguous` with the
    candidates and what `title` says of each; `what` are they, as a plural."""
    fits = [one for one in ids if text and one.startswith(text)]
    if text in fits or len(fits) <= 1:
        return text if text in fits else next(iter(fits), None)
    from stead.interfaces.cli import out

    found = [{"id": one, "title": title(one)} for one in fits]
    raise SteadError("ambiguous", f"{out.plain(text)!r} fits {len(fits)} {what}.", details={"candidates": found})
