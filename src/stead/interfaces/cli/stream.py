"""`--stream-json`: a run as one JSON value a line, from `run.started` (or `run.resumed`) to `run.ended` (or `run.waiting`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stead.app.shown import event_json
from stead.core.events import Event
from stead.domain.runs import RunResumed, RunStarted, RunSteered
from stead.interfaces.cli import out

if TYPE_CHECKING:
    from stead.agent.frames import Frame
    from stead.store.blobs import Blobs


class Lines:
    """The sink that writes lines. What was stored before `run.started` (the prompt itself) is not repeated."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._begun = False

    def event(self, event: Event[Any]) -> None:
        """A line for an event."""
        self._begun = self._begun or isinstance(event.data, RunStarted | RunResumed | RunSteered)
        if self._begun:
            out.json_line(event_json(event, self.blobs))

    def frame(self, frame: Frame) -> None:
        """A line for a frame; notices are said in words elsewhere."""
        if self._begun and frame.frame != "notice":
            out.json_line(frame.to_json())
