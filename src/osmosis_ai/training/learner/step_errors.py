"""Why a step is not taken, in the words a person reads; the policy is then as it was before."""

from __future__ import annotations

import torch

from osmosis_ai.errors import OsmosisError


class StepRefusedError(OsmosisError):
    """A step that would have harmed the policy was not taken; the learner is as before."""


class OutOfMemoryError(OsmosisError):
    """A step needs more memory than there is, in micro-batches of half the size too."""


class DivergedError(OsmosisError):
    """An update left numbers that are not finite: the policy is no policy any more."""


def divergence_error(update: int, learning_rate: float) -> DivergedError:
    """Say that ``update`` destroyed the policy."""
    return DivergedError(
        f"update {update} made the adapter's numbers too large to compute with (lr = {learning_rate:g}): "
        "the policy is lost.",
        hint="lower [training].lr",
    )


def not_finite_error(what: str, update: int) -> StepRefusedError:
    """Say that the loss or the gradient of ``update`` is not finite."""
    return StepRefusedError(
        f"update {update} was refused: its {what} is not a finite number; the policy is unchanged.",
        hint="lower [training].lr, or look for such numbers in the model's weights",
    )


def logprob_mismatch_error(gap: float, limit: float, update: int) -> StepRefusedError:
    """Say that the server's log-probabilities, in nats, are not the learner's."""
    return StepRefusedError(
        f"update {update} was refused: the log-probabilities that the server recorded differ "
        f"from the learner's by up to {gap:.2g} (limit {limit:g}), so the two do not see the same "
        "tokens or weights; the policy is unchanged.",
        hint="a serving engine that rounds differently needs [advanced].importance_cap = 2.0; "
        "[advanced].logprob_gap_limit sets the limit",
    )


def repeated_refusal_error(error: StepRefusedError, times: int) -> StepRefusedError:
    """Say that ``error`` was the last of so many refusals in a row that the run ends."""
    return StepRefusedError(
        f"{error.message} That makes {times} refused updates in a row, which ends the run.",
        hint=error.hint,
    )


def out_of_memory_error(device: torch.device, longest: int, micro_batch_tokens: int) -> OutOfMemoryError:
    """Say that sequences of up to ``longest`` tokens are too long for the device."""
    return OutOfMemoryError(
        f"the memory of {device} does not suffice to learn from sequences of up to {longest} tokens in "
        f"micro-batches of {micro_batch_tokens} tokens.",
        hint="lower [training].max_response_length, max_prompt_length or [advanced].micro_batch_tokens; "
        "`osmosis train estimate` says what fits",
    )


def is_out_of_memory(error: RuntimeError) -> bool:
    """Tell whether memory is what failed; on a CPU torch raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
