"""What the outside sees of messages and parts."""

from __future__ import annotations

from typing import Any

from stead.core import parts as known_parts
from stead.core.clock import rfc3339
from stead.domain.sessions.messages import Message


def part_json(session: str, message_n: int, n: int, part: Any) -> dict[str, Any]:
    """A part as every surface shows it: with its id, without provider data, tool arguments as the JSON they are; an unknown type
    as `unknown`, a part whose stored shape is wrong with the `issue` that says where. Nothing is written."""
    where = {"id": f"{session}.{message_n}.{n}"}
    if not known_parts.known(part):
        return {**where, "type": "unknown", "original": part}
    body = {name: value for name, value in part.items() if name != "meta"}
    if found := known_parts.issue(part):
        return {**where, **body, "issue": found}
    if body["type"] == "tool":
        arguments = body.pop("arguments")
        body.update(_input(arguments))
    return {**where, **body}


def _input(arguments: str) -> dict[str, Any]:
    from stead.core.jsontext import parse_foreign

    try:
        return {"input": parse_foreign(arguments) if arguments.strip() else {}}
    except ValueError:
        return {"input": None, "arguments": arguments}


def message_json(found: Message) -> dict[str, Any]:
    """A message in the shape of `sessions show --json`."""
    shown = {"id": found.id, "role": found.role, "model": found.model, "created": rfc3339(found.created)}
    if found.author is not None:
        shown["author"] = found.author
    if found.stop_sequence is not None:
        shown["stop_sequence"] = found.stop_sequence
    return {**shown, "parts": [part_json(found.session, found.n, n, part) for n, part in found.parts]}
