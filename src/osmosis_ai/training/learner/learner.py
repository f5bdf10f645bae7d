"""The learner: updates the adapter from recorded sequences and advantages.

A step is atomic. Problems (a loss that is not finite, a mismatch with the server's probabilities, lack of memory) are
found before the optimiser runs, and leave weights, optimiser and counters unchanged.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.training.learner import policy_model
from osmosis_ai.training.learner.distributed import World, local_device, shard_frozen
from osmosis_ai.training.learner.forward_backward import (
    Accumulated,
    ForwardBackward,
    LearnerStep,
    SequenceScores,
)
from osmosis_ai.training.learner.step_errors import (
    OutOfMemoryError,
    StepRefusedError,
    divergence_error,
    is_out_of_memory,
    logprob_mismatch_error,
    not_finite_error,
    out_of_memory_error,
)
from osmosis_ai.training.learner.step_metrics import StepMetrics, StepSums
from osmosis_ai.training.objective.batches import SampledSequence, batch_totals, training_rows
from osmosis_ai.training.objective.logprob_mismatch import MismatchLimits

__all__ = ["Learner", "OutOfMemoryError", "StepRefusedError", "warmed_up"]


class Learner:
    """A policy that learns."""

    def __init__(
        self,
        model_path: str,
        settings: TrainingSettings,
        device: str | None = None,
        *,
        adapter: Path | None = None,
    ) -> None:
        self.model_path = model_path
        self.settings = settings
        self.device = local_device(device)
        self.world = World.join(self.device)
        self.model = policy_model.load_policy(model_path, settings, self.device, adapter=adapter)
        self._mismatch_limits = MismatchLimits.expected(model_path, self.model.dtype, settings)
        self._ranks_diverged = False
        self._sharded = settings.shard_model and self.world.size > 1
        if self._sharded:
            shard_frozen(self.model, self.device)
        else:
            self.model.to(self.device)
        self._passes = ForwardBackward(
            self.model,
            settings,
            self.device,
            rank=self.world.rank,
            ranks=self.world.size,
            sharded=self._sharded,
        )
        self.updates = 0
        self._micro_batch_tokens = settings.micro_batch_tokens
        self._parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.world.equalise(self._parameters)
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=settings.lr,
            betas=(0.9, settings.adam_beta2),
            weight_decay=settings.weight_decay,
            fused=True,
        )

    # --- learning ---------------------------------------------------------------------------------

    def step(
        self,
        sequences: Sequence[SampledSequence],
        advantages: Sequence[float],
        *,
        policy_version: int | None = None,
    ) -> StepMetrics:
        """Update the policy once."""
        rows, rollouts = training_rows(sequences, advantages)
        if not rows:
            return StepMetrics(updates=self.updates, micro_batch_tokens=self._micro_batch_tokens)
        totals = batch_totals(rows, rollouts, self.settings.max_response_length)
        step = LearnerStep(rows, totals, policy_version, self._measures_kl())
        self.world.share(("step", step))
        return self._take(step)

    def follow(self) -> None:
        """Execute this rank's share of rank 0's commands until the learner is closed."""
        while True:
            command, argument = self.world.share(None)
            if command == "close":
                self.world.leave()
                return
            if command == "load":
                self._load(argument)
                continue
            if command == "merge":
                self._merge()
                continue
            if command == "scores":
                self._passes.scores(argument, micro_batch_tokens=self._micro_batch_tokens)
                continue
            try:
                self._take(argument)
            except (StepRefusedError, OutOfMemoryError):
                if self._ranks_diverged:
                    raise

    def abandon(self) -> None:
        """Ask nothing more of the other ranks, one of which is lost: some may never answer."""
        self._ranks_diverged = True

    def close(self) -> None:
        """Let the other ranks go; harmless when they are gone."""
        if self.world.leads and not self._ranks_diverged:
            with contextlib.suppress(RuntimeError):  # how torch says that a peer does not answer
                self.world.share(("close", None))
                self.world.leave()

    def logprobs(self, sequences: Sequence[SampledSequence]) -> list[list[float]]:
        """Return what the policy now gives the tokens of ``sequences``; 0.0 where none was sampled."""
        return [scores.logprobs for scores in self.scores(sequences)]

    def scores(self, sequences: Sequence[SampledSequence]) -> list[SequenceScores]:
        """Return what the policy now gives the tokens of ``sequences``, and how surprising tokens are there."""
        if self._sharded:
            self.world.share(("scores", sequences))
        return self._passes.scores(sequences, micro_batch_tokens=self._micro_batch_tokens)

    def _measures_kl(self) -> bool:
        every = self.settings.kl_interval
        return self.settings.kl_coef > 0 or (every > 0 and self.updates % every == 0)

    def _take(self, step: LearnerStep) -> StepMetrics:
        try:
            done = self._accumulate_within_memory(step)
            self._refuse_unless_sound(done)
            grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.grad_clip)
            if not math.isfinite(grad_norm):
                raise not_finite_error("gradient", self.updates + 1)
            learning_rate = self._set_learning_rate()
            self._optimizer.step()
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        self._end_unless_finite(learning_rate)
        return self._metrics(step, done, float(grad_norm), learning_rate)

    def _accumulate_within_memory(self, step: LearnerStep) -> Accumulated:
        """Compute gradients and sums over all ranks; once, with micro-batches of half the size."""
        for attempt in range(2):
            try:
                local: Accumulated | None = self._passes.accumulate(
                    step, micro_batch_tokens=self._micro_batch_tokens
                )
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                if self._sharded:  # the other ranks wait in the middle of a layer: there is no second try
                    self._ranks_diverged = True
                    raise self._out_of_memory(step) from error
                local = None
            # Every rank must know before any exchanges gradients.
            if not self.world.any(local is None):
                assert local is not None
                return self._exchanged(local)
            del local
            self._optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if attempt == 0:
                self._micro_batch_tokens = max(1, self._micro_batch_tokens // 2)
        raise self._out_of_memory(step)

    def _out_of_memory(self, step: LearnerStep) -> OutOfMemoryError:
        longest = max(len(row.ids) for row in step.rows)
        return out_of_memory_error(self.device, longest, self._micro_batch_tokens)

    def _exchanged(self, local: Accumulated) -> Accumulated:
        self.world.sum_gradients(self._parameters)
        return replace(
            local,
            sums=StepSums.from_vector(self.world.sum(local.sums.vector())),
            largest_gap=self.world.max(local.largest_gap),
        )

    # --- what makes a step unsound ------------------------------------------------------------------

    def _refuse_unless_sound(self, done: Accumulated) -> None:
        if not math.isfinite(done.sums.loss):
            raise not_finite_error("loss", self.updates + 1)
        limit, gap = self._mismatch_limits.limit, float(done.largest_gap)
        if gap > limit:
            raise logprob_mismatch_error(gap, limit, self.updates + 1)

    def _end_unless_finite(self, learning_rate: float) -> None:
        """Raise when the update has made numbers that nothing can be computed with any more."""
        norms = torch.stack(torch._foreach_norm(self._parameters))
        if not bool(torch.isfinite(norms).all()):
            raise divergence_error(self.updates, learning_rate)

    # --- bookkeeping --------------------------------------------------------------------------------

    def _set_learning_rate(self) -> float:
        rate = warmed_up(self.settings.lr, self.updates, self.settings.warmup_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return rate

    def _metrics(self, step: LearnerStep, done: Accumulated, grad_norm: float, rate: float) -> StepMetrics:
        sums, tokens = done.sums, float(done.sums.tokens)
        gap_tokens = float(sums.gap_tokens)
        mean_gap = float(sums.gap) / gap_tokens if gap_tokens else None
        return StepMetrics(
            updates=self.updates,
            learned=True,
            sequences=len(step.rows),
            tokens=int(tokens),
            loss=float(sums.loss),
            learning_rate=rate,
            grad_norm=grad_norm,
            entropy=float(sums.entropy) / tokens,
            clip_fraction=float(sums.clipped) / tokens,
            importance_capped=float(sums.capped) / tokens if self.settings.importance_cap else None,
            approx_kl=float(sums.approx_kl) / tokens,
            kl_base=float(sums.kl_base) / tokens if step.measure_kl else None,
            max_abs_logprob_gap=float(done.largest_gap) if gap_tokens else None,
            mean_abs_logprob_gap=mean_gap,
            stale_fraction=1 - gap_tokens / tokens,
            micro_batches=done.micro_batches,
            micro_batch_tokens=self._micro_batch_tokens,
            warnings=self._mismatch_limits.warnings(float(done.largest_gap), mean_gap),
        )

    # --- state --------------------------------------------------------------------------------------

    def merged_state(self) -> dict[str, Tensor]:
        """Return the adapted matrices with the adapter merged in, by their names in the base model."""
        if self._sharded:
            self.world.share(("merge", None))
        return self._merge()

    def low_rank_state(self) -> dict[str, Any]:
        """Return the adapter's updates, keyed by the base model's matrix names, for separate application."""
        return self.merged_state() if self._sharded else dict(policy_model.low_rank_updates(self.model))

    def _merge(self) -> dict[str, Tensor]:
        # A sharded matrix is put together by all ranks; only the one that serves has a use for it.
        merged = policy_model.merged_tensors(self.model)
        return {name: tensor for name, tensor in merged if self.world.leads}

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter into ``directory`` in PEFT's format."""
        policy_model.save_adapter(self.model, directory)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the learner's complete state: tensors, numbers and strings."""
        return {
            "adapter": policy_model.adapter_state(self.model),
            "optimizer": copy.deepcopy(self._optimizer.state_dict()),
            "updates": self.updates,
            "micro_batch_tokens": self._micro_batch_tokens,
            "rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore ``state`` on every rank.

        Raises:
            OsmosisError: It belongs to an adapter of another shape. The learner is then unusable.
        """
        self.world.share(("load", state))
        self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        policy_model.load_adapter_state(self.model, state["adapter"])
        self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        self.updates = state["updates"]
        self._micro_batch_tokens = state["micro_batch_tokens"]
        torch.set_rng_state(state["rng"])


def warmed_up(lr: float, updates: int, warmup_steps: int) -> float:
    """Return the rate of the update after ``updates`` ones: rising in a line to ``lr``, then constant."""
    return lr * min(1.0, (updates + 1) / warmup_steps) if warmup_steps else lr
