"""What the operating system says of a file, in our words."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from stead.core.errors import SteadError


def from_os(error: OSError, path: Path) -> SteadError:
    """Our error for what the operating system said about `path`: `disk_full`, `read_only`, `not_found`, `conflict`, `bad_value`."""
    details = {"path": str(path)}
    number = error.errno
    if number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return SteadError("disk_full", f"There is no space to write {path}.", details=details)
    if number == errno.ELOOP:
        if os.path.islink(path) or not os.path.lexists(path):
            return SteadError("not_found", f"{path} is a loop of symbolic links.", details=details)
        return SteadError("conflict", f"A folder of {path} has become a symbolic link.", details=details)
    if number in (errno.ENOENT, errno.ENOTDIR):
        return SteadError("not_found", f"{path} does not exist.", details=details)
    if number in (errno.EISDIR, errno.EEXIST):
        return SteadError("conflict", f"{path} is not a file.", details=details)
    if number == errno.ENAMETOOLONG:
        return SteadError("bad_value", f"{path} is too long a name for this file system.", details=details)
    if number in (errno.EACCES, errno.EPERM, errno.EROFS):
        return SteadError("read_only", f"{path} cannot be accessed: {error.strerror}.", details=details)
    return SteadError("read_only", f"{path} cannot be read or written: {error.strerror or error}.", details=details)


@contextmanager
def reported(path: Path) -> Iterator[None]:
    """Turn the system's errors into ours, each with the path it is about."""
    try:
        yield
    except OSError as error:
        raise from_os(error, path) from error
