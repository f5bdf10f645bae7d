"""What an agent loop came to beside its reward, as it travels in a sample's ``extra_fields``.

It has a key of its own there. What else stands under that key, written by a grader of the user's, is read as nothing:
a score is a finite number under a name, and a reason is text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DETAILS_KEY = "agent_loop"

CANCELLED = "cancelled"
"""The finish reason of a rollout that ended with its server, and for no reason of its own: it is made again."""


@dataclass
class LoopOutcome:
    """How an agent loop ended, and what was made of it.

    Attributes:
        finish_reason: why it ended, in the agent's own word.
        scores: what each eval function gave, by its name; the agent's own reward is among them.
        unscored: why the others gave none.
    """

    finish_reason: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """Return the ``extra_fields`` that say it."""
        said = {"finish_reason": self.finish_reason, "scores": self.scores, "unscored": self.unscored}
        return {DETAILS_KEY: {name: value for name, value in said.items() if value}}


def read_outcome(extra_fields: Mapping[str, Any]) -> LoopOutcome:
    """Return what a sample's ``extra_fields`` say; empty where they are no agent loop's."""
    said = extra_fields.get(DETAILS_KEY)
    if not isinstance(said, Mapping):
        return LoopOutcome()
    reason = said.get("finish_reason")
    scores = {
        name: float(value)
        for name, value in _table(said, "scores")
        if type(value) in (int, float) and math.isfinite(value)
    }
    unscored = {name: value for name, value in _table(said, "unscored") if isinstance(value, str)}
    return LoopOutcome(reason if isinstance(reason, str) else None, scores, unscored)


def _table(said: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    table = said.get(name)
    return [(str(key), value) for key, value in table.items()] if isinstance(table, Mapping) else []
