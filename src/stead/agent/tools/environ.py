"""The environment that processes of the agent see: the person's own, without what belongs to stead and to model providers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from stead.domain.providers.addresses import VARIABLES

_PROVIDER_KEYS = {*VARIABLES.values(), "GOOGLE_API_KEY"}
_OWN_HARMLESS = {"STEAD_DATA", "STEAD_CONFIG"}  # so that `stead` called by the agent finds the same house
_LONG = 8  # characters from which a secret inside a longer value (a URL, a header) cannot be chance


def clean_environ(environ: Mapping[str, str], secrets: Iterable[str] = ()) -> dict[str, str]:
    """`environ` without provider keys, without stead's own variables except the two folders, and without every variable whose
    value is one of `secrets` (or holds one of 8 characters or more)."""
    known = [secret for secret in secrets if secret]
    return {name: value for name, value in environ.items() if not _private(name) and not _reveals(value, known)}


def _private(name: str) -> bool:
    name = name.upper()
    return name in _PROVIDER_KEYS or (name.startswith("STEAD_") and name not in _OWN_HARMLESS)


def _reveals(value: str, secrets: list[str]) -> bool:
    return any(value == secret or (len(secret) >= _LONG and secret in value) for secret in secrets)
