"""`stead config get|set|unset|list`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.domain import projects, settings
from stead.domain.people import LOCAL_ACTOR
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened, project_here, session_named
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.domain.settings import Effective, Layer

Key = Annotated[str, typer.Argument(help="The setting; `stead config list` names them all.")]
OfProject = Annotated[bool, typer.Option("--project", help="That of the current folder's project.")]
OfSession = Annotated[str | None, typer.Option("--session", metavar="SESSION", help="That of this session.")]


def get(key: Key, session: OfSession = None, json: Json = False) -> int:
    """Print the value that holds here: in this folder's project, and in a session where one is named."""
    settings.key_of(key)
    with opened() as house:
        found = _effective(house, session).get(key)
    value = found.value if found else None
    if json:
        out.json({"key": key, "value": value, "origin": found.origin if found else "default"})
    else:
        out.line(_shown(value))
    return 0


def set_value(
    key: Key,
    value: Annotated[str, typer.Argument(help="The value.")],
    project: OfProject = False,
    session: OfSession = None,
    json: Json = False,
) -> int:
    """Set a value: for everything, or with --project or --session for that alone."""
    parsed = settings.parse(key, value)
    with opened() as house:
        layer, id = _layer(house, project, session)
        house.store.write(lambda tx: settings.change(tx, layer=layer, id=id, values={key: parsed}), actor=LOCAL_ACTOR)
    _said(json, {"key": key, "value": parsed, "origin": layer}, f"{key} = {_shown(parsed)} ({layer})")
    return 0


def unset(key: Key, project: OfProject = False, session: OfSession = None, json: Json = False) -> int:
    """Take a value back, so that the next layer's holds."""
    settings.key_of(key)
    with opened() as house:
        layer, id = _layer(house, project, session)
        house.store.write(lambda tx: settings.change(tx, layer=layer, id=id, removed=[key]), actor=LOCAL_ACTOR)
        now = _effective(house, session).get(key)
    value, origin = (now.value, now.origin) if now else (None, "default")
    said = f"{key} = {_shown(value)} ({origin})" if value is not None else f"{key} is not set"
    _said(json, {"key": key, "value": value, "origin": origin}, said)
    return 0


def list_values(
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    session: OfSession = None,
    json: Json = False,
) -> int:
    """List all settings with the values that hold here."""
    with opened() as house:
        found = _effective(house, session)
    if json:
        out.json({"settings": [{"key": key, "value": one.value, "origin": one.origin} for key, one in found.items()]})
        return 0
    rows = [[key, _shown(one.value), *([one.origin] if origin else [])] for key, one in found.items()]
    table(["key", "value", *(["origin"] if origin else [])], rows)
    return 0


def _effective(house: Stead, session: str | None) -> dict[str, Effective]:
    """What holds in the session if one is named, else in the project of the current folder."""
    with house.store.view() as view:
        if session is not None:
            found = session_named(view, session)
            project: str | None = found.project
            session = found.id
        else:
            try:
                here = project_here(view)
            except SteadError:  # the current folder is gone
                here = None
            project = here.id if here else None
        return settings.effective(view, project=project, session=session, file_layer=house.user_file().settings)


def _layer(house: Stead, project: bool, session: str | None) -> tuple[Layer, str]:
    """The layer to write, with its id. A folder that is no project yet becomes one."""
    if project and session is not None:
        raise SteadError("usage", "--project and --session cannot be used together.")
    if session is not None:
        with house.store.view() as view:
            return "session", session_named(view, session).id
    if not project:
        return "global", ""
    folder = projects.identify(".")
    with house.store.view() as view:
        here = project_here(view)
    if here is not None:
        return "project", here.id
    fresh = house.store.ids.new()
    return "project", house.store.write(lambda tx: projects.open_project(tx, folder, id=fresh), actor=LOCAL_ACTOR)


def _shown(value: Any) -> str:
    if value is None:
        return ""
    return out.plain(value) if isinstance(value, str) else out.json_text(value)


def _said(json: bool, value: dict[str, Any], text: str) -> None:
    if json:
        out.json(value)
    else:
        out.note(text)
