"""Interface of the engines that generate for rollouts.

An engine continues token ids (``submit``) and accepts new policy versions (``publish``) meanwhile. It is either
``inference.engine`` in this process (NumPy or torch) or vLLM over HTTP on its own GPUs (``vllm_engine``). Every token
carries the policy version that sampled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.engine import Generation, InferenceEngine, Listener
from osmosis_ai.inference.openai_api import Cancellable, ServedModel, TokenEngine

if TYPE_CHECKING:
    from osmosis_ai.training.learner.learner import Learner


class PolicyEngine(TokenEngine, Protocol):
    """Continues prompts with the newest policy that was published."""

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the base model's weights."""

    @property
    def failure(self) -> OsmosisError | None:
        """The reason why it cannot generate; None while it can."""

    async def publish(self, policy: Any, version: int) -> None:
        """Sample from ``policy``, the learner of the same backend, from now on.

        Running calls switch to it, or end with the previous one.
        """


class InProcessPolicyEngine:
    """The inference engine of this process; with ``unmerged``, the adapter is applied next to its base."""

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
