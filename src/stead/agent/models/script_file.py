"""Reading a script file strictly: an unknown key or a value of the wrong kind is told with file and line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from stead.agent.models.base import Finish
from stead.core.errors import SteadError
from stead.core.jsontext import dump_foreign
from stead.core.parts import NO_TOKENS, Tokens

FaultKind = Literal["disconnect", "http_429", "http_500", "truncate", "hang"]
CHUNK = 32
"""Characters a delta where a turn does not say."""

_KINDS = ("disconnect", "http_429", "http_500", "truncate", "hang")
_FINISHES = ("stop", "tool_calls", "length", "content_filter")


@dataclass(frozen=True, slots=True)
class Fault:
    """What goes wrong after `after` characters of text, the first `times` times."""

    kind: FaultKind
    after: int = 0
    retry_after: float | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class ScriptTurn:
    """One answer. `tools` are (name, text of the arguments); `silent`: the script says `usage: null`."""

    reasoning: str = ""
    text: str = ""
    tools: tuple[tuple[str, str], ...] = ()
    usage: Tokens | None = None
    silent: bool = False
    chunk: int = CHUNK
    delay_ms: float = 0
    finish: Finish | None = None
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Script:
    """A script file as read: general turns, and those for prompts that a pattern fits."""

    path: str
    turns: tuple[ScriptTurn, ...] = ()
    prompts: tuple[tuple[str, tuple[ScriptTurn, ...]], ...] = field(default=())


def read(path: Path) -> Script:
    """The script in `path`. Raises `script_invalid` with file and line, `not_found` when there is no such file."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        raise SteadError("not_found", f"There is no script file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SteadError("script_invalid", f"{path} cannot be read: {error}.") from None
    return parse(text, str(path))


def parse(text: str, name: str = "script") -> Script:
    """The script in `text`; `name` is used in errors."""
    node = _load(text, name)
    place = _Place(name, node, None)
    root = place.mapping({"turns", "prompts"})
    if not root:
        place.fail("A script needs `turns:` or `prompts:`")
    prompts = [_prompt(item) for item in place.items("prompts")]
    return Script(name, tuple(_turn(item) for item in place.items("turns")), tuple(prompts))


@dataclass(frozen=True, slots=True)
class _Place:
    """A value in the file with the line on which it stands (its own, or that of what holds it)."""

    file: str
    value: Any
    line: int | None

    def fail(self, what: str) -> NoReturn:
        line = self.line or getattr(getattr(self.value, "lc", None), "line", 0) + 1
        raise SteadError("script_invalid", f"{self.file}, line {line}: {what}.", details={"file": self.file, "line": line})

    def at(self, key: Any) -> _Place:
        """The value under `key` of this mapping or sequence."""
        lines = self.value.lc.data or {}
        line = lines[key][0] + 1 if key in lines else self.line
        return _Place(self.file, self.value[key], line)

    def mapping(self, allowed: set[str]) -> Mapping[str, Any]:
        if not isinstance(self.value, Mapping):
            self.fail(f"{_kind(self.value)} where a mapping with {', '.join(sorted(allowed))} is needed")
        for key in self.value:
            if key not in allowed:
                self.at(key).fail(f"unknown key `{key}`; allowed are {', '.join(sorted(allowed))}")
        return cast(Mapping[str, Any], self.value)

    def items(self, key: str) -> list[_Place]:
        """The entries of the list under `key`; none when it is missing."""
        if key not in self.value:
            return []
        place = self.at(key)
        if not isinstance(place.value, list) or not place.value:
            place.fail(f"`{key}` must be a list with at least one entry")
        return [place.at(n) for n in range(len(place.value))]

    def text(self, key: str, default: str = "") -> str:
        if key not in self.value:
            return default
        if not isinstance(self.value[key], str):
            self.at(key).fail(f"`{key}` must be text, not {_kind(self.value[key])}")
        return str(self.value[key])

    def word(self, key: str, allowed: tuple[str, ...]) -> str | None:
        found = self.text(key)
        if key in self.value and found not in allowed:
            self.at(key).fail(f"`{key}` must be one of {', '.join(allowed)}")
        return found or None

    def number(self, key: str, default: float, *, least: float = 0, whole: bool = True) -> float:
        value = self.value.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not least <= value < 1e12:
            self.at(key).fail(f"`{key}` must be a {'whole ' if whole else ''}number of at least {least:g}")
        return int(value) if whole else float(value)


