"""The shape of a run's numbers: the product's summary and our estimates beside it.

Every number is finite or absent, so that all of it can be written as JSON. Fields that a newer release has added
are ignored, so that its numbers can be read here.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, field_validator

from osmosis_ai.controller.outcomes import LimitedBy
from osmosis_ai.evaluation.statistics import Description, Estimate, Percentiles

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PassAtKPoint(_Model):
    """pass@k as the product's files hold it."""

    k: int
    value: float


class WireSummary(_Model):
    """The product's summary of a run; absent fields are left out of files, never null."""

    total_samples: int
    completed_samples: int
    graded: int
    passed: int
    failed: int
    skipped: int
    pass_rate: float
    pass_threshold: float
    tokens_used: int
    reward_stats: Description | None = None
    n_runs: int | None = None
    pass_at_k: list[PassAtKPoint] | None = None


class Counts(_Model):
    """How many work items there are of each kind; scored, unscored, skipped and pending add up to planned."""

    planned: int
    scored: int
    unscored: dict[str, int]
    failed_by_boundary: dict[str, int]
    infrastructure_failures: int
    skipped: int
    pending: int
    copies: int = 0
    lost_attempts: int = 0


class TokenTotals(_Model):
    """Tokens of all recorded attempts; ``per_sample`` is their mean over the ``known_samples``."""

    prompt: int
    completion: int
    total: int
    per_sample: float | None
    known_samples: int
    unreported_samples: int


class FinishTotals(_Model):
    """Numbers of attempts with a truncated, filtered or refused model reply; ``affected`` have any of these."""

    truncated: int
    filtered: int
    refused: int
    affected: int
    known_samples: int
    recorded_samples: int


class CostTotal(_Model):
    """What the model calls cost, in USD, as far as prices are known; None when no price is."""

    total: float | None
    known_samples: int
    recorded_samples: int


class JudgeTotals(_Model):
    """Judge calls of graders."""

    calls: int
    tokens: int
    cost_usd: float | None
    outside_scale: int = 0


class Latency(_Model):
    """Milliseconds: whole rollouts; the time each waited for the model; the mean of single model calls."""

    rollout_ms: Percentiles | None
    model_ms: Percentiles | None
    elsewhere_ms: Percentiles | None
    model_call_mean_ms: float | None


class VarianceShares(_Model):
    """Which share of the rewards' variance lies between rows, and which between attempts on one row."""

    between_rows: float
    between_attempts: float
    rows: int
    attempts_per_row: float
    below_zero: bool = False


class FlakyRow(_Model):
    """A row that passed some of its scored attempts; ``source_row_index`` is its place in the dataset."""

    row_index: int
    source_row_index: int | None = None
    passed: int
    scored: int


class FlakyRows(_Model):
    """How many rows pass now and then, ``of`` those with a scored attempt, and the ``worst`` of them."""

    count: int
    of: int
    worst: list[FlakyRow] = []


class Estimates(_Model):
    """What the scored samples say, with the denominators of every number."""

    pass_threshold: float
    reward: Estimate | None
    pass_rate: Estimate | None
    pass_at_k: dict[int, Estimate]
    pass_hat_k: dict[int, Estimate] = {}
    variance: VarianceShares | None = None
    flaky: FlakyRows | None = None
    unscored: Estimate | None = None
    counts: Counts
    tokens: TokenTotals
    cost_usd: CostTotal
    latency: Latency
    warnings: list[str] = []
    limited_by: LimitedBy | None = None
    judges: JudgeTotals | None = None
    finish: FinishTotals | None = None

    @field_validator("limited_by", mode="wrap")
    @classmethod
    def _limit_known_here(cls, value: Any, read: ValidatorFunctionWrapHandler) -> Any:
        """Leave out a limit that only a newer release knows: it explains the numbers, and is none of them."""
        try:
            return read(value)
        except ValidationError:
            return None

    @classmethod
    def read(cls, written: Any) -> Estimates | None:
        """Return what a file or a platform says; None where it says nothing, or nothing that can be understood."""
        try:
            return cls.model_validate(written) if written else None
        except ValidationError:
            return None


class RunMetrics(_Model):
    """All numbers of a run: the product's summary, as the ``wire`` defines it, and our ``estimates``."""

    wire: WireSummary
    estimates: Estimates

    @property
    def summary(self) -> dict[str, Any]:
        """Return the product's summary as JSON values, absent fields left out."""
        return self.wire.model_dump(mode="json", exclude_none=True)

    def to_json(self) -> dict[str, Any]:
        """Return the product's summary with an ``estimates`` block beside its fields."""
        return {**self.summary, "estimates": self.estimates.model_dump(mode="json")}


class MeasuredRun(_Model):
    """The numbers of a run as a platform keeps them beside it; ``duration_ms``: how long the engine has
    worked."""

    duration_ms: float
    summary: WireSummary
    estimates: Estimates
    journal_bytes: int | None

    @field_validator("duration_ms")
    @classmethod
    def _finite(cls, value: float) -> float:
        if not 0 <= value < math.inf:
            raise ValueError("no duration")
        return value

    def record(self) -> dict[str, Any]:
        """Return them as JSON values, as the engine has written them."""
        numbers = RunMetrics(wire=self.summary, estimates=self.estimates)
        return {
            "duration_ms": self.duration_ms,
            "summary": numbers.summary,
            "estimates": self.estimates.model_dump(mode="json"),
            "journal_bytes": self.journal_bytes,
        }


def total_of(amounts: Floats) -> float | None:
    """Return the sum, whatever the order; None of nothing, and of what is beyond a float."""
    try:
        return math.fsum(amounts) if amounts.size else None
    except OverflowError:
        return None
