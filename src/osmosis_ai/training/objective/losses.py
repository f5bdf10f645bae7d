"""Log-probabilities of sampled tokens, and policy-gradient losses over them, as defined in their papers.

Log-probabilities are computed in float32 over the whole distribution, since a truncated one (top-p) is no valid basis
for a policy gradient. With 150,000 tokens, logits would be the largest tensors in memory. They are therefore computed
from the last hidden states for one chunk of positions at a time.

Axes: B sequences, T positions. Position t of ``logprobs_BT`` is the log-probability of token t + 1
given the tokens before it, so all tensors are aligned with the *predicted* token. A masked
position (prompt, tool reply, padding) adds nothing to a loss and gets no gradient, whatever its value.

Every loss is one sum, -sum_BT(weight * objective). The objective compares the policy with the sampling policy,
and the weight defines how tokens are averaged. The weights' denominators cover the whole step
(:class:`BatchTotals`), so the losses of micro-batches on any number of devices add up exactly to the batch's loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from osmosis_ai.training.objective import CHUNK_ELEMENTS

if TYPE_CHECKING:
    from osmosis_ai.config.training import LossType


class TokenScores(NamedTuple):
    """All are B x K and float32; only log-probabilities have a gradient.

    Entropies and variances are the moments of -log p(y) over y drawn from each position's distribution.
    """

    logprobs: Tensor
    entropies: Tensor
    variances: Tensor


def score_tokens(
    states_BKH: Tensor,
    targets_BK: Tensor,
    temperature: float,
    *,
    head: Callable[[Tensor], Tensor] = lambda logits_nV: logits_nV,
    vocabulary: int | None = None,
) -> TokenScores:
    """Return the log-probabilities of ``targets_BK``, and the moments of the distributions.

    Args:
        states_BKH: The last hidden states, or the logits if there is no ``head``.
        head: Maps n x H states to n x V logits, each row on its own and without trainable parameters.
        vocabulary: V; by default the states' last axis.
    """
    size = max(1, CHUNK_ELEMENTS // (vocabulary or states_BKH.shape[2]))
    return TokenScores(*_ScoredChunks.apply(states_BKH, targets_BK, temperature, head, size))


class _ScoredChunks(torch.autograd.Function):  # type: ignore[misc]  # torch is not typed here
    """A row's log-probability depends on its own state alone, so the gradient of all rows' sum has that of each.

    The forward pass computes it while the chunk's logits exist, and the backward pass only scales it: the logits are
    neither stored nor computed twice.
    """

    @staticmethod
    def forward(
        ctx: Any,
        states_BKH: Tensor,
        targets_BK: Tensor,
        temperature: float,
        head: Callable[[Tensor], Tensor],
        size: int,
    ) -> tuple[Tensor, ...]:
        learns = ctx.needs_input_grad[0]
        scores = [torch.empty_like(targets_BK, dtype=torch.float32) for _ in range(3)]
        slopes_BKH = torch.empty_like(states_BKH) if learns else states_BKH
        per_position = [states_BKH.flatten(0, 1), targets_BK.view(-1, 1), slopes_BKH.flatten(0, 1)]
        per_position += [score_BK.view(-1) for score_BK in scores]
        for chunk in zip(*(tensor.split(size) for tensor in per_position), strict=True):
            states_nH, targets_n1, slopes_nH, logprobs_n, entropies_n, variances_n = chunk
            with torch.set_grad_enabled(learns):
                leaf_nH = states_nH.detach().requires_grad_(learns)
                logits_nV = head(leaf_nH)
            logprobs_nV = torch.log_softmax(logits_nV.detach().float() / temperature, -1)
            probabilities_nV = logprobs_nV.exp()
            logprobs_n.copy_(logprobs_nV.gather(1, targets_n1)[:, 0])
            entropies_n.copy_(-torch.einsum("nv,nv->n", probabilities_nV, logprobs_nV))
            squares_n = torch.einsum("nv,nv->n", probabilities_nV, logprobs_nV.square_())
            variances_n.copy_((squares_n - entropies_n**2).clamp(min=0))
            del logprobs_nV
            if learns:  # d log p(y) / d logits = (onehot(y) - p) / temperature
                slope_nV = probabilities_nV.neg_().div_(temperature)
                slope_nV.scatter_add_(1, targets_n1, slope_nV.new_full(targets_n1.shape, 1 / temperature))
                slopes_nH.copy_(*torch.autograd.grad(logits_nV, leaf_nH, slope_nV.to(logits_nV.dtype)))
        if learns:
            ctx.save_for_backward(slopes_BKH)
        ctx.mark_non_differentiable(*scores[1:])
        return tuple(scores)

    @staticmethod
    def backward(ctx: Any, grad_logprobs_BK: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        (slopes_BKH,) = ctx.saved_tensors
        return (grad_logprobs_BK[..., None] * slopes_BKH).to(slopes_BKH.dtype), None, None, None, None


@dataclass(frozen=True)
class BatchTotals:
    """The denominators of a step's means."""

    rollouts: int
    tokens: int
    max_response_length: int


