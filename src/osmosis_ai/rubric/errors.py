"""What can go wrong between a rubric and its score.

    OsmosisError
    ├── JudgeArgumentError (TypeError)    an argument is missing, blank or of the wrong type
    ├── JudgeValueError (ValueError)      the bounds enclose nothing, or a number cannot be used
    ├── MissingAPIKeyError (RuntimeError) no key for the provider; the message has the line that sets it
    └── ProviderRequestError (RuntimeError)
        ├── ModelNotFoundError            the provider does not know the model
        └── UnscoredError                 the judge answered, and no score could be read from it

A score that could not be had is always one of these, never a number. What was spent on the way is
on the error, so that a budget counts failures too.
"""

from __future__ import annotations

from typing import Any, Literal

from typing_extensions import Self

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
        hint: one extra line that says how to mend it.

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
