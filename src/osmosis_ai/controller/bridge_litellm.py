"""The bridge under the name and with the methods the hosted SDK gives it; :class:`ModelBridge` underneath."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from osmosis_ai.controller.model_proxy import ModelBridge, RolloutCalls, SeedFor
from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.client import ModelClient
from osmosis_ai.llm.providers import OPENAI_COMPATIBLE, ModelEndpoint, resolve_model
from osmosis_ai.llm.transport import openai_base_url
from osmosis_ai.llm.wire_json import loads


class InvalidModelError(OsmosisError, RuntimeError):
    """The model's name cannot be resolved, or its key or address is missing."""


class LiteLLMBridge(ModelBridge):
    """Serves one model, by its LiteLLM name, to whatever rollout asks."""

    def __init__(self, *, model: str, api_key: str | None = None, api_base: str | None = None) -> None:
        self._model_client = ModelClient(_endpoint(model, api_key, api_base))
        super().__init__(self._model_client, auth_token=secrets.token_urlsafe())

    async def preflight_check(self) -> None:
        """Make one tiny call; raises :class:`ModelCallError` when no call can succeed."""
        await self._model_client.preflight()

    async def complete(self, body: Mapping[str, Any], *, rollout_id: str) -> dict[str, Any]:
        """Answer one chat completion request for a rollout."""
        calls, seed_for = self._find(rollout_id)
        call = calls.begin(os.urandom(16))
        self._begin(calls, call, {**body, "stream": False}, seed_for)
        await call.answer.wait_finished()
        if call.answer.error is not None:
            raise call.answer.error
        response: dict[str, Any] = loads(call.answer.pieces[0])
        return response

    def collect_tokens(self, rollout_id: str) -> int | None:
        """Return the tokens a rollout used, once; None when it made no call, or one of unknown size."""
        usage = self.close(rollout_id)
        return usage.total_tokens if usage.calls and not usage.uncounted else None

    def discard(self, rollout_id: str) -> None:
        """Forget a rollout."""
        self.close(rollout_id)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._model_client.aclose()

    def _is_authentic(self, presented: bytes) -> bool:
        return True

    def _find(self, rollout_id: str) -> tuple[RolloutCalls, SeedFor | None]:
        if rollout_id not in self._rollouts:
            self.open(rollout_id)
        return self._rollouts[rollout_id]


def _endpoint(model: str, api_key: str | None, api_base: str | None) -> ModelEndpoint:
    given = dict(os.environ)
    provider = OPENAI_COMPATIBLE.get(model.partition("/")[0], OPENAI_COMPATIBLE["openai"])
    if api_base:
        given[provider.bases[0]] = api_base
    try:
        endpoint = resolve_model(model, given)
    except OsmosisError as error:
        if api_key is None or "missing_variable" not in error.details:
            raise InvalidModelError(
                f"Invalid LiteLLM model format: {error.message}", hint=error.hint
            ) from None
        endpoint = resolve_model(model, {**given, str(error.details["missing_variable"]): api_key})
    base_url = openai_base_url(api_base) if api_base else endpoint.base_url
    return replace(endpoint, api_key=api_key or endpoint.api_key, base_url=base_url)
