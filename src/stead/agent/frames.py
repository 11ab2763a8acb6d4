"""Live text: what is seen while a part grows. Frames are a preview, not facts; the part's event replaces them when it closes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Frame:
    """More text of an open part. `offset` is the number of code points of the part before `text`; frames may overlap."""

    frame: Literal["text", "reasoning", "tool_output", "notice"]
    session: str
    run: str
    part: str
    offset: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return {"frame": self.frame, "run": self.run, "part": self.part, "offset": self.offset, "text": self.text}


Publish = Callable[[Frame], None]
