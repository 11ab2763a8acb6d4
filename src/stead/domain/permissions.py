"""What was decided about each tool call: who allowed or denied it, when, and by which rule. The rules themselves come later."""

from __future__ import annotations

from typing import Literal

from stead.core.events import Fact, event
from stead.store.feature import Feature


@event("permission.decided")
class PermissionDecided(Fact):
    """`by` is `rule`, a person's actor, or `nobody` where no one could be asked; `rule` its text."""

    call: str
    tool: str
    action: Literal["allow", "deny"]
    by: str
    why: str
    rule: str | None = None


FEATURE = Feature("permissions")
