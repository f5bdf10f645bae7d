"""Outcome of an agent loop, stored under a reserved key of the sample's ``extra_fields``.

Malformed values under the key, such as those of a user's grader, are ignored.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DETAILS_KEY = "agent_loop"

CANCELLED = "cancelled"
"""Finish reason of a rollout that its server's shutdown ended; such a rollout is run again."""


@dataclass
class LoopOutcome:
    """How an agent loop ended, and its scores.

    Attributes:
        finish_reason: The agent's finish reason.
        scores: Score by eval function name, including the agent's own reward.
        unscored: Reason for each missing score.
    """

    finish_reason: str | None = None
    scores: dict[str, float] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)

    def to_fields(self) -> dict[str, Any]:
        """Return the ``extra_fields`` entry."""
        said = {"finish_reason": self.finish_reason, "scores": self.scores, "unscored": self.unscored}
        return {DETAILS_KEY: {name: value for name, value in said.items() if value}}


def read_outcome(extra_fields: Mapping[str, Any]) -> LoopOutcome:
    """Return the outcome stored in ``extra_fields``; empty if they are not from an agent loop."""
    said = extra_fields.get(DETAILS_KEY)
    if not isinstance(said, Mapping):
        return LoopOutcome()
    reason = said.get("finish_reason")
    scores = {
        name: float(value)
        for name, value in _table(said, "scores")
        if type(value) in (int, float) and abs(value) <= sys.float_info.max
    }
    unscored = {name: value for name, value in _table(said, "unscored") if isinstance(value, str)}
    return LoopOutcome(reason if isinstance(reason, str) else None, scores, unscored)


def _table(said: Mapping[str, Any], name: str) -> list[tuple[str, Any]]:
    table = said.get(name)
    return [(str(key), value) for key, value in table.items()] if isinstance(table, Mapping) else []
