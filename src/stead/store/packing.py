"""Long strings of a JSON value moved into blobs, and put back. Pure: `Blobs.pack` and `Blobs.resolve` store and fetch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from stead.core.text import cut_bytes

MOVED_TEXT_BYTES = 8 << 10
HEAD_BYTES = 1 << 10
# A packed value stays well below the cap of an event, whatever stands beside it.
PACKED_BYTES = 48 << 10


def packed(value: Any) -> tuple[Any, dict[str, bytes]]:
    """The value with references (`{"$blob", "size", "head"}`) in the place of strings over 8 KiB, of shorter ones where there are
    many, and in the end of its largest lists and objects; and what they refer to, by hash."""
    from stead.core.jsontext import dumps

    best: tuple[int, Any, dict[str, bytes]] | None = None
    for limit in (MOVED_TEXT_BYTES, 2 << 10, 512):
        moved: dict[str, bytes] = {}
        tried = _move(value, limit, moved)
        size = len(dumps(tried))
        if best is None or size < best[0]:
            best = (size, tried, moved)
        if best[0] <= PACKED_BYTES:
            break
    assert best is not None
    size, tried, moved = best
    while size > PACKED_BYTES and isinstance(tried, dict) and (name := _largest(tried)) is not None:
        raw = dumps(tried[name])
        digest = hashlib.sha256(raw).hexdigest()
        moved[digest] = raw
        tried = {**tried, name: {"$blob": digest, "size": len(raw), "head": "", "json": True}}
        size = len(dumps(tried))
    return tried, moved


def unpacked(value: Any, get: Callable[[str], bytes]) -> Any:
    """Undo `packed`; `get` gives the content of a hash."""
    if isinstance(value, dict):
        if _is_reference(value):
            content = get(value["$blob"])
            if value.get("json"):
                from stead.core.jsontext import loads

                return unpacked(loads(content), get)
            return content.decode("utf-8", "surrogatepass")
        return {_unescaped(key): unpacked(item, get) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [unpacked(item, get) for item in value]
    return value


def _move(value: Any, limit: int, moved: dict[str, bytes]) -> Any:
    """`value` with references in the place of strings over `limit` bytes, which are added to `moved` with their hashes."""
    if isinstance(value, str) and len(value) * 4 > limit:
        raw = value.encode("utf-8", "surrogatepass")
        if len(raw) <= limit:
            return value
        digest = hashlib.sha256(raw).hexdigest()
        moved[digest] = raw
        return {"$blob": digest, "size": len(raw), "head": cut_bytes(value, min(HEAD_BYTES, limit // 4))}
    if isinstance(value, dict):
        return {_escaped(key): _move(item, limit, moved) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_move(item, limit, moved) for item in value]
    return value


def _largest(value: dict[str, Any]) -> str | None:
    """The largest list or object that an object holds, if there is one that is not moved yet."""
    from stead.core.jsontext import dumps

    held = [(len(dumps(item)), key) for key, item in value.items() if isinstance(item, (dict, list, tuple))]
    held = [(size, key) for size, key in held if not (isinstance(value[key], dict) and _is_reference(value[key]))]
    return max(held)[1] if held else None


def _is_reference(value: dict[str, Any]) -> bool:
    return isinstance(value.get("$blob"), str)


def _escaped(key: Any) -> Any:
    """A key of the value's own that looks like ours gets one more `$`; `resolve` takes it away again."""
    return f"${key}" if isinstance(key, str) and key.startswith("$") and key.lstrip("$") == "blob" else key


def _unescaped(key: Any) -> Any:
    return key[1:] if isinstance(key, str) and key.startswith("$$") and key.lstrip("$") == "blob" else key
