"""Errors that a person or a program meets: a stable code, one sentence, and where possible the next step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Every code that stead may show, with its meaning; docs/errors.md is checked against this table.
CODES: dict[str, str] = {
    "usage": "The command line or request was not understood.",
    "confirm_required": "The action needs a yes (`-y`) and nobody could be asked.",
    "not_found": "Something that was named does not exist.",
    "ambiguous": "A name or prefix fits more than one thing.",
    "no_key": "The provider needs a key and none is known.",
    "bad_key": "The provider refused the key.",
    "model_unknown": "The provider does not have this model.",
    "provider_unreachable": "No connection to the provider could be made.",
    "provider_error": "The provider answered with an error.",
    "rate_limited": "The provider asked to slow down and kept asking.",
    "stream_cut": "The answer broke off before the provider said that it was finished.",
    "content_filter": "The provider withheld the answer.",
    "context_full": "The conversation does not fit into the model's window.",
    "script_invalid": "A script file cannot be read.",
    "project_missing": "The project folder does not exist.",
    "not_trusted": "The project's own configuration has not been trusted.",
    "store_busy": "The store is held by another process.",
    "store_newer": "The store was written by a newer stead.",
    "store_damaged": "The store cannot be read.",
    "read_only": "The store or folder cannot be written.",
    "disk_full": "There is no space left on the disk.",
    "conflict": "The thing was changed by somebody else in the meantime.",
    "limit_steps": "The run used up its steps.",
    "limit_tokens": "The run used up its tokens.",
    "limit_cost": "The run used up its money.",
    "price_unknown": "A cost limit was given and the model's price is unknown.",
    "agent.bad_id": "An agent's id is not allowed.",
    "agent.broken": "An agent's file cannot be read.",
    "agent.last_active": "The last active agent cannot be removed.",
    "ask_closed": "The question was already answered or withdrawn.",
    "run_interrupted": "The program ended before the run was finished.",
    "bad_value": "A value cannot be stored (NaN, an integer over 64 bits, an oversized event).",
    "internal": "A fault in stead itself.",
}


class SteadError(Exception):
    """An error with a stable `code` (a key of `CODES`), a `message` of one sentence and optional JSON `details`.

    `hint` names the next step and is shown on a line of its own. Programs should look at `code` alone.
    """

    def __init__(self, code: str, message: str, *, hint: str | None = None, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        assert code in CODES, f"unlisted error code {code!r}"
        self.code = code
        self.message = message
        self.hint = hint
        self.details = dict(details) if details else None

    def to_json(self) -> dict[str, Any]:
        """`{"code", "message", "details"?}` as every surface of stead shows it."""
        shown: dict[str, Any] = {"code": self.code, "message": self.message}
        details = dict(self.details or {})
        if self.hint:
            details.setdefault("hint", self.hint)
        if details:
            shown["details"] = details
        return shown
