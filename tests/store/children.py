"""Processes for tests: forked from the warmed test process before it opens a store (2 ms instead of 200)."""

from __future__ import annotations

import os
import pickle
import signal
import traceback
from collections.abc import Callable
from typing import Any


class Child:
    """A forked process that runs one function."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._read)
            try:
                told = (True, work())
            except BaseException:
                told = (False, traceback.format_exc())
            try:
                with os.fdopen(write, "wb") as out:
                    pickle.dump(told, out)
            finally:
                os._exit(0)
        os.close(write)
        self._status: int | None = None

    def result(self) -> Any:
        """What the function gave; fails if it raised or was killed."""
        told = self._wait()
        assert told, f"the process ended with {self._status}"
        ok, value = pickle.loads(told)
        assert ok, value
        return value

    def killed(self) -> bool:
        """Whether SIGKILL ended it; fails if its function raised."""
        told = self._wait()
        if told:
            ok, value = pickle.loads(told)
            assert ok, value
        return os.WIFSIGNALED(self._status or 0) and os.WTERMSIG(self._status or 0) == signal.SIGKILL

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> bytes:
        if self._status is not None:
            return b""
        with os.fdopen(self._read, "rb") as pipe:
            told = pipe.read()
        _, self._status = os.waitpid(self.pid, 0)
        return told


class Gate:
    """Holds processes until they may go on, all at once."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()

    def wait(self) -> None:
        os.close(self._write)
        os.read(self._read, 1)

    def open(self) -> None:
        os.close(self._write)
        os.close(self._read)


def as_nobody(work: Callable[[], Any]) -> Any:
    """Run `work` in a process without root's power over file modes."""

    def lowered() -> Any:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setresgid(65534, 65534, 65534)
            os.setresuid(65534, 65534, 65534)
        return work()

    return Child(lowered).result()


class Other:
    """A process that has the store open and does as it is told, one word at a time."""

    def __init__(self, work: Callable[[Callable[[str], str]], Any]) -> None:
        hear, self._tell = os.pipe()
        self._told, say = os.pipe()

        def loop() -> Any:
            os.close(self._tell)

            def meet(word: str) -> str:
                os.write(say, word[:1].encode())
                return os.read(hear, 1).decode()

            return work(meet)

        self.child = Child(loop)
        os.close(hear)
        os.close(say)

    def met(self) -> str:
        """Wait until it has come to the next point, and give the first letter of its name."""
        return os.read(self._told, 1).decode()

    def go(self) -> None:
        os.write(self._tell, b".")

    def stop(self) -> None:
        os.kill(self.child.pid, signal.SIGSTOP)
        os.waitpid(self.child.pid, os.WUNTRACED)

    def go_on(self) -> None:
        os.kill(self.child.pid, signal.SIGCONT)
