"""The house: opens, recovers, wires, shows. The one floor that knows all others.

A door opens it (`Stead`), starts, stops and follows runs through it, runs a noun's own commands in `house.store.write`, and shows
what `shown` makes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stead.app.features import FEATURES
from stead.app.house import Stead
from stead.app.shown import ask_json

if TYPE_CHECKING:
    from stead.app.handle import RunHandle

__all__ = ["FEATURES", "RunHandle", "Stead", "ask_json"]


def __getattr__(name: str) -> object:
    """`RunHandle` brings asyncio with it, which a reading command does not need."""
    if name == "RunHandle":
        from stead.app.handle import RunHandle

        return RunHandle
    raise AttributeError(f"module 'stead.app' has no attribute {name!r}")
