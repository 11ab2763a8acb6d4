"""What the gate says: one decision, made of the decisions about its parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from stead.agent.gate.rules import STRICT, Action, Rule


@dataclass(frozen=True, slots=True)
class PartDecision:
    """What was decided about one part of an input: a command, a redirection, a path."""

    text: str
    action: Action
    rule: Rule | None = None

    def to_json(self) -> dict[str, Any]:
        return {"text": self.text, "decision": self.action, "rule": self.rule.text if self.rule else None}


@dataclass(frozen=True, slots=True)
class Decision:
    """What the gate says. `rule` is the one that decided, None where a default did; `why` is a sentence for a person."""

    action: Action
    rule: Rule | None
    why: str
    parts: list[PartDecision] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """`{"decision","rule","why","parts":[{"text","decision","rule"}]}`."""
        parts = [part.to_json() for part in self.parts]
        return {"decision": self.action, "rule": self.rule.text if self.rule else None, "why": self.why, "parts": parts}


def strictest(parts: Iterable[PartDecision]) -> PartDecision | None:
    """The part that decides for the whole; among equals the first, one with a rule before one without."""
    worst: PartDecision | None = None
    for part in parts:
        if worst is None or (STRICT[part.action], part.rule is not None) > (STRICT[worst.action], worst.rule is not None):
            worst = part
    return worst


def reason(action: Action, rule: Rule | None, default: str) -> str:
    """The sentence that tells a person who decided."""
    if rule is None:
        return default
    origin = f" ({rule.origin})" if rule.origin else ""
    verb = {"allow": "allows it", "ask": "asks", "deny": "denies it"}[action]
    return f"The {rule.layer} rule {rule.text}{origin} {verb}."
