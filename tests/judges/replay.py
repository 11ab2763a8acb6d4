"""The replay server of ../shared/judges: what it serves, and what it found."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.judges import recordings
from tests.judges.servers import asked

AGAIN = 5
"""How often stead asks before it gives up; a cassette that is cut each time holds its answer so many times."""

CUT = (
    "openai-chat__test_dbos_agent_iter",
    "openrouter__test_openrouter_streaming_reasoning",
    "anthropic__test_anthropic_model_thinking_part_stream",
    "gemini__test_google_model_thinking_part_iter",
)
LATER = (
    "openai-chat__test_run_stream_sync_streams_real_model",
    "openai-chat__test_complex_agent_run_sequential_tool",
    "anthropic__test_anthropic_native_tool_search_streaming",
    "gemini__test_google_streaming_tool_call_thought_signature",
    "gemini__test_google_model_iter_stream",
)
"""Cassettes with more than one streamed turn."""


@dataclass(frozen=True)
class Replay:
    """The running server and the folder of the untouched recordings."""

    server: str
    folder: Path

    def address(self, name: str, *, copy_of: str = "", chunk: int = 0, cut: int = 0) -> str:
        """The address of a cassette for `stead provider add`, from its beginning. `copy_of` is the prefix of a copy."""
        asked(f"{self.server}/reset/{copy_of}{name}", "POST")
        marks = ",".join(f"{key}={value}" for key, value in (("chunk", chunk), ("cut", cut)) if value)
        path = f"{copy_of}{name}{'@' if marks else ''}{marks}"
        return f"{self.server}/c/{path}{recordings.OWN_PATH[recordings.kind_of(name)]}"

    def report(self, name: str) -> list[dict[str, Any]]:
        """How our requests to this cassette differed from the recorded ones."""
        return [one for one in asked(f"{self.server}/report") if one["cassette"] == name]

    def items(self, name: str) -> list[dict[str, Any]]:
        return recordings.interactions(self.folder, name)


def prepare(source: Path, folder: Path) -> None:
    """The recordings in `folder`, and beside them the copies that some tests need."""
    for file in source.glob("*.yaml"):
        (folder / file.name).symlink_to(file)
    for name in CUT:
        recordings.write(folder, f"again__{name}", recordings.interactions(source, name) * AGAIN)
    for name in LATER:
        recordings.write(folder, f"later__{name}", [comparable(name, item) for item in recordings.interactions(source, name)])


def comparable(name: str, item: dict[str, Any]) -> dict[str, Any]:
    """A recording whose request can be compared field by field: without the tools of the recording client (the report shows no
    more than 40 differences), in Chat Completions with a system message in front, as ours has one there, and with signatures in
    the alphabet in which Gemini sent them (the recording client wrote base 64 in the other one)."""
    item = copy.deepcopy(item)
    body = copy.deepcopy(recordings.body_of(item))
    body.pop("tools", None)
    if recordings.kind_of(name) == "openai":
        body["messages"].insert(0, {"role": "system", "content": ""})
    for part in (part for content in body.get("contents", []) for part in content["parts"] if "thoughtSignature" in part):
        part["thoughtSignature"] = part["thoughtSignature"].replace("-", "+").replace("_", "/")
    item["request"]["parsed_body"] = body
    return item
