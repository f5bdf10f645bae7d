"""What users pass to ``evaluate_rubric`` and get back from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from typing_extensions import NotRequired


class ModelInfo(TypedDict, total=False):
    """Who judges, and how.

    Keys:
        provider: the provider's name (``openai``, ``anthropic`` ...).
        model: the model, as the provider knows it.
        api_key: the key itself; wins over ``api_key_env``.
        api_key_env: the environment variable that holds the key. Default: the provider's usual one.
        api_base: the address of any OpenAI-compatible endpoint, up to and including ``/v1``.
        score_min: the lowest score. Default: 0.0.
        score_max: the highest score. Default: 1.0.
        system_prompt: put before the judge's own system prompt.
        original_input: what the candidate was asked.
        timeout: seconds one try may take.
        reasoning_effort: how long a reasoning model may think (``low``, ``medium`` ...).
    """

    provider: str
    model: str
    api_key: str
    api_key_env: str
    api_base: str
    score_min: float
    score_max: float
    system_prompt: str
    original_input: str
    timeout: float
    reasoning_effort: str


class RewardRubricRunResult(TypedDict):
    """What ``evaluate_rubric(..., return_details=True)`` returns.

    Keys:
        score: the score, within the bounds.
        explanation: the judge's reasons.
        raw: the provider's whole reply.
        stated_score: the judge's own number; differs from ``score`` when it lay outside the bounds.
        input_tokens: read by the judge, a second question included.
        output_tokens: produced by it.
        cost_usd: what that cost, in USD; None when the price is not known.
        duration_s: seconds the judge took to answer.
        retries: how many tries were not the first.
    """

    score: float
    explanation: str
    raw: Any
    stated_score: NotRequired[float]
    input_tokens: NotRequired[int]
    output_tokens: NotRequired[int]
    cost_usd: NotRequired[float | None]
    duration_s: NotRequired[float]
    retries: NotRequired[int]


@dataclass
class RubricResult:
    """What ``await evaluate_rubric(..., model=...)`` gives.

    Attributes:
        score: within the bounds.
        explanation: the judge's reasons.
    """

    score: float
    explanation: str
