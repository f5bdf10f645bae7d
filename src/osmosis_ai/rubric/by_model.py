"""``evaluate_rubric(model=...)``: awaited, the judge by its LiteLLM name, a :class:`RubricResult` back.

What is judged is checked before who judges: the texts, the bounds, then the key, then the call.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.providers import key_variables
from osmosis_ai.rubric.errors import (
    JudgeArgumentError,
    JudgeValueError,
    MissingAPIKeyError,
    ProviderRequestError,
)
from osmosis_ai.rubric.judge_model import (
    DEFAULT_API_KEY_ENV,
    DEFAULT_REQUEST_TIMEOUT_SECONDS,
    JudgeModel,
    find_api_key,
    guessed_key_variable,
    resolve_judge,
)
from osmosis_ai.rubric.task import JudgeTask
from osmosis_ai.rubric.types import RubricResult

# How a name without a provider begins -> whose it is.
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


async def evaluate_rubric(
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
    """Let a model score a text against a rubric."""
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
    judge_model = _judge(model, api_key, timeout)
    from osmosis_ai.rubric import shared_judges

    try:
        judgement = await asyncio.wrap_future(shared_judges.submit(judge_model, task))
    except ProviderRequestError as error:
        raise error.naming(model) from None
    return RubricResult(judgement.score, judgement.explanation)


def _judge(model: str, api_key: str | None, timeout_s: float | None) -> JudgeModel:
    """Find out who ``model`` is."""
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
        timeout_s = DEFAULT_REQUEST_TIMEOUT_SECONDS  # here no model of theirs has more
    try:
        return resolve_judge(name, env=os.environ, api_key=api_key, timeout_s=timeout_s)
    except (JudgeArgumentError, JudgeValueError):
        raise
    except MissingAPIKeyError:
        raise _missing_key(provider) from None
    except ProviderRequestError as error:
        raise error.naming(model) from None
    except OsmosisError as error:
        # A name that makes no sense, or an address that cannot be used.
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
        return MissingAPIKeyError(f"`{provider}` is no provider of models; write `model` as provider/model.")
    return MissingAPIKeyError(
        f"Environment variable '{variable}' is not set. It should hold the key of `{provider}`: "
        f'export {variable}="..." (or pass the key as `api_key`).'
    )
