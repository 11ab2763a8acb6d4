"""JSON schemas as Gemini takes them: the small OpenAPI dialect, without references."""

from __future__ import annotations

from typing import Any

_KEPT = ("description", "minItems", "maxItems", "minimum", "maximum", "minLength", "maxLength", "pattern", "nullable")
_FORMATS = {"string": ("enum", "date-time"), "integer": ("int32", "int64"), "number": ("float", "double")}
_DEPTH = 12  # references that lead back to themselves are followed so far


def cleaned(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with the same meaning as far as Gemini can express it; what it cannot is left out, never refused."""
    definitions = {**(schema.get("definitions") or {}), **(schema.get("$defs") or {})}
    return _clean(schema, definitions, 0)


def _clean(schema: Any, definitions: dict[str, Any], depth: int) -> dict[str, Any]:
    if not isinstance(schema, dict) or depth > _DEPTH:
        return {"type": "string"} if depth > _DEPTH else {}
    schema = _resolved(schema, definitions)
    kept = {name: schema[name] for name in _KEPT if name in schema}
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds] if kinds else []
    if "null" in kinds:
        kept["nullable"] = True
        kinds = [kind for kind in kinds if kind != "null"]
    choices = [choice for choice in schema.get("anyOf") or schema.get("oneOf") or () if isinstance(choice, dict)]
    if len(kinds) > 1:
        choices = [{**schema, "type": kind} for kind in kinds]
    if choices:
        return _chosen(kept, choices, definitions, depth)
    kind = kinds[0] if kinds else _guessed(schema)
    kept["type"] = kind
    _add_values(kept, schema, kind)
    if kind == "object":
        _add_properties(kept, schema, definitions, depth)
    elif kind == "array":
        kept["items"] = _clean(schema.get("items"), definitions, depth + 1) or {"type": "string"}
    return kept


def _resolved(schema: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """`schema` with its reference and `allOf` written out."""
    for _ in range(_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            break
        target = definitions.get(reference.rsplit("/", 1)[-1])
        schema = {**(target if isinstance(target, dict) else {}), **{k: v for k, v in schema.items() if k != "$ref"}}
    for piece in schema.get("allOf") or ():
        piece = _resolved(piece, definitions) if isinstance(piece, dict) else {}
        joined = {**(schema.get("properties") or {}), **(piece.get("properties") or {})}
        required = [*(schema.get("required") or ()), *(piece.get("required") or ())]
        schema = {**piece, **schema, **({"properties": joined} if joined else {}), **({"required": required} if required else {})}
    return schema


def _chosen(kept: dict[str, Any], choices: list[dict[str, Any]], definitions: dict[str, Any], depth: int) -> dict[str, Any]:
    real = [choice for choice in choices if choice.get("type") != "null"]
    if len(real) < len(choices):
        kept["nullable"] = True
    if len(real) == 1:
        return {**_clean(real[0], definitions, depth + 1), **kept}
    return {**kept, "anyOf": [_clean(choice, definitions, depth + 1) for choice in real]} if real else {**kept, "type": "string"}


def _guessed(schema: dict[str, Any]) -> str:
    if "properties" in schema:
        return "object"
    if "items" in schema:
        return "array"
    value = schema.get("const", (schema.get("enum") or [""])[0])
    if isinstance(value, bool):
        return "boolean"
    return "integer" if isinstance(value, int) else "number" if isinstance(value, float) else "string"


def _add_values(kept: dict[str, Any], schema: dict[str, Any], kind: str) -> None:
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    values = [value for value in values if value is not None]
    if values and kind == "string":
        kept["enum"] = [str(value) for value in values]
    elif values:  # only strings may be enumerated: the others are told in words
        note = f"One of: {', '.join(map(str, values))}."
        kept["description"] = f"{kept['description']} {note}" if kept.get("description") else note
    if schema.get("format") in _FORMATS.get(kind, ()):
        kept["format"] = schema["format"]


def _add_properties(kept: dict[str, Any], schema: dict[str, Any], definitions: dict[str, Any], depth: int) -> None:
    properties = schema.get("properties")
    if not isinstance(properties, dict) or not properties:
        return
    kept["properties"] = {name: _clean(value, definitions, depth + 1) or {"type": "string"} for name, value in properties.items()}
    if required := [name for name in schema.get("required") or () if name in properties]:
        kept["required"] = list(dict.fromkeys(required))
