"""Resolve a judge configuration to a model, address and key.

All configuration errors are found before the first call. An ``api_base`` is an OpenAI-compatible endpoint and is
called directly, whatever the provider. Without one, providers with OpenAI's protocol are called directly at their own
address, and all others through LiteLLM.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any
from urllib.parse import urlsplit

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.providers import (
    ONLY_ADDRESS_ENV,
    OPENAI_COMPATIBLE,
    ModelEndpoint,
    address_variables_of,
    compatible_base_url,
    http_address,
    is_provider,
    key_variables,
    openai_base_url,
    refuse_redirect,
    split_model_path,
)
from osmosis_ai.rubric.types import (
    JudgeArgumentError,
    JudgeValueError,
    MissingAPIKeyError,
    ModelInfo,
    ProviderRequestError,
    check_bounds,
)

DEFAULT_REQUEST_TIMEOUT_SECONDS = 30.0
# Provider, model prefix, seconds; the first match applies.
_TIMEOUTS_S = (
    ("xai", "grok-4", 60.0),
    ("openai", "gpt-5", 45.0),
    ("xai", "", 45.0),
    ("gemini", "", 45.0),
    ("cerebras", "", 60.0),
    ("openrouter", "", 60.0),
)
DEFAULT_API_KEY_ENV: dict[str, str] = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "xai": "XAI_API_KEY",
    "gemini": "GEMINI_API_KEY",
    "google": "GEMINI_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "cerebras": "CEREBRAS_API_KEY",
    "azure": "AZURE_API_KEY",
    "bedrock": "AWS_ACCESS_KEY_ID",
    "vertex_ai": "GOOGLE_APPLICATION_CREDENTIALS",
}
# Clouds use credentials other than a single key. LiteLLM finds them; here they only need to exist.
_CLOUD_CREDENTIALS = {
    "azure": ("AZURE_AD_TOKEN", "AZURE_CLIENT_ID"),
    "bedrock": (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_BEARER_TOKEN_BEDROCK",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    ),
    "vertex_ai": ("GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_CLOUD_PROJECT", "VERTEXAI_PROJECT"),
}
_SAME_PROVIDER = {"google": "gemini"}


@dataclass(frozen=True)
class JudgeModel(ModelEndpoint):
    """One judge: model, address and options; ``written`` is the model as error messages show it."""

    timeout_s: float = DEFAULT_REQUEST_TIMEOUT_SECONDS
    reasoning_effort: str | None = None
    written: str = ""


def resolve_judge(
    model_info: Mapping[str, Any] | str,
    *,
    env: Mapping[str, str],
    api_base: str | None = None,
    api_key: str | None = None,
    timeout_s: float | None = None,
) -> JudgeModel:
    info = _with_name(model_info, api_base) if isinstance(model_info, str) else dict(model_info)
    overrides = {"api_base": api_base, "api_key": api_key}
    info.update({name: value for name, value in overrides.items() if value is not None})
    provider, model = provider_and_model(info)
    name = f"{provider}/{model}"
    key = find_api_key(provider, info, env)
    base = _base_of(provider, model, info, env)
    if _text(info, "api_base") is None:
        refuse_redirect(address_variables_of(provider), env, key)
    only = env.get(ONLY_ADDRESS_ENV)
    if only is not None and (base is None or urlsplit(base).netloc != only):
        raise JudgeArgumentError(
            f'The judge `{name}` cannot be called: rollouts of this run have `network = "none"` and can reach only '
            "the run's own model.",
            hint="judge with that model (`api_base=` and `api_key=` of the rollout's context), or give the run "
            '`network = "host"`',
        )
    known = OPENAI_COMPATIBLE.get(provider)
    if known and known.model_prefix and "/" not in model and base == known.base_url:
        model = known.model_prefix + model
    return JudgeModel(
        model_path=f"{provider}/{model}",
        provider=provider,
        model=model,
        transport="litellm" if base is None else "openai",
        base_url=base,
        api_key=key,
        timeout_s=_timeout(provider, model, info, timeout_s),
        reasoning_effort=_text(info, "reasoning_effort"),
        written=model,
    )


def provider_and_model(model_info: Mapping[str, Any]) -> tuple[str, str]:
    """Return the provider (in lower case) and the model named by ``model_info``."""
    return provider_of(model_info), _required(model_info, "model", "`gpt-5-mini`")


def provider_of(model_info: Mapping[str, Any]) -> str:
    """Return the provider named by ``model_info``, in lower case."""
    if not isinstance(model_info, Mapping):
        raise JudgeArgumentError(
            f"`model_info` must be a dict with `provider` and `model`, not {type(model_info).__name__}."
        )
    provider = _required(model_info, "provider", "`openai` or `anthropic`").lower()
    return _SAME_PROVIDER.get(provider, provider)


def find_api_key(provider: str, model_info: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """Return the provider's key; None if it needs none or its credentials are not a single key."""
    if inline := _text(model_info, "api_key"):
        return inline
    clouds = _CLOUD_CREDENTIALS.get(provider, ())
    if named := _text(model_info, "api_key_env"):
        if not _is_variable_name(named):
            raise JudgeArgumentError(
                "`api_key_env` must be the name of an environment variable, such as `MY_API_KEY`."
            )
        value = env.get(named, "").strip()
        if not value:
            raise missing_key(provider, named)
        return None if named in clouds else value
    found = next((name for name in key_names(provider) if env.get(name, "").strip()), None)
    if found is not None:
        return None if found in clouds else env[found].strip()
    if any(env.get(name, "").strip() for name in clouds) or not _needs_key(provider, model_info, env):
        return None
    if provider in DEFAULT_API_KEY_ENV or key_variables(provider):
        otherwise = " (or name another variable as `api_key_env` in the model configuration)."
        raise missing_key(provider, key_names(provider)[0], otherwise)
    exports = "".join(f'\n  export {name}="..."' for name in dict.fromkeys(DEFAULT_API_KEY_ENV.values()))
    raise MissingAPIKeyError(
        f"{_unknown_provider(provider)} To use it with a key of yours, name its variable as `api_key_env` in the model configuration; "
        f"the known ones are:{exports}"
    )


