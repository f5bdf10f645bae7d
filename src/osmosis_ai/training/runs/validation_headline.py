"""One-line summary of a run's newest validation: its reward and sample sizes.

The format is that of an evaluation's summary. All data come from the run's curves, so it works for runs on any
platform; one that measures less shows less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from osmosis_ai.evaluation.metrics import LEAST_SCORED, describe_few_scored
from osmosis_ai.training.runs.metrics import (
    VALIDATION_PLANNED,
    VALIDATION_REWARD,
    VALIDATION_REWARD_HIGH,
    VALIDATION_REWARD_LOW,
    VALIDATION_SCORED,
)
from osmosis_ai.ui.numbers import percent

CURVES = (
    VALIDATION_REWARD,
    VALIDATION_REWARD_LOW,
    VALIDATION_REWARD_HIGH,
    VALIDATION_SCORED,
    VALIDATION_PLANNED,
)
"""The metrics that a headline is made from."""

LEAST_WORDS = percent(LEAST_SCORED, digits=0)
"""The share of a validation's samples below which it says nothing of the rest."""
_MOST_STEPS = 10


def after_steps(steps: Sequence[int]) -> str:
    """Return the steps in words, the last of them where they are many: ``steps 5, 10``; nothing without any."""
    listed = ", ".join(str(step) for step in steps[-_MOST_STEPS:])
    if len(steps) <= _MOST_STEPS:
        return f"step{'s' * (len(steps) > 1)} {listed}" if steps else ""
    return f"{len(steps)} steps, the last of them {listed}"


class ValidationHeadline(BaseModel):
    """The newest validation of a training run in a line."""

    model_config = ConfigDict(frozen=True)

    step: int
    reward: float | None = None
    low: float | None = None
    high: float | None = None
    scored: int | None = None
    planned: int | None = None
    warnings: list[str] = []

    @classmethod
    def of(cls, curves: Mapping[str, Sequence[tuple[int, float]]]) -> ValidationHeadline | None:
        """Return the headline of the newest validation; None before there is one."""
        last = [points[-1][0] for key in CURVES if (points := curves.get(key))]
        if not last:
            return None
        step = max(last)
        # What this validation did not measure is absent; an older validation's number must not stand in for it.
        values = {key: value for key in CURVES for at, value in curves.get(key, ())[-1:] if at == step}
        counted = {
            key: round(values[key]) for key in (VALIDATION_SCORED, VALIDATION_PLANNED) if key in values
        }
        warning = describe_few_scored(*counted.values()) if len(counted) == 2 else None
        return cls(
            step=step,
            reward=values.get(VALIDATION_REWARD),
            low=values.get(VALIDATION_REWARD_LOW),
            high=values.get(VALIDATION_REWARD_HIGH),
            scored=counted.get(VALIDATION_SCORED),
            planned=counted.get(VALIDATION_PLANNED),
            warnings=[warning] if warning else [],
        )

    @property
    def reward_words(self) -> str:
        """The reward and its interval, as in ``0.625 (0.430 – 0.810) after step 20``."""
        if self.reward is None:
            return f"none scored after step {self.step}"
        interval = (
            f" ({self.low:.3f} – {self.high:.3f})" if self.low is not None and self.high is not None else ""
        )
        return f"{self.reward:.3f}{interval} after step {self.step}"

    @property
    def scored_words(self) -> str | None:
        """How many samples it stands on, as in ``18 of 20 planned``; None where nobody says."""
        if self.scored is None or self.planned is None:
            return None
        return f"{self.scored:,} of {self.planned:,} planned"

    @property
    def words(self) -> str:
        """All of it in a line."""
        scored = f"; scored {self.scored_words}" if self.scored_words else ""
        return f"validation{':' if self.reward is None else ' reward'} {self.reward_words}{scored}"

    def facts(self) -> Iterator[tuple[str, str]]:
        """Yield labels and words, a line each."""
        yield "Validation reward", self.reward_words
        if self.scored_words:
            yield "Validation scored", self.scored_words
        for warning in self.warnings:
            yield "Warning", f"validation: {warning}"

    def to_json(self) -> dict[str, Any]:
        """Return it as scripts get it, with the words that people do."""
        return {**self.model_dump(mode="json"), "words": self.words}
