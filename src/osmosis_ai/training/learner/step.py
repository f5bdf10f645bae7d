"""How a step of the learner ends: its sums and metrics, or why it was refused.

A refused step leaves the policy as it was. The log-probabilities of learner and server are compared on every token
sampled by the current policy. Only rounding may separate them. Anything more is a bug (a shifted token, an adapter that
was not loaded) that would only show as a policy that learns worse.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import served_models

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# The built-in model is served in float64 and learns in float32: measured, the two differ by 4e-5 at most.
GAP_LIMIT_BUILT_IN = 1e-4
# Float32 on both sides: rounding is worth a warning from 1e-4; a hundredth means that they do not see the
# same tokens.
GAP_LIMIT_FLOAT32 = 1e-2
GAP_WORTH_A_WARNING_FLOAT32 = 1e-4
# In bfloat16 a mean beyond this is more than rounding.
MEAN_GAP_WORTH_A_WARNING = 0.05


class StepRefusedError(OsmosisError):
    """A step that would have harmed the policy was not taken; the learner is as before."""


class OutOfMemoryError(OsmosisError):
    """A step needs more memory than there is, in micro-batches of half the size too."""


class DivergedError(OsmosisError):
    """An update left numbers that are not finite: the policy is no policy any more."""


@dataclass(frozen=True)
class StepMetrics:
    """One update of the policy, or the lack of one; most fields are metrics of a run (``train/...``)."""

    updates: int
    learned: bool = False
    sequences: int = 0
    tokens: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    entropy_loss: float | None = None
    clip_fraction: float | None = None
    importance_capped: float | None = None
    kl_sampler: float | None = None
    kl_base: float | None = None
    logprob_gap_max: float | None = None
    logprob_gap_mean: float | None = None
    stale_fraction: float | None = None
    micro_batches: int = 0
    micro_batch_tokens: int = 0
    gpu_memory_gib: float | None = None
    warnings: tuple[str, ...] = ()


@dataclass
class StepSums:
    """Sums over the sampled tokens of a step; all are scalars in float64 on the learner's device.

    Means come last, so that ranks can add up.
    """

    loss: Tensor
    tokens: Tensor
    clipped: Tensor
    capped: Tensor
    approx_kl: Tensor
    entropy: Tensor
    kl_base: Tensor
    gap: Tensor
    gap_tokens: Tensor

    @classmethod
    def zeros(cls, device: torch.device) -> StepSums:
        import torch

        return cls(*(torch.zeros((), dtype=torch.float64, device=device) for _ in fields(cls)))

    def add(self, **values: Tensor) -> None:
        for name, value in values.items():
            setattr(self, name, getattr(self, name) + value.detach().sum(dtype=self.loss.dtype))

    def vector(self) -> Tensor:
        import torch

        return torch.stack([getattr(self, field.name) for field in fields(self)])

    @classmethod
    def from_vector(cls, vector: Tensor) -> StepSums:
        return cls(*vector.unbind())


@dataclass(frozen=True)
class MismatchLimits:
    """How far the log-probabilities of learner and server may differ."""

    limit: float
    float32: bool

    @classmethod
    def expected(cls, model_path: str, dtype: torch.dtype, settings: TrainingSettings) -> MismatchLimits:
        """Return what a model of this type makes possible; the settings' own limit wins."""
        import torch

        # Without staleness, importance weights correct for another engine.
        is_other_engine = settings.importance_cap is not None and (
            settings.max_staleness == 0 or settings.policy_engine == "vllm"
        )
        float32 = dtype == torch.float32 and not is_other_engine
        if settings.logprob_gap_limit is not None:
            return cls(settings.logprob_gap_limit, float32)
        if not float32:
            return cls(math.inf, float32)
        return cls(GAP_LIMIT_BUILT_IN if model_path in served_models() else GAP_LIMIT_FLOAT32, float32)

    def warnings(self, largest: float, mean: float | None) -> tuple[str, ...]:
        """Describe a difference that needs attention although the step was taken."""
        if mean is not None and mean > MEAN_GAP_WORTH_A_WARNING:
            return (
                f"learner and server differ by {mean:.2g} nats per token on average; rounding causes at most "
                f"{MEAN_GAP_WORTH_A_WARNING}.",
            )
        if self.float32 and largest > GAP_WORTH_A_WARNING_FLOAT32:
            return (
                f"learner and server differ by up to {largest:.2g} nats on a token; in float32, at most "
                f"{GAP_WORTH_A_WARNING_FLOAT32:g} is expected.",
            )
        return ()
