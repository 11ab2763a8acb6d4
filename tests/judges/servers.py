"""Other people's servers as processes of their own: started on a free port, asked until they answer, ended by their own pid."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

INSTALLED = Path(sys.prefix) / "judges"
"""Where `make judges` puts what it installs: a virtual environment with a node folder in it."""

UP = 30.0  # seconds that a server on a loaded machine may take to listen


def asked(url: str, method: str = "GET", body: Any = None) -> Any:
    """The JSON that a server on this machine answers with, over no proxy; raises for any status but success."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        given = None if body is None else json.dumps(body)
        connection.request(method, f"{parts.path}?{parts.query}" if parts.query else parts.path or "/", given)
        response = connection.getresponse()
        content = response.read()
        assert response.status < 300, f"{method} {url}: {response.status} {content[:500]!r}"
        return json.loads(content)
    finally:
        connection.close()


@contextmanager
def served(command: Callable[[int], list[str]], alive: str, log: Path, env: dict[str, str] | None = None) -> Iterator[str]:
    """The address of a server that `command(port)` starts; `alive` is the path that it answers once it is up."""
    for _ in range(3):  # between choosing a port and listening on it somebody else may take it
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with log.open("wb") as file:
            process = subprocess.Popen(command(port), stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=env)
        try:
            url = f"http://127.0.0.1:{port}"
            if _came_up(process, url + alive):
                yield url
                return
        finally:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    raise AssertionError(f"the server did not come up:\n{log.read_text(errors='replace')[-2000:]}")


def _came_up(process: subprocess.Popen[bytes], url: str) -> bool:
    until = time.monotonic() + UP
    while process.poll() is None and time.monotonic() < until:
        try:
            asked(url)
            return True
        except (OSError, http.client.HTTPException):
            time.sleep(0.05)
    return False
