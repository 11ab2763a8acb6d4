"""When to try a failed model call again: a pure rule, so that the loop waits where a person can see and stop it."""

from __future__ import annotations

from collections.abc import Callable

from stead.agent.models.base import ProviderError

ATTEMPTS = 5
UNREACHABLE_ATTEMPTS = 2
LONGEST = 120.0
"""A provider that asks to wait longer than this many seconds is not waited for."""

_FIRST, _MOST = 1.0, 60.0


def delay(
    error: ProviderError,
    attempt: int,
    *,
    jitter: Callable[[], float],
    attempts: int = ATTEMPTS,
    longest: float = LONGEST,
) -> float | None:
    """Seconds to wait after the failure of attempt number `attempt` (from 1), None to give up. `jitter` gives numbers from 0 to
    1; they spread the waits so that many clients do not come back at once. What the provider asked for is a lower bound."""
    if error.code == "provider_unreachable":
        attempts = min(attempts, UNREACHABLE_ATTEMPTS)  # most often a wrong address, which no patience mends
    if not error.retryable or attempt >= attempts:
        return None
    spread = min(max(jitter(), 0.0), 1.0)
    if error.retry_after is not None:
        if error.retry_after > longest:
            return None
        # A server that asks for no wait, or too short a one, and refuses again, is not asked as fast as it can refuse.
        asked = error.retry_after + spread * min(1.0, error.retry_after / 10)
        return max(asked, _own(attempt - 1, spread)) if attempt > 1 else asked
    return _own(attempt, spread)


def _own(attempt: int, spread: float) -> float:
    return min(_MOST, _FIRST * 2.0 ** min(attempt - 1, 30)) * (0.5 + spread / 2)
