"""What a learner's step is counted and reported in. Sums first, means last: so ranks can add up."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepMetrics:
    """One update of the policy, or the lack of one."""

    updates: int
    learned: bool = False
    sequences: int = 0
    tokens: int = 0
    loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None
    entropy: float | None = None
    clip_fraction: float | None = None
    importance_capped: float | None = None
    approx_kl: float | None = None
    kl_base: float | None = None
    max_abs_logprob_gap: float | None = None
    mean_abs_logprob_gap: float | None = None
    stale_fraction: float | None = None
    micro_batches: int = 0
    micro_batch_tokens: int = 0
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-encodable values."""
        return asdict(self) | {"warnings": list(self.warnings)}


@dataclass
class StepSums:
    """Sums over the sampled tokens of a step; all are scalars in float64 on the learner's device."""

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
        """Return sums over nothing."""
        return cls(*(torch.zeros((), dtype=torch.float64, device=device) for _ in fields(cls)))

    def add(self, **values: Tensor) -> None:
        """Add the sum of each tensor to the sum of its name."""
        for name, value in values.items():
            setattr(self, name, getattr(self, name) + value.detach().sum(dtype=torch.float64))

    def vector(self) -> Tensor:
        """Return the sums in the order of the fields, to be exchanged."""
        return torch.stack([getattr(self, field.name) for field in fields(self)])

    @classmethod
    def from_vector(cls, vector: Tensor) -> StepSums:
        """Undo :meth:`vector`."""
        return cls(*vector.unbind())
