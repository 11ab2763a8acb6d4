from __future__ import annotations

from typing import Any, NotRequired, get_args, get_origin, get_type_hints

import pytest

from stead.core import parts
from stead.core.parts import NO_TOKENS, issue, known

SOUND: list[dict[str, Any]] = [
    {"type": "text", "text": ""},
    {"type": "reasoning", "text": "", "meta": {"family": "anthropic", "redacted": "b64"}},
    {"type": "tool", "call": "c1", "tool": "read", "arguments": "{", "status": "pending"},
    {"type": "file", "name": "a.png", "mime": "image/png", "kind": "image", "size": 3},
    {"type": "patch", "files": []},
    {"type": "patch", "files": [{"path": "a", "additions": 1, "deletions": 0}]},
    {"type": "step", "model": "p/m", "tokens": dict(NO_TOKENS), "cost": None, "finish": "stop"},
    {"type": "step", "model": "p/m", "tokens": dict(NO_TOKENS), "cost": 0, "finish": "stop"},
    {"type": "step", "model": "p/m", "tokens": {**NO_TOKENS, "later": 1}, "cost": 0.25, "finish": "stop"},
    {"type": "knowledge", "pages": [{"title": "t", "url": "u"}]},
    {"type": "compaction", "removed": 3, "summary": "s"},
    {"type": "notice", "code": "run_interrupted", "text": "t"},
    {"type": "unknown", "original": {"type": "hologram"}},
    {"type": "text", "text": "t", "field of tomorrow": [1]},
]


@pytest.mark.parametrize("part", SOUND, ids=lambda part: part["type"])
def test_sound_parts_have_no_issue(part: dict[str, Any]) -> None:
    assert known(part)
    assert issue(part) is None


@pytest.mark.parametrize("part", SOUND, ids=lambda part: part["type"])
def test_each_missing_or_mistyped_field_is_named(part: dict[str, Any]) -> None:
    optional = {"type", "meta", "original", "field of tomorrow"}
    for name in part.keys() - optional:
        without = {key: value for key, value in part.items() if key != name}
        assert issue(without) == {"path": name, "message": "missing"}
        found = issue({**part, name: True})
        assert found and found["path"] == name and "bool" in found["message"]


@pytest.mark.parametrize(
    "part, path",
    [
        ({"type": "step", "model": "m", "tokens": {}, "cost": None, "finish": "stop"}, "tokens.input"),
        ({"type": "step", "model": "m", "tokens": {**NO_TOKENS, "output": 1.5}, "cost": None, "finish": "stop"}, "tokens.output"),
        ({"type": "step", "model": "m", "tokens": [], "cost": None, "finish": "stop"}, "tokens"),
        ({"type": "step", "model": "m", "tokens": dict(NO_TOKENS), "cost": "1", "finish": "stop"}, "cost"),
        (
            {"type": "patch", "files": [{"path": "a", "additions": 1, "deletions": 0}, {"path": "b", "additions": 1}]},
            "files[1].deletions",
        ),
        ({"type": "patch", "files": ["a"]}, "files[0].path"),
        ({"type": "patch", "files": [None]}, "files[0].path"),
        ({"type": "knowledge", "pages": [{"title": "t", "url": None}]}, "pages[0].url"),
    ],
)
def test_the_path_of_an_issue_leads_into_the_part(part: dict[str, Any], path: str) -> None:
    found = issue(part)
    assert found is not None and found["path"] == path


@pytest.mark.parametrize("part", [{"type": "hologram"}, {"type": None}, {"type": ["text"]}, {"type": {}}, {}, [], None, "text", 3])
def test_what_this_version_does_not_know_is_not_known(part: Any) -> None:
    assert not known(part)


def test_the_fields_that_are_checked_are_the_fields_of_the_types() -> None:
    for shape in get_args(parts.Part):
        (kind,) = get_args(get_type_hints(shape)["type"])
        hints = get_type_hints(shape, include_extras=True)
        required = {name for name, hint in hints.items() if get_origin(hint) is not NotRequired}
        assert set(parts._FIELDS[kind]) == required - {"type", "original"}
    assert set(parts._FIELDS) == {get_args(get_type_hints(shape)["type"])[0] for shape in get_args(parts.Part)}
