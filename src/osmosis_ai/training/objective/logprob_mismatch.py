"""Limits on the difference between the learner's and the server's log-probabilities.

They are compared on every token sampled by the current policy. Only rounding may separate them. Anything more is a
bug (a shifted token, an adapter that was not loaded) that would only show as a policy that learns worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.catalog import served_models

# The built-in model is served in float64 and learns in float32: measured, the two differ by 4e-5 at most.
GAP_LIMIT_BUILT_IN = 1e-4
# Float32 on both sides: rounding is worth a warning from 1e-4; a hundredth means that they do not see the
# same tokens.
GAP_LIMIT_FLOAT32 = 1e-2
GAP_WORTH_A_WARNING_FLOAT32 = 1e-4
# In bfloat16 a mean beyond this is more than rounding.
MEAN_GAP_WORTH_A_WARNING = 0.05


@dataclass(frozen=True)
class MismatchLimits:
    """What is asked of a pair of learner and server."""

    limit: float
    float32: bool

    @classmethod
    def expected(cls, model_path: str, dtype: torch.dtype, settings: TrainingSettings) -> MismatchLimits:
        """Return what a model of this type makes possible; the settings' own limit wins."""
        # A serving engine whose probabilities are corrected for is another engine.
        float32 = dtype == torch.float32 and settings.importance_cap is None
        if settings.logprob_gap_limit is not None:
            return cls(settings.logprob_gap_limit, float32)
        if not float32:
            return cls(math.inf, float32)
        return cls(GAP_LIMIT_BUILT_IN if model_path in served_models() else GAP_LIMIT_FLOAT32, float32)

    def warnings(self, largest: float, mean: float | None) -> tuple[str, ...]:
        """Return what a person should look at, with which a step was taken all the same."""
        if mean is not None and mean > MEAN_GAP_WORTH_A_WARNING:
            return (
                f"learner and server differ by {mean:.2g} nats a token on average; more than "
                f"{MEAN_GAP_WORTH_A_WARNING} is more than rounding.",
            )
        if self.float32 and largest > GAP_WORTH_A_WARNING_FLOAT32:
            return (
                f"learner and server differ by up to {largest:.2g} nats on a token; in float32 they agree to "
                f"{GAP_WORTH_A_WARNING_FLOAT32:g}.",
            )
        return ()
