"""Reading the values of options without pydantic, which typer loads for it and which costs more than a reading command does.

A parameter of typer asks the object that its `get_runtime_param` gives to `coerce` the value; ours knows the few kinds that stead's
commands have. What it does not know, and a typer that does it another way, is left to typer.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args, get_origin

import typer


def lighten(params: Any) -> None:
    """Let these parameters be read here."""
    for param in params:
        described: Any = getattr(param, "type_descriptor", None)
        if hasattr(param, "get_runtime_param") and _known(getattr(described, "annotation", None)):
            reader = _Reader(described.annotation, described.parameter_info)
            param.get_runtime_param = lambda reader=reader: reader


def _known(kind: Any) -> bool:
    if get_origin(kind) is list:
        return get_args(kind) == (str,)
    return kind in (str, int, float, bool) or get_origin(kind) is Literal


class _Reader:
    """Reads one parameter's values; `about` holds its limits."""

    def __init__(self, kind: Any, about: Any) -> None:
        self.kind, self.about = kind, about

    def coerce(self, value: Any, *, param: Any, ctx: Any) -> Any:
        """The value as the command takes it. Raises typer's own error for one that does not fit."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if get_origin(self.kind) is list:
            return [str(item) for item in value]
        try:
            return self._one(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from None

    def _one(self, value: Any) -> Any:
        if get_origin(self.kind) is Literal:
            if value not in get_args(self.kind):
                raise ValueError(f"{value!r} is not one of {', '.join(map(repr, get_args(self.kind)))}.")
            return value
        if self.kind in (int, float):
            return self._within(_number(value, self.kind))
        return value

    def _within(self, number: float) -> float:
        low, high = self.about.min, self.about.max
        if (low is not None and number < low) or (high is not None and number > high):
            limits = f"at least {low}" if high is None else f"at most {high}" if low is None else f"from {low} to {high}"
            raise ValueError(f"{number} is not {limits}.")
        return number


def _number(value: Any, kind: Any) -> Any:
    try:
        number = kind(value)
    except (ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{value!r} is not a {'whole ' if kind is int else ''}number.")
    return number
