"""Agent-loop evaluations (0.2 import paths)."""

from osmosis_ai.evaluation.agent_loop.runner import (
    EvalEvalSummary,
    EvalResult,
    EvalRowResult,
    EvalRunner,
    EvalRunResult,
    format_eval_report,
    pass_at_k,
)
from osmosis_ai.rollout.loop.eval_functions import EvalFnError, EvalFnWrapper, load_eval_fn, load_eval_fns

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
