"""`osmosis train watch`: how far a training run of the platform is, and how its numbers have gone so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from osmosis_ai.services.runs.lifecycle import TERMINAL

if TYPE_CHECKING:
    from osmosis_ai.api.client import PlatformClient
    from osmosis_ai.api.wire.training_runs import TrainingMetrics, TrainingRunDetail

_STEP_TIME = "time/step_s"  # every step has it


@dataclass(frozen=True)
class SeenTraining:
    """A training run at one moment; ``metrics`` is None while there are none."""

    detail: TrainingRunDetail
    metrics: TrainingMetrics | None = None

    @property
    def ended(self) -> bool:
        """Whether the run will not change any more."""
        return self.detail.training_run.status in TERMINAL["train"]

    def values(self, key: str) -> Sequence[float]:
        """Return the values of a metric, step by step."""
        return [value for _, value in points(self.metrics, key)]

    def latest(self, key: str) -> float | None:
        """Return the last value of a metric."""
        values = self.values(key)
        return values[-1] if values else None

    def of_last_step(self, key: str) -> float | None:
        """Return the value of a metric that the run's last step has."""
        measured = points(self.metrics, key)
        last = max((step for step, _ in points(self.metrics, _STEP_TIME)), default=None)
        return measured[-1][1] if measured and measured[-1][0] == last else None


def points(metrics: TrainingMetrics | None, key: str) -> list[tuple[int, float]]:
    """Return (step, value) of every step at which a metric was measured."""
    for series in metrics.metrics if metrics else ():
        if series.metric_key == key:
            return [(point.step, point.value) for point in series.data_points if point.value is not None]
    return []


class TrainingLook:
    """Asks how a training run stands, again and again; for its curves, which grow long, once a step.

    Args:
        client: the platform.
        name: the run's name or id.
    """

    def __init__(self, client: PlatformClient, name: str) -> None:
        self._client = client
        self._name = name
        self._step: int | None = None
        self._metrics: TrainingMetrics | None = None

    def __call__(self) -> SeenTraining:
        from osmosis_ai.api.http_errors import PlatformError
        from osmosis_ai.services.runs.lifecycle import is_away

        detail = self._client.training_runs.get(self._name)
        run = detail.training_run
        self._name = run.id
        if run.current_step is not None and run.current_step != self._step:
            try:
                self._metrics = self._client.training_runs.metrics(run.id)
            except PlatformError as error:
                # A platform without metrics still says how far the run is.
                if is_away(error):
                    raise
            self._step = run.current_step
        return SeenTraining(detail, self._metrics)
