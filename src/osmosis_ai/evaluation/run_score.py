"""The score of a run: its pass rate with interval, mean reward, and numbers of attempts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from osmosis_ai.datasets.selection import RowsDrawn
from osmosis_ai.evaluation.metrics import Estimates, describe_few_scored


class RunScore(BaseModel):
    """The summary of an evaluation, in files and on the wire."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    pass_rate: float | None = None
    low: float | None = None
    high: float | None = None
    reward: float | None = None
    pass_threshold: float = 1.0
    scored: int = 0
    planned: int = 0
    pending: int = 0
    skipped: int = 0
    failed: int = 0
    failed_by_boundary: dict[str, int] = {}
    rows: RowsDrawn | None = None
    warnings: list[str] = []

    @classmethod
    def of(cls, estimates: Estimates, rows: RowsDrawn | None = None) -> RunScore:
        """Return the score of a run with these estimates."""
        rate, reward, counts = estimates.pass_rate, estimates.reward, estimates.counts
        return cls(
            pass_rate=rate.value if rate else None,
            low=rate.low if rate else None,
            high=rate.high if rate else None,
            reward=reward.value if reward else None,
            pass_threshold=estimates.pass_threshold,
            scored=counts.scored,
            planned=counts.planned,
            pending=counts.pending,
            skipped=counts.skipped,
            failed=sum(counts.failed_by_boundary.values()),
            failed_by_boundary=counts.failed_by_boundary,
            rows=rows,
            warnings=estimates.warnings,
        )

    @classmethod
    def of_results(
        cls, results: Mapping[str, Any], *, planned: int, rows: RowsDrawn | None = None
    ) -> RunScore | None:
        """Return the score in a platform's results, which may have only counts; None without results."""
        try:
            if results.get("headline"):
                known = cls.model_validate(results["headline"])
                return known.model_copy(update={"rows": rows or known.rows})
        except ValidationError:
            pass
        scored, done, passed = (results.get(name) for name in ("graded", "total_runs", "passed"))
        if scored is None:
            return None
        failed, skipped = results.get("failed") or 0, results.get("skipped") or 0
        threshold = results.get("pass_threshold")
        warning = describe_few_scored(scored, scored + failed if done is None else done - skipped)
        return cls(
            pass_rate=passed / scored if scored and passed is not None else None,
            pass_threshold=1.0 if threshold is None else threshold,
            scored=scored,
            planned=max(planned, scored),
            pending=0 if done is None else max(planned - done, 0),
            skipped=skipped,
            failed=failed,
            rows=rows,
            warnings=[warning] if warning else [],
        )

    @property
    def finished(self) -> int:
        """Attempts that ended, except skipped ones."""
        return self.planned - self.pending - self.skipped
