"""The learner: updates the adapter from recorded sequences and advantages.

A step is atomic. Problems (a loss that is not finite, a mismatch with the server's probabilities, lack of memory) are
found before the optimiser runs, and leave weights, optimiser and counters unchanged.
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.engine import refused_memory
from osmosis_ai.training.learner import policy_model
from osmosis_ai.training.learner.distributed import World, local_device, shard_frozen
from osmosis_ai.training.learner.forward_backward import Accumulated, ForwardBackward, LearnerStep
from osmosis_ai.training.learner.policy import SequenceScores
from osmosis_ai.training.learner.step import (
    DivergedError,
    MismatchLimits,
    OutOfMemoryError,
    StepMetrics,
    StepRefusedError,
    StepSums,
)
from osmosis_ai.training.objective.batches import batch_totals, training_rows
from osmosis_ai.training.objective.sequences import TokenSequence

# Noise that changes the output of an adapted matrix by some hundredths, as 4-bit weights would.
_NOISE = 0.16
__all__ = ["Learner", "OutOfMemoryError", "StepRefusedError", "warmed_up"]


class Learner:
    """The policy in this process, or in a group of them; see :class:`~osmosis_ai.training.learner.policy.Policy`."""

    saves_every_step = True

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
        self._passes = ForwardBackward(self.model, settings, self.device, self.world, sharded=self._sharded)
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

    def step(
        self,
        sequences: Sequence[TokenSequence],
        advantages: Sequence[float],
        *,
        policy_version: int | None = None,
    ) -> StepMetrics:
        rows, rollouts = training_rows(sequences, advantages)
        if not rows:
            return StepMetrics(updates=self.updates, micro_batch_tokens=self._micro_batch_tokens)
        totals = batch_totals(rows, rollouts, self.settings.max_response_length)
        every = self.settings.kl_interval
        measure_kl = self.settings.kl_coef > 0 or (every > 0 and self.updates % every == 0)
        measure_kl = measure_kl and self.settings.method == "rl"
        step = LearnerStep(rows, totals, policy_version, measure_kl)
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
            elif command == "merge":
                self._merge()
            elif command == "scores":
                self._passes.scores(argument, micro_batch_tokens=self._micro_batch_tokens)
            else:
                try:
                    self._take(argument)
                except (StepRefusedError, OutOfMemoryError):
                    if self._ranks_diverged:
                        raise

    def abandon(self) -> None:
        """Send no more commands to the other ranks: one is lost, and some may never answer."""
        self._ranks_diverged = True

    def close(self) -> None:
        """Release the other ranks, if they still run."""
        if self.world.rank == 0 and not self._ranks_diverged:
            with contextlib.suppress(RuntimeError):  # a peer does not answer
                self.world.share(("close", None))
                self.world.leave()

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        return [scores.logprobs for scores in self.scores(sequences)]

    def scores(self, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        """Return the current log-probabilities of ``sequences``, and the moments of the surprise at each token."""
        if self._sharded:
            self.world.share(("scores", sequences))
        return self._passes.scores(sequences, micro_batch_tokens=self._micro_batch_tokens)

    def _take(self, step: LearnerStep) -> StepMetrics:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        try:
            done = self._accumulate_within_memory(step)
            if not math.isfinite(done.sums.loss):
                raise self._not_finite("loss")
            gap, limit = float(done.largest_gap), self._mismatch_limits.limit
            if gap > limit:
                raise StepRefusedError(
                    f"update {self.updates + 1} was refused: the log-probabilities that the server recorded differ "
                    f"from the learner's by up to {gap:.2g} (limit {limit:g}), so the two do not see the same "
                    "tokens or weights; the policy is unchanged.",
                    hint="[advanced].logprob_gap_limit sets the limit"
                    if self.settings.importance_cap
                    else "a serving engine that rounds differently needs [advanced].importance_cap = 2.0; "
                    "[advanced].logprob_gap_limit sets the limit",
                )
            grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.grad_clip)
            if not math.isfinite(grad_norm):
                raise self._not_finite("gradient")
            learning_rate = warmed_up(self.settings.lr, self.updates, self.settings.warmup_steps)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        finally:
            self._optimizer.zero_grad(set_to_none=True)
        self.updates += 1
        norms = torch.stack(torch._foreach_norm(self._parameters))
        if not bool(torch.isfinite(norms).all()):
            raise DivergedError(
                f"update {self.updates} made the adapter's numbers too large to compute with (lr = "
                f"{learning_rate:g}): the policy is lost.",
                hint="lower [training].lr",
            )
        return self._metrics(step, done, float(grad_norm), learning_rate)

    def _accumulate_within_memory(self, step: LearnerStep) -> Accumulated:
        """Compute gradients and sums over all ranks; retry once with half the micro-batch size."""
        for attempt in range(2):
            try:
                local: Accumulated | None = self._passes.accumulate(
                    step, micro_batch_tokens=self._micro_batch_tokens
                )
            except RuntimeError as error:
                if refused_memory(error) is None:
                    raise
                if self._sharded:  # the other ranks wait in the middle of a layer: there is no second try
                    self._ranks_diverged = True
                    raise self._out_of_memory(step) from error
                local = None
            # Every rank must know before any exchanges gradients.
            if not self.world.any(local is None):
                assert local is not None
                self.world.sum_gradients(self._parameters)
                return replace(
                    local,
                    sums=StepSums.from_vector(self.world.sum(local.sums.vector())),
                    largest_gap=self.world.max(local.largest_gap),
                )
            del local
            self._optimizer.zero_grad(set_to_none=True)
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if attempt == 0:
                self._micro_batch_tokens = max(1, self._micro_batch_tokens // 2)
        raise self._out_of_memory(step)

    def _out_of_memory(self, step: LearnerStep) -> OutOfMemoryError:
        longest = max(len(row.ids) for row in step.rows)
        return OutOfMemoryError(
            f"{self.device} does not have enough memory to learn from sequences of up to {longest} tokens in "
            f"micro-batches of {self._micro_batch_tokens} tokens.",
            hint="lower [training].max_response_length, max_prompt_length or [advanced].micro_batch_tokens; "
            "`osmosis train estimate` shows what fits",
        )

    def _not_finite(self, what: str) -> StepRefusedError:
        return StepRefusedError(
            f"update {self.updates + 1} was refused: its {what} is not a finite number; the policy is unchanged.",
            hint="lower [training].lr, or look for such numbers in the model's weights",
        )

    def _metrics(self, step: LearnerStep, done: Accumulated, grad_norm: float, rate: float) -> StepMetrics:
        sums, tokens = done.sums, float(done.sums.tokens)
        gap_tokens = float(sums.gap_tokens)
        mean_gap = float(sums.gap) / gap_tokens if gap_tokens else None
        metrics = StepMetrics(
            updates=self.updates,
            learned=True,
            sequences=len(step.rows),
            tokens=int(tokens),
            loss=float(sums.loss),
            learning_rate=rate,
            grad_norm=grad_norm,
            entropy_loss=float(sums.entropy) / tokens,
            micro_batches=done.micro_batches,
            micro_batch_tokens=self._micro_batch_tokens,
            gpu_memory_gib=(
                torch.cuda.max_memory_allocated(self.device) / 2**30 if self.device.type == "cuda" else None
            ),
        )
        if self.settings.method == "sft":
            return metrics
        return replace(
            metrics,
            clip_fraction=float(sums.clipped) / tokens,
            importance_capped=float(sums.capped) / tokens if self.settings.importance_cap else None,
            kl_sampler=float(sums.approx_kl) / tokens,
            kl_base=float(sums.kl_base) / tokens if step.measure_kl else None,
            logprob_gap_max=float(done.largest_gap) if gap_tokens else None,
            logprob_gap_mean=mean_gap,
            stale_fraction=1 - gap_tokens / tokens,
            warnings=self._mismatch_limits.warnings(float(done.largest_gap), mean_gap),
        )

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
        return {name: tensor for name, tensor in merged if self.world.rank == 0}

    def save_adapter(self, directory: Path, *, for_vllm: bool = False) -> None:
        policy_model.save_adapter(self.model, directory, for_vllm=for_vllm)

    @property
    def trainable_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters)

    @property
    def adapts_experts(self) -> bool:
        return bool(self.model.peft_config[policy_model.ADAPTER].target_parameters)

    @contextlib.contextmanager
    def changed_adapter(self) -> Iterator[None]:
        """Add noise to every B of this process for a while, which changes each adapted matrix visibly."""
        kept = {
            name: parameter.detach().clone()
            for name, parameter in self.model.named_parameters()
            if parameter.requires_grad and "lora_B" in name
        }
        draw = torch.Generator().manual_seed(self.settings.seed)
        size = _NOISE * math.sqrt(self.settings.lora_rank) / self.settings.lora_alpha
        try:
            with torch.no_grad():
                for name, before in kept.items():
                    noise = size * torch.randn(before.shape, generator=draw)
                    self.model.get_parameter(name).add_(noise.to(before))
            yield
        finally:
            with torch.no_grad():
                for name, before in kept.items():
                    self.model.get_parameter(name).copy_(before)

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
        """Restore ``state`` on every rank. If its adapter has another shape, the learner is then unusable."""
        if "adapter" not in state:
            raise OsmosisError(
                'the checkpoint was saved with backend = "tinker", and its policy is on the server.'
            )
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
