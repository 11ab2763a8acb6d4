"""Where stead's own faults are written down: `logs/stead.log` in the data folder, made when there is one, never the terminal."""

from __future__ import annotations

import logging
import os
from io import TextIOWrapper
from pathlib import Path


class _Private(logging.FileHandler):
    """A log file that only its owner reads, and that is not made before something is written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, encoding="utf-8", errors="replace", delay=True)

    def _open(self) -> TextIOWrapper:
        os.makedirs(os.path.dirname(self.baseFilename), mode=0o700, exist_ok=True)
        return open(self.baseFilename, "a", encoding="utf-8", errors="replace", opener=_opener)


def _opener(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def to_file(data: Path) -> None:
    """Send what stead logs to the data folder's log. Calling it again does nothing."""
    logger = logging.getLogger("stead")
    path = data / "logs" / "stead.log"
    if any(isinstance(one, _Private) and one.baseFilename == str(path.absolute()) for one in logger.handlers):
        return
    for one in [one for one in logger.handlers if isinstance(one, _Private)]:
        logger.removeHandler(one)
        one.close()
    handler = _Private(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s %(name)s: %(message)s"))
    logger.addHandler(handler)
    logger.propagate = False
