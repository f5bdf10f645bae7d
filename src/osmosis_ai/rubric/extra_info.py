"""What the ``extra_info`` of a rubric function must say, and the judge's configuration it makes.

Whoever names a judge there names it completely; who names none leaves it to the function. Every
entry is checked before the function runs; a key's value never is in an error.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from osmosis_ai.rubric.errors import JudgeArgumentError, JudgeValueError
from osmosis_ai.rubric.judge_model import DEFAULT_API_KEY_ENV

_REQUIRED = {
    "provider": "the judge's provider, for instance 'openai'",
    "model": "the provider's model, for instance 'gpt-5-mini'",
    "rubric": "the instructions to judge by",
}
_OPTIONAL_TEXTS = ("api_key", "api_key_env", "api_base", "system_prompt", "original_input")
# What a judge's configuration takes over from `extra_info`; the rest is the function's own.
_OF_THE_JUDGE = (
    *("provider", "model", *_OPTIONAL_TEXTS),
    *("score_min", "score_max", "timeout", "reasoning_effort"),
)
_NAME_A_JUDGE = ("provider", "model", "api_key", "api_key_env", "api_base", "model_info_overrides")


def with_model_info(extra_info: Mapping[str, Any], *, function: str) -> dict[str, Any]:
    """Return a copy of ``extra_info`` with ``model_info``: the judge's configuration, overrides merged in."""
    where = f"`{function}`: `extra_info"
    named = any(extra_info.get(name) is not None for name in _NAME_A_JUDGE)
    for name, meaning in _REQUIRED.items():
        value = extra_info.get(name)
        if value is None and not named:
            continue
        if not isinstance(value, str) or not value.strip():
            raise JudgeArgumentError(
                f"{where}['{name}']` must be a non-empty string: {meaning}; it is {_shown(extra_info, name)}."
            )
    overrides = extra_info.get("model_info_overrides")
    if overrides is not None and not isinstance(overrides, dict):
        raise JudgeArgumentError(
            f"{where}['model_info_overrides']` must be a dict; it is {_shown(extra_info, 'model_info_overrides')}."
        )
    _check_values(extra_info, where)
    _check_values(overrides or {}, f"{where}['model_info_overrides']")
    if not named:
        _check_bounds(extra_info, where)
        return dict(extra_info)
    given = extra_info.get("model_info")
    model_info = {
        **(given if isinstance(given, dict) else {}),
        **{name: extra_info[name] for name in _OF_THE_JUDGE if extra_info.get(name) is not None},
        **(overrides or {}),
    }
    _check_key(model_info, where)
    _check_bounds(model_info, where)
    return {**extra_info, "model_info": model_info}


def _check_values(entries: Mapping[str, Any], where: str) -> None:
    for name in (*_OPTIONAL_TEXTS, "provider", "model"):
        value = entries.get(name)
        if value is not None and not isinstance(value, str):
            raise JudgeArgumentError(f"{where}['{name}']` must be a string; it is {_shown(entries, name)}.")
    for name in ("score_min", "score_max", "timeout"):
        value = entries.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real)):
            raise JudgeArgumentError(f"{where}['{name}']` must be a number; it is {_shown(entries, name)}.")


def _check_key(model_info: Mapping[str, Any], where: str) -> None:
    if any(str(model_info.get(name) or "").strip() for name in ("api_key", "api_key_env", "api_base")):
        return
    usual = DEFAULT_API_KEY_ENV.get(str(model_info["provider"]).strip().lower(), "MY_API_KEY")
    raise JudgeArgumentError(
        f'{where}` needs `api_key` or `api_key_env`, for instance "api_key_env": "{usual}" '
        "(here or in `model_info_overrides`)."
    )


def _check_bounds(model_info: Mapping[str, Any], where: str) -> None:
    lowest, highest = (
        default if model_info.get(name) is None else model_info[name]
        for name, default in (("score_min", 0.0), ("score_max", 1.0))
    )
    if not (math.isfinite(lowest) and math.isfinite(highest)) or highest <= lowest:
        raise JudgeValueError(
            f"{where}`: `score_max` ({highest}) must be greater than `score_min` ({lowest}), and both finite."
        )


def _shown(entries: Mapping[str, Any], name: str) -> str:
    """What is there instead, by its kind alone: it may be a key."""
    if name not in entries:
        return "missing"
    value = entries[name]
    if value is None:
        return "None"
    return "blank" if isinstance(value, str) and not value.strip() else f"of type {type(value).__name__}"
