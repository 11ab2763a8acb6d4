"""`stead provider add|list|remove`."""

from __future__ import annotations

import os
import select
import stat
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from stead.core.errors import SteadError
from stead.domain import providers
from stead.domain.people import LOCAL_ACTOR
from stead.domain.providers.addresses import KINDS, VARIABLES
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.domain.providers import Provider

Name = Annotated[str, typer.Argument(help="The provider's name, the first half of NAME/MODEL.")]
_SILENT_SECONDS = 0.5


def add(
    name: Name,
    kind: Annotated[
        str | None, typer.Option("--kind", metavar="KIND", help=f"{', '.join(KINDS)}. Default: NAME, where it is one of these.")
    ] = None,
    url: Annotated[str | None, typer.Option("--url", metavar="URL", help="The address. Default: the kind's own service.")] = None,
    key_stdin: Annotated[bool, typer.Option("--key-stdin", help="Read the key from stdin.")] = False,
    key_env: Annotated[
        str | None, typer.Option("--key-env", metavar="VAR", help="Take the key from this environment variable, at each run.")
    ] = None,
    no_key: Annotated[bool, typer.Option("--no-key", help="It needs no key.")] = False,
    json: Json = False,
) -> int:
    """Add a provider, or change one. The key comes from stdin, from a prompt, or from a variable, and is stored encrypted."""
    if key_stdin + (key_env is not None) + no_key > 1:
        raise SteadError("usage", "--key-stdin, --key-env and --no-key cannot be used together.")
    with opened() as house:
        with house.store.view() as view:
            old = next((one for one in providers.stored_providers(view) if one.name == name), None)
        kind = kind or (old.kind if old else None) or (name if name in KINDS else None)
        if kind is None:
            raise SteadError("usage", f"What kind of provider is {name!r}?", hint=f"--kind takes one of {', '.join(KINDS)}.")
        providers.check_name(name)
        providers.proper_url(kind, url)  # refuse a wrong address before a key is asked for
        key = _read_key() if key_stdin else None
        if key is None and key_env is None and not no_key and not (old and (old.has_key or old.key_env or old.no_key)):
            key, key_env = _other_key(house, name, kind)
        saved = _save(house, name, kind, url, key, key_env, no_key)
    _told(saved, url, key, json)
    return 0


def _save(house: Stead, name: str, kind: str, url: str | None, key: str | None, key_env: str | None, no_key: bool) -> Provider:
    sealed = None
    if key is not None:
        with house.store.view() as view:
            sealed = providers.seal_key(view, house.secrets, name, key)
    return house.store.write(
        lambda tx: providers.save(tx, name, kind=kind, url=url, key=sealed, key_env=key_env, no_key=no_key or None),
        actor=LOCAL_ACTOR,
    )


def _read_key() -> str:
    key = sys.stdin.readline().strip()
    if not key:
        raise SteadError("usage", "There was no key on stdin.", hint="--key-stdin reads one line.")
    return key


def _piped_key() -> str | None:
    """A key that was piped in without --key-stdin. A pipe that stays silent has none and is not waited for."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
        if stat.S_ISREG(mode) or (stat.S_ISFIFO(mode) and select.select([sys.stdin], [], [], _SILENT_SECONDS)[0]):
            return sys.stdin.readline().strip() or None
    except (AttributeError, OSError, ValueError):  # no stdin
        pass
    return None


def _other_key(house: Stead, name: str, kind: str) -> tuple[str | None, str | None]:
    """Where no way was named: what was piped in, the kind's own variable if it is set, else ask at the terminal.

    Gives (key, variable).
    """
    if (piped := _piped_key()) is not None:
        return piped, None
    variable = VARIABLES.get(kind)
    if variable and house.environ.get(variable, "").strip():
        return None, variable
    from stead.interfaces.cli.asking import can_ask

    if kind == "ollama" or not can_ask():
        return None, None
    from getpass import getpass

    key = getpass(f"Key for {name} (not shown; Enter: none): ", sys.stderr).strip()
    return key or None, None


def _told(saved: Provider, url: str | None, key: str | None, json: bool) -> None:
    has_key = saved.has_key or key is not None
    if json:
        out.json({"provider": {**saved.to_json(), "has_key": has_key}})
    if url is not None and saved.url != url.strip():
        out.note(f"The address was put right: {saved.url}")
    if saved.key_env:
        out.note(f"The key is taken from {saved.key_env}.")
    if not (has_key or saved.key_env or saved.no_key or saved.kind == "ollama"):
        out.note(f"No key is stored: `stead provider add {saved.name} --key-stdin` adds one, --no-key says that none is needed.")
    if not json:
        out.note(f"{saved.name} ({saved.kind}, {saved.url}) is set up. `stead provider models {saved.name}` lists its models.")


def list_providers(json: Json = False) -> int:
    """List the providers, those of keys in the environment included. Keys are never shown."""
    with opened() as house, house.store.view() as view:
        found = providers.effective_providers(view, house.environ)
    if json:
        out.json({"providers": [one.to_json() for one in found]})
        return 0
    rows = [[one.name, one.kind, one.url, _key(one), one.origin, one.disabled] for one in found]
    table(("name", "kind", "url", "key", "origin", "disabled"), rows)
    if not found and sys.stdout.isatty():
        out.note("No provider is set up: `stead provider add anthropic` (or openai, openrouter, gemini, ollama).")
    return 0


def _key(one: Provider) -> str:
    if one.key_env:
        return one.key_env if one.has_key else f"{one.key_env} (not set)"
    return "stored" if one.has_key else "none needed" if one.no_key or one.kind == "ollama" else "missing"


def remove(name: Name, json: Json = False) -> int:
    """Remove a provider and its key. Sessions that used it stay."""
    with opened() as house:
        house.store.write(lambda tx: providers.remove(tx, name), actor=LOCAL_ACTOR)
    if json:
        out.json({"removed": name})
    else:
        out.note(f"{name} is removed, and its key with it.")
    return 0
