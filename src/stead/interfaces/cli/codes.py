"""Exit codes: how it went, in one number."""

from __future__ import annotations

OUTCOMES = {"done": 0, "error": 1, "waiting": 5, "denied": 5, "limit": 6, "interrupted": 7, "aborted": 130}
SIGTERM = 143
PIPE = 141
"""Nobody reads stdout any more; what a shell gives for a program that SIGPIPE ended."""

_BY_CODE = {
    "usage": 2,
    "confirm_required": 2,
    "not_found": 3,
    "model_unknown": 3,
    "project_missing": 3,
    "no_key": 4,
    "bad_key": 4,
    "limit_steps": 6,
    "limit_tokens": 6,
    "limit_cost": 6,
    "run_interrupted": 7,
}


NEXT = {
    "model_unknown": "`stead provider models NAME` lists the models that a provider has.",
    "bad_key": "`stead provider add NAME --key-stdin` stores another key.",
    "provider_unreachable": "Is the address right and the server running? `stead provider test NAME` tries it.",
    "project_missing": "Name an existing folder with -C.",
    "script_invalid": "docs/script-models.md says what a script may hold.",
    "stream_cut": "What had come is kept; `stead run -c PROMPT` goes on.",
    "rate_limited": "Wait a while, or choose another model with -m.",
    "not_found": "`stead sessions list --all` and `stead provider list` show what there is.",
    "ambiguous": "Name it by more letters of its id.",
    "no_key": "`stead provider add NAME --key-stdin` stores a key; --key-env names its variable.",
    "disk_full": "Free some space, then try again; nothing that was stored is lost.",
    "conflict": "Look at it as it is now, then try again.",
}
"""The next step for an error that names none of its own."""


def of_error(code: str) -> int:
    """The exit code for an error code, 1 for most."""
    return _BY_CODE.get(code, 1)


def of_run(outcome: str, code: str | None) -> int:
    """The exit code for a run's outcome; an error is told apart by its code. What was not run right is never a usage error."""
    if outcome == "error" and code is not None:
        return {2: 1}.get(of_error(code), of_error(code))
    return OUTCOMES.get(outcome, 1)
