"""Slow models on loopback in three wire formats: they stamp what they send with the time at which it went out."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.agent.servers import FORMATS, Answer, Server


@dataclass(frozen=True)
class Sent:
    """A piece of an answer: when it had gone out (seconds), in answer to which request, what it is, its text."""

    at: float
    request: int
    kind: str
    text: str


@dataclass
class Slowly(Answer):
    """An answer that waits so many seconds before its first byte (`silent`), and so many before each event (`delay`)."""

    silent: float = 0.0
    delay: float = 0.02
    chunk: int = 6


class Stamping(Server):
    """`sent` holds every piece in order; `first_byte` is set when one byte of an answer is out."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Sent] = []
        self.first_byte = threading.Event()

    def _stream(self, request: BaseHTTPRequestHandler, said: Answer, body: dict[str, Any]) -> None:
        number = len(self.asked)
        if isinstance(said, Slowly) and self.closing.wait(said.silent):
            return
        request.send_response(200)
        request.send_header("content-type", "text/event-stream")
        request.send_header("transfer-encoding", "chunked")
        request.end_headers()
        for at, event in enumerate(self.events(said, body)):
            if said.cut is not None and at >= said.cut:
                request.close_connection = True
                return
            data = self.frame(event)
            request.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            request.wfile.flush()
            self.sent += [Sent(time.monotonic(), number, kind, text) for kind, text in _pieces(event)]
            self.first_byte.set()
            if said.delay and self.closing.wait(said.delay):
                return
        request.wfile.write(b"0\r\n\r\n")


def _pieces(event: Any) -> Iterator[tuple[str, str]]:
    """What one event of a stream brings, whatever its format."""
    if not isinstance(event, dict):
        return
    for choice in event.get("choices", ()):
        delta = choice["delta"]
        yield "text", delta.get("content") or ""
        yield "reasoning", delta.get("reasoning_content") or ""
        for call in delta.get("tool_calls", ()):
            yield "arguments", call["function"]["arguments"]
    if event.get("type") == "content_block_delta":
        delta = event["delta"]
        yield "text", delta.get("text", "")
        yield "reasoning", delta.get("thinking", "")
        yield "arguments", delta.get("partial_json", "")
    for candidate in event.get("candidates", ()):
        for part in candidate["content"]["parts"]:
            yield "reasoning" if part.get("thought") else "text", part.get("text", "")


@contextmanager
def slow(kind: str = "openai") -> Iterator[Stamping]:
    """A slow model of this wire format."""
    server = type("Slow", (Stamping, FORMATS[kind]), {})()
    try:
        yield server
    finally:
        server.close()


def words(letter: str, count: int) -> str:
    """So many numbered words of six characters."""
    return "".join(f"{letter}{n:04} " for n in range(count))
