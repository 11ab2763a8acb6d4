"""The first step of somebody without a provider: what was found on this machine, or the exact line to add one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stead.core.errors import SteadError

if TYPE_CHECKING:
    from stead.app import Stead


def way_in(house: Stead, error: SteadError, runner: asyncio.Runner | None = None) -> SteadError:
    """`no_key` with what to do now, where no provider is set up at all; else the error as it was."""
    from stead.domain import providers

    with house.store.view() as view:
        if providers.effective_providers(view, house.environ):
            return error
    from stead.agent.models.providers import find_local

    found = (runner.run if runner is not None else asyncio.run)(find_local())
    if not found:
        hint = "`stead provider add anthropic --key-stdin` (or openai, openrouter, gemini); for a server of your own:"
        hint += " `stead provider add NAME --kind openai --url URL --no-key`"
        return SteadError("no_key", "No provider is set up, and no local model server was found.", hint=hint, details={"local": []})
    lines = [f"stead provider add {_name(server)} --kind {server['kind']} --url {server['url']} --no-key" for server in found]
    names = ", ".join(f"{server['name']} at {server['url']} ({len(server['models'])} models)" for server in found)
    hint = "Use it: " + " or ".join(f"`{line}`" for line in lines)
    return SteadError("no_key", f"No provider is set up. Found on this machine: {names}.", hint=hint, details={"local": found})


def _name(server: dict[str, str]) -> str:
    return "".join(char for char in server["name"].lower() if char.isalnum())
