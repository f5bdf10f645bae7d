"""Forward and backward passes over micro-batches: token log-probabilities and a step's gradients.

A pass changes only gradients. Ranks divide the micro-batches of a step, and their sums are added up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.training.learner.distributed import World
from osmosis_ai.training.learner.policy import SequenceScores
from osmosis_ai.training.learner.step import StepSums
from osmosis_ai.training.objective.batches import (
    BatchTotals,
    MicroBatch,
    TrainingRow,
    collate,
    plan_micro_batches,
    training_rows,
)
from osmosis_ai.training.objective.losses import TokenScores, cross_entropy, policy_objective, score_tokens
from osmosis_ai.training.objective.sequences import TokenSequence


@dataclass(frozen=True)
class LearnerStep:
    """The part of a step that every rank receives."""

    rows: list[TrainingRow]
    totals: BatchTotals
    policy_version: int | None
    measure_kl: bool


@dataclass(frozen=True)
class Accumulated:
    """The numbers of a pass over this rank's micro-batches, in addition to the gradients."""

    sums: StepSums
    largest_gap: Tensor
    micro_batches: int


class ForwardBackward:
    def __init__(
        self, model: Any, settings: TrainingSettings, device: torch.device, world: World, *, sharded: bool
    ) -> None:
        self._model = model
        self._settings = settings
        # Conversations are learned as they are; only rollouts were sampled at a temperature.
        self._temperature = settings.rollout_temperature if settings.method == "rl" else 1.0
        self._device = device
        self._world = world
        self._sharded = sharded
        causal = model.get_base_model()
        in_decoder = set(causal.base_model.parameters())
        self._head_learns = any(p.requires_grad for p in causal.parameters() if p not in in_decoder)

    def accumulate(self, step: LearnerStep, *, micro_batch_tokens: int) -> Accumulated:
        plan = plan_micro_batches([len(row.ids) for row in step.rows], micro_batch_tokens)
        sums = StepSums.zeros(self._device)
        largest_gap = torch.zeros((), device=self._device)
        share = plan[self._world.rank :: self._world.size]
        # Nothing in this loop waits for the GPU, so it computes while the next micro-batch is copied.
        for indices in share:
            batch = collate([step.rows[index] for index in indices], self._device)
            gap_BK = self._learn_from(batch, step, sums)
            largest_gap = torch.maximum(largest_gap, gap_BK.max())
        if self._sharded and len(share) < math.ceil(len(plan) / self._world.size):
            # All ranks assemble a sharded layer at once, so this one joins them with a masked micro-batch.
            batch = collate([step.rows[index] for index in plan[0]], self._device)
            masked = replace(batch, mask_BK=torch.zeros_like(batch.mask_BK))
            self._learn_from(masked, step, StepSums.zeros(self._device))
        return Accumulated(sums, largest_gap, len(plan))

    def scores(self, sequences: Sequence[TokenSequence], *, micro_batch_tokens: int) -> list[SequenceScores]:
        rows, _ = training_rows(sequences, [0.0] * len(sequences))
        places = [index for index, sequence in enumerate(sequences) if sum(sequence.mask[1:])]
        found = [[[0.0] * len(sequence.ids) for _ in range(3)] for sequence in sequences]
        for indices in plan_micro_batches([len(row.ids) for row in rows], micro_batch_tokens):
            batch = collate([rows[index] for index in indices], self._device)
            with torch.no_grad():
                scored = self._forward(batch)
            columns = (batch.columns_K + 1).tolist()
            values = [tensor.tolist() for tensor in (*scored, batch.mask_BK)]
            for index, *of_row, sampled in zip(indices, *values, strict=True):
                for target, row_values in zip(found[places[index]], of_row, strict=True):
                    for column, value, is_sampled in zip(columns, row_values, sampled, strict=True):
                        if is_sampled:
                            target[column] = value
        return [SequenceScores(*values) for values in found]

    def _learn_from(self, batch: MicroBatch, step: LearnerStep, sums: StepSums) -> Tensor:
        """Add one micro-batch's gradient and sums; return the gaps to the server's log-probabilities."""
        if self._settings.method == "sft":
            return self._imitate(batch, step, sums)
        base_BK = None
        if step.measure_kl:
            with torch.no_grad(), self._model.disable_adapter():
                base_BK = self._forward(batch).logprobs
        logprobs_BK, entropies_BK, _ = self._forward(batch)
        loss, terms, gap_BK = policy_objective(
            self._settings,
            batch,
            step.totals,
            logprobs_BK,
            base_BK=base_BK,
            policy_version=step.policy_version,
        )
        loss.backward()
        sums.add(loss=loss, entropy=entropies_BK * batch.mask_BK, **terms)
        return gap_BK

    def _imitate(self, batch: MicroBatch, step: LearnerStep, sums: StepSums) -> Tensor:
        """Add one micro-batch's gradient and sums of the cross-entropy; there is no server to compare with."""
        logprobs_BK, entropies_BK, _ = self._forward(batch)
        loss = cross_entropy(logprobs_BK, batch.mask_BK, step.totals)
        loss.backward()
        sums.add(loss=loss, tokens=batch.mask_BK, entropy=entropies_BK * batch.mask_BK)
        return torch.zeros_like(logprobs_BK)

    def _forward(self, batch: MicroBatch) -> TokenScores:
        """Score a micro-batch's tokens within one call of the model, while its head is whole on every rank."""
        causal = self._model.get_base_model()
        decoder = causal.base_model

        def score(**_inputs: Any) -> TokenScores:
            output = decoder(input_ids=batch.ids_BT, use_cache=False)

            def head(states_nH: Tensor) -> Tensor:
                """Compute logits as the model does, with its own caps and scales."""
                given = replace(output, last_hidden_state=states_nH[None])
                with _forward_replaced(decoder, lambda *_args, **_kwargs: given):
                    logits: Tensor = type(causal).forward(causal, use_cache=False).logits[0]
                return logits

            states_BKH = output.last_hidden_state[:, batch.columns_K]
            wanted = batch.targets_BK, self._temperature
            if self._head_learns:  # its own gradient needs all logits
                return score_tokens(
                    head(states_BKH.flatten(0, 1)).unflatten(0, states_BKH.shape[:2]), *wanted
                )
            vocabulary = causal.config.get_text_config().vocab_size
            return score_tokens(states_BKH, *wanted, head=head, vocabulary=vocabulary)

        with _forward_replaced(causal, score):
            scores: TokenScores = self._model(input_ids=batch.ids_BT, use_cache=False)
        return scores


@contextmanager
def _forward_replaced(module: Any, forward: Callable[..., Any]) -> Iterator[None]:
    module.forward = forward
    try:
        yield
    finally:
        del module.forward
