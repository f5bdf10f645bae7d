"""Interface of the engines that generate for rollouts.

An engine continues token ids (``submit``) and accepts new policy versions (``publish``) meanwhile. It is either
``inference.engine`` in this process (NumPy or torch) or vLLM over HTTP on its own GPUs (``vllm_engine``). Every token
carries the policy version that sampled it.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.engine import Dimensions, Generation, InferenceEngine, Listener
from osmosis_ai.inference.openai_api import Cancellable, ServedModel, TokenEngine

if TYPE_CHECKING:
    from osmosis_ai.training.learner.learner import Learner


# Beyond the vocabulary of any model.
_LARGEST_ID = 2**31
# Of a log-probability above 0.
_ROUNDING = 1e-3


class PolicyEngine(TokenEngine, Protocol):
    """Continues prompts with the newest policy that was published."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the base model's weights."""

    @property
    def failure(self) -> OsmosisError | None:
        """The reason why it cannot generate; None while it can."""

    @property
    def servers(self) -> Sequence[object]:
        """The servers. A generation whose ``rollout`` is one of them runs there. A single server may be None."""

    async def publish(self, policy: Any, version: int) -> None:
        """Sample from ``policy``, the learner of the same backend, from now on.

        Running calls switch to it, or end with the previous one.
        """


class InProcessPolicyEngine:
    """The inference engine of this process; with ``unmerged``, the adapter is applied next to its base."""

    servers = (None,)

    def __init__(self, engine: InferenceEngine, *, unmerged: bool = False) -> None:
        self._engine = engine
        self._unmerged = unmerged

    @property
    def model(self) -> ServedModel:
        return self._engine.model

    @property
    def fingerprint(self) -> str:
        return self._engine.model.fingerprint

    @property
    def failure(self) -> OsmosisError | None:
        return self._engine.failure

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        return self._engine.submit(generations, listener)

    async def publish(self, policy: Learner, version: int) -> None:
        """Exchange the weights between two forward passes; running calls continue with the new ones."""
        state = policy.low_rank_state() if self._unmerged else policy.merged_state()
        await asyncio.to_thread(self._engine.publish, state, version)


@dataclass(frozen=True)
class RemoteModel:
    config: Dimensions


@dataclass(frozen=True)
class _RunningCalls:
    tasks: Sequence[asyncio.Task[None]]

    def cancel(self) -> None:
        for task in self.tasks:
            task.cancel()  # vLLM stops generating for a client that disconnects


def can_be_sampled(tokens: Sequence[Any], logprobs: Sequence[Any], limit: int) -> bool:
    """Return whether a server's tokens are ids, at most ``limit``, with log-probabilities."""
    return (
        0 < len(tokens) == len(logprobs) <= limit
        and all(type(token) is int and 0 <= token < _LARGEST_ID for token in tokens)
        and all(-math.inf < logprob <= _ROUNDING for logprob in logprobs)
    )


class RemotePolicyEngine(ABC):
    """Samples from a server, with a task for each running call."""

    model: RemoteModel
    servers: Sequence[object] = (None,)

    def __init__(self, model_path: str) -> None:
        # The server does not describe its weights.
        self.fingerprint = hashlib.sha256(model_path.encode()).hexdigest()
        self.failure: OsmosisError | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        tasks = [asyncio.create_task(self._answer(generation, listener)) for generation in generations]
        self._tasks.update(tasks)
        for task in tasks:
            task.add_done_callback(self._tasks.discard)
        return _RunningCalls(tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @abstractmethod
    async def _answer(self, generation: Generation, listener: Listener) -> None:
        """Give ``listener`` the tokens of ``generation``, or the reason why there are none."""
