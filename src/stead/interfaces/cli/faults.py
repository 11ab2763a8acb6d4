"""Errors that nobody foresaw, as errors with a code; what happened is written to the log."""

from __future__ import annotations

from pathlib import Path

from stead.core.errors import SteadError


def as_error(error: Exception) -> SteadError:
    """The error as every surface shows it: what the file system said, or a fault of stead's own (`internal`), which is logged."""
    if isinstance(error, SteadError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        from stead.store.safefile import from_os

        return from_os(error, Path(str(error.filename or "the output")))
    where = _logged(error)
    hint = f"Please report it with {where}." if where else "Please report it; STEAD_DEBUG=1 shows the whole trace."
    return SteadError("internal", f"{type(error).__name__}: {error}", hint=hint)


def _logged(error: Exception) -> Path | None:
    import logging

    from stead.config.places import data_folder
    from stead.interfaces.cli import logs

    data = data_folder()
    if not data.is_dir():
        return None
    try:
        logs.to_file(data)
        logging.getLogger("stead.cli").error("a fault", exc_info=error)
    except OSError:
        return None
    return data / "logs" / "stead.log"
