"""What a training loop needs of a policy, wherever its weights are: in this process or on a Tinker server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from osmosis_ai.errors import OsmosisError
from osmosis_ai.training.learner.step import StepMetrics
from osmosis_ai.training.objective.sequences import TokenSequence


class SessionLostError(OsmosisError):
    """A remote policy was lost, or answered with something that no step can be taken with.

    Its last checkpoint is on the server, and a new session can continue from there.
    """

    default_code = "INTERNAL"


@dataclass(frozen=True)
class SequenceScores:
    """The policy's scores of a sequence, one entry for each token, 0.0 where none was sampled.

    ``entropies`` and ``variances`` are the moments of -log p over each distribution; None where they are unknown.
    """

    logprobs: list[float]
    entropies: list[float] | None
    variances: list[float] | None


class Policy(Protocol):
    """A policy that can be updated, scored, saved and loaded. Its methods block; one thread at a time calls them."""

    updates: int

    @property
    def device(self) -> object:
        """Where it is computed."""

    @property
    def trainable_parameters(self) -> int | None:
        """Number of the adapter's parameters, if it is known here."""

    @property
    def saves_every_step(self) -> bool:
        """Whether saving is so quick that every step gets a checkpoint."""

    def step(
        self,
        sequences: Sequence[TokenSequence],
        advantages: Sequence[float],
        *,
        policy_version: int | None = None,
    ) -> StepMetrics:
        """Update the policy once, or raise StepRefusedError and leave it unchanged."""

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]: ...

    def scores(self, sequences: Sequence[TokenSequence]) -> list[SequenceScores]: ...

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter in PEFT's format to a new ``directory``, unless it stays on a server."""

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` continues from."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...

    def abandon(self) -> None:
        """Expect no answer from other processes any more."""

    def close(self) -> None: ...
