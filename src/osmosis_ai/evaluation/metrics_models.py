"""Models of a run's numbers: the product's summary and our estimates.

Every number is finite or absent, so that it can be written as JSON. Unknown fields, which a later release may have
added, are ignored.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    field_validator,
)

from osmosis_ai.controller.outcomes import LimitedBy
from osmosis_ai.evaluation.statistics import Description, Estimate, Percentiles

if TYPE_CHECKING:
    from osmosis_ai.evaluation.statistics import Floats


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class PassAtKPoint(_Model):
    """pass@k in the product's files."""

    k: int
    value: float


class WireSummary(_Model):
    """The product's summary of a run; files do not contain absent fields."""

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
    """Numbers of attempts; scored, unscored, skipped and pending add up to planned."""

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
    """Cost of the model calls in USD, as far as prices are known; None if none is."""

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
    """Milliseconds: whole attempts, their time in the model and elsewhere, and the mean of single model calls."""

    rollout_ms: Percentiles | None
    model_ms: Percentiles | None
    elsewhere_ms: Percentiles | None
    model_call_mean_ms: float | None


class VarianceShares(_Model):
    """Shares of the rewards' variance between rows and between attempts on one row."""

    between_rows: float
    between_attempts: float
    rows: int
    attempts_per_row: float
    below_zero: bool = False


class FlakyRow(_Model):
    """A row that passed some of its scored attempts; ``source_row_index`` is its position in the dataset."""

    row_index: int
    source_row_index: int | None = None
    passed: int
    scored: int


class FlakyRows(_Model):
    """Number of rows that passed some attempts, ``of`` those with a scored attempt, and the ``worst`` of them."""

    count: int
    of: int
    worst: list[FlakyRow] = []


class Estimates(_Model):
    """Estimates from the scored attempts, with the denominators of every number."""

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
        """Drop a limit that only a later release knows."""
        try:
            return read(value)
        except ValidationError:
            return None

    @classmethod
    def read(cls, written: Any) -> Estimates | None:
        """Return the estimates in a file or of a platform; None if they are missing or invalid."""
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
        """The product's summary as JSON values, without absent fields."""
        return self.wire.model_dump(mode="json", exclude_none=True)

    def to_json(self) -> dict[str, Any]:
        """Return the product's summary with ``estimates`` as a further field."""
        return {**self.summary, "estimates": self.estimates.model_dump(mode="json")}


class MeasuredRun(_Model):
    """The numbers of a run as a platform stores them; ``duration_ms`` is the engine's working time."""

    duration_ms: float = Field(ge=0, allow_inf_nan=False)
    summary: WireSummary
    estimates: Estimates
    journal_bytes: int | None

    def record(self) -> dict[str, Any]:
        """Return them as JSON values, as the engine writes them."""
        summary = self.summary.model_dump(mode="json", exclude_none=True)
        return {**self.model_dump(mode="json"), "summary": summary}


def total_of(amounts: Floats) -> float | None:
    """Return the sum, which does not depend on the order; None for no amounts or an overflow."""
    try:
        return math.fsum(amounts) if amounts.size else None
    except OverflowError:
        return None
