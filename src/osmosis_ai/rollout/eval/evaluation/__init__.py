"""Agent-loop evaluations (0.2 import paths), resolved on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from osmosis_ai.evaluation.agent_loop.runner import (
        EvalEvalSummary,
        EvalResult,
        EvalRowResult,
        EvalRunner,
        EvalRunResult,
        format_eval_report,
        pass_at_k,
    )
    from osmosis_ai.rollout.loop.eval_functions import (
        EvalFnError,
        EvalFnWrapper,
        load_eval_fn,
        load_eval_fns,
    )

__all__ = [
    "EvalEvalSummary",
    "EvalFnError",
    "EvalFnWrapper",
    "EvalResult",
    "EvalRowResult",
    "EvalRunResult",
    "EvalRunner",
    "format_eval_report",
    "load_eval_fn",
    "load_eval_fns",
    "pass_at_k",
]

_HOMES = {
    "EvalEvalSummary": "osmosis_ai.evaluation.agent_loop.runner",
    "EvalFnError": "osmosis_ai.rollout.loop.eval_functions",
    "EvalFnWrapper": "osmosis_ai.rollout.loop.eval_functions",
    "EvalResult": "osmosis_ai.evaluation.agent_loop.runner",
    "EvalRowResult": "osmosis_ai.evaluation.agent_loop.runner",
    "EvalRunResult": "osmosis_ai.evaluation.agent_loop.runner",
    "EvalRunner": "osmosis_ai.evaluation.agent_loop.runner",
    "format_eval_report": "osmosis_ai.evaluation.agent_loop.runner",
    "load_eval_fn": "osmosis_ai.rollout.loop.eval_functions",
    "load_eval_fns": "osmosis_ai.rollout.loop.eval_functions",
    "pass_at_k": "osmosis_ai.evaluation.agent_loop.runner",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
