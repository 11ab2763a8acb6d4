"""Somebody who joined a session late and believes what is told: events are facts, frames are previews of parts that still grow."""

from __future__ import annotations

from typing import Any

from stead.agent.frames import Frame
from stead.core.events import Event


class Reader:
    """`parts` are the closed parts by id, `open` the texts that grow, `log` the events."""

    def __init__(self) -> None:
        self.log: list[Event[Any]] = []
        self.parts: dict[str, dict[str, Any]] = {}
        self.open: dict[str, str] = {}
        self.printed: dict[str, str] = {}
        self.firsts: list[Frame] = []
        """The first frame of each part."""
        self.gone: list[str] = []
        """Parts that were taken back."""

    def take(self, item: Event[Any] | Frame) -> None:
        """What comes next. Fails where it does not fit what came before."""
        if isinstance(item, Event):
            assert not self.log or item.seq > self.log[-1].seq
            self.log.append(item)
            self._event(item)
        elif item.frame != "notice":
            self._frame(item)

    def _frame(self, frame: Frame) -> None:
        growing = self.printed if frame.frame == "tool_output" else self.open
        assert growing is self.printed or frame.part not in self.parts, f"a frame of the closed part {frame.part}"
        assert frame.part not in self.gone, f"a frame of {frame.part}, which was taken back"
        if frame.part not in growing:
            self.firsts.append(frame)
            assert frame.offset == 0, f"the first frame of {frame.part} begins at {frame.offset}"
        known = growing.get(frame.part, "")
        assert frame.offset <= len(known), f"{frame.part}: {len(known)} characters, then a frame at {frame.offset}"
        common = known[frame.offset : frame.offset + len(frame.text)]
        assert frame.text.startswith(common)
        if frame.offset + len(frame.text) > len(known):
            growing[frame.part] = known[: frame.offset] + frame.text

    def _event(self, event: Event[Any]) -> None:
        data = event.data
        if event.kind in ("part.added", "step.ended"):
            id = f"{event.stream}.{data.message}.{data.n}"
            assert id not in self.parts
            assert str(data.part.get("text", "")).startswith(self.open.pop(id, ""))
            self.parts[id] = data.part
        elif event.kind == "step.retracted":
            for held in (self.parts, self.open):
                for id in list(held):
                    session, message, n = id.split(".")
                    if (session, int(message)) == (event.stream, data.message) and int(n) >= data.n:
                        held.pop(id)  # type: ignore[attr-defined]
                        self.gone.append(id)
        elif event.kind == "run.ended":
            assert self.open == {}, "parts that never closed"
