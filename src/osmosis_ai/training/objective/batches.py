"""Convert recorded sequences to tensors and align predictions with tokens.

The logits at position t are the distribution of token t + 1. A micro-batch keeps the K columns t in
which at least one row sampled token t + 1. All inputs of the loss (targets, mask, logged log-probabilities)
have the axes B x K and are aligned with the predicted token. Rows are padded on the right; causal attention never
sees later tokens, so no attention mask is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, TokenSequence

PADDING_ID = 0  # never read: what is computed from it is masked


class UnsampledTokenError(OsmosisError):
    """Tokens are marked as sampled that no policy sampled: an error in the recording."""

    default_code = "INTERNAL"


@dataclass(frozen=True)
class TrainingRow:
    """A sequence to train on; plain values, so that it can travel to other processes."""

    ids: tuple[int, ...]
    mask: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    advantage: float
    response_length: int


@dataclass(frozen=True)
class MicroBatch:
    ids_BT: Tensor
    columns_K: Tensor
    targets_BK: Tensor
    mask_BK: Tensor
    logged_logprobs_BK: Tensor
    versions_BK: Tensor
    advantages_B: Tensor
    response_lengths_B: Tensor


@dataclass(frozen=True)
class BatchTotals:
    """The denominators of a step's means."""

    rollouts: int
    tokens: int
    max_response_length: int


def training_rows(
    sequences: Sequence[TokenSequence], advantages: Sequence[float]
) -> tuple[list[TrainingRow], int]:
    """Pair sequences with advantages; those in which nothing was sampled are left out."""
    if len(sequences) != len(advantages):
        raise ValueError(f"{len(sequences)} sequences but {len(advantages)} advantages")
    response_lengths: defaultdict[str, int] = defaultdict(int)
    for sequence in sequences:
        lengths = {len(sequence.ids), len(sequence.mask), len(sequence.logprobs), len(sequence.versions)}
        if len(lengths) > 1:
            raise ValueError(f"the lists of rollout {sequence.rollout_id} differ in length")
        # Prompts and tool replies have no version, so a mask that covers them is detected.
        marked = zip(sequence.mask, sequence.versions, strict=True)
        strangers = sum(1 for is_sampled, version in marked if is_sampled and version <= NOT_SAMPLED)
        if strangers:
            raise UnsampledTokenError(
                f"{strangers} of {len(sequence.ids)} tokens of rollout {sequence.rollout_id} are marked as sampled, but "
                "no policy sampled them (prompt, tool reply or template). Learning from them would teach the "
                "policy to imitate users and tools, so nothing was learned."
            )
        response_lengths[sequence.rollout_id] += sum(sequence.mask[1:])
    rows = [
        TrainingRow(
            ids=tuple(sequence.ids),
            mask=tuple(sequence.mask),
            logprobs=tuple(sequence.logprobs),
            versions=tuple(sequence.versions),
            advantage=float(advantage),
            response_length=response_lengths[sequence.rollout_id],
        )
        for sequence, advantage in zip(sequences, advantages, strict=True)
        if sum(sequence.mask[1:])
    ]
    return rows, sum(length > 0 for length in response_lengths.values())


def batch_totals(rows: Sequence[TrainingRow], rollouts: int, max_response_length: int) -> BatchTotals:
    tokens = sum(sum(row.mask[1:]) for row in rows)
    return BatchTotals(rollouts=rollouts, tokens=tokens, max_response_length=max_response_length)


def plan_micro_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Partition sequences into micro-batches of at most ``max_tokens`` tokens, padding included."""
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: (lengths[index], index)):
        if batches and (len(batches[-1]) + 1) * lengths[index] <= max_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def collate(rows: Sequence[TrainingRow], device: torch.device) -> MicroBatch:
    """Put rows into tensors on ``device``.

    Copies to a GPU do not wait for what it computes, so the next micro-batch is prepared meanwhile.
    """
    longest = max(len(row.ids) for row in rows)
    mask_BS = _padded([row.mask for row in rows], longest, torch.bool)[:, 1:]
    columns_K = mask_BS.any(0).nonzero()[:, 0]

    def moved(tensor: Tensor) -> Tensor:
        return (
            tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
        )

    def predicted(values: Sequence[Sequence[float]], dtype: torch.dtype) -> Tensor:
        return moved(_padded(values, longest, dtype)[:, 1:][:, columns_K])

    return MicroBatch(
        ids_BT=moved(_padded([row.ids for row in rows], longest, torch.long)),
        columns_K=moved(columns_K),
        targets_BK=predicted([row.ids for row in rows], torch.long),
        mask_BK=moved(mask_BS[:, columns_K]),
        logged_logprobs_BK=predicted([row.logprobs for row in rows], torch.float32),
        versions_BK=predicted([row.versions for row in rows], torch.long),
        advantages_B=moved(torch.tensor([row.advantage for row in rows], dtype=torch.float32)),
        response_lengths_B=moved(torch.tensor([row.response_length for row in rows])),
    )


def _padded(values: Sequence[Sequence[float]], length: int, dtype: torch.dtype) -> Tensor:
    padded = torch.full((len(values), length), PADDING_ID, dtype=dtype)
    for row, entries in zip(padded, values, strict=True):
        row[: len(entries)] = torch.tensor(entries, dtype=dtype)
    return padded
