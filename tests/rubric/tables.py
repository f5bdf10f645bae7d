"""Score tables for tests: small by hand, large by seed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from osmosis_ai.rubric.agreement import Figure, ScoreTable
from osmosis_ai.statistics.estimates import CONFIDENCE

Floats = NDArray[np.float64]

NAN = float("nan")


def table(scores: Any, *, human: Sequence[float] | None = None, **others: Any) -> ScoreTable:
    """Return a table of ``scores`` (records, models, runs) with plain names."""
    values = np.asarray(scores, dtype=np.float64)
    records = values.shape[0]
    settings: dict[str, Any] = {
        "models": [f"maker/judge-{place}" for place in "abcdef"[: values.shape[1]]],
        "labels": [f"record[{place + 1}]" for place in range(records)],
        "score_min": 0.0,
        "score_max": 1.0,
        "human": [NAN] * records if human is None else human,
        "lengths": np.full(records, 100.0),
    }
    return ScoreTable(scores=values, **{**settings, **others})


def simulated(records: int, *, models: int = 3, runs: int = 5, seed: int = 0) -> ScoreTable:
    """Return a session of noisy judges, some calls unscored, people's scores for half the records."""
    rng = np.random.default_rng(seed)
    quality = rng.beta(2, 1.5, size=records)
    noise = np.linspace(0.04, 0.15, models)
    scores = quality[:, None, None] + rng.normal(size=(records, models, runs)) * noise[:, None]
    scores = np.clip(np.round(scores * 20) / 20, 0, 1)
    scores[rng.random(scores.shape) < 0.02] = np.nan
    human: Floats = np.clip(np.round((quality + rng.normal(size=records) * 0.1) * 4) / 4, 0, 1)
    human[rng.random(records) < 0.5] = np.nan
    lengths = rng.lognormal(6, 0.8, size=records).round()
    return table(scores, human=human.tolist(), lengths=lengths)


def excludes_zero(figure: Figure) -> bool:
    """Whether the interval is on one side of zero, and the adjusted p-value agrees if there is one."""
    if figure.low is None or figure.high is None or figure.low <= 0 <= figure.high:
        return False
    return figure.p_adjusted is None or figure.p_adjusted <= 1 - CONFIDENCE
