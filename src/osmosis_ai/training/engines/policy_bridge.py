"""OpenAI endpoint of a training rollout, which records every token.

Routes, authentication, retries, streams and errors come from ``controller.model_proxy``. The engine behind it continues token
ids. Each call is recorded before its answer is sent, so the learner sees every answered call exactly once.

In training the run sets temperature, top-p and seeds, whatever the agent asks for, because the learner
needs to know the sampling distribution.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from contextlib import aclosing
from typing import NoReturn

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.controller.model_proxy import (
    DONE,
    Body,
    Call,
    CallMetrics,
    ModelProxy,
    Names,
    RolloutCalls,
    RolloutUsage,
    SeedFor,
    stream_event,
)
from osmosis_ai.errors import NotFoundError
from osmosis_ai.inference.chat import ChatFormat, TemplateError
from osmosis_ai.inference.openai_api import AssistantReply, ChatCompletion
from osmosis_ai.inference.protocol import OpenAIError, parse_request
from osmosis_ai.llm.errors import Category, ModelCallError
from osmosis_ai.llm.prices import read_usage
from osmosis_ai.llm.replies import dumps
from osmosis_ai.training.engines.policy_engine import PolicyEngine
from osmosis_ai.training.engines.recording import Prompt, PromptPrefixCache, RecordedRollout, Recording

_CATEGORIES: dict[int, Category] = {400: "bad_request", 404: "not_found", 429: "rate_limit"}


class PolicyBridge(ModelProxy):
    def __init__(
        self, engine: PolicyEngine, chat: ChatFormat, *, model_path: str, settings: TrainingSettings
    ) -> None:
        super().__init__(model_path)
        self._engine = engine
        self._chat = chat
        self._prefix_cache = PromptPrefixCache(chat)
        self._settings = settings
        self._kept = max(16_384, settings.rollouts_in_flight)
        self._recordings: dict[str, Recording] = {}
        self._closed: OrderedDict[str, Recording] = OrderedDict()

    def close(self, rollout_id: str) -> RolloutUsage:
        """Serve no more calls of a rollout, whose record remains for :meth:`take`."""
        usage = super().close(rollout_id)
        recording = self._recordings.pop(rollout_id, None)
        if recording is not None:
            self._closed[rollout_id] = recording
            while len(self._closed) > self._kept:
                self._closed.popitem(last=False)
        return usage

    def take(self, rollout_id: str) -> RecordedRollout:
        """Close a rollout and return its record, once."""
        self.close(rollout_id)
        recording = self._closed.pop(rollout_id, None)
        if recording is None:
            raise NotFoundError(f"the rollout {rollout_id!r} has no record, or its record was already taken.")
        return recording.recorded()

    def discard(self, rollout_id: str) -> None:
        """Close a rollout and forget its record, if any."""
        self.close(rollout_id)
        self._closed.pop(rollout_id, None)

    def open(self, rollout_id: str, *, seed_for: SeedFor | None = None) -> None:
        """Serve and record a rollout's calls from now on."""
        super().open(rollout_id, seed_for=seed_for)
        self._closed.pop(rollout_id, None)
        self._recordings[rollout_id] = Recording(
            rollout_id, self._chat, self._engine.model.config.end_token_ids, self._prefix_cache
        )

    def _begin(self, calls: RolloutCalls, call: Call, body: Body, optional: Names = ()) -> None:
        if calls.seed_for is not None:
            body.pop("seed", None)
        super()._begin(calls, call, body, optional)

    async def _complete(self, call: Call, body: Body, optional: Names) -> CallMetrics:
        started = time.perf_counter()
        try:
            response = await self._completion(self._recordings[call.rollout_id], body).whole()
        except OpenAIError as error:
            self._raise(error)
        call.answer += dumps(response)
        # The learner has the tokens. The trajectory only records when the policy was called.
        metrics = CallMetrics(
            read_usage(response["usage"]), cost_usd=0.0, latency_s=time.perf_counter() - started
        )
        metrics.finish.read(response)
        return metrics

    async def _stream(self, call: Call, body: Body, optional: Names) -> CallMetrics:
        metrics, started = CallMetrics(cost_usd=0.0), time.perf_counter()
        try:
            completion = self._completion(self._recordings[call.rollout_id], body)
            async with aclosing(completion):
                async for chunk in completion:
                    metrics.finish.read(chunk)
                    call.answer += stream_event(chunk)
        except OpenAIError as error:
            self._raise(error)
        call.answer += DONE
        metrics.usage = read_usage(completion.usage())
        metrics.latency_s = time.perf_counter() - started
        return metrics

    def _completion(self, recording: Recording, body: Body) -> ChatCompletion:
        """Accept a call and submit it to the engine."""
        request = parse_request({"model": self.model_path, **body})
        try:
            prompt = recording.prompt(request.template_messages(), request.offered_tools)
        except TemplateError as error:
            raise OpenAIError(400, f"{error}.", param="messages", code="invalid_value") from error
        sampling = {"temperature": self._settings.rollout_temperature, "top_p": self._settings.rollout_top_p}
        request = request.model_copy(update=sampling)
        room = self._room(recording, prompt)
        asked = request.max_completion_tokens or request.max_tokens

        def finished(_choice: int, reply: AssistantReply) -> None:
            recording.add(prompt, reply.tokens, reply.message())
            cut_short = reply.finish_reason == "length" and len(reply.tokens) >= room
            recording.truncated = recording.truncated or cut_short

        return ChatCompletion(
            self._engine,
            self._chat,
            request,
            prompt.ids,
            min(asked or room, room),
            model_name=str(body.get("model") or self.model_path),
            fingerprint=f"fp_{self._engine.fingerprint[:12]}",
            finished=finished,
            rollout=recording,
        )

    def _room(self, recording: Recording, prompt: Prompt) -> int:
        """Return how many tokens a call may sample; raise OpenAIError if none is left."""
        read, limits = len(prompt.ids), self._settings
        positions = self._engine.model.config.max_positions
        most = limits.max_prompt_length + recording.sampled_tokens
        if read > most or read >= positions:
            given = (
                f"the messages have {read} tokens, but a prompt may have at most {min(most, positions - 1)}"
            )
            raise _too_long(f"{given}; shorten the messages, or raise `max_prompt_length`.")
        left = limits.max_response_length - recording.sampled_tokens
        if left <= 0:
            recording.truncated = True
            raise _too_long(
                f"the rollout has reached its limit of {limits.max_response_length} sampled tokens; "
                "end it sooner, or raise `max_response_length`."
            )
        return min(left, positions - read)

    def _raise(self, error: OpenAIError) -> NoReturn:
        """Raise a refusal as a failed model call, to which the endpoint's rules apply."""
        said = error.body()["error"]
        too_long = said["code"] == "context_length_exceeded"
        category = "context_length" if too_long else _CATEGORIES.get(error.status, "server")
        raise ModelCallError(
            category,
            said["message"],
            model_path=self.model_path,
            status=error.status,
            retry_after_s=error.retry_after_s,
            body=said,
        ) from error


def _too_long(message: str) -> OpenAIError:
    return OpenAIError(400, message, param="messages", code="context_length_exceeded")
