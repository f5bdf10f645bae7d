"""What users pass to a judge and get back, the question and the answer inside, and what can go wrong.

    OsmosisError
    ├── JudgeArgumentError (TypeError)    an argument is missing, blank or of the wrong type
    ├── JudgeValueError (ValueError)      the bounds enclose nothing, or a number cannot be used
    ├── MissingAPIKeyError (RuntimeError) no key for the provider; the message has the line that sets it
    └── ProviderRequestError (RuntimeError)
        ├── ModelNotFoundError            the provider does not know the model
        └── UnscoredError                 the judge answered, and no score could be read from it

A missing score is always one of these errors, never a number. The error carries what was spent, so that a budget counts
failures too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import Any, Literal, TypedDict

from typing_extensions import NotRequired, Self

from osmosis_ai.errors import ErrorCode, OsmosisError

UnscoredReason = Literal["unparsable", "refused", "no_score", "not_finite", "empty"]

_NO_DETAIL = "the provider gave no reason."


class JudgeArgumentError(OsmosisError, TypeError):
    """An argument of a judge's call is missing, blank or of the wrong type."""


class JudgeValueError(OsmosisError, ValueError):
    """A number cannot be used: bounds that enclose nothing, a timeout that is none."""


class MissingAPIKeyError(OsmosisError, RuntimeError):
    """The provider needs a key and none was given; the message holds the ``export`` line that gives it."""


class ProviderRequestError(OsmosisError, RuntimeError):
    """The judge could not be asked, or did not answer.

    Args:
        provider: who was asked.
        model: which of its models.
        detail: what went wrong, in the provider's words where it has some; never a key.
        code: the machine-readable class of the error.
        hint: one extra line that says how to fix it.

    Attributes:
        category: the kind of failure, as :mod:`osmosis_ai.llm.errors` names it ("rate_limit", "auth" ...); None
            when the call itself succeeded or was never made.
        input_tokens: read by the judge until it failed.
        output_tokens: produced by it until then.
        cost_usd: what that cost, in USD; None when it is not known.
        retries: how many tries were not the first.
        duration_s: seconds spent in answered calls.
    """

    default_code: ErrorCode = "NETWORK"

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
        self.detail = detail.strip() or _NO_DETAIL
        super().__init__(
            f"Provider '{provider}' request for model '{model}' failed. {self.detail}",
            code=code,
            details={"provider": provider, "model": model, "detail": self.detail},
            hint=hint,
        )
        self.category: str | None = None
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd: float | None = None
        self.retries = 0
        self.duration_s = 0.0

    def naming(self, model: str) -> Self:
        """Return the same error about ``model``, the judge as the caller called it."""
        renamed = type(self)(self.provider, model, self.detail)
        kept = {
            name: value
            for name, value in self.__dict__.items()
            if name not in ("model", "message", "details")
        }
        renamed.__dict__.update(kept)
        renamed.details = {**self.details, "model": model}
        return renamed

    def __reduce__(self) -> tuple[Any, ...]:
        # Reward functions run in process pools, and an exception that cannot be pickled breaks the pool.
        return type(self), (self.provider, self.model, self.detail), self.__dict__


class ModelNotFoundError(ProviderRequestError):
    """The provider does not know the model: its name changed, or is misspelt."""

    default_code = "NOT_FOUND"


class UnscoredError(ProviderRequestError):
    """The judge answered, and its answer holds no usable score, not even after being asked once more.

    Attributes:
        reason: ``empty`` (no text), ``refused``, ``unparsable`` (no JSON object, or several that disagree),
            ``no_score`` (an object without a numeric score), ``not_finite`` (NaN or infinity).
        raw: the provider's last reply.
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


@dataclass(frozen=True, slots=True)
class JudgeTask:
    """What is judged, and against what."""

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


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the judge said."""

    score: float
    explanation: str
    raw: Any
    input_tokens: int
    output_tokens: int
    cost_usd: float | None
    duration_s: float
    retries: int
    stated_score: float | None = None


def check_bounds(score_min: object, score_max: object) -> tuple[float, float]:
    """Return the bounds as floats."""
    lowest, highest = _number("score_min", score_min), _number("score_max", score_max)
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise JudgeValueError(f"`score_min` and `score_max` must be finite, not {lowest} and {highest}.")
    if highest <= lowest:
        raise JudgeValueError(f"`score_max` ({highest}) must be greater than `score_min` ({lowest}).")
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