def _prompt(place: _Place) -> tuple[str, tuple[ScriptTurn, ...]]:
    given = place.mapping({"match", "turns"})
    for key in ("match", "turns"):
        if key not in given:
            place.fail(f"`{key}` is missing")
    pattern = place.text("match")
    try:
        re.compile(pattern)
    except re.error as error:
        place.at("match").fail(f"`match` is not a regular expression: {error}")
    return pattern, tuple(_turn(item) for item in place.items("turns"))


def _turn(place: _Place) -> ScriptTurn:
    keys = {"reasoning", "text", "tools", "usage", "chunk", "delay_ms", "finish", "fault"}
    given = place.mapping(keys)
    silent = "usage" in given and given["usage"] is None
    return ScriptTurn(
        reasoning=place.text("reasoning"),
        text=place.text("text"),
        tools=tuple(_tool(item) for item in place.items("tools")) if given.get("tools") != [] else (),
        usage=_usage(place.at("usage")) if "usage" in given and not silent else None,
        silent=silent,
        chunk=int(place.number("chunk", CHUNK, least=1)),
        delay_ms=place.number("delay_ms", 0, whole=False),
        finish=cast(Finish | None, place.word("finish", _FINISHES)),
        fault=_fault(place.at("fault")) if "fault" in given else None,
    )


def _tool(place: _Place) -> tuple[str, str]:
    given = place.mapping({"tool", "input"})
    if not place.text("tool"):
        place.fail("`tool` is missing")
    value = given.get("input", {})
    if isinstance(value, str):
        return place.text("tool"), str(value)
    if not isinstance(value, Mapping):
        place.at("input").fail(f"`input` must be a mapping (or text to send raw), not {_kind(value)}")
    try:
        return place.text("tool"), dump_foreign(_plain(value))
    except ValueError:
        place.at("input").fail("`input` has a number that JSON cannot hold")


def _usage(place: _Place) -> Tokens:
    place.mapping(set(NO_TOKENS))
    return cast(Tokens, {name: int(place.number(name, 0)) for name in NO_TOKENS})


def _fault(place: _Place) -> Fault:
    given = place.mapping({"kind", "after", "retry_after", "times"})
    if "kind" not in given:
        place.fail("`kind` is missing")
    return Fault(
        kind=cast(FaultKind, place.word("kind", _KINDS)),
        after=int(place.number("after", 0)),
        retry_after=place.number("retry_after", 0, whole=False) if "retry_after" in given else None,
        times=int(place.number("times", 1, least=1)),
    )


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true or false"
    return "a number" if isinstance(value, (int, float)) else "text"


def _plain(value: Any) -> Any:
    """The YAML library's own kinds as plain JSON kinds."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return None if value is None else str(value)


def _load(text: str, name: str) -> Any:
    """The document with line numbers on its mappings and lists."""
    from ruamel.yaml import YAML
    from ruamel.yaml.constructor import RoundTripConstructor
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    class Constructor(RoundTripConstructor):
        """YAML 1.2 knows no dates: what looks like one is text."""

    Constructor.add_constructor("tag:yaml.org,2002:timestamp", lambda loader, node: loader.construct_scalar(node))
    reader = YAML(typ="rt", pure=True)
    reader.Constructor = Constructor
    try:
        return reader.load(text)
    except YAMLError as error:
        mark = (error.problem_mark or error.context_mark) if isinstance(error, MarkedYAMLError) else None
        line = mark.line + 1 if mark else 1
        what = " ".join(str(getattr(error, "problem", None) or error).split())
        raise SteadError("script_invalid", f"{name}, line {line}: {what}.", details={"file": name, "line": line}) from None
