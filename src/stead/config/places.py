"""Where things lie: the data folder and the configuration folder of a person."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def data_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The data folder: `STEAD_DATA`, else the platform's per-user data directory. It need not exist."""
    return _place("STEAD_DATA", environ) or Path(_platform("user_data_dir"))


def config_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """The configuration folder: `STEAD_CONFIG`, else the platform's per-user configuration directory. It need not exist."""
    return _place("STEAD_CONFIG", environ) or Path(_platform("user_config_dir"))


def _place(variable: str, environ: Mapping[str, str]) -> Path | None:
    text = environ.get(variable, "").strip()
    return Path(text).expanduser().absolute() if text else None


def _platform(what: str) -> str:
    import platformdirs

    return str(getattr(platformdirs, what)("stead", appauthor=False))
