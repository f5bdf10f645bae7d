"""What a run told whoever started it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from osmosis_ai.evaluation.hooks import ProgressSnapshot, RunHooks
from osmosis_ai.evaluation.manifest import RunPlan


class RecordingHooks(RunHooks):
    """Remembers what it was told; declines when asked to."""

    def __init__(self, *, agrees: bool = True, secret_values: Mapping[str, str] | None = None) -> None:
        self.plans: list[RunPlan] = []
        self.notes: list[str] = []
        self.snapshots: list[ProgressSnapshot] = []
        self.asked: list[int] = []
        self.on_progress: Callable[[ProgressSnapshot], None] = lambda _: None
        self.interrupt: Callable[[], None] = lambda: None
        self._agrees = agrees
        self._secret_values = dict(secret_values or {})

    def plan(self, plan: RunPlan) -> None:
        self.plans.append(plan)

    def note(self, message: str) -> None:
        self.notes.append(message)

    def progress(self, snapshot: ProgressSnapshot) -> None:
        self.snapshots.append(snapshot)
        self.on_progress(snapshot)

    async def confirm_dispatch(self, *, pending: int, model_path: str) -> bool:
        self.asked.append(pending)
        return self._agrees

    def resolve_secrets(self, names: Sequence[str]) -> dict[str, str]:
        return {name: self._secret_values[name] for name in names}

    def started(self, interrupt: Callable[[], None]) -> None:
        self.interrupt = interrupt
