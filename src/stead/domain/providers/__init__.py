"""Providers: where models are reached, with which key. A record's id is its name, the first half of `provider/model`.

Keys are never in an event, a projection or a query's result. They lie sealed in `secrets`, a table that is kept, not projected;
`config/secrets.py` seals and opens them and is handed in. Keys in the well-known environment variables make providers of their
own where no stored one has the name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, cast

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.core.jsontext import dumps, loads
from stead.domain.providers.addresses import KINDS, SCRIPT, VARIABLES, Kind, ModelRef, check_name, parse_ref, proper_url
from stead.domain.providers.keys import (
    SealedKey,
    Vault,
    key_for,
    known_secret_values,
    put_key,
    reseal,
    seal_key,
    secret_variables,
    unreadable,
)
from stead.store.database import Reads, Row
from stead.store.feature import Feature
from stead.store.log import Tx

Origin = Literal["stored", "environment"]
_MODELS_A_TIME = 200


class Meta(TypedDict):
    """What is known of a model; None is unknown. `context` in tokens, `size` in bytes."""

    context: int | None
    tools: bool | None
    reasoning: bool | None
    free: bool | None
    size: int | None


UNKNOWN: Meta = {"context": None, "tools": None, "reasoning": None, "free": None, "size": None}


@event("provider.saved")
class ProviderSaved(Fact):
    """The whole record as it is from now on, without its key. `models` are the ones in use, in the person's order."""

    name: str
    provider_kind: str
    url: str
    models: list[str]
    disabled: bool
    key_env: str | None
    no_key: bool


@event("provider.removed")
class ProviderRemoved(Fact):
    name: str


@event("provider.models_seen")
class ModelsSeen(Fact):
    """The provider listed these models: name to what it said of each."""

    name: str
    models: dict[str, dict[str, Any]]


__all__ = [
    "KINDS",
    "SCRIPT",
    "VARIABLES",
    "Kind",
    "ModelRef",
    "SealedKey",
    "Vault",
    "check_name",
    "key_for",
    "known_secret_values",
    "parse_ref",
    "proper_url",
    "reseal",
    "seal_key",
    "secret_variables",
    "unreadable",
]

FEATURE = Feature(
    "providers",
    tables={
        "providers": "name TEXT PRIMARY KEY, kind TEXT NOT NULL, url TEXT NOT NULL, models TEXT NOT NULL,"
        " disabled INTEGER NOT NULL, key_env TEXT, no_key INTEGER NOT NULL, created BIGINT NOT NULL, updated BIGINT NOT NULL",
        "provider_models": "provider TEXT NOT NULL, model TEXT NOT NULL, context BIGINT, tools INTEGER, reasoning INTEGER,"
        " free INTEGER, size BIGINT, seen BIGINT NOT NULL, PRIMARY KEY(provider, model)",
    },
    kept={
        "secrets": "owner TEXT NOT NULL, field TEXT NOT NULL, key_version TEXT NOT NULL, nonce {blob} NOT NULL,"
        " sealed {blob} NOT NULL, PRIMARY KEY(owner, field)",
    },
)

_COLUMNS = (
    "name, kind, url, models, disabled, key_env, no_key, created, updated,"
    " (SELECT count(*) FROM secrets WHERE owner='providers:' || name AND field='key')"
)


# --- projectors ---------------------------------------------------------------------------------------------------------------


@FEATURE.projects(ProviderSaved)
def _saved(tx: Tx, e: Event[ProviderSaved]) -> None:
    d = e.data
    tx.q(
        "INSERT INTO providers(name, kind, url, models, disabled, key_env, no_key, created, updated) VALUES(?,?,?,?,?,?,?,?,?)"
        " ON CONFLICT(name) DO UPDATE SET kind=excluded.kind, url=excluded.url, models=excluded.models, disabled=excluded.disabled,"
        " key_env=excluded.key_env, no_key=excluded.no_key, updated=excluded.updated",
        *(d.name, d.provider_kind, d.url, dumps(d.models).decode(), int(d.disabled), d.key_env, int(d.no_key), e.ts, e.ts),
    )


@FEATURE.projects(ProviderRemoved)
def _removed(tx: Tx, e: Event[ProviderRemoved]) -> None:
    tx.q("DELETE FROM providers WHERE name=?", e.data.name)
    tx.q("DELETE FROM provider_models WHERE provider=?", e.data.name)


@FEATURE.projects(ModelsSeen)
def _seen(tx: Tx, e: Event[ModelsSeen]) -> None:
    for model, meta in e.data.models.items():
        known = [meta.get(field) for field in UNKNOWN]
        tx.q(
            "INSERT INTO provider_models(provider, model, context, tools, reasoning, free, size, seen) VALUES(?,?,?,?,?,?,?,?)"
            " ON CONFLICT(provider, model) DO UPDATE SET context=excluded.context, tools=excluded.tools, "
            " reasoning=excluded.reasoning, free=excluded.free, size=excluded.size, seen=excluded.seen",
            *(e.data.name, model, *(int(value) if isinstance(value, bool) else value for value in known), e.ts),
        )


# --- queries ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Provider:
    """A provider, without its key. Times are milliseconds in UTC, 0 for one that is not stored."""

    name: str
    kind: Kind
    url: str
    models: tuple[str, ...]
    disabled: bool
    key_env: str | None
    no_key: bool
    created: int
    updated: int
    has_key: bool
    """Whether a key is stored, or its environment variable is set (known only where an environment was handed in)."""
    origin: Origin = "stored"

    def to_json(self) -> dict[str, Any]:
        """The record as every surface shows it."""
        shown = {"name": self.name, "kind": self.kind, "url": self.url, "models": list(self.models), "disabled": self.disabled}
        return {**shown, "has_key": self.has_key, "key_env": self.key_env, "no_key": self.no_key, "origin": self.origin}


