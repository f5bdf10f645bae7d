"""Compute an adapter's update next to a linear layer, without merging it into the weights.

A bfloat16 weight has 8 bits: after ten steps at a rate of 1e-5, a fifth of the update survives in W + BA. No
monitor notices, because the loss is smaller than the rounding of the logits. Separately, the update keeps all its
bits, and the sum equals the learner's.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear


@dataclass(frozen=True)
class LowRankUpdate:
    """``scale`` * B A, for one linear layer."""

    a: Tensor
    b: Tensor
    scale: float

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix that it is an update of."""
        return self.b.shape[0], self.a.shape[1]

    def to(self, device: torch.device) -> LowRankUpdate:
        """Return it on ``device``."""
        return LowRankUpdate(self.a.to(device), self.b.to(device), self.scale)

    def added_to(self, outputs: Tensor, inputs: Tensor) -> Tensor:
        """Return what the layer computes with the update: the sum is taken in the update's own type, as PEFT does."""
        update = linear(linear(inputs.to(self.a.dtype), self.a), self.b) * self.scale
        return (outputs + update).to(outputs.dtype)


class LowRankUpdates:
    """The updates of a network's layers, by the names of the matrices; new ones replace those before."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._updates: dict[str, LowRankUpdate] = {}

    def put(self, name: str, update: LowRankUpdate) -> None:
        """Add ``update`` to what the layer of the matrix ``name`` computes from now on."""
        if name not in self._updates:
            layer = self._model.get_submodule(name.removesuffix(".weight"))
            layer.register_forward_hook(
                lambda _layer, inputs, outputs: self._updates[name].added_to(outputs, inputs[0])
            )
        self._updates[name] = update
