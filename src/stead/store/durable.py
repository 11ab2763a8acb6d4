"""Making a name durable: a file that was made, renamed or removed stays so after a power cut once its folder was synced."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path


def sync_folder(path: Path) -> None:
    """Make the names in the folder `path` durable, where its file system and our rights allow that."""
    with suppress(PermissionError):
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:  # some network file systems cannot
            if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)
