"""The house: opens, recovers, wires, dispatches. The one floor that knows all others; doors call it and nothing below it that
changes anything."""

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
