"""Hooks that record what a run reported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from osmosis_ai.evaluation.hooks import RunHooks
from osmosis_ai.evaluation.manifest import RunPlan


class RecordingHooks(RunHooks):
    """Records plans and notes, and has the values of secrets."""

    def __init__(self, secret_values: Mapping[str, str] | None = None) -> None:
        self.plans: list[RunPlan] = []
        self.notes: list[str] = []
        self._secret_values = dict(secret_values or {})

    def plan(self, plan: RunPlan) -> None:
        self.plans.append(plan)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self._secret_values[name] for name in names}
