"""`stead provider models|test`: the two that speak to a provider."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stead.core.errors import SteadError
from stead.domain import providers
from stead.domain.people import LOCAL_ACTOR
from stead.interfaces.cli import out
from stead.interfaces.cli.options import Json
from stead.interfaces.cli.place import opened
from stead.interfaces.cli.tables import table

if TYPE_CHECKING:
    from stead.app import Stead
    from stead.domain.providers import Provider

Name = Annotated[str, typer.Argument(help="The provider's name.")]
COLUMNS = ("id", "context", "tools", "reasoning", "free", "size")


def models(
    name: Name,
    refresh: Annotated[bool, typer.Option("--refresh", help="Ask the provider again, also where its models are known.")] = False,
    json: Json = False,
) -> int:
    """List a provider's models: those it named before, or --refresh. What it does not say is left empty."""
    with opened() as house:
        with house.store.view() as view:
            one = providers.get(view, name, house.environ)
            known = providers.meta_of(view, name)
        if refresh or not known:
            found = asyncio.run(_listed(house, one))
            seen: dict[str, dict[str, Any]] = {row["id"]: row for row in found}
            house.store.write(lambda tx: providers.see_models(tx, name, seen), actor=LOCAL_ACTOR)
        else:
            found = [{"id": model, **meta} for model, meta in known.items()]
    if json:
        out.json({"provider": name, "models": found})
        return 0
    table(COLUMNS, [[row[column] for column in COLUMNS] for row in found])
    if not found and sys.stdout.isatty():
        out.note(f"{name} lists no model.")
    return 0


def test(
    name: Name,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help="Make a tiny call of this model.")] = None,
    json: Json = False,
) -> int:
    """See whether a provider answers: its list of models, or with -m a tiny call (a few tokens are paid)."""
    with opened() as house:
        with house.store.view() as view:
            one = providers.get(view, name, house.environ)
        begin = house.store.clock.monotonic()
        if model is not None:
            asyncio.run(_called(house, one, model.removeprefix(f"{name}/")))
            said = f"{model} answers"
            result: dict[str, Any] = {"ok": True, "provider": name, "model": model}
        else:
            found = asyncio.run(_listed(house, one))
            said = "1 model" if len(found) == 1 else f"{len(found)} models"
            result = {"ok": True, "provider": name, "models": len(found)}
        ms = round((house.store.clock.monotonic() - begin) * 1000)
    if json:
        out.json({**result, "duration_ms": ms})
    else:
        out.line(f"ok: {name} at {one.url}, {out.plain(said)} ({ms} ms)")
    return 0


def _key(house: Stead, one: Provider) -> str | None:
    with house.store.view() as view:
        return providers.key_for(view, one, house.secrets, house.environ)


async def _listed(house: Stead, one: Provider) -> list[dict[str, Any]]:
    from stead.agent.models.providers import list_models

    return await list_models(one.kind, one.url, _key(house, one))


async def _called(house: Stead, one: Provider, model: str) -> None:
    """A call as small as there is; the first sign of an answer is enough."""
    from contextlib import aclosing

    from stead.agent.models.base import Request, Turn
    from stead.agent.models.providers import connect

    connection = connect(one.kind, one.url, _key(house, one))
    request = Request(model=model, turns=[Turn("user", [{"type": "text", "text": "Say ok."}])], max_output=16)
    try:
        async with aclosing(connection.stream(request)) as items:
            async for _ in items:
                return
        raise SteadError("provider_error", f"{one.name} gave an empty answer.")
    finally:
        await connection.aclose()
