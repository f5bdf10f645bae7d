"""The seam between the server and whatever executes a rollout."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..types.execution import ExecutionRequest, ExecutionResult

ResultCallback = Callable[[ExecutionResult], Awaitable[None]]
"""Receives how a workflow or a grader ended."""


class ExecutionBackend(ABC):
    """Executes rollouts. Only :meth:`execute` must be written; the rest has defaults."""

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> ExecutionResult | None:
        """Run one rollout to its end.

        Args:
            request: the rollout.
            on_workflow_complete: called once, when the workflow has ended.
            on_grader_complete: called once after it, when grading has ended; None means no grading.

        Returns:
            the final result, read when :attr:`capture_final_result` is true.
        """

    @property
    def capture_final_result(self) -> bool:
        """Whether what :meth:`execute` returns is better for the archive than what was called back."""
        return False

    def has_capacity(self) -> bool:
        """Whether another rollout is taken now; the server answers 429 when not."""
        return True

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        """Return ``status``, ``reward`` and ``err_message`` of a rollout; None when it is not known."""
        return None

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, str]:
        """Cancel the rollouts selected and say what became of each."""
        return {}

    def health(self) -> dict[str, Any]:
        """Return what ``GET /health`` answers."""
        return {"status": "ok"}
