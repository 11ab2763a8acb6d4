"""From a model reference to a connection: which provider, which key, which price and window."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from stead.agent.models.base import Model
from stead.config.secrets import Secrets
from stead.core.errors import SteadError
from stead.core.parts import Tokens
from stead.domain import providers
from stead.domain.providers.addresses import KINDS, SCRIPT, ModelRef, parse_ref
from stead.domain.providers.keys import key_for
from stead.store.database import Reads


@dataclass(frozen=True, slots=True)
class Connection:
    """A model with what the ledger needs to know of it. `price` gives dollars for tokens, None where unknown; `own`: the model
    was made for this run and is closed with it."""

    model: Model
    provider: str
    name: str
    window: int | None
    price: Callable[[Tokens], float | None]
    own: bool = False


def connect(
    view: Reads,
    reference: str,
    *,
    root: Path,
    environ: Mapping[str, str],
    vault: Secrets,
    models: Mapping[str, Model] | None = None,
    window: int | None = None,
) -> Connection:
    """Make the connection that `provider/model` names. Nothing is sent yet.

    `models` are ready-made models by provider name and win over stored providers; `window` (tokens) wins over what is known.
    Raises `usage`, `not_found`, `no_key`, `script_invalid`.
    """
    ref = parse_ref(reference)
    if models and ref.provider in models:
        return Connection(models[ref.provider], ref.provider, ref.model, window, lambda tokens: None)
    if ref.provider == SCRIPT:
        from stead.agent.models import script

        return Connection(script.load(root / ref.model), SCRIPT, ref.model, window, lambda tokens: 0.0, own=True)
    return _provided(view, ref, environ, vault, window)


def default_reference(view: Reads, environ: Mapping[str, str]) -> str:
    """The first model of the first provider. Raises `no_key` where there is no provider, `usage` where none lists a model."""
    known = [one for one in providers.effective_providers(view, environ) if not one.disabled]
    for one in known:
        if one.models:
            return f"{one.name}/{one.models[0]}"
    if known:
        name = known[0].name
        hint = f"Name one with -m {name}/MODEL (`stead provider models {name}` lists them), or `stead config set model …`."
        raise SteadError("usage", "No model is chosen.", hint=hint)
    raise SteadError("no_key", "No provider is set up.", hint="`stead provider add openai --kind openai --key-stdin`")


def _provided(view: Reads, ref: ModelRef, environ: Mapping[str, str], vault: Secrets, window: int | None) -> Connection:
    from stead.agent.models import prices
    from stead.agent.models.providers import connect as connect_provider

    try:
        provider = providers.get(view, ref.provider, environ)
    except SteadError as error:
        if ref.provider not in KINDS:
            raise
        hint = f"`stead provider add {ref.provider} --kind {ref.provider} --key-stdin`"
        raise SteadError("no_key", f"{ref.provider} is not set up.", hint=hint) from error
    if provider.disabled:
        raise SteadError("usage", f"The provider {provider.name} is switched off.")
    key = key_for(view, provider, vault, environ)
    model = connect_provider(provider.kind, provider.url, key)

    def price(tokens: Tokens) -> float | None:
        return prices.price(provider.kind, ref.model, tokens, url=provider.url)

    meta = providers.meta_of(view, provider.name).get(ref.model)
    known = meta["context"] if meta else None
    window = window or known or prices.context_window(provider.kind, ref.model, url=provider.url)
    return Connection(model, provider.name, ref.model, window, price, own=True)
