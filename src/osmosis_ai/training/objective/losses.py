"""Log-probabilities of sampled tokens, and policy-gradient losses over them, as defined in their papers.

Log-probabilities are computed in float32 over the whole distribution, since a truncated one (top-p) is no valid basis
for a policy gradient. With 150,000 tokens, logits would be the largest tensors in memory. They are therefore computed
from the last hidden states for one chunk of positions at a time.

Axes: B sequences, T positions. Position t of ``logprobs_BT`` is the log-probability of token t + 1
given the tokens before it, so all tensors are aligned with the *predicted* token. A masked
position (prompt, tool reply, padding) adds nothing to a loss and gets no gradient, whatever its value.

Every loss is one sum, -sum_BT(weight * objective). The weights' denominators cover the whole step (``BatchTotals``),
so the losses of micro-batches on any number of devices add up exactly to the batch's loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from osmosis_ai.training.objective import CHUNK_ELEMENTS

if TYPE_CHECKING:
    from osmosis_ai.config.training import LossType, TrainingSettings
    from osmosis_ai.training.objective.batches import BatchTotals, MicroBatch


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


def policy_objective(
    settings: TrainingSettings,
    batch: MicroBatch,
    totals: BatchTotals,
    logprobs_BK: Tensor,
    *,
    proximal_BK: Tensor | None = None,
    base_BK: Tensor | None = None,
    policy_version: int | None = None,
) -> tuple[Tensor, dict[str, Tensor], Tensor]:
    """Return a micro-batch's share of the loss, its terms of ``StepSums``, and its gaps to the sampler.

        loss = -sum_BK w (c min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - kl_coef D)

        r   pi / pi_proximal, by :func:`policy_ratio`       PPO, arXiv:1707.06347, eq. 7; two bounds: DAPO, eq. 10
        c   min(pi_proximal / pi_sampler, importance_cap) at each token, without a gradient
                                                            AReaL, arXiv:2505.24298, section 5.2; cap: Yao et al., 2025
        w   how tokens are averaged, :func:`token_weights`
        D   the divergence from the base model, :func:`k3_divergence`

    Without ``importance_cap``, the proximal policy is the sampler, so c = 1. With a cap, it is the policy at the start of
    the step. A step makes one update, so its log-probabilities are the current ones: r = 1, and only its gradient counts.

    Args:
        logprobs_BK: The policy's log-probabilities, wherever they were computed.
        proximal_BK: The proximal policy's log-probabilities, if they differ from those described above.
        base_BK: The base model's log-probabilities; required if ``kl_coef`` is not 0.
        policy_version: Gaps are 0 for tokens of other versions; None is every version.
    """
    mask_BK, sampler_BK, advantages_B1 = batch.mask_BK, batch.logged_logprobs_BK, batch.advantages_B[:, None]
    current_BK, cap, kind = logprobs_BK.detach(), settings.importance_cap, settings.loss_type
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    if proximal_BK is None:
        proximal_BK = sampler_BK if cap is None else current_BK

    ratio_BK = policy_ratio(kind, _where_sampled(logprobs_BK - proximal_BK, mask_BK), mask_BK)
    importance_BK = _where_sampled(proximal_BK - sampler_BK, mask_BK).exp().clamp(max=cap or math.inf)
    clipped_BK = torch.minimum(ratio_BK * advantages_B1, ratio_BK.clamp(low, high) * advantages_B1)
    objective_BK = importance_BK * clipped_BK
    if settings.kl_coef > 0:
        if base_BK is None:
            raise ValueError("kl_coef > 0 needs the base model's log-probabilities")
        objective_BK = objective_BK - settings.kl_coef * k3_divergence(logprobs_BK, base_BK, mask_BK)
    weight_BK = token_weights(kind, mask_BK.to(logprobs_BK.dtype), batch.response_lengths_B, totals)
    loss = -(weight_BK * objective_BK).sum()

    drift_BK = _where_sampled(current_BK - sampler_BK, mask_BK)
    drift_ratio_BK = policy_ratio(kind, drift_BK, mask_BK)
    too_high_BK = (advantages_B1 > 0) & (drift_ratio_BK > high)
    too_low_BK = (advantages_B1 < 0) & (drift_ratio_BK < low)
    fresh_BK = mask_BK if policy_version is None else mask_BK & (batch.versions_BK == policy_version)
    gap_BK = _where_sampled((current_BK - sampler_BK).abs(), fresh_BK)
    terms = {
        "tokens": mask_BK,
        # With an importance weight, a token beyond the clip still has a gradient.
        "clipped": mask_BK & (too_high_BK | too_low_BK),
        "approx_kl": drift_BK.exp() - 1 - drift_BK,
        "gap": gap_BK,
        "gap_tokens": fresh_BK,
    }
    if cap is not None:
        terms["capped"] = mask_BK & (importance_BK >= cap)
    if base_BK is not None:
        terms["kl_base"] = k3_divergence(current_BK, base_BK, mask_BK)
    return loss, terms, gap_BK


def cross_entropy(logprobs_BT: Tensor, mask_BT: Tensor, totals: BatchTotals) -> Tensor:
    """Return one micro-batch's share of the mean of -log p over the tokens that ``mask_BT`` marks, in nats."""
    return -_where_sampled(logprobs_BT, mask_BT).sum() / totals.tokens


def policy_ratio(loss_type: LossType, log_ratio_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """Return the ratio of two policies at each token.

    r_i,t = pi(o_i,t | o_i,<t) / pi_old(o_i,t | o_i,<t)                     GRPO, arXiv:2402.03300, eq. 3
    s_i   = (pi(o_i) / pi_old(o_i))^(1 / |o_i|), for every token of i       GSPO, arXiv:2507.18071, eq. 7
    """
    if loss_type != "gspo":
        return log_ratio_BT.exp()
    mean_log_ratio_B = log_ratio_BT.sum(1) / mask_BT.sum(1).clamp(min=1)
    return mean_log_ratio_B.exp()[:, None].expand_as(log_ratio_BT)


def token_weights(loss_type: LossType, mask_BT: Tensor, lengths_B: Tensor, totals: BatchTotals) -> Tensor:
    """Return each token's weight in the step's loss.

    1/N sum_i 1/|o_i| sum_t        every rollout weighs the same             GRPO, eq. 3; GSPO, eq. 5
    1 / (sum_i |o_i|) sum_i sum_t  every token weighs the same               DAPO, arXiv:2503.14476, eq. 12
    1/(N L) sum_i sum_t            L is constant: length has no effect       Dr. GRPO, arXiv:2503.20783, section 3.2
    """
    if loss_type == "dapo":
        return mask_BT / totals.tokens
    if loss_type == "dr_grpo":
        return mask_BT / (totals.rollouts * totals.max_response_length)
    return mask_BT / (totals.rollouts * lengths_B[:, None].clamp(min=1))


def k3_divergence(logprobs_BT: Tensor, base_logprobs_BT: Tensor, mask_BT: Tensor) -> Tensor:
    """pi_base/pi - log(pi_base/pi) - 1: unbiased for KL(pi, pi_base), never negative.    GRPO, eq. 4"""
    log_ratio_BT = _where_sampled(base_logprobs_BT - logprobs_BT, mask_BT)
    return log_ratio_BT.exp() - log_ratio_BT - 1


def _where_sampled(values_BT: Tensor, mask_BT: Tensor) -> Tensor:
    # Not a product: a masked position may hold an infinity, and 0 times infinity is NaN.
    return torch.where(mask_BT.bool(), values_BT, torch.zeros_like(values_BT))
