"""The permission gate: rules in, a decision out. Pure but for resolving paths; asking, keeping and logging are done by others."""

from stead.agent.gate.commands import written_outside
from stead.agent.gate.decision import Decision, PartDecision
from stead.agent.gate.judge import judge, path_denied
from stead.agent.gate.paths import places
from stead.agent.gate.rules import Action, Layer, Rule, broad, parse
from stead.agent.gate.suggest import flag_for, generalise

__all__ = [
    "Action",
    "Decision",
    "Layer",
    "PartDecision",
    "Rule",
    "broad",
    "flag_for",
    "generalise",
    "judge",
    "parse",
    "path_denied",
    "places",
    "written_outside",
]
