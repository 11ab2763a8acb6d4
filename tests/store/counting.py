"""SQLite's files with every read, write and sync counted. The syncs are not done: a count is the same on a slow disk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import apsw
import pytest

from stead.store.sqlite import SQLite


class Counting(apsw.VFS):
    """`syncs` in their order, as `wal` or `db`; `written` and `read`: bytes by the same names."""

    def __init__(self) -> None:
        self.syncs: list[str] = []
        self.written: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        super().__init__("counting", "")

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:
        vfs = self
        path = name.filename() if isinstance(name, apsw.URIFilename) else str(name)
        kind = "wal" if path.endswith("-wal") else "db"

        class File(apsw.VFSFile):
            def xSync(self, flags: int) -> None:
                vfs.syncs.append(kind)

            def xWrite(self, data: Any, offset: int) -> None:
                vfs.written[kind] += len(data)
                super().xWrite(data, offset)

            def xRead(self, amount: int, offset: int) -> bytes:
                vfs.read[kind] += amount
                return super().xRead(amount, offset)

        return File("", name, flags)  # type: ignore[arg-type]

    def clear(self) -> None:
        """Count from here."""
        self.syncs.clear()
        self.written.clear()
        self.read.clear()


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counting]:
    """Stores that are opened in the block are counted."""
    vfs = Counting()
    first = SQLite.__init__
    with monkeypatch.context() as patched:
        patched.setattr(SQLite, "__init__", lambda self, path, vfs=None: first(self, path, vfs="counting"))
        yield vfs
    vfs.unregister()
