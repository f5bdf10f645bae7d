"""Interface of the engines that generate for rollouts.

An engine continues token ids (``submit``) and accepts new policy versions (``publish``) meanwhile. It is either
``inference.engine`` in this process (NumPy or torch) or vLLM over HTTP on its own GPUs (``vllm_engine``). Every token
carries the policy version that sampled it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.engine import Generation, InferenceEngine, Listener
from osmosis_ai.inference.openai_api import Cancellable, ServedModel, TokenEngine


class PublishablePolicy(Protocol):
    """What is published: the learner, which gives the form an engine wants."""

    def merged_state(self) -> Mapping[str, Any]:
        """Return the tensors of the base model that the adapter changes, with the adapter merged into them."""

    def low_rank_state(self) -> Mapping[str, Any]:
        """Return the adapter's updates of these tensors, to be added to what they compute."""

    def save_adapter(self, directory: Path) -> None:
        """Write the adapter in PEFT's format."""


class PolicyEngine(TokenEngine, Protocol):
    """Continues prompts with the newest policy that was published."""

    @property
    def fingerprint(self) -> str:
        """Of the base model's weights."""

    @property
    def failure(self) -> OsmosisError | None:
        """Why it generates no more; None while it does."""

    async def publish(self, policy: PublishablePolicy, version: int) -> None:
        """Draw tokens with ``policy`` from now on; calls under way go on with it, or end with the one before."""


class InProcessPolicyEngine:
    """An engine in this process."""

    def __init__(self, engine: InferenceEngine, *, unmerged: bool = False) -> None:
        self._engine = engine
        self._unmerged = unmerged

    @property
    def model(self) -> ServedModel:
        """What it serves."""
        return self._engine.model

    @property
    def fingerprint(self) -> str:
        """Of the base model's weights."""
        return self._engine.model.fingerprint

    @property
    def failure(self) -> OsmosisError | None:
        """Why it generates no more; None while it does."""
        return self._engine.failure

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        """Queue the choices of one request."""
        return self._engine.submit(generations, listener)

    async def publish(self, policy: PublishablePolicy, version: int) -> None:
        """Exchange the weights between two steps; calls under way go on with the new ones."""
        state = policy.low_rank_state() if self._unmerged else policy.merged_state()
        await asyncio.to_thread(self._engine.publish, state, version)
