"""A small raw HTTP server on loopback that serves prepared answers and keeps what it was asked."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Reply:
    """One answer. `body` goes out in pieces of `chunk` bytes (0: at once) with `delay` seconds between; `cut` drops the
    connection after so many bytes; `hang` keeps it open without the end."""

    body: bytes = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"
    chunk: int = 0
    delay: float = 0
    cut: int | None = None
    hang: bool = False


@dataclass
class Asked:
    path: str
    headers: dict[str, str]
    raw: bytes
    gone: float | None = None  # monotonic time at which the client was seen to have left

    @property
    def json(self) -> Any:
        return json.loads(self.raw)


class Mock:
    """Replies are taken in order; the last one is repeated."""

    def __init__(self) -> None:
        self.replies: list[Reply] = []
        self.asked: list[Asked] = []
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._stop = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def reply(self, *replies: Reply) -> None:
        self.replies += replies

    def close(self) -> None:
        if self._stop.is_set():
            return
        self._stop.set()
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the accepting thread, which would keep the port open
        self._listener.close()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while asked := _read(connection):
                    self.asked.append(asked)
                    reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
                    if not self._answer(connection, asked, reply):
                        return
            except OSError:
                return

    def _answer(self, connection: socket.socket, asked: Asked, reply: Reply) -> bool:
        headers = {"content-type": reply.content_type, "transfer-encoding": "chunked", **reply.headers}
        head = f"HTTP/1.1 {reply.status} X\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection.sendall(head.encode() + b"\r\n")
        body = reply.body if reply.cut is None else reply.body[: reply.cut]
        size = reply.chunk or max(len(body), 1)
        for at in range(0, len(body), size):
            piece = body[at : at + size]
            if not self._send(connection, asked, b"%x\r\n%s\r\n" % (len(piece), piece)):
                return False
            if reply.delay and not self._pause(connection, asked, reply.delay):
                return False
        if reply.cut is not None:
            connection.shutdown(socket.SHUT_RDWR)
            return False
        while reply.hang and not self._stop.is_set():
            if not self._pause(connection, asked, 0.02):
                return False
        return self._send(connection, asked, b"0\r\n\r\n")

    def _send(self, connection: socket.socket, asked: Asked, data: bytes) -> bool:
        try:
            connection.sendall(data)
        except OSError:
            asked.gone = time.monotonic()
            return False
        return True

    def _pause(self, connection: socket.socket, asked: Asked, seconds: float) -> bool:
        connection.settimeout(seconds)
        try:
            if connection.recv(1) == b"":
                asked.gone = time.monotonic()
                return False
        except TimeoutError:
            pass
        except OSError:
            asked.gone = time.monotonic()
            return False
        finally:
            connection.settimeout(None)
        return True


def _read(connection: socket.socket) -> Asked | None:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return None
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(body) < int(headers.get("content-length", "0")):
        body += connection.recv(65536)
    return Asked(first.split(" ")[1], headers, body)


@contextmanager
def serving(*replies: Reply) -> Iterator[Mock]:
    mock = Mock()
    mock.reply(*replies)
    try:
        yield mock
    finally:
        mock.close()


def sse(*events: Any, end: str = "\n\n", names: bool = False) -> bytes:
    """Events (JSON values, or text as it is) as a stream's bytes; with `names` the value's `type` is the event's name."""
    out = []
    for event in events:
        data = event if isinstance(event, str) else json.dumps(event, ensure_ascii=False)
        name = f"event: {event['type']}\n" if names and isinstance(event, dict) else ""
        out.append(f"{name}data: {data}{end}")
    return "".join(out).encode()


async def collect(model: Any, request: Any) -> list[Any]:
    """All items of one call."""
    from contextlib import aclosing

    items = []
    async with aclosing(model.stream(request)) as stream:
        async for item in stream:
            items.append(item)
    return items


def parts_of(items: list[Any]) -> list[Any]:
    """The closed parts, in the order of their numbers; checks that the items tell one consistent story."""
    from stead.agent.models.base import Closed, Delta, Finished, Opened

    opened: dict[int, str] = {}
    closed: dict[int, Any] = {}
    for at, item in enumerate(items):
        if isinstance(item, Opened):
            assert item.n == len(opened)
            assert not (item.part.get("text") or item.part.get("arguments"))
            opened[item.n] = ""
        elif isinstance(item, Delta):
            assert item.n in opened and item.n not in closed
            opened[item.n] += item.text
        elif isinstance(item, Closed):
            assert item.n in opened and item.n not in closed
            assert item.part["arguments" if item.part["type"] == "tool" else "text"] == opened[item.n]
            closed[item.n] = item.part
        else:
            assert isinstance(item, Finished) and at == len(items) - 1
    assert closed.keys() == opened.keys()
    return [closed[n] for n in sorted(closed)]


def decode_all(decoder: Any, stream: bytes, *cuts: int) -> list[Any]:
    """What `decoder` makes of `stream`, cut at these places, without a network."""
    from stead.agent.models.sse import Reader

    reader, items, last = Reader(), [], 0
    for cut in [*cuts, len(stream)]:
        for event in reader.feed(stream[last:cut]):
            items += list(decoder.feed(event))
        last = cut
    if not decoder.done and (rest := reader.rest()):
        items += list(decoder.feed(rest))
    return items + list(decoder.end())


def user(text: str) -> Any:
    from stead.agent.models.base import Turn

    return Turn("user", [{"type": "text", "text": text}])


def assistant(*parts: Any) -> Any:
    from stead.agent.models.base import Turn

    return Turn("assistant", list(parts))


def ask(*turns: Any, model: str = "m", **more: Any) -> Any:
    from stead.agent.models.base import Request

    return Request(model, list(turns) or [user("hi")], **more)


def done(part: Any, output: str = "ok", **more: Any) -> Any:
    """A tool part with its result."""
    return {**part, "status": "done", "output": output, **more}


def call(tool: str = "read", arguments: str = "{}", *, id: str = "call_1", status: str = "done", **more: Any) -> Any:
    return {"type": "tool", "call": id, "tool": tool, "arguments": arguments, "status": status, **more}


STEP: Any = {
    "type": "step",
    "model": "m",
    "tokens": {"input": 1, "cache_read": 0, "cache_write": 0, "output": 1, "reasoning": 0},
    "cost": None,
    "finish": "stop",
}