def missing_key(provider: str, variable: str, otherwise: str = "") -> MissingAPIKeyError:
    """Return the error for a key that is not set, with the line that sets it."""
    return MissingAPIKeyError(
        f"Environment variable '{variable}' is not set. It should hold the key of `{provider}`: "
        f'export {variable}="..."{otherwise}'
    )


def key_names(provider: str) -> list[str]:
    """Return the variables that may hold the provider's key, the usual one first; a guess if none is known."""
    known = [name for name in (DEFAULT_API_KEY_ENV.get(provider), *key_variables(provider)) if name]
    guess = f"{provider.upper()}_API_KEY"
    return known or ([guess] if _is_variable_name(guess) else [])


def _is_variable_name(name: str) -> bool:
    """Return whether a shell could set a variable of this name."""
    return name.isascii() and name.isidentifier()


def _needs_key(provider: str, model_info: Mapping[str, Any], env: Mapping[str, str]) -> bool:
    if _text(model_info, "api_base"):
        return False  # self-hosted servers rarely need a key; one that does says so when it refuses the call
    known = OPENAI_COMPATIBLE.get(provider)
    if known is not None:
        return not known.is_local and compatible_base_url(provider, env) == known.base_url
    # For providers whose key is unknown here, LiteLLM may find credentials in other ways.
    return provider in DEFAULT_API_KEY_ENV or bool(key_variables(provider)) or not is_provider(provider)


def _unknown_provider(provider: str) -> str:
    known = [*DEFAULT_API_KEY_ENV, *OPENAI_COMPATIBLE]
    close = difflib.get_close_matches(provider, known, n=1, cutoff=0.7)
    question = f"; did you mean `{close[0]}`?" if close else "."
    return f"there is no known provider '{provider}'{question}"


