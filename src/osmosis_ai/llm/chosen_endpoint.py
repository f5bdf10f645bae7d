"""The endpoint that `--model`, `--base-url` and `--api-key` select together.

With an address, the model's name is passed to its server unchanged, and no key is required. Without one, the model's
name determines the provider, as in every other command.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.providers import ModelEndpoint, key_variables, resolve_model, split_model_path
from osmosis_ai.llm.transport import openai_base_url

NO_KEY = "no-key"
"""The key sent to the user's own address if there is none: clients and proxies require one."""

_PROTOCOL = "openai/"
_ENDPOINT_KEY = "OPENAI_API_KEY"
# The prefixes of providers' keys. An account name in a gateway's path is not secret and does not have them.
_KEY_IN_A_PATH = re.compile(r"/(sk-|sk_|osm_|hf_|gsk_|xai-|nvapi-|AIza|AKIA)[\w-]{12,}")


def choose_endpoint(
    model: str, env: Mapping[str, str], *, base_url: str | None = None, api_key: str | None = None
) -> ModelEndpoint:
    """Return the endpoint of a model."""
    name = model.strip()
    if not name:
        raise OsmosisError("`--model` names no model.", hint="for instance `--model openai/gpt-5-mini`")
    if base_url is None:
        return _by_name(name, env, api_key)
    key = api_key or env.get(_ENDPOINT_KEY, "").strip() or NO_KEY
    return ModelEndpoint(name, "openai", name.removeprefix(_PROTOCOL), "openai", _address(base_url), key)


async def probe(endpoint: ModelEndpoint, *, timeout_s: float = 60.0) -> ModelEndpoint:
    """Send one tiny request; return the endpoint adjusted to its server's answer."""
    try:
        await _ask(endpoint, timeout_s)
    except ModelCallError as error:
        whole = replace(endpoint, model=endpoint.model_path)
        if error.category != "not_found" or whole == endpoint or endpoint.provider != "openai":
            raise
        try:
            await _ask(whole, timeout_s)
        except ModelCallError:
            raise error from None
        return whole
    return endpoint


async def _ask(endpoint: ModelEndpoint, timeout_s: float) -> None:
    async with ModelClient(endpoint, request_timeout_s=timeout_s) as client:
        await client.preflight()


def _by_name(name: str, env: Mapping[str, str], api_key: str | None) -> ModelEndpoint:
    if "/" not in name:
        try:
            split_model_path(name)
        except OsmosisError:
            name = _PROTOCOL + name
    if api_key:
        variables = key_variables(split_model_path(name)[0])
        env = {**env, **dict.fromkeys(variables[:1], api_key)}
    return resolve_model(name, env)


def _address(text: str) -> str:
    try:
        parts = urlsplit(text.strip())
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_address = urlsplit(""), False
    # The address is stored with the run and shown in errors, so it must not contain secrets.
    if "@" in text or "?" in text or "#" in text or _KEY_IN_A_PATH.search(parts.path):
        raise OsmosisError(
            "`--base-url` holds more than an address: no user name, password, key, query or fragment may be in it.",
            hint="set the key in `OPENAI_API_KEY`, and an address with a query in `OPENAI_BASE_URL`",
        )
    if not is_address or not text.strip().isprintable() or " " in text.strip():
        raise OsmosisError(
            f"`--base-url {_shown(text)}` is not an http(s) address.",
            hint="for instance `--base-url http://localhost:8000/v1`",
        )
    return openai_base_url(text)


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text[:200])
