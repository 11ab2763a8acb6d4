"""The built-in tools, and the one way to call them: checked input, a result for everything that can go wrong."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from pydantic import ValidationError

from stead.agent.tools.base import Context, Input, Interrupted, Result, Tool
from stead.agent.tools.files import EDIT, LIST, WRITE
from stead.agent.tools.find import GLOB, GREP
from stead.agent.tools.read import READ
from stead.agent.tools.shell import BASH
from stead.agent.tools.talk import ASK, TODO_WRITE
from stead.core.errors import SteadError
from stead.core.jsontext import dump_foreign, parse_foreign, shown, shown_deep
from stead.core.text import one_line

__all__ = ["TOOLS", "Context", "Input", "Interrupted", "Result", "Tool", "call", "check", "perform"]

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (READ, WRITE, EDIT, LIST, GLOB, GREP, BASH, TODO_WRITE, ASK)}

_log = logging.getLogger(__name__)


def check(name: str, arguments: str, tools: Mapping[str, Tool] = TOOLS) -> tuple[Tool, Input] | Result:
    """The tool and its checked input, for the gate to judge (`tool.paths(input)`); or the error to give to the model at once."""
    tool = tools.get(name)
    if tool is None:
        known = ", ".join(tools) or "none"
        return Result(error=f"There is no tool {one_line(shown(name), 80)!r}; nothing was done. The tools are: {known}.")
    try:
        value = parse_foreign(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        return Result(error=f"The arguments of {name} are not valid JSON ({error}); nothing was done.{_schema(tool)}")
    if not isinstance(value, dict):
        return Result(error=f"The arguments of {name} are not an object; nothing was done.{_schema(tool)}")
    if shown_deep(value) != value:
        return Result(error=f"The arguments of {name} have half a character (a lone surrogate); nothing was done.{_schema(tool)}")
    optional = {field for field, about in tool.input.model_fields.items() if not about.is_required()}
    value = {key: item for key, item in value.items() if item is not None or key not in optional}  # null for "not given"
    try:
        return tool, tool.input.model_validate(value)
    except ValidationError as error:
        found = "; ".join(f"{'.'.join(map(str, item['loc'])) or 'input'}: {item['msg']}" for item in error.errors()[:5])
        return Result(error=shown(f"The arguments of {name} do not fit ({found}); nothing was done.{_schema(tool)}"))


async def perform(tool: Tool, given: Input, context: Context) -> Result:
    """Run a tool whose input was checked and allowed. Only a cancellation comes out as an exception (`Interrupted` from `bash`)."""
    task = asyncio.current_task()
    stops = task.cancelling() if task is not None else 0
    try:
        return await tool.run(context, given)
    except Exception as error:
        if task is not None and task.cancelling() > stops:  # whatever else went wrong, the person wanted it to end
            raise asyncio.CancelledError from error
        if isinstance(error, SteadError):
            return Result(error=f"{error.message} {error.hint}" if error.hint else error.message)
        if isinstance(error, OSError | ValueError):
            return Result(error=f"{tool.name} failed: {shown(str(error))}.")
        _log.exception("a fault in the tool %s", tool.name)
        return Result(error=f"{tool.name} failed by a fault in stead itself ({type(error).__name__}).")


async def call(name: str, arguments: str, context: Context, tools: Mapping[str, Tool] = TOOLS) -> Result:
    """`check` and `perform` in one, for callers without a gate. `arguments` is the model's own JSON text."""
    checked = check(name, arguments, tools)
    return checked if isinstance(checked, Result) else await perform(*checked, context)


def _schema(tool: Tool) -> str:
    return f" The schema is: {dump_foreign(tool.schema())}"
