"""`--stream-json`: a run as one JSON value a line, from `run.started` to `run.ended`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stead.core.clock import rfc3339
from stead.core.events import Event
from stead.domain.runs import RunStarted
from stead.domain.sessions import part_json
from stead.interfaces.cli import out

if TYPE_CHECKING:
    from stead.agent.frames import Frame
    from stead.app import RunHandle
    from stead.store.blobs import Blobs


class Lines:
    """The sink that writes lines. What was stored before `run.started` (the prompt itself) is not repeated."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._begun = False
        self.early: list[Frame] = []

    def started(self, handle: RunHandle) -> None:
        """Nothing: the event says it."""

    def event(self, event: Event[Any]) -> None:
        """A line for an event."""
        self._begun = self._begun or isinstance(event.data, RunStarted)
        if self._begun:
            out.json_line(event_json(event, self.blobs))

    def frame(self, frame: Frame) -> None:
        """A line for a frame; notices are said in words elsewhere."""
        if self._begun and frame.frame != "notice":
            out.json_line(frame.to_json())


def event_json(event: Event[Any], blobs: Blobs) -> dict[str, Any]:
    """An event as surfaces show it. A part has its public shape, and moved text stands in its place again."""
    fields = {name: getattr(event.data, name) for name in type(event.data).fields}
    if "part" in fields and "message" in fields:
        part = part_json(event.stream, fields["message"], fields["n"], blobs.resolve(fields["part"]))
        fields["part"] = part
    elif event.kind == "tool.ended":
        fields["result"] = blobs.resolve(fields["result"])
    elif event.kind == "ask.opened":
        fields["about"] = blobs.resolve(fields["about"])
    return {
        "seq": event.seq,
        "kind": event.kind,
        "session": event.stream,
        "run": event.run,
        "time": rfc3339(event.ts),
        "data": fields,
    }
