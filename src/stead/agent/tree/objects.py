"""Contents out of git's object store, by a `git cat-file` that is kept running. It runs no program of the project and writes
nothing."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress

_PATIENCE_MS = 10_000
_AT_ONCE = 200  # requests on their way: with their answers they fit into the pipes
_SETTINGS = ("core.fsmonitor=false", "core.hooksPath=/dev/null", "protocol.allow=never", "core.alternateRefsCommand=")


class Objects:
    """The objects of one repository. Its child processes begin when first needed and end with `close`. Thread-safe."""

    def __init__(self, git_dir: str) -> None:
        self._git_dir = git_dir
        self._check: subprocess.Popen[bytes] | None = None
        self._load: subprocess.Popen[bytes] | None = None
        self._dead = False
        self._left = b""
        self._lock = threading.Lock()

    def sizes(self, names: Sequence[bytes]) -> list[int | None]:
        """The size in bytes of each object; None of those that are not there, or when git cannot be asked."""
        with self._lock:
            return self._sizes(names)

    def _sizes(self, names: Sequence[bytes]) -> list[int | None]:
        found: list[int | None] = []
        for start in range(0, len(names), _AT_ONCE):
            some = names[start : start + _AT_ONCE]
            if self._check is None:
                self._check = self._begin("--batch-check")
            lines = self._asked(self._check, some)
            if lines is None:
                self._check = None
                return found + [None] * (len(names) - len(found))
            found += [_size(line) for line in lines]
        return found

    def load(self, name: bytes) -> bytes | None:
        """The content of an object; None when it cannot be had."""
        with self._lock:
            return self._loaded(name)

    def _loaded(self, name: bytes) -> bytes | None:
        if self._load is None:
            self._load = self._begin("--batch")
        child = self._load
        lines = self._asked(child, [name])
        size = _size(lines[0]) if lines else None
        content = self._read(child, size + 1) if size is not None and child is not None else None
        if child is not None and lines and size is None and not lines[0].endswith(b" missing"):
            _end(child)  # what it would say next is not the answer to the next question
            lines = None
        if lines is None or (size is not None and content is None):
            self._load = None
        return None if content is None else content[:-1]

    def close(self) -> None:
        """End the child processes; the next question begins new ones."""
        with self._lock:
            for child in (self._check, self._load):
                if child is not None:
                    _end(child)
            self._check = self._load = None

    def _begin(self, how: str) -> subprocess.Popen[bytes] | None:
        program = shutil.which("git")
        if program is None or self._dead:
            return None
        options = [word for setting in _SETTINGS for word in ("-c", setting)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
        environ |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_NO_LAZY_FETCH": "1", "GIT_NO_REPLACE_OBJECTS": "1", "GIT_TERMINAL_PROMPT": "0"}
        try:
            return subprocess.Popen(
                [program, *options, f"--git-dir={self._git_dir}", "cat-file", how],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                cwd="/",
                env=environ | {"LC_ALL": "C"},
                start_new_session=True,  # what is typed at the terminal is not meant for it
            )
        except OSError:
            self._dead = True
            return None

    def _asked(self, child: subprocess.Popen[bytes] | None, names: Sequence[bytes]) -> list[bytes] | None:
        """A line for each name; None, and the child is gone, when it does not answer."""
        if child is None or child.stdin is None:
            return None
        try:
            child.stdin.write(b"".join(name.hex().encode() + b"\n" for name in names))
        except OSError:
            _end(child)
            return None
        self._left = b""
        lines: list[bytes] = []
        while len(lines) < len(names):
            piece = self._piece(child)
            if piece is None:
                return None
            *whole, self._left = (self._left + piece).split(b"\n", 1 if len(names) == 1 else -1)
            lines += whole
        return lines

    def _read(self, child: subprocess.Popen[bytes], size: int) -> bytes | None:
        pieces, have = [self._left], len(self._left)
        while have < size:
            piece = self._piece(child)
            if piece is None:
                return None
            pieces.append(piece)
            have += len(piece)
        return b"".join(pieces)

    def _piece(self, child: subprocess.Popen[bytes]) -> bytes | None:
        assert child.stdout is not None
        waiting = select.poll()
        waiting.register(child.stdout, select.POLLIN)
        piece = os.read(child.stdout.fileno(), 1 << 16) if waiting.poll(_PATIENCE_MS) else b""
        if not piece:
            _end(child)
            return None
        return piece


def _size(line: bytes) -> int | None:
    words = line.split()
    return int(words[2]) if len(words) == 3 and words[1] == b"blob" else None


def _end(child: subprocess.Popen[bytes]) -> None:
    for stream in (child.stdin, child.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
    child.kill()
    child.wait()