def policy_loss(
    loss_type: LossType,
    logprobs_BT: Tensor,
    old_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    totals: BatchTotals,
    response_lengths_B: Tensor | None = None,
    importance_BT: Tensor | None = None,
    base_logprobs_BT: Tensor | None = None,
    kl_coef: float = 0.0,
) -> Tensor:
    """Return one micro-batch's share of the step's loss."""
    mask_BT = mask_BT.to(logprobs_BT.dtype)
    lengths_B = mask_BT.sum(1) if response_lengths_B is None else response_lengths_B.to(logprobs_BT.dtype)
    log_ratio_BT = _where_sampled(logprobs_BT - old_logprobs_BT, mask_BT)
    ratio_BT = _RATIOS[loss_type](log_ratio_BT, mask_BT)
    weight_BT = _WEIGHTS[loss_type](mask_BT, lengths_B, totals)
    objective_BT = clipped_objective(ratio_BT, advantages_B[:, None], clip_low, clip_high)
    if importance_BT is not None:
        objective_BT = objective_BT * importance_BT
    if kl_coef > 0:
        if base_logprobs_BT is None:
            raise ValueError("kl_coef > 0 needs the base model's log-probabilities")
        objective_BT = objective_BT - kl_coef * k3_divergence(logprobs_BT, base_logprobs_BT, mask_BT)
    return -(weight_BT * objective_BT).sum()


def cross_entropy(logprobs_BT: Tensor, mask_BT: Tensor, totals: BatchTotals) -> Tensor:
    """Return one micro-batch's share of the mean of -log p over the tokens that ``mask_BT`` marks, in nats."""
    return -_where_sampled(logprobs_BT, mask_BT).sum() / totals.tokens