def stored_providers(view: Reads) -> list[Provider]:
    """The providers in the store, by name."""
    return [_provider(row) for row in view.q(f"SELECT {_COLUMNS} FROM providers ORDER BY name")]


def effective_providers(view: Reads, environ: Mapping[str, str]) -> list[Provider]:
    """The stored providers, and those that a key in the environment makes where no stored one has the name; by name."""
    found = {
        one.name: replace(one, has_key=one.has_key or bool(one.key_env and environ.get(one.key_env)))
        for one in stored_providers(view)
    }
    for name, variable in VARIABLES.items():
        if name not in found and environ.get(variable, "").strip():
            found[name] = Provider(name, cast(Kind, name), KINDS[name], (), False, variable, False, 0, 0, True, "environment")
    return [found[name] for name in sorted(found)]


def get(view: Reads, name: str, environ: Mapping[str, str] | None = None) -> Provider:
    """The provider of this name, those of the environment included. Raises `not_found` naming the ones there are."""
    known = effective_providers(view, environ or {})
    for one in known:
        if one.name == name:
            return one
    hint = (
        f"There are: {', '.join(one.name for one in known)}."
        if known
        else f"Add it: `stead provider add {name} --kind ... --url ...`."
    )
    raise SteadError("not_found", f"There is no provider {name!r}.", hint=hint, details={"provider": name})


def meta_of(view: Reads, name: str) -> dict[str, Meta]:
    """What is known of this provider's models, by model; unknown is None. Models it never listed are not in it."""
    rows = view.q("SELECT model, context, tools, reasoning, free, size FROM provider_models WHERE provider=? ORDER BY model", name)
    return {row[0]: _meta(row) for row in rows}


def _meta(row: Row) -> Meta:
    flags = [None if value is None else bool(value) for value in row[2:5]]
    return {"context": row[1], "tools": flags[0], "reasoning": flags[1], "free": flags[2], "size": row[5]}


def _provider(row: Row) -> Provider:
    name, kind, url, models, disabled, key_env, no_key, created, updated, keys = row
    return Provider(name, kind, url, tuple(loads(models)), bool(disabled), key_env, bool(no_key), created, updated, keys > 0)


# --- commands -----------------------------------------------------------------------------------------------------------------


def save(
    tx: Tx,
    name: str,
    *,
    kind: str | None = None,
    url: str | None = None,
    models: Iterable[str] | None = None,
    disabled: bool | None = None,
    key: SealedKey | None = None,
    key_env: str | None = None,
    no_key: bool | None = None,
) -> Provider:
    """Add a provider or change the given fields of one. A new one needs its `kind`; `key` comes from `seal_key`.

    Exactly one source of a key holds: giving one takes back the other two. Raises `usage`.
    """
    if (key is not None) + (key_env is not None) + bool(no_key) > 1:
        raise SteadError("usage", "Give the key in one way: stored, by a variable's name, or none.")
    if key_env is not None and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key_env):
        # Not repeated: somebody may have given the key itself.
        raise SteadError("usage", "--key-env takes the name of an environment variable.")
    row = tx.one(f"SELECT {_COLUMNS} FROM providers WHERE name=?", check_name(name))
    before = _provider(row) if row else None
    kind = kind or (before.kind if before else None)
    if kind is None:
        raise SteadError("usage", f"A new provider needs its kind: {', '.join(KINDS)}.")
    url = url or (before.url if before and before.kind == kind else None)
    listed = list(dict.fromkeys(models)) if models is not None else list(before.models) if before else []
    new_source = key is not None or key_env is not None or bool(no_key)
    fact = ProviderSaved(
        name=name,
        provider_kind=kind,
        url=proper_url(kind, url),
        models=listed,
        disabled=bool(before and before.disabled) if disabled is None else disabled,
        key_env=key_env if new_source or before is None else before.key_env,
        no_key=bool(no_key) if new_source or no_key is not None or before is None else before.no_key,
    )
    tx.append("system", fact)
    if new_source:
        put_key(tx, name, key)
    return _provider(tx.q(f"SELECT {_COLUMNS} FROM providers WHERE name=?", name)[0])


def remove(tx: Tx, name: str) -> None:
    """Remove a provider with its key. Raises `not_found` for one that is not stored."""
    if tx.one("SELECT 1 FROM providers WHERE name=?", name) is None:
        raise SteadError("not_found", f"There is no stored provider {name!r}.")
    tx.append("system", ProviderRemoved(name=name))
    put_key(tx, name, None)


def see_models(tx: Tx, name: str, models: Mapping[str, Mapping[str, Any]]) -> None:
    """Note what a provider said of its models; what it did not say becomes unknown. Nothing is written where nothing is new."""
    known = meta_of(tx, name)
    new = {model: {**UNKNOWN, **{k: v for k, v in meta.items() if k in UNKNOWN}} for model, meta in models.items()}
    changed = [(model, meta) for model, meta in new.items() if known.get(model) != meta]
    for start in range(0, len(changed), _MODELS_A_TIME):
        tx.append("system", ModelsSeen(name=name, models=dict(changed[start : start + _MODELS_A_TIME])))
