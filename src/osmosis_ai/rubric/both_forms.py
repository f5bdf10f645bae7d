"""``osmosis_ai.evaluate_rubric``: one name for two forms, told apart by who is asked to judge.

``model_info=`` waits for the score (:mod:`osmosis_ai.rubric.evaluate`); ``model=`` is awaited
(:mod:`osmosis_ai.rubric.by_model`). Each checks its arguments as if the other did not exist.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, overload

from osmosis_ai.rubric import by_model, evaluate
from osmosis_ai.rubric.errors import JudgeArgumentError

if TYPE_CHECKING:
    from osmosis_ai.rubric.types import ModelInfo, RewardRubricRunResult, RubricResult

_FORMS = """
  score = evaluate_rubric(rubric, solution_str, model_info={"provider": "openai", "model": "gpt-5-mini"})
  result = await evaluate_rubric(rubric=rubric, solution_str=solution_str, model="openai/gpt-5-mini")"""
_PLACE_OF_MODEL_INFO = 2


@overload
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    ground_truth: str | None = ...,
    original_input: str | None = ...,
    metadata: dict[str, Any] | None = ...,
    score_min: float | None = ...,
    score_max: float | None = ...,
    timeout: float | None = ...,
    return_details: Literal[False] = ...,
) -> float: ...


@overload
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    ground_truth: str | None = ...,
    original_input: str | None = ...,
    metadata: dict[str, Any] | None = ...,
    score_min: float | None = ...,
    score_max: float | None = ...,
    timeout: float | None = ...,
    return_details: Literal[True],
) -> RewardRubricRunResult: ...


@overload
def evaluate_rubric(
    *,
    solution_str: str,
    rubric: str,
    model: str,
    ground_truth: str | None = ...,
    original_input: str | None = ...,
    metadata: dict[str, Any] | None = ...,
    score_min: float = ...,
    score_max: float = ...,
    api_key: str | None = ...,
    timeout: float | None = ...,
    system_prompt: str | None = ...,
) -> Coroutine[Any, Any, RubricResult]: ...


def evaluate_rubric(*args: Any, **kwargs: Any) -> Any:
    """Let a model score a text against a rubric."""
    by_info = len(args) > _PLACE_OF_MODEL_INFO or kwargs.get("model_info") is not None
    by_name = kwargs.get("model") is not None
    if by_info == by_name:
        raise JudgeArgumentError(
            f"`evaluate_rubric` needs {'one' if by_info else 'either'} of `model_info` and `model`"
            f"{', not both' if by_info else ''}:{_FORMS}"
        )
    unused = "model" if by_info else "model_info"
    chosen = {name: value for name, value in kwargs.items() if name != unused}
    ask: Any = evaluate.evaluate_rubric if by_info else by_model.evaluate_rubric
    return ask(*args, **chosen)