def drift(
    loss_type: LossType,
    logprobs_BT: Tensor,
    sampled_logprobs_BT: Tensor,
    advantages_B: Tensor,
    mask_BT: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> tuple[Tensor, Tensor]:
    """Return the drift from the sampling policy: the tokens beyond the clip, and the k3 estimate of the divergence.

    A token beyond the clip gets no gradient, unless its loss corrects for the sampling policy by importance weights.
    """
    mask_BT = mask_BT.to(logprobs_BT.dtype)
    log_ratio_BT = _where_sampled(logprobs_BT.detach() - sampled_logprobs_BT, mask_BT)
    ratio_BT, advantages_B1 = _RATIOS[loss_type](log_ratio_BT, mask_BT), advantages_B[:, None]
    too_high_BT = (advantages_B1 > 0) & (ratio_BT > 1 + clip_high)
    too_low_BT = (advantages_B1 < 0) & (ratio_BT < 1 - clip_low)
    return mask_BT.bool() & (too_high_BT | too_low_BT), log_ratio_BT.exp() - 1 - log_ratio_BT


def token_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:  # noqa: ARG001 - one shape for all ratios
    """r_i,t = pi(o_i,t | o_i,<t) / pi_old(o_i,t | o_i,<t).    PPO; GRPO, arXiv:2402.03300, eq. 3"""
    return log_ratio_BT.exp()


def sequence_ratio(log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """s_i = (pi(o_i) / pi_old(o_i))^(1 / |o_i|), for every token of i.    GSPO, arXiv:2507.18071, eq. 7"""
    mean_log_ratio_B = log_ratio_BT.sum(1) / mask_BT.sum(1).clamp(min=1)
    return mean_log_ratio_B.exp()[:, None].expand_as(log_ratio_BT)


def clipped_objective(ratio_BT: Tensor, advantages_B1: Tensor, clip_low: float, clip_high: float) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A).    PPO, eq. 7; two bounds: DAPO, arXiv:2503.14476, eq. 10"""
    bounded_BT = ratio_BT.clamp(1 - clip_low, 1 + clip_high)
    return torch.minimum(ratio_BT * advantages_B1, bounded_BT * advantages_B1)


def grpo_weights(mask_BT: Tensor, lengths_B: Tensor, totals: BatchTotals) -> Tensor:
    """1/N sum_i 1/|o_i| sum_t: every rollout weighs the same.    GRPO, eq. 3; GSPO, eq. 5"""
    return mask_BT / (totals.rollouts * lengths_B[:, None].clamp(min=1))


def dapo_weights(mask_BT: Tensor, lengths_B: Tensor, totals: BatchTotals) -> Tensor:  # noqa: ARG001
    """1 / (sum_i |o_i|) sum_i sum_t: every token weighs the same.    DAPO, eq. 12"""
    return mask_BT / totals.tokens


def dr_grpo_weights(mask_BT: Tensor, lengths_B: Tensor, totals: BatchTotals) -> Tensor:  # noqa: ARG001
    """1/(N L) sum_i sum_t, L constant: length has no effect.    Dr. GRPO, arXiv:2503.20783, section 3.2"""
    return mask_BT / (totals.rollouts * totals.max_response_length)


_RATIOS = {"grpo": token_ratio, "dapo": token_ratio, "dr_grpo": token_ratio, "gspo": sequence_ratio}
_WEIGHTS = {"grpo": grpo_weights, "dapo": dapo_weights, "dr_grpo": dr_grpo_weights, "gspo": grpo_weights}


def token_weights(loss_type: LossType, mask_BT: Tensor, lengths_B: Tensor, totals: BatchTotals) -> Tensor:
    """Return each token's weight in the step's loss; see the module's description."""
    return _WEIGHTS[loss_type](mask_BT, lengths_B, totals)


def k3_divergence(logprobs_BT: Tensor, base_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """pi_base/pi - log(pi_base/pi) - 1: unbiased for KL(pi, pi_base), never negative.    GRPO, eq. 4"""
    log_ratio_BT = _where_sampled(base_logprobs_BT - logprobs_BT, mask_BT)
    return log_ratio_BT.exp() - log_ratio_BT - 1


def truncated_importance(
    learner_logprobs_BT: Tensor, server_logprobs_BT: Tensor, mask_BT: Tensor, cap: float
) -> Tensor:
    """min(pi_learner / pi_server, cap), without a gradient.

    Corrects for a serving engine whose probabilities differ slightly from the learner's at equal weights (Yao et al.,
    "Your efficient RL framework secretly brings you off-policy RL training", 2025; cap C = 2).
    """
    log_ratio_BT = _where_sampled(learner_logprobs_BT.detach() - server_logprobs_BT, mask_BT)
    return log_ratio_BT.exp().clamp(max=cap)


def _where_sampled(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    # Not a product: a masked position may hold an infinity, and 0 times infinity is NaN.
    return torch.where(mask_BT.bool(), values_BT, torch.zeros_like(values_BT))
