"""Input, output and error types of judges.

A missing score always raises an error. It carries the usage so far, so that a budget includes failed calls.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, NamedTuple, TypedDict

from typing_extensions import NotRequired

from osmosis_ai.errors import ErrorCode, OsmosisError

UnscoredReason = Literal["unparsable", "refused", "no_score", "not_finite", "empty"]

_LARGEST_BOUND = 1e9


class JudgeArgumentError(OsmosisError, TypeError):
    """An argument of a judge call is missing, blank or of the wrong type."""


class JudgeValueError(OsmosisError, ValueError):
    """A number is invalid, such as empty bounds or a timeout."""


class MissingAPIKeyError(OsmosisError, RuntimeError):
    """The provider's key is missing. The message has the ``export`` line that sets it."""


class ProviderRequestError(OsmosisError, RuntimeError):
    """The judge could not be asked, or did not answer.

    Args:
        provider: The provider.
        model: The model, as the caller wrote it.
        detail: The problem, in the provider's words if available. Never contains a key.
        code: Machine-readable class of the error.
        hint: An additional line with a fix.

    Attributes:
        category: Kind of failure as in :mod:`osmosis_ai.llm.errors` ("rate_limit", "auth" ...); None
            if the call succeeded or was never made.
        input_tokens, output_tokens: Tokens used before the failure.
        cost_usd: Cost of those tokens in USD; None if unknown.
        retries: Number of retries.
        duration_s: Seconds spent in answered calls.
    """

    default_code: ErrorCode = "NETWORK"
    category: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = None
    retries: int = 0
    duration_s: float = 0.0

    def __init__(
        self,
        provider: str,
        model: str,
        detail: str,
        *,
        code: ErrorCode | None = None,
        hint: str | None = None,
    ) -> None:
        self.provider = provider
        self.model = model
        self.detail = detail.strip() or "the provider gave no reason."
        super().__init__(
            f"Provider '{provider}' request for model '{model}' failed. {self.detail}",
            code=code,
            details={"provider": provider, "model": model, "detail": self.detail},
            hint=hint,
        )

    def __reduce__(self) -> tuple[Any, ...]:
        # Reward functions run in process pools, and an exception that cannot be pickled breaks the pool.
        return type(self), (self.provider, self.model, self.detail), self.__dict__


class ModelNotFoundError(ProviderRequestError):
    """The provider does not know the model: it was renamed or is misspelled."""

    default_code = "NOT_FOUND"


class UnscoredError(ProviderRequestError):
    """The judge's answer has no usable score, even after one repetition.

    Attributes:
        reason: ``empty`` (no text), ``refused``, ``unparsable`` (no JSON object, or several that disagree),
            ``no_score`` (an object without a numeric score), ``not_finite`` (NaN or infinity).
        raw: The provider's last reply.
    """

    default_code = "PLATFORM_ERROR"

    def __init__(
        self,
        provider: str,
        model: str,
        detail: str,
        *,
        reason: UnscoredReason = "unparsable",
        raw: Any = None,
    ) -> None:
        super().__init__(provider, model, detail)
        self.reason: UnscoredReason = reason
        self.raw = raw
        self.details["reason"] = reason


class ModelInfo(TypedDict, total=False):
    """Configuration of a judge.

    Keys:
        provider: The provider's name (``openai``, ``anthropic`` ...).
        model: The provider's name of the model.
        api_key: The key; overrides ``api_key_env``.
        api_key_env: Environment variable with the key. Default: the provider's usual one.
        api_base: Address of any OpenAI-compatible endpoint, up to and including ``/v1``.
        score_min: The lowest score. Default: 0.0.
        score_max: The highest score. Default: 1.0.
        system_prompt: Prepended to the judge's own system prompt.
        original_input: The candidate's prompt.
        timeout: Seconds per try.
        reasoning_effort: Effort of a reasoning model (``low``, ``medium`` ...).
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
    """Result of ``evaluate_rubric(..., return_details=True)``.

    Keys:
        score: The score, within the bounds.
        explanation: The judge's reasons.
        raw: The provider's whole reply.
        stated_score: The judge's original number, which differs from ``score`` if it was outside the bounds.
        input_tokens: Tokens read by the judge, including a repeated question.
        output_tokens: Tokens produced by the judge.
        cost_usd: Cost in USD; None if the price is unknown.
        duration_s: Seconds until the judge answered.
        retries: Number of retries.
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
    """Result of ``await evaluate_rubric(..., model=...)``.

    Attributes:
        score: The score, within the bounds.
        explanation: The judge's reasons.
    """

    score: float
    explanation: str


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """A text to judge, with its rubric and context."""

    rubric: str
    solution_str: str
    ground_truth: str | None = None
    original_input: str | None = None
    metadata: dict[str, Any] | None = None
    score_min: float = 0.0
    score_max: float = 1.0
    system_prompt: str | None = None
    reverse_blocks: bool = False

    def __post_init__(self) -> None:
        for name in ("rubric", "solution_str"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise JudgeArgumentError(f"`{name}` must be a non-empty string, not {_shown(value)}.")
        for name in ("ground_truth", "original_input", "system_prompt"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise JudgeArgumentError(f"`{name}` must be a string or None, not {_shown(value)}.")
        if self.metadata is not None and not isinstance(self.metadata, dict):
            raise JudgeArgumentError(f"`metadata` must be a dict or None, not {_shown(self.metadata)}.")
        check_bounds(self.score_min, self.score_max)


class JudgeResult(NamedTuple):
    """The judge's answer; the fields are the keys of :class:`RewardRubricRunResult`."""

    score: float
    explanation: str
    raw: Any
    stated_score: float
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_s: float
    retries: int

    @property
    def is_clamped(self) -> bool:
        """Whether the judge's own number was outside the bounds."""
        return self.stated_score != self.score


def check_bounds(score_min: object, score_max: object) -> tuple[float, float]:
    """Return the bounds as floats."""
    lowest, highest = _number("score_min", score_min), _number("score_max", score_max)
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise JudgeValueError(f"`score_min` and `score_max` must be finite, not {lowest} and {highest}.")
    if highest <= lowest:
        raise JudgeValueError(f"`score_max` ({highest}) must be greater than `score_min` ({lowest}).")
    if max(abs(lowest), abs(highest)) > _LARGEST_BOUND or highest - lowest < 1 / _LARGEST_BOUND:
        raise JudgeValueError(
            f"the scale from {lowest:g} to {highest:g} is too wide or too narrow: bounds are at most "
            f"{_LARGEST_BOUND:g}, and at least {1 / _LARGEST_BOUND:g} apart."
        )
    return lowest, highest


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real | str):
        raise JudgeArgumentError(f"`{name}` must be a number, not {_shown(value)}.")
    try:
        return float(value)
    except (ValueError, OverflowError):
        raise JudgeArgumentError(f"`{name}` must be a number, not {_shown(value)}.") from None


def _shown(value: object) -> str:
    if isinstance(value, str):
        return repr(value[:40]) if value.strip() else "a blank one"
    return type(value).__name__
