"""An agent loop tried on rows: ``LocalTestRunner`` of ``rollout.eval.test_mode``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from osmosis_ai.evaluation.agent_loop.runner import (
    LocalBatchResult,
    LocalLLMClientProtocol,
    LocalRolloutRunner,
    LocalRunResult,
)

if TYPE_CHECKING:
    from osmosis_ai.rollout.loop.agent import RolloutAgentLoop

__all__ = ["LocalTestBatchResult", "LocalTestRunResult", "LocalTestRunner"]

TEST_DEBUG_DIR = "./test_debug"
TEST_METADATA: Mapping[str, Any] = {"execution_mode": "test", "test_mode": True}

# As user code knows them.
LocalTestRunResult = LocalRunResult
LocalTestBatchResult = LocalBatchResult


class LocalTestRunner(LocalRolloutRunner):
    """Runs an agent loop on rows, whose rollouts are called ``test-<row>``."""

    def __init__(
        self,
        agent_loop: RolloutAgentLoop,
        llm_client: LocalLLMClientProtocol,
        debug: bool = False,
        debug_dir: str | Path | None = None,
        timeout_s: float | None = None,
    ) -> None:
        super().__init__(
            agent_loop,
            llm_client,
            debug,
            debug_dir or TEST_DEBUG_DIR,
            rollout_id_prefix="test",
            request_metadata=TEST_METADATA,
            timeout_s=timeout_s,
        )


def row_result_json(result: LocalRunResult) -> dict[str, Any]:
    """Return what a results file holds of a row."""
    ended = result.result
    reward, finish_reason = getattr(ended, "reward", None), getattr(ended, "finish_reason", None)
    return {
        "row_index": result.row_index,
        "success": result.success,
        "error": result.error,
        "duration_ms": result.duration_ms,
        "token_usage": result.token_usage,
        "reward": _plain_number(reward),
        "finish_reason": None if finish_reason is None else str(finish_reason),
        **({"finish_reasons": result.finish_reasons} if result.finish_reasons else {}),
    }


def _plain_number(value: object) -> float | None:
    """Return a reward as files can hold it; None where it is no finite number."""
    from osmosis_ai.rollout.loop.eval_functions import EvalFnError, finite_score

    try:
        return None if value is None else finite_score(value)
    except EvalFnError:
        return None
