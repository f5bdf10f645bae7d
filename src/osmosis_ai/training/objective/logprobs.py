"""Log-probabilities of sampled tokens at their sampling temperature.

They are computed in float32 over the whole distribution, since a truncated one (top-p) is no valid basis for a
policy gradient. With 150,000 tokens, float32 logits would be the largest tensors in memory. They are therefore
computed for one chunk of positions at a time, and again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

# Numbers in the float32 logits of one chunk: 256 MiB.
CHUNK_ELEMENTS = 2**26


def sampled_logprobs(logits_BKV: Tensor, targets_BK: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the targets' log-probabilities and the distributions' entropies, both B x K, float32."""
    vocabulary = logits_BKV.shape[-1]
    logits_NV, targets_N = logits_BKV.reshape(-1, vocabulary), targets_BK.reshape(-1)
    size = max(1, CHUNK_ELEMENTS // vocabulary)
    chunks = list(zip(logits_NV.split(size), targets_N.split(size), strict=True))
    compute: Callable[..., tuple[Tensor, Tensor]] = _chunk_logprobs if len(chunks) == 1 else _recomputed
    parts = [compute(logits_nV, targets_n, temperature) for logits_nV, targets_n in chunks]
    logprobs_N, entropies_N = (torch.cat(column) for column in zip(*parts, strict=True))
    return logprobs_N.view_as(targets_BK), entropies_N.view_as(targets_BK)


def surprise_moments(logits_BKV: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance of -log p(y) over y drawn from each distribution, both B x K, float32."""
    vocabulary = logits_BKV.shape[-1]
    means, variances = [], []
    for logits_nV in logits_BKV.detach().reshape(-1, vocabulary).split(max(1, CHUNK_ELEMENTS // vocabulary)):
        logprobs_nV = torch.log_softmax(logits_nV.float() / temperature, -1)
        weighted_nV = logprobs_nV.exp() * logprobs_nV
        mean_n = -weighted_nV.sum(-1)
        means.append(mean_n)
        variances.append(((weighted_nV * logprobs_nV).sum(-1) - mean_n**2).clamp(min=0))
    shape = logits_BKV.shape[:-1]
    return torch.cat(means).view(shape), torch.cat(variances).view(shape)


def _recomputed(logits_nV: Tensor, targets_n: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    found: tuple[Tensor, Tensor] = checkpoint(
        _chunk_logprobs, logits_nV, targets_n, temperature, use_reentrant=False
    )
    return found


def _chunk_logprobs(logits_nV: Tensor, targets_n: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    scaled_nV = logits_nV.float() / temperature
    log_normaliser_n = torch.logsumexp(scaled_nV, -1)
    logprobs_n = scaled_nV.gather(1, targets_n[:, None])[:, 0] - log_normaliser_n
    with torch.no_grad():
        probabilities_nV = (scaled_nV - log_normaliser_n[:, None]).exp()
        entropies_n = log_normaliser_n - (probabilities_nV * scaled_nV).sum(-1)
    return logprobs_n, entropies_n