def _base_of(provider: str, model: str, info: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """Return the address to call directly, or None if LiteLLM makes the call."""
    given = _text(info, "api_base")
    if given is not None:
        return _checked_address(given)
    known = OPENAI_COMPATIBLE.get(provider)
    if known is not None:
        base = compatible_base_url(provider, env)
        if base is None:
            raise OsmosisError(
                f"`{provider}/{model}` needs the address of its server: set `api_base`, "
                f"or export {known.bases[0]}=http://localhost:8000/v1"
            )
        return base
    if not is_provider(provider):
        raise ProviderRequestError(
            provider,
            model,
            f"{_unknown_provider(provider)} For an OpenAI-compatible endpoint of your own, set `api_base`.",
            code="VALIDATION",
        )
    return None


def _checked_address(value: str) -> str:
    parts = http_address(value)
    if parts is None:
        raise JudgeArgumentError(
            "`api_base` must be an http(s) address, for instance `http://localhost:8000/v1`."
        )
    if parts.username or parts.password:
        raise JudgeArgumentError(
            "`api_base` holds a user name or password; give the key as `api_key_env` instead."
        )
    return openai_base_url(value)


def _with_name(path: str, api_base: str | None) -> dict[str, Any]:
    """Return a LiteLLM name as ``model_info``. A custom endpoint may accept any name."""
    path = path.strip()
    if not path:
        raise JudgeArgumentError("the judge's model must not be blank, for instance `openai/gpt-5-mini`.")
    start, slash, rest = path.partition("/")
    if slash and rest and start in _SAME_PROVIDER:
        return {"provider": _SAME_PROVIDER[start], "model": rest}
    try:
        provider, model = split_model_path(path)
    except OsmosisError:
        if api_base is None:
            raise
        provider, model = "openai", path
    return {"provider": provider, "model": model}


def _timeout(provider: str, model: str, info: Mapping[str, Any], given: float | None) -> float:
    usual = (
        seconds
        for known, start, seconds in _TIMEOUTS_S
        if provider == known and model.lower().startswith(start)
    )
    value = (
        given if given is not None else info.get("timeout") or next(usual, DEFAULT_REQUEST_TIMEOUT_SECONDS)
    )
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        raise JudgeArgumentError(f"`timeout` must be a number of seconds, not {value!r}.") from None
    if not math.isfinite(seconds) or seconds < 0:
        raise JudgeValueError(f"`timeout` must be a finite number of seconds, 0 or more, not {value!r}.")
    return seconds


def _required(info: Mapping[str, Any], name: str, examples: str) -> str:
    value = info.get(name)
    if not isinstance(value, str) or not value.strip():
        raise JudgeArgumentError(f"`model_info` needs `{name}`: a non-empty string, for instance {examples}.")
    return value.strip()


def _text(info: Mapping[str, Any], name: str) -> str | None:
    """Return the string ``name``, stripped; None if it is missing or blank."""
    value = info.get(name)
    if value is not None and not isinstance(value, str):
        raise JudgeArgumentError(f"`{name}` in `model_info` must be a string, not {type(value).__name__}.")
    return value.strip() or None if value else None


_MEANINGS = {
    "provider": "the judge's provider, for instance 'openai'",
    "model": "the provider's model, for instance 'gpt-5-mini'",
    "rubric": "the instructions to judge by",
}
_TEXTS = (*_MEANINGS, "api_key", "api_key_env", "api_base", "system_prompt", "original_input")
_NUMBERS = ("score_min", "score_max", "timeout")
_NAME_A_JUDGE = ("provider", "model", "api_key", "api_key_env", "api_base", "model_info_overrides")


def with_model_info(extra_info: Mapping[str, Any], *, function: str) -> dict[str, Any]:
    """Return a copy of ``extra_info`` with ``model_info``, the judge's configuration with overrides merged in."""
    where = f"`{function}`: `extra_info"
    is_named = any(extra_info.get(name) is not None for name in _NAME_A_JUDGE)
    for name, meaning in _MEANINGS.items():
        value = extra_info.get(name)
        if (is_named or value is not None) and (not isinstance(value, str) or not value.strip()):
            raise JudgeArgumentError(
                f"{where}['{name}']` must be a non-empty string: {meaning}; it is {_shown(value)}."
            )
    overrides = extra_info.get("model_info_overrides")
    overrides = {} if overrides is None else overrides
    if not isinstance(overrides, dict):
        raise JudgeArgumentError(
            f"{where}['model_info_overrides']` must be a dict; it is {_shown(overrides)}."
        )
    _check_types(extra_info, where)
    _check_types(overrides, f"{where}['model_info_overrides']")
    given = extra_info.get("model_info")
    model_info = {
        **(given if isinstance(given, dict) and is_named else {}),
        **{name: extra_info[name] for name in ModelInfo.__annotations__ if extra_info.get(name) is not None},
        **overrides,
    }
    bounds = (model_info.get("score_min"), model_info.get("score_max"))
    try:
        check_bounds(
            *(end if value is None else value for value, end in zip(bounds, (0.0, 1.0), strict=True))
        )
    except JudgeValueError as error:
        raise JudgeValueError(f"{where}`: {error.message}") from None
    if not is_named:
        return dict(extra_info)
    if not any(str(model_info.get(name) or "").strip() for name in ("api_key", "api_key_env", "api_base")):
        usual = DEFAULT_API_KEY_ENV.get(model_info["provider"].strip().lower(), "MY_API_KEY")
        raise JudgeArgumentError(
            f'{where}` needs `api_key` or `api_key_env`, for instance "api_key_env": "{usual}" '
            "(here or in `model_info_overrides`)."
        )
    return {**extra_info, "model_info": model_info}


def _check_types(entries: Mapping[str, Any], where: str) -> None:
    for name in (*_TEXTS, *_NUMBERS):
        value = entries.get(name)
        if value is None:
            continue
        is_number = isinstance(value, Real) and not isinstance(value, bool)
        if not (isinstance(value, str) if name in _TEXTS else is_number):
            expected = "a string" if name in _TEXTS else "a number"
            raise JudgeArgumentError(f"{where}['{name}']` must be {expected}; it is {_shown(value)}.")


def _shown(value: object) -> str:
    """Return only the type of a value, which may be a key."""
    if value is None:
        return "missing"
    return "blank" if isinstance(value, str) and not value.strip() else f"of type {type(value).__name__}"
