"""``evaluate_rubric``: score one text against one rubric with one judge, in the forms of both public SDK lines.

``model_info=`` is synchronous and checks the judge before the texts. ``model=`` is awaited, takes LiteLLM model names,
and checks the texts, the bounds, then the key. All arguments are checked before the first call.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, overload

from typing_extensions import Unpack

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.providers import well_known_provider
from osmosis_ai.rubric.judge_model import (
    DEFAULT_REQUEST_TIMEOUT_SECONDS,
    JudgeModel,
    find_api_key,
    key_names,
    missing_key,
    provider_and_model,
    provider_of,
    resolve_judge,
)
from osmosis_ai.rubric.types import (
    JudgeArgumentError,
    JudgeResult,
    JudgeTask,
    JudgeValueError,
    MissingAPIKeyError,
    ProviderRequestError,
    RubricResult,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

    from osmosis_ai.rubric.types import ModelInfo, RewardRubricRunResult

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
    """Score a text against a rubric with a model.

    With ``model_info=`` it blocks until the score arrives; in a running event loop, use :func:`aevaluate_rubric`. With
    ``model=``, a LiteLLM name, it is awaited and takes keywords only. Thread-safe.

    Args:
        rubric: The instructions for the judge.
        solution_str: The text to judge.
        model_info: The judge; see :class:`~osmosis_ai.rubric.types.ModelInfo`.
        model: The judge's LiteLLM name, for instance ``openai/gpt-5-mini``.
        ground_truth: The reference answer, if any.
        original_input: The candidate's prompt; overrides ``model_info``.
        metadata: Additional data for the judge, as JSON.
        score_min: The lowest score; overrides ``model_info``. Default: 0.0.
        score_max: The highest score; overrides ``model_info``. Default: 1.0.
        timeout: Seconds per try; overrides ``model_info``. Default: 30 to 60, by provider.
        return_details: With ``model_info``, return the explanation, the provider's reply, tokens and cost with the score.
        api_key, system_prompt: With ``model``, what ``model_info`` holds otherwise.

    Raises:
        JudgeArgumentError: An argument is missing, blank or of the wrong type (a ``TypeError``).
        MissingAPIKeyError: The provider's key is missing.
        JudgeValueError: The bounds are invalid (a ``ValueError``).
        ModelNotFoundError: The provider does not know the model.
        UnscoredError: The judge never answered with a usable score.
        ProviderRequestError: Any other failure of the call.
    """
    by_info = len(args) > 2 or kwargs.get("model_info") is not None
    by_name = kwargs.get("model") is not None
    if by_info == by_name:
        raise JudgeArgumentError(
            f"`evaluate_rubric` needs {'one' if by_info else 'either'} of `model_info` and `model`"
            f"{', not both' if by_info else ''}:{_FORMS}"
        )
    unused = "model" if by_info else "model_info"
    chosen = {name: value for name, value in kwargs.items() if name != unused}
    ask: Any = _evaluate_by_info if by_info else evaluate_by_model
    return ask(*args, **chosen)


def _evaluate_by_info(
    rubric: str,
    solution_str: str,
    model_info: ModelInfo | Mapping[str, Any],
    *,
    return_details: bool = False,
    **options: Unpack[JudgeOptions],
) -> float | RewardRubricRunResult:
    future = _submit(*_checked(rubric, solution_str, model_info, **options))
    try:
        judgement = future.result()
    except BaseException:
        future.cancel()  # Ctrl-C while waiting must not leave the call running
        raise
    return cast("RewardRubricRunResult", judgement._asdict()) if return_details else judgement.score


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
    """Async version of :func:`evaluate_rubric` with ``model_info``. Cancelling the awaiting task cancels the call."""
    judgement = await asyncio.wrap_future(_submit(*_checked(rubric, solution_str, model_info, **options)))
    return cast("RewardRubricRunResult", judgement._asdict()) if return_details else judgement.score


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
    judgement = await asyncio.wrap_future(_submit(judge_by_name(model, api_key, timeout), task))
    return RubricResult(judgement.score, judgement.explanation)


def ensure_api_key_available(model_info: ModelInfo | Mapping[str, Any]) -> None:
    """Check that the provider's key is set, without making a call.

    Raises:
        JudgeArgumentError: ``model_info`` names no provider (a ``TypeError``).
        MissingAPIKeyError: The key is missing. The message has the line that sets it.
    """
    find_api_key(provider_of(model_info), model_info, os.environ)


def _submit(judge_model: JudgeModel, task: JudgeTask) -> Future[JudgeResult]:
    from osmosis_ai.rubric import judge  # imports the clients

    return judge.submit(judge_model, task)


def _checked(
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
) -> tuple[JudgeModel, JudgeTask]:
    """Check all arguments in the documented order: judge, key, texts, bounds, timeout."""
    provider, _ = provider_and_model(model_info)
    find_api_key(provider, model_info, os.environ)
    info: Mapping[str, Any] = model_info
    task = JudgeTask(
        rubric=rubric,
        solution_str=solution_str,
        ground_truth=ground_truth,
        original_input=_first_text(original_input, info.get("original_input")),
        metadata=metadata,
        score_min=info.get("score_min", 0.0) if score_min is None else score_min,
        score_max=info.get("score_max", 1.0) if score_max is None else score_max,
        system_prompt=_first_text(info.get("system_prompt")),
    )
    return resolve_judge(model_info, env=os.environ, timeout_s=timeout), task


# Tracebacks and Python's messages show the public name of both forms.
for _form in (_evaluate_by_info, evaluate_by_model, _checked):
    _form.__name__ = _form.__qualname__ = "evaluate_rubric"


def _first_text(*values: object) -> str | None:
    """Return the first value that is text, stripped."""
    return next((value.strip() for value in values if isinstance(value, str) and value.strip()), None)


def judge_by_name(model: str, api_key: str | None, timeout_s: float | None) -> JudgeModel:
    """Resolve a model name."""
    if not isinstance(model, str) or not model.strip():
        raise JudgeArgumentError(
            "`model` must be a LiteLLM name: a non-empty string, for instance `openai/gpt-5-mini`."
        )
    name = model.strip()
    provider = name.partition("/")[0].lower() if "/" in name else well_known_provider(name) or _UNKNOWN
    if provider == "openai" and timeout_s is None:
        timeout_s = DEFAULT_REQUEST_TIMEOUT_SECONDS  # no model has a longer default in this form
    try:
        judge = resolve_judge(name, env=os.environ, api_key=api_key, timeout_s=timeout_s)
        return replace(judge, written=model)
    except (JudgeArgumentError, JudgeValueError):
        raise
    except MissingAPIKeyError:
        raise _missing_key(provider) from None
    except OsmosisError as error:
        # The name or the address is invalid.
        if provider == _UNKNOWN and not (api_key or "").strip():
            raise MissingAPIKeyError(
                f"no key for `{model}`, and its provider is not known: {error.message}", hint=error.hint
            ) from None
        try:
            find_api_key(provider, {"api_key": api_key}, os.environ)
        except MissingAPIKeyError:
            raise _missing_key(provider) from None
        detail = error.detail if isinstance(error, ProviderRequestError) else error.message
        raise ProviderRequestError(provider, model, detail, code=error.code, hint=error.hint) from None


def _missing_key(provider: str) -> MissingAPIKeyError:
    variable = next(iter(key_names(provider)), None)
    if variable is None:
        return MissingAPIKeyError(f"`{provider}` is not a model provider; write `model` as provider/model.")
    return missing_key(provider, variable, " (or pass the key as `api_key`).")
