"""A run as a person follows it: a line for each tool call, for changed files and notices; on a terminal the text as it comes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from stead.core.events import Event
from stead.core.jsontext import parse_foreign
from stead.core.text import one_line
from stead.domain.runs import RunResumed, RunStarted, RunSteered
from stead.domain.sessions import PartAdded, StepEnded, StepRetracted, ToolEnded, ToolStarted
from stead.interfaces.cli import out

if TYPE_CHECKING:
    from stead.agent.frames import Frame
    from stead.app import Stead

TARGET = 100
MARKS = {"done": ("✓", "green"), "error": ("✗", "red"), "denied": ("⊘", "yellow")}
_FIELDS = ("path", "command", "pattern", "question", "url", "query", "name", "prompt", "text")


class Progress:
    """The sink of a run that a person follows. `live`: stdout and stderr are one terminal, and text is shown as it comes."""

    def __init__(self, house: Stead, *, quiet: bool = False, verbose: bool = False, live: bool = False) -> None:
        self.house = house
        self.quiet, self.verbose, self.live = quiet, verbose, live and not quiet
        self._message = 0
        self._calls: dict[tuple[int, int], Any] = {}
        self._shown: dict[str, int] = {}
        self._open_line = False
        self._status = False

    # --- what is heard --------------------------------------------------------------------------------------------------------

    def event(self, event: Event[Any]) -> None:
        """Show what an event means to a person, if anything."""
        data = event.data
        if isinstance(data, RunStarted | RunResumed):
            self._started(data.run)
        elif isinstance(data, RunSteered):
            self._message = data.message
        elif isinstance(data, PartAdded) and isinstance(data.part, dict) and data.message == self._message:
            self._part(f"{event.stream}.{data.message}.{data.n}", (data.message, data.n), data.part)
        elif isinstance(data, ToolStarted):
            self._call_started(self._calls.get((data.message, data.n)))
        elif isinstance(data, ToolEnded):
            self._call_ended(self._calls.pop((data.message, data.n), None), data.result)
        elif isinstance(data, StepEnded | StepRetracted):
            self.clear()

    def frame(self, frame: Frame) -> None:
        """Show live text."""
        if frame.frame == "notice":
            self._say(frame.text)
        elif frame.frame == "text" and self.live:
            self._grow(frame.part, frame.offset, frame.text)
        elif frame.frame == "tool_output" and self.verbose and not self.quiet:
            out.say(out.plain(frame.text))
            self._open_line = not frame.text.endswith("\n")

    def clear(self) -> None:
        """Begin a new line, and take back what stands there only for now."""
        if self._status:
            out.say("\r\x1b[K")
            self._status = False
        if self._open_line:
            if self.live:
                sys.stdout.write("\n")
                sys.stdout.flush()
            else:
                out.say("\n")
            self._open_line = False

    def _started(self, run_id: str) -> None:
        """The run began, or goes on: name the key that is used, where it came from the environment."""
        from stead.domain import providers, runs, sessions
        from stead.domain.providers.addresses import SCRIPT, parse_ref

        with self.house.store.view() as view:
            run = runs.get(view, run_id)
            name = parse_ref(run.model).provider
            known = {one.name: one for one in providers.effective_providers(view, self.house.environ)} if name != SCRIPT else {}
            parts = sessions.message(view, run.session, run.message).parts if run.epoch > 1 else []
        self._message = run.message
        self._calls = {(run.message, n): part for n, part in parts if part.get("status") in ("pending", "running")}
        if name in known and known[name].origin == "environment":
            self._say(f"using the key in {known[name].key_env}")
        if self.verbose:
            self._say(f"{run.model}, session {run.session}")

    # --- what is shown --------------------------------------------------------------------------------------------------------

    def _part(self, part_id: str, key: tuple[int, int], part: dict[str, Any]) -> None:
        kind = part.get("type")
        if kind == "tool":
            self._calls[key] = part
        elif kind == "patch":
            for file in self.house.store.blobs.resolve(part)["files"]:
                self._say(f"changed {file['path']} {counts(file['additions'], file['deletions'])}", style="")
        elif kind == "text" and self.live:
            text = str(self.house.store.blobs.resolve(part)["text"])
            self._grow(part_id, 0, text)
            self.clear()
        elif kind in ("text", "reasoning") and self.verbose:
            text = str(self.house.store.blobs.resolve(part)["text"])
            for line in out.plain(text).splitlines():
                self._say(line)

    def _grow(self, part: str, offset: int, text: str) -> None:
        have = self._shown.get(part, 0)
        fresh = text[max(have - offset, 0) :]
        if not fresh:
            return
        if have == 0:
            self.clear()
        self._shown[part] = max(have, offset + len(text))
        sys.stdout.write(out.plain(fresh))
        sys.stdout.flush()
        self._open_line = not fresh.endswith("\n")

    def _call_started(self, part: dict[str, Any] | None) -> None:
        if part is None or not self.live or not out.colours(sys.stderr):
            return
        self.clear()
        from shutil import get_terminal_size

        width = get_terminal_size().columns - 4
        out.say(out.style(f"… {one_line(called(part), width)}", "dim", sys.stderr))
        self._status = True

    def _call_ended(self, part: dict[str, Any] | None, result: dict[str, Any]) -> None:
        if self.quiet or part is None:
            return
        self.clear()
        mark, colour = MARKS.get(str(result.get("status")), ("·", "dim"))
        tool = out.style(out.plain(str(part.get("tool"))), "bold", sys.stderr)
        said = summary(result)
        if part.get("tool") in ("edit", "write") and result.get("status") == "done":
            said = ""  # the line about the changed file follows
        said = out.style(f"→ {said}" if said else "", "dim", sys.stderr)
        pieces = [out.style(mark, colour, sys.stderr), tool, target(part), said]
        out.err(" ".join(piece for piece in pieces if piece))

    def _say(self, text: str, style: str = "dim") -> None:
        if self.quiet:
            return
        self.clear()
        text = out.plain(text)
        out.err(out.style(text, style, sys.stderr) if style else text)


def called(part: dict[str, Any]) -> str:
    """A call in words: the tool and what it is about."""
    return f"{part.get('tool')} {target(part)}".strip()


def target(part: dict[str, Any]) -> str:
    """What a call is about, on one line: its path, command, pattern or question."""
    arguments = part.get("arguments")
    if isinstance(arguments, dict):  # so long that it was moved
        arguments = arguments.get("head", "")
    try:
        given = parse_foreign(str(arguments or "{}"))
    except ValueError:
        return one_line(out.plain(str(arguments)), TARGET)
    if not isinstance(given, dict):
        return ""
    for name in _FIELDS:
        if isinstance(given.get(name), str):
            return one_line(out.plain(given[name]), TARGET)
    if isinstance(given.get("todos"), list):
        return f"{len(given['todos'])} items"
    return ""


def summary(result: dict[str, Any]) -> str:
    """How a call went, on one line."""
    status = result.get("status")
    if status in ("error", "denied"):
        why = one_line(out.plain(_text(result.get("error"))), TARGET) or str(status)
        return why if status == "error" or why.lower().startswith(("denied", "refused")) else f"denied: {why}"
    lines = [line for line in out.plain(_text(result.get("output"))).splitlines() if line.strip()]
    size = result["output"].get("size") if isinstance(result.get("output"), dict) else None
    pieces = []
    if size is not None:
        pieces.append(f"{size:,} bytes")
    elif len(lines) == 1:
        pieces.append(one_line(lines[0], 60))
    elif lines:
        pieces.append(f"{len(lines)} lines")
    duration = result.get("duration_ms") or 0
    if duration >= 1000:
        pieces.append(f"{duration / 1000:.1f} s")
    return ", ".join(pieces)


def counts(additions: int, deletions: int) -> str:
    """`+3 -1`, in colour on a terminal."""
    plus, minus = (out.style(text, name, sys.stderr) for text, name in ((f"+{additions}", "green"), (f"-{deletions}", "red")))
    return f"{plus} {minus}"


def _text(value: Any) -> str:
    if isinstance(value, dict):
        value = value.get("head", "")
    return value if isinstance(value, str) else ""
