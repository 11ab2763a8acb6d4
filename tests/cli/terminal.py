"""The real program at a terminal of its own (a pty), or with signals: for the few tests that need one."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

PATIENCE = 15.0


class Terminal:
    """`stead ARGUMENTS` at a terminal: `until(text)` reads on until the text was shown, `send(text)` types."""

    def __init__(self, *arguments: str, cwd: Path, **environ: str) -> None:
        self._fd, theirs = pty.openpty()
        self.shown = ""
        env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environ}
        command = [sys.executable, "-m", "stead", *arguments]
        self.process = subprocess.Popen(
            command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=cwd, env=env, start_new_session=True, preexec_fn=_own_terminal
        )
        os.close(theirs)
        self._at = 0

    def until(self, text: str) -> str:
        """Wait for the text behind what was waited for before; gives what came up to it."""
        deadline = time.monotonic() + PATIENCE
        while (found := self.shown.find(text, self._at)) < 0:
            if time.monotonic() > deadline or not self._read(0.1):
                raise AssertionError(f"{text!r} was not shown; there was: {self.shown[self._at :]!r}")
        piece, self._at = self.shown[self._at : found], found + len(text)
        return piece

    def send(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def end(self) -> int:
        """Read to the end and give the exit code."""
        deadline = time.monotonic() + PATIENCE
        while self._read(0.1) and time.monotonic() < deadline:
            pass
        return self.process.wait(timeout=PATIENCE)

    def _read(self, wait: float) -> bool:
        """Read what is there; False at the end."""
        if not select.select([self._fd], [], [], wait)[0]:
            return self.process.poll() is None
        try:
            piece = os.read(self._fd, 1 << 16)
        except OSError:  # the other side is closed
            return False
        self.shown += piece.decode("utf-8", "replace")
        return bool(piece)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        os.close(self._fd)


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
