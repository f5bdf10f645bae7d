"""``evaluate_rubric``: score one text against one rubric with one judge, in the forms of both public SDK lines.

``model_info=`` is synchronous and checks the judge before the texts. ``model=`` is awaited, takes LiteLLM model names,
and checks the texts, the bounds, then the key. All arguments are checked before the first call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

from typing_extensions import Unpack

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.providers import key_variables
from osmosis_ai.rubric.judge_model import (
    DEFAULT_API_KEY_ENV,
    DEFAULT_REQUEST_TIMEOUT_SECONDS,
    JudgeModel,
    find_api_key,
    guessed_key_variable,
    provider_and_model,
    provider_of,
    resolve_judge,
)
from osmosis_ai.rubric.types import (
    JudgeArgumentError,
    Judgement,
    JudgeTask,
    JudgeValueError,
    MissingAPIKeyError,
    ProviderRequestError,
    RubricResult,
    check_bounds,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from osmosis_ai.rubric.types import ModelInfo, RewardRubricRunResult

# Provider by prefix of a model name without provider.
_PROVIDERS_BY_NAME = (
    ("gpt-", "openai"),
    ("o1-", "openai"),
    ("o3-", "openai"),
    ("o4-", "openai"),
    ("claude", "anthropic"),
    ("gemini", "gemini"),
    ("grok", "xai"),
)
_UNKNOWN = "unknown"
_FORMS = """
  score = evaluate_rubric(rubric, solution_str, model_info={"provider": "openai", "model": "gpt-5-mini"})
  result = await evaluate_rubric(rubric=rubric, solution_str=solution_str, model="openai/gpt-5-mini")"""


class JudgeOptions(TypedDict, total=False):
    """Keywords of the synchronous form. None values are taken from ``model_info``."""

    ground_truth: str | None
    original_input: str | None
    metadata: dict[str, Any] | None
    score_min: float | None
    score_max: float | None
    timeout: float | None


@overload
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: Literal[False] = ...,
    **options: Unpack[JudgeOptions],
) -> float: ...


@overload
def evaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: Literal[True],
    **options: Unpack[JudgeOptions],
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
    """Score a text against a rubric with a model."""
    by_info = len(args) > 2 or kwargs.get("model_info") is not None
    by_name = kwargs.get("model") is not None
    if by_info == by_name:
        raise JudgeArgumentError(
            f"`evaluate_rubric` needs {'one' if by_info else 'either'} of `model_info` and `model`"
            f"{', not both' if by_info else ''}:{_FORMS}"
        )
    unused = "model" if by_info else "model_info"
    chosen = {name: value for name, value in kwargs.items() if name != unused}
    ask: Any = evaluate_by_info if by_info else evaluate_by_model
    return ask(*args, **chosen)


@overload
def evaluate_by_info(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: Literal[False] = ...,
    **options: Unpack[JudgeOptions],
) -> float: ...


@overload
def evaluate_by_info(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: Literal[True],
    **options: Unpack[JudgeOptions],
) -> RewardRubricRunResult: ...


def evaluate_by_info(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: dict[str, Any] | None = None,
    score_min: float | None = None,
    score_max: float | None = None,
    timeout: float | None = None,
    return_details: bool = False,
) -> float | RewardRubricRunResult:
    """Score a text against a rubric with a model, blocking until the score arrives.

    Thread-safe. In a running event loop it blocks the loop; use :func:`aevaluate_rubric` there.

    Args:
        rubric: The instructions for the judge.
        solution_str: The text to judge.
        model_info: The judge; see :class:`~osmosis_ai.rubric.types.ModelInfo`.
        ground_truth: The reference answer, if any.
        original_input: The candidate's prompt; overrides ``model_info``.
        metadata: Additional data for the judge, as JSON.
        score_min: The lowest score; overrides ``model_info``. Default: 0.0.
        score_max: The highest score; overrides ``model_info``. Default: 1.0.
        timeout: Seconds per try; overrides ``model_info``. Default: 30 to 60, by provider.
        return_details: Return the explanation, the provider's reply, tokens and cost with the score.

    Raises:
        JudgeArgumentError: An argument is missing, blank or of the wrong type (a ``TypeError``).
        MissingAPIKeyError: The provider's key is missing.
        JudgeValueError: The bounds are invalid (a ``ValueError``).
        ModelNotFoundError: The provider does not know the model.
        UnscoredError: The judge never answered with a usable score.
        ProviderRequestError: Any other failure of the call.
    """
    asked = _checked(
        rubric,
        solution_str,
        model_info,
        ground_truth=ground_truth,
        original_input=original_input,
        metadata=metadata,
        score_min=score_min,
        score_max=score_max,
        timeout=timeout,
    )
    future = _submit(*asked)
    try:
        judgement = future.result()
    except BaseException:
        future.cancel()  # Ctrl-C while waiting must not leave the call running
        raise
    return _details(judgement) if return_details else judgement.score


@overload
async def aevaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: Literal[False] = ...,
    **options: Unpack[JudgeOptions],
) -> float: ...


@overload
async def aevaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: Literal[True],
    **options: Unpack[JudgeOptions],
) -> RewardRubricRunResult: ...


async def aevaluate_rubric(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: bool = False,
    **options: Unpack[JudgeOptions],
) -> float | RewardRubricRunResult:
    """Async version of :func:`evaluate_rubric` with the same arguments, result and errors.

    Cancelling the awaiting task cancels the call.
    """
    judgement = await asyncio.wrap_future(_submit(*_checked(rubric, solution_str, model_info, **options)))
    return _details(judgement) if return_details else judgement.score


async def evaluate_by_model(
    *,
    solution_str: str,
    rubric: str,
    model: str,
    ground_truth: str | None = None,
    original_input: str | None = None,
    metadata: dict[str, Any] | None = None,
    score_min: float = 0.0,
    score_max: float = 1.0,
    api_key: str | None = None,
    timeout: float | None = None,
    system_prompt: str | None = None,
) -> RubricResult:
    """Score a text against a rubric with a model."""
    task = JudgeTask(
        rubric=rubric,
        solution_str=solution_str,
        ground_truth=ground_truth,
        original_input=original_input,
        metadata=metadata,
        score_min=score_min,
        score_max=score_max,
        system_prompt=system_prompt,
    )
    try:
        judgement = await asyncio.wrap_future(_submit(judge_by_name(model, api_key, timeout), task))
    except ProviderRequestError as error:
        raise error.naming(model) from None
    return RubricResult(judgement.score, judgement.explanation)


# Tracebacks and Python's messages show the public name of both forms.
for _form in (evaluate_by_info, evaluate_by_model):
    _form.__name__ = _form.__qualname__ = "evaluate_rubric"


def ensure_api_key_available(model_info: ModelInfo | Mapping[str, Any]) -> None:
    """Check that the provider's key is set, without making a call.

    Raises:
        JudgeArgumentError: ``model_info`` names no provider (a ``TypeError``).
        MissingAPIKeyError: The key is missing. The message has the line that sets it.
    """
    find_api_key(provider_of(model_info), model_info, os.environ)


def _submit(judge_model: JudgeModel, task: JudgeTask) -> Future[Judgement]:
    from osmosis_ai.rubric import judge  # imports the clients

    return judge.submit(judge_model, task)


def _checked(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    **options: Unpack[JudgeOptions],
) -> tuple[JudgeModel, JudgeTask]:
    """Check all arguments in the documented order: judge, key, texts, bounds, timeout."""
    provider, _ = provider_and_model(model_info)
    find_api_key(provider, model_info, os.environ)
    for name, text in (("rubric", rubric), ("solution_str", solution_str)):
        if not isinstance(text, str) or not text.strip():
            raise JudgeArgumentError(f"`{name}` must be a non-empty string.")
    info = model_info.get
    low, high = options.get("score_min"), options.get("score_max")
    score_min, score_max = check_bounds(
        info("score_min", 0.0) if low is None else low, info("score_max", 1.0) if high is None else high
    )
    task = JudgeTask(
        rubric=rubric,
        solution_str=solution_str,
        ground_truth=options.get("ground_truth"),
        original_input=_first_text(options.get("original_input"), info("original_input")),
        metadata=options.get("metadata"),
        score_min=score_min,
        score_max=score_max,
        system_prompt=_first_text(info("system_prompt")),
    )
    return resolve_judge(model_info, env=os.environ, timeout_s=options.get("timeout")), task


def _first_text(*values: object) -> str | None:
    """Return the first value that is text, stripped."""
    return next((value.strip() for value in values if isinstance(value, str) and value.strip()), None)


def _details(judgement: Judgement) -> RewardRubricRunResult:
    stated = judgement.stated_score
    return {
        "score": judgement.score,
        "explanation": judgement.explanation,
        "raw": judgement.raw,
        "stated_score": judgement.score if stated is None else stated,
        "input_tokens": judgement.input_tokens,
        "output_tokens": judgement.output_tokens,
        "cost_usd": judgement.cost_usd,
        "duration_s": judgement.duration_s,
        "retries": judgement.retries,
    }


def judge_by_name(model: str, api_key: str | None, timeout_s: float | None) -> JudgeModel:
    """Resolve a model name."""
    if not isinstance(model, str) or not model.strip():
        raise JudgeArgumentError(
            "`model` must be a LiteLLM name: a non-empty string, for instance `openai/gpt-5-mini`."
        )
    name = model.strip()
    if "/" not in name:
        provider = next((whose for start, whose in _PROVIDERS_BY_NAME if name.startswith(start)), None)
        name = f"{provider}/{name}" if provider else name
    provider = name.partition("/")[0].lower() if "/" in name else _UNKNOWN
    if provider == "openai" and timeout_s is None:
        timeout_s = DEFAULT_REQUEST_TIMEOUT_SECONDS  # no model has a longer default in this form
    try:
        return resolve_judge(name, env=os.environ, api_key=api_key, timeout_s=timeout_s)
    except (JudgeArgumentError, JudgeValueError):
        raise
    except MissingAPIKeyError:
        raise _missing_key(provider) from None
    except ProviderRequestError as error:
        raise error.naming(model) from None
    except OsmosisError as error:
        # The name or the address is invalid.
        if provider == _UNKNOWN and not (api_key or "").strip():
            raise MissingAPIKeyError(
                f"no key for `{model}`, and its provider is not known: {error.message}", hint=error.hint
            ) from None
        _require_key(provider, api_key)
        raise ProviderRequestError(provider, model, error.message, code=error.code, hint=error.hint) from None


def _require_key(provider: str, api_key: str | None) -> None:
    try:
        find_api_key(provider, {"api_key": api_key}, os.environ)
    except MissingAPIKeyError:
        raise _missing_key(provider) from None


def _missing_key(provider: str) -> MissingAPIKeyError:
    variables = (DEFAULT_API_KEY_ENV.get(provider), *key_variables(provider), guessed_key_variable(provider))
    variable = next(filter(None, variables), None)
    if variable is None:
        return MissingAPIKeyError(f"`{provider}` is not a model provider; write `model` as provider/model.")
    return MissingAPIKeyError(
        f"Environment variable '{variable}' is not set. It should hold the key of `{provider}`: "
        f'export {variable}="..." (or pass the key as `api_key`).'
    )
