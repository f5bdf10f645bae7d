"""Execution backends of the rollout server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from ..types.protocol import ExecutionRequest, ExecutionResult

ResultCallback = Callable[[ExecutionResult], Awaitable[None]]
"""Receives the result of a workflow or grader."""


class ExecutionBackend(ABC):
    """Base class for execution backends. Only :meth:`execute` is required."""

    @abstractmethod
    async def execute(
        self,
        request: ExecutionRequest,
        on_workflow_complete: ResultCallback,
        on_grader_complete: ResultCallback | None = None,
    ) -> ExecutionResult | None:
        """Run one rollout to completion. Without ``on_grader_complete``, grading is skipped.

        Each callback is called once. The server reads the returned final result only if :attr:`capture_final_result`
        is true.
        """

    @property
    def capture_final_result(self) -> bool:
        """Whether the archive stores the result of :meth:`execute` instead of the callbacks' results."""
        return False

    def has_capacity(self) -> bool:
        """Whether the backend accepts another rollout. If not, the server answers 429."""
        return True

    def rollout_status(self, rollout_id: str) -> dict[str, Any] | None:
        """Return ``status``, ``reward`` and ``err_message`` of a rollout, or None if it is unknown."""
        return None

    def cancel_rollouts(
        self, ids: Sequence[str] | None = None, prefix: str | None = None, all: bool = False
    ) -> dict[str, str]:
        """Cancel the selected rollouts and return the outcome of each."""
        return {}

    def health(self) -> dict[str, Any]:
        """Return the response body of ``GET /health``."""
        return {"status": "ok"}


# The import comes last, because LocalBackend derives from the class above.
from .local import LocalBackend as LocalBackend  # noqa: E402
