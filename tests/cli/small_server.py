"""An OpenAI-compatible server for the command line's tests: a list of models, and one short answer to everything."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Server:
    """`status` and `message` make every answer that error; `keys` are the keys that came; `models` what GET lists."""

    def __init__(self, models: list[Any], status: int, message: str) -> None:
        self.models, self.status, self.message = models, status, message
        self.keys: list[str | None] = []
        self.bodies: list[Any] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.keys.append(self.headers.get("authorization"))
                self._send("application/json", json.dumps({"data": server.models}))

            def do_POST(self) -> None:
                server.keys.append(self.headers.get("authorization"))
                server.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                choice = {"index": 0, "delta": {"content": "hi"}, "finish_reason": None}
                end = {"index": 0, "delta": {}, "finish_reason": "stop"}
                usage = {"prompt_tokens": 10, "completion_tokens": 2}
                events = [{"choices": [choice]}, {"choices": [end]}, {"choices": [], "usage": usage}]
                self._send("text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n")

            def _send(self, kind: str, text: str) -> None:
                if server.status != 200:
                    kind, text = "application/json", json.dumps({"error": {"message": server.message}})
                self.send_response(server.status)
                self.send_header("content-type", kind)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *_: Any) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}/v1"
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()


@contextmanager
def serving(models: list[Any] | None = None, status: int = 200, message: str = "") -> Iterator[Server]:
    server = Server([{"id": "small"}] if models is None else models, status, message)
    try:
        yield server
    finally:
        server.close()
