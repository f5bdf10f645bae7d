"""Training runs: lists, details, metrics, checkpoints."""

from __future__ import annotations

import math
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from osmosis_ai.api.models.base import Named, Page, Timestamp, WireModel
from osmosis_ai.api.models.eval_runs import EvalSample, EvalSamplePage
from osmosis_ai.api.models.runs import DetailedRun, Run


def _finite_or_none(value: Any) -> float | None:
    """Read a number for display; an invalid one is ignored."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # A whole number beyond any float.
        return None


def _whole_or_none(value: Any) -> int | None:
    number = _finite_or_none(value)
    return None if number is None else int(number)


Measured = Annotated[float | None, BeforeValidator(_finite_or_none)]
"""A finite number; whatever else is sent counts as absent."""
Counted = Annotated[int | None, BeforeValidator(_whole_or_none)]
"""A whole number; whatever else is sent counts as absent."""


class TrainingRun(Run):
    """A run's own fields, as a list row or inside a detail; ``current_step`` counts rollout steps."""

    current_step: Counted = None
    total_steps: Counted = None
    reward: Measured = None


class NamedModel(WireModel):
    id: str | None = None
    model_name: str | None = None


class NamedFile(WireModel):
    id: str | None = None
    file_name: str | None = None


class TrainingRunRow(TrainingRun):
    model: NamedModel | None = None
    dataset: NamedFile | None = None
    rollout: Named | None = None


class TrainingRunList(Page[TrainingRunRow]):
    items: list[TrainingRunRow] = Field(alias="training_runs")


class DescribedTrainingRun(TrainingRun):
    examples_processed_count: Counted = None
    notes: str | None = None
    resumable: bool | None = None
    """Whether it can go on from a checkpoint; platforms without resuming omit it."""


class ResumeReply(WireModel):
    """A run that resumes after ``step``."""

    id: str
    name: str | None = None
    status: str = ""
    step: Counted = None


class TrainingRunDetail(DetailedRun):
    training_run: DescribedTrainingRun
    model: Named | None = None
    adapter: dict[str, str] | None = None
    """Which weights have an adapter, by label, once the run has started."""

    @property
    def run(self) -> DescribedTrainingRun:
        return self.training_run

    @property
    def model_name(self) -> str | None:
        return self.model.name if self.model else None


class MetricSummary(WireModel):
    """One metric in a line; ``delta`` is latest minus initial."""

    key: str
    title: str
    initial: Measured = None
    latest: Measured = None
    delta: Measured = None
    min: Measured = None
    max: Measured = None


class TrainingMetricsOverview(WireModel):
    duration_ms: Measured = None
    examples_processed_count: Counted = None
    latest_step: Counted = None
    total_steps: Counted = None
    metric_summaries: list[MetricSummary] = []


class MetricPoint(WireModel):
    """One value; ``timestamp`` is in milliseconds since 1970. A value that is no finite number is None."""

    step: int
    value: Measured = None
    timestamp: int


class MetricSeries(WireModel):
    metric_key: str
    title: str
    data_points: list[MetricPoint] = []


class ValidatedRows(WireModel):
    """The newest validation after ``step``: the mean reward of each row, by the digest of what the row is."""

    step: int
    rewards: dict[str, Measured] = {}


class ValidationPage(EvalSamplePage):
    """Samples of the newest validation, after ``step``, that are kept; only on our platform."""

    step: int | None = None
    total: Counted = None
    pass_threshold: Measured = None
    samples: list[EvalSample] = []


class ValidationConversation(WireModel):
    """The conversation of one of these samples: the trajectory's ``text``, or why it is ``missing``; ``size`` in bytes."""

    text: str | None = None
    size: int = Field(0, ge=0)
    missing: str | None = None


class TrainingMark(WireModel):
    """An event at a step: ``kind`` is ``restart`` or ``warning``, others may come."""

    step: Counted = None
    kind: str = ""
    text: str = ""


class TrainingMetrics(WireModel):
    """Every point of every metric; ``marks`` and ``validation`` are ours, and left out where there are none."""

    status: str = ""
    overview: TrainingMetricsOverview = TrainingMetricsOverview()
    metrics: list[MetricSeries] = []
    training_run_id: str | None = None
    validation: ValidatedRows | None = None
    marks: list[TrainingMark] = []


class Checkpoint(WireModel):
    """A LoRA adapter that a run has saved; ``checkpoint_name`` is the model's name once it is deployed."""

    id: str
    checkpoint_name: str | None = None
    checkpoint_step: Counted = None
    status: str | None = None
    created_at: Timestamp | None = None
    size: Counted = None

    def printed(self) -> dict[str, Any]:
        return self.model_dump(mode="json", exclude={"size"})


class CheckpointList(WireModel):
    training_run_name: str | None = None
    checkpoints: list[Checkpoint] = []
    training_run_id: str | None = None
