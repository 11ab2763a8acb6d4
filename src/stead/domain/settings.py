"""Settings in layers: built-in < the person's config.toml < global < project < session < a flag. The nearest that has it wins.

Only changed keys are stored. config.toml is read by `config/layers.py` and handed in; flags come from the caller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from stead.core.errors import SteadError
from stead.core.events import Event, Fact, event
from stead.core.jsontext import dumps, loads
from stead.store.database import Reads
from stead.store.feature import Feature
from stead.store.log import Tx

Layer = Literal["global", "project", "session"]
Origin = Literal["default", "file", "global", "project", "session", "flag"]
Kind = Literal["text", "model", "count", "money", "choice", "zone", "retention"]
LEAST_FILE_BYTES = 2_000_000


@dataclass(frozen=True, slots=True)
class Key:
    """A setting: its kind, what holds where nobody set it (None: see `doc`), and for a choice what may be chosen."""

    kind: Kind
    default: Any
    doc: str
    choices: tuple[str, ...] = ()


KEYS: dict[str, Key] = {
    "model": Key("model", None, "The model of new sessions, as provider/model. Unset: the first one of the first provider."),
    "small_model": Key("model", None, "The model for titles and summaries, as provider/model. Unset: the session's own."),
    "agent": Key("text", None, "The agent of new sessions. Unset: the built-in one."),
    "mode": Key("choice", "manual", "How much is asked before something is done.", ("manual", "plan", "full")),
    "max_steps": Key("count", None, "The most model calls that a run may make. Unset: the agent's own limit."),
    "max_cost": Key("money", None, "The most dollars that a run may cost. Unset: no limit."),
    "on_ask": Key(
        "choice",
        None,
        "What happens when nobody can be asked. Unset: ask on a terminal, else deny.",
        ("deny", "allow", "wait"),
    ),
    "sandbox": Key(
        "choice", "auto", "Whether commands run in the system's sandbox: auto takes one where there is one.", ("auto", "on", "off")
    ),
    "language": Key("text", None, "The language of answers and titles, such as `de`. Unset: that of the prompt."),
    "timezone": Key("zone", None, "The time zone for days and schedules, such as Europe/Vienna. Unset: the system's."),
    "retention": Key(
        "retention",
        "keep",
        "How long a session's undo data lives: keep, trim-100-30, or limits such as `messages:100 days:30 bytes:1000000000`.",
    ),
    "undo.max_file_bytes": Key(
        "count",
        1 << 30,
        "The largest file whose content is kept before it changes; a larger one cannot be taken back. At least 2,000,000.",
    ),
    "undo.capture": Key(
        "choice", "on", "Whether files that git does not hold are read before a command may change them.", ("on", "off")
    ),
    "undo.capture_file_bytes": Key("count", 1 << 20, "The largest file that is read for that."),
    "undo.capture_bytes": Key("count", 64 << 20, "The most bytes that are read for that in a project."),
    "undo.capture_files": Key("count", 5_000, "The most files that are read for that in a project."),
    "undo.skip": Key("text", None, "Paths that are not read for that, as patterns of a .gitignore with blanks between them."),
    "undo.transaction": Key(
        "choice",
        "off",
        "Whether a command runs on an overlay of the project, and what it changed is applied at once or after asking.",
        ("off", "ask", "apply"),
    ),
    "compaction": Key("choice", "auto", "Whether older turns are summarised when the model's window gets full.", ("auto", "off")),
    "attachments.on_delete": Key(
        "choice", "free", "What becomes of the files of a deleted conversation that nothing else uses.", ("free", "keep")
    ),
}

FAMILIES: dict[str, Key] = {
    "context_window": Key(
        "count", None, "context_window.PROVIDER/MODEL: the window of that model in tokens, where stead does not know it."
    ),
}
"""Keys that are followed by a model reference: `context_window.ollama/qwen3`."""


@event("settings.changed")
class SettingsChanged(Fact):
    """One layer changed: `values` were set, `removed` were unset. `id` is the project or session, empty for global."""

    layer: str
    id: str
    values: dict[str, Any]
    removed: list[str]


FEATURE = Feature(
    "settings",
    tables={
        "settings": "layer TEXT NOT NULL, id TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, updated BIGINT NOT NULL,"
        " PRIMARY KEY(layer, id, key)",
    },
)


@FEATURE.projects(SettingsChanged)
def _changed(tx: Tx, e: Event[SettingsChanged]) -> None:
    d = e.data
    for key, value in d.values.items():
        tx.q(
            "INSERT INTO settings(layer, id, key, value, updated) VALUES(?,?,?,?,?)"
            " ON CONFLICT(layer, id, key) DO UPDATE SET value=excluded.value, updated=excluded.updated",
            *(d.layer, d.id, key, dumps(value).decode(), e.ts),
        )
    for key in d.removed:
        tx.q("DELETE FROM settings WHERE layer=? AND id=? AND key=?", d.layer, d.id, key)


# --- keys and values: what is allowed -----------------------------------------------------------------------------------------


def key_of(name: str) -> Key:
    """What is known of a key. Raises `usage` naming the nearest ones."""
    if name in KEYS:
        return KEYS[name]
    family, _, model = name.partition(".")
    if family in FAMILIES:
        if "/" in model:
            return FAMILIES[family]
        raise SteadError("usage", f"{family} is set for one model: `{family}.PROVIDER/MODEL`.")
    from difflib import get_close_matches

    near = get_close_matches(name, [*KEYS, *FAMILIES], n=3, cutoff=0.5)
    hint = f"Did you mean {' or '.join(near)}?" if near else f"The keys are: {', '.join([*KEYS, *FAMILIES])}."
    raise SteadError("usage", f"There is no setting {name!r}.", hint=hint, details={"key": name, "near": near})


def parse(name: str, text: str) -> Any:
    """The value that `text` (a command line's) means for this key. Raises `usage` for an unknown key or a value of another kind."""
    kind = key_of(name).kind
    plain = text.strip()
    value: Any = plain
    if kind == "count" and plain.replace("_", "").isascii() and plain.replace("_", "").isdigit():
        value = int(plain.replace("_", ""))
    elif kind == "money":
        try:
            value = float(plain.removeprefix("$"))
        except ValueError:
            value = plain
    return check(name, value)


def check(name: str, value: Any) -> Any:
    """`value` as it is stored, if it is of the key's kind. Raises `usage` for an unknown key or a value of another kind."""
    key = key_of(name)
    wrong = _wrong(name, key, value)
    if wrong:
        shown = value if isinstance(value, (str, int, float)) else type(value).__name__
        raise SteadError("usage", f"{name} must be {wrong}, not {shown!r}.", details={"key": name})
    return float(value) if key.kind == "money" else value


def _wrong(name: str, key: Key, value: Any) -> str | None:
    """What a value of this kind must be, None if it is."""
    if name == "undo.max_file_bytes" and isinstance(value, int) and value < LEAST_FILE_BYTES:
        return f"at least {LEAST_FILE_BYTES:,} bytes"
    if key.kind == "count":
        fits = isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 53
        return None if fits else "a whole number above 0"
    if key.kind == "money":
        fits = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e12
        return None if fits else "a number of dollars, 0 or more"
    text = value if isinstance(value, str) and value.strip() and value.isprintable() else ""
    if key.kind == "choice":
        return None if text in key.choices else f"one of {', '.join(key.choices)}"
    if key.kind == "model":
        provider, _, model = text.partition("/")
        return None if provider and model else "a model reference, provider/model"
    if key.kind == "retention":
        return None if text == "keep" or _limits(text) is not None else "keep, trim-100-30, or limits such as messages:100 days:30"
    if key.kind == "zone":
        return None if text and _zone(text) else "a time zone such as Europe/Vienna or UTC"
    return None if text else "a text on one line"


@dataclass(frozen=True, slots=True)
class Retention:
    """What a session keeps undo data of: its newest user messages, the last days, the newest bytes; whichever is least. None: no
    limit."""

    messages: int | None = None
    days: int | None = None
    bytes: int | None = None


def retention_of(text: str) -> Retention | None:
    """What a value of the setting `retention` keeps; None when that is everything. Raises `usage` for what is no such value."""
    return _limits(check("retention", text))


def _limits(text: str) -> Retention | None:
    if text == "trim-100-30":
        return Retention(100, 30)
    found: dict[str, int] = {}
    for part in text.split():
        name, _, number = part.partition(":")
        number = number.replace("_", "")
        whole = number.isascii() and number.isdigit() and len(number) < 16 and int(number) > 0
        if name not in ("messages", "days", "bytes") or name in found or not whole:
            return None
        found[name] = int(number)
    return Retention(**found) if found else None


def retained(view: Reads) -> bool:
    """Whether any layer in the store says something else of `retention` than to keep all."""
    return view.one("SELECT 1 FROM settings WHERE key='retention' AND value<>? LIMIT 1", dumps("keep").decode()) is not None


def _zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (KeyError, OSError, ValueError):  # unknown, a folder of zones, no name at all
        return False
    return True


# --- commands -----------------------------------------------------------------------------------------------------------------


def change(
    tx: Tx, *, layer: Layer = "global", id: str = "", values: Mapping[str, Any] | None = None, removed: Iterable[str] = ()
) -> bool:
    """Set and unset keys of one layer (`id`: of the project or session); False, and no event, when nothing changes.

    Raises `usage` for an unknown key or a wrong value; then nothing is changed. The caller knows that the project exists.
    """
    if bool(id) != (layer != "global"):
        raise SteadError("usage", "The global settings have no id; those of a project or session need one.")
    have = stored(tx, layer, id)
    new = {key: check(key, value) for key, value in (values or {}).items()}
    new = {key: value for key, value in new.items() if key not in have or have[key] != value}
    gone = [key for key in dict.fromkeys(removed) if (key in have or not key_of(key)) and key not in new]
    if not new and not gone:
        return False
    tx.append(id or "system", SettingsChanged(layer=layer, id=id, values=new, removed=gone))
    return True


def forget(tx: Tx, layer: Layer, id: str) -> None:
    """Drop the settings of a project or session whose stream is being deleted for good."""
    tx.q("DELETE FROM settings WHERE layer=? AND id=?", layer, id)


# --- queries ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Effective:
    """The value that holds, and the layer it comes from."""

    value: Any
    origin: Origin


def stored(view: Reads, layer: Layer, id: str = "") -> dict[str, Any]:
    """The keys that were changed in one layer, by name."""
    return {
        key: loads(value) for key, value in view.q("SELECT key, value FROM settings WHERE layer=? AND id=? ORDER BY key", layer, id)
    }


def effective(
    view: Reads,
    *,
    project: str | None = None,
    session: str | None = None,
    file_layer: Mapping[str, Any] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> dict[str, Effective]:
    """Every key with the value that holds for this session of this project, and where it comes from.

    `file_layer` is what config.toml says; a flag of None was not given. A key that this version does not know is passed over.
    """
    layers: list[tuple[Origin, Mapping[str, Any]]] = [("file", file_layer or {}), ("global", stored(view, "global"))]
    if project:
        layers.append(("project", stored(view, "project", project)))
    if session:
        layers.append(("session", stored(view, "session", session)))
    layers.append(("flag", {key: value for key, value in (flags or {}).items() if value is not None}))
    found = {name: Effective(key.default, "default") for name, key in KEYS.items()}
    for origin, values in layers:
        for name, value in values.items():
            if name in KEYS or name.partition(".")[0] in FAMILIES:
                found[name] = Effective(value, origin)
    return found


def context_window(found: Mapping[str, Effective], model: str) -> int | None:
    """The window in tokens that somebody set for this model reference, None where nobody did."""
    entry = found.get(f"context_window.{model}")
    return int(entry.value) if entry else None
