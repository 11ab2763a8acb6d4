"""Keys of providers: sealed in the table `secrets`, opened only to be sent or masked. Sealing itself is `config/secrets.py`."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from stead.core.errors import SteadError
from stead.domain.providers.addresses import VARIABLES, check_name
from stead.store.database import Reads
from stead.store.log import Tx

if TYPE_CHECKING:
    from stead.domain.providers import Provider

_SHORTEST_SECRET = 6


class SealedKey(Protocol):
    """A key as `config.secrets` sealed it."""

    @property
    def version(self) -> str: ...
    @property
    def nonce(self) -> bytes: ...
    @property
    def sealed(self) -> bytes: ...


class Vault(Protocol):
    """What opens and seals: `config.secrets.Secrets`."""

    def seal(self, owner: str, field: str, value: bytes, *, create: bool = False) -> SealedKey: ...
    def unseal(self, owner: str, field: str, sealed: Any) -> bytes: ...
    def version(self) -> str: ...
    def values(self) -> list[str]: ...


def seal_key(view: Reads, vault: Vault, name: str, key: str) -> SealedKey:
    """Seal a key for `save`. Call it outside of the job. Raises `usage` for an empty key, `store_damaged` as `Secrets` does.

    Only while nothing is sealed may the application secret be made anew.
    """
    key = key.strip()
    if not key or not key.isascii() or not key.isprintable():
        raise SteadError("usage", "That is no key: a key is one line of printable ASCII.")
    return vault.seal(_owner(check_name(name)), "key", key.encode(), create=view.one("SELECT 1 FROM secrets") is None)


def key_for(view: Reads, provider: Provider, vault: Vault, environ: Mapping[str, str]) -> str | None:
    """The key to send to this provider, None if it needs none. Raises `no_key` if there is none, or none that opens."""
    if provider.no_key:
        return None
    if provider.key_env:
        if value := environ.get(provider.key_env, "").strip():
            return value
        raise SteadError(
            "no_key", f"The variable {provider.key_env} for {provider.name} is not set.", details={"provider": provider.name}
        )
    sealed = _sealed(view, provider.name)
    if sealed is not None:
        return vault.unseal(_owner(provider.name), "key", sealed).decode()
    if provider.kind == "ollama":
        return None
    raise SteadError(
        "no_key",
        f"{provider.name} needs a key and none is stored.",
        hint=f"`stead provider add {provider.name} --kind {provider.kind} --url {provider.url} --key-stdin`",
        details={"provider": provider.name},
    )


def unreadable(view: Reads, vault: Vault) -> list[str]:
    """The owners (`providers:NAME`) whose sealed values the present application secret cannot open."""
    lost = []
    for owner, field in view.q("SELECT owner, field FROM secrets ORDER BY owner, field"):
        try:
            vault.unseal(owner, field, _sealed_at(view, owner, field))
        except SteadError:
            lost.append(str(owner))
    return lost


def reseal(tx: Tx, old: Vault, new: Vault) -> int:
    """Seal everything with another application secret (`secret rotate`); gives how many. All or nothing, errors as `unseal`."""
    rows = tx.q("SELECT owner, field FROM secrets ORDER BY owner, field")
    for owner, field in rows:
        made = new.seal(owner, field, old.unseal(owner, field, _sealed_at(tx, owner, field)))
        tx.q(
            "UPDATE secrets SET key_version=?, nonce=?, sealed=? WHERE owner=? AND field=?",
            made.version,
            made.nonce,
            made.sealed,
            owner,
            field,
        )
    return len(rows)


def known_secret_values(view: Reads, vault: Vault, environ: Mapping[str, str]) -> list[str]:
    """Every secret text that stead knows, the longest first: to be masked in what is stored, shown and sent.

    Stored keys, keys in the environment, the application secret. What cannot be opened is left out; nothing is raised.
    """
    found = [environ.get(name, "").strip() for name in secret_variables(view)] + vault.values()
    for owner, field in view.q("SELECT owner, field FROM secrets"):
        with suppress(SteadError, UnicodeDecodeError):
            found.append(vault.unseal(owner, field, _sealed_at(view, owner, field)).decode())
    return sorted({value for value in found if len(value) >= _SHORTEST_SECRET}, key=lambda value: (-len(value), value))


def secret_variables(view: Reads) -> list[str]:
    """The environment variables that hold secrets of stead's: child processes must not inherit them (B106)."""
    named = [row[0] for row in view.q("SELECT key_env FROM providers WHERE key_env IS NOT NULL ORDER BY name")]
    return list(dict.fromkeys([*VARIABLES.values(), *named, "STEAD_SECRET"]))


@dataclass(frozen=True, slots=True)
class _Sealed:
    version: str
    nonce: bytes
    sealed: bytes


def _sealed(view: Reads, name: str) -> _Sealed | None:
    return _sealed_at(view, _owner(name), "key")


def _sealed_at(view: Reads, owner: str, field: str) -> _Sealed | None:
    row = view.one("SELECT key_version, nonce, sealed FROM secrets WHERE owner=? AND field=?", owner, field)
    return _Sealed(row[0], bytes(row[1]), bytes(row[2])) if row else None


def _owner(name: str) -> str:
    return f"providers:{name}"


def put_key(tx: Tx, name: str, key: SealedKey | None) -> None:
    """Keep this sealed key for the provider in place of any other; None: keep none."""
    tx.q("DELETE FROM secrets WHERE owner=? AND field='key'", _owner(name))
    if key is not None:
        row = (_owner(name), key.version, key.nonce, key.sealed)
        tx.q("INSERT INTO secrets(owner, field, key_version, nonce, sealed) VALUES(?,'key',?,?,?)", *row)
