"""The person's own config.toml: the lowest layer of settings above what is built in. It is only ever read.

A file that is missing or empty says nothing. One that is broken is reported with file, line and column, and whoever needs what
it may have said (rules, settings, the secret's place) gets that error instead of a guess: nothing is permitted by a mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stead.core.errors import SteadError

FILE_NAME = "config.toml"
SECTIONS = ("permissions", "hooks", "mcp", "secret_file")
"""What config.toml may hold beside settings; each is read by the part of stead that it is for."""

_LARGEST = 1 << 20

Check = Callable[[str, Any], Any]


@dataclass(frozen=True, slots=True)
class UserFile:
    """What config.toml says. `problem` is set for a broken file; then every question to it raises that."""

    path: Path
    problem: SteadError | None = None
    _settings: Mapping[str, Any] = field(default_factory=dict)
    _sections: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings by their dotted name, for `settings.effective(file_layer=...)`. Raises `usage` for a broken file."""
        self._sound()
        return self._settings

    @property
    def secret_file(self) -> Path | None:
        """The file with the application secret, relative to the configuration folder. Raises `usage` for a broken file."""
        named = self.section("secret_file")
        return self.path.parent / Path(named).expanduser() if named else None

    def section(self, name: str) -> Any:
        """A part of the file that is no setting, None where it is not there. Raises `usage` for a broken file."""
        self._sound()
        return self._sections.get(name)

    def _sound(self) -> None:
        if self.problem is not None:
            raise self.problem


def load(config_dir: Path, *, check: Check) -> UserFile:
    """Read config.toml of this folder. Never raises for what is in it: see `UserFile.problem`.

    `check(name, value)` gives the value as it is stored and raises `usage` for what is none: domain's `settings.check`.
    """
    path = config_dir / FILE_NAME
    try:
        text = _text(path)
        if text is None:
            return UserFile(path)
        values = _parsed(path, text)
        return _sorted_out(path, text, values, check)
    except SteadError as problem:
        return UserFile(path, problem)


def _text(path: Path) -> str | None:
    from stead.store.safefile import read_bytes

    try:
        raw = read_bytes(path, _LARGEST + 1)
    except SteadError as error:
        if error.code == "not_found":
            return None
        raise SteadError("usage", f"{path} cannot be read: {error.message}", details={"path": str(path)}) from None
    if len(raw) > _LARGEST:
        raise _broken(path, 1, 1, f"the file is larger than {_LARGEST:,} bytes")
    raw = raw.removeprefix(b"\xef\xbb\xbf").rstrip(b"\0")  # a power cut may leave NUL bytes behind the text
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode()
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise _broken(path, line, column, "this is not UTF-8") from None


def _parsed(path: Path, text: str) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a whole number with more digits than Python reads
        what = str(error) or "nested too deeply"
        at = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", what)
        lines = text.splitlines() or [""]
        line, column = (int(at[1]), int(at[2])) if at and at[1] else (len(lines), len(lines[-1]) + 1)
        raise _broken(path, line, column, what[: at.start()] if at else what) from None


def _sorted_out(path: Path, text: str, values: dict[str, Any], check: Check) -> UserFile:
    """Tell settings and sections apart; the first thing that is neither, or of another kind, makes the file a broken one."""
    settings: dict[str, Any] = {}
    for name, value in _flat(values):
        try:
            settings[name] = check(name, value)
        except SteadError as error:
            line, column = _where(text, name)
            hint = f" {error.hint}" if error.hint else ""
            raise _broken(path, line, column, error.message + hint) from None
    secret_file = values.get("secret_file")
    if secret_file is not None and (not isinstance(secret_file, str) or not secret_file):
        raise _broken(path, *_where(text, "secret_file"), "secret_file must be the path of a file.")
    return UserFile(path, None, settings, {name: values[name] for name in SECTIONS if name in values})


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Settings with dotted names: tables opened, sections left out."""
    found = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.") if prefix or name not in SECTIONS else []
        elif prefix or name not in SECTIONS:
            found.append((f"{prefix}{name}", value))
    return found


def _where(text: str, name: str) -> tuple[int, int]:
    """Line and column of a key by its last word, for people; tomllib does not tell. (1, 1) when it is not found."""
    for word in (name, name.partition(".")[2], name.rpartition(".")[2], name.partition(".")[0]):
        at = re.search(rf"""^[ \t\[]*["']?{re.escape(word)}["']?[ \t]*[=.\]]""", text, re.MULTILINE) if word else None
        if at:
            start = at.start() + len(at[0]) - len(at[0].lstrip(" \t["))
            return text.count("\n", 0, start) + 1, start - text.rfind("\n", 0, start)
    return 1, 1


def _broken(path: Path, line: int, column: int, what: str) -> SteadError:
    return SteadError(
        "usage",
        f"{path}:{line}:{column}: {what.rstrip('.')}.",
        hint="Nothing in this file takes effect until it is mended.",
        details={"path": str(path), "line": line, "column": column},
    )
