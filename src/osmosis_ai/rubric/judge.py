"""Asking a judge, many times at once.

A score comes from the judge or not at all: a reply that cannot be read is asked for once more, with the
reason, and is then an :class:`UnscoredError`. Waiting, retrying and adapting to the provider's rate are
:class:`osmosis_ai.llm.client.ModelClient`'s.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from typing import Any

from osmosis_ai.llm.client import ClientStats, Completion, ModelClient
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.prices import table_entry
from osmosis_ai.llm.providers import OPENAI_COMPATIBLE
from osmosis_ai.redaction import Redactor
from osmosis_ai.rubric.errors import ModelNotFoundError, ProviderRequestError, UnscoredError
from osmosis_ai.rubric.judge_model import JudgeModel, resolve_judge
from osmosis_ai.rubric.prompt import RESPONSE_SCHEMA, Messages, ask_again, build_prompt
from osmosis_ai.rubric.reply import ParsedReply, ReplyError, read_completion
from osmosis_ai.rubric.task import Judgement, JudgeTask

__all__ = ["Judge", "JudgeModel", "JudgeTask", "Judgement", "resolve_judge"]

logger = logging.getLogger(__name__)

# What an endpoint is asked for, the strictest first; it is taken at its word when it refuses one.
_FORMATS: tuple[dict[str, Any] | None, ...] = (
    {"type": "json_schema", "json_schema": RESPONSE_SCHEMA},
    {"type": "json_object"},
    None,
)
_SCHEMA, _JSON_MODE = 0, 1
_ABOUT_FORMAT = re.compile(r"response[_ ]?format|json[_ ]?(schema|object|mode)|structured[_ ]output", re.I)


class Judge:
    """One judge; an async context manager, for one event loop."""

    def __init__(self, judge_model: JudgeModel, *, max_in_flight: int = 8) -> None:
        self.model = judge_model
        self._client = ModelClient(
            judge_model.endpoint, max_connections=max_in_flight, request_timeout_s=judge_model.timeout_s
        )
        self._format = _first_format(judge_model)
        self._redactor = Redactor([judge_model.api_key] if judge_model.api_key else [])

    async def __aenter__(self) -> Judge:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def score(self, task: JudgeTask, *, call_index: int = 0) -> Judgement:
        """Ask for one score."""
        if self.model.timeout_s == 0:
            raise self._failure("a timeout of 0 seconds leaves no time for an answer.")
        messages = build_prompt(task)
        spent = _Spent()
        try:
            completion = await self._ask(messages, call_index, spent)
            try:
                return self._judgement(read_completion(completion.response), completion, task, spent)
            except ReplyError as problem:
                messages = ask_again(messages, problem.text, str(problem))
            spent.retries += 1
            completion = await self._ask(messages, call_index, spent)
            return self._judgement(read_completion(completion.response), completion, task, spent)
        except ReplyError as problem:
            raise spent.on(self._unscored(problem, completion)) from None
        except ModelCallError as error:
            raise spent.on(self._translated(error)) from None

    def snapshot(self) -> ClientStats:
        """Return how calling goes now; call it inside the event loop."""
        return self._client.snapshot()

    async def _ask(self, messages: Messages, call_index: int, spent: _Spent) -> Completion:
        body: dict[str, Any] = {"messages": messages}
        optional = {"seed", "temperature", "reasoning_effort"}
        if not self.model.model.rpartition("/")[2].lower().startswith("gpt-5"):
            body["temperature"] = 0
        if self.model.reasoning_effort is not None:
            body["reasoning_effort"] = self.model.reasoning_effort
        if call_index:
            body["seed"] = call_index
        while True:
            asked = self._format
            if (wanted := _FORMATS[asked]) is not None:
                body["response_format"] = wanted
            else:
                body.pop("response_format", None)
            try:
                completion = await self._client.complete(body, optional=optional)
            except ModelCallError as error:
                if wanted is None or not _is_about_format(error):
                    raise
                # Another call may have learnt it meanwhile.
                self._format = max(self._format, asked + 1)
                logger.info("%s does not take `%s`; asking without it", self.model.name, wanted["type"])
                continue
            spent.add(completion)
            return completion

    def _judgement(
        self, verdict: ParsedReply, completion: Completion, task: JudgeTask, spent: _Spent
    ) -> Judgement:
        score = min(max(verdict.score, float(task.score_min)), float(task.score_max))
        return Judgement(
            score=score,
            explanation=self._redactor.text(verdict.explanation),
            raw=self._redactor.tree(completion.response),
            input_tokens=spent.input_tokens,
            output_tokens=spent.output_tokens,
            cost_usd=spent.cost_usd,
            duration_s=spent.duration_s,
            retries=spent.retries,
            stated_score=None if score == verdict.score else verdict.score,
        )

    def _unscored(self, problem: ReplyError, completion: Completion) -> UnscoredError:
        return UnscoredError(
            self.model.provider,
            self.model.model,
            self._redactor.text(f"unscored after a second question: {problem}"),
            reason=problem.reason,
            raw=self._redactor.tree(completion.response),
        )

    def _translated(self, error: ModelCallError) -> ProviderRequestError:
        cls = ModelNotFoundError if error.category == "not_found" else ProviderRequestError
        status = f" (HTTP {error.status})" if error.status else ""
        failure = cls(
            self.model.provider,
            self.model.model,
            self._redactor.text(f"{error.summary}{status}"),
            code=error.code,
            hint=error.hint,
        )
        failure.category = error.category
        return failure

    def _failure(self, detail: str) -> ProviderRequestError:
        return ProviderRequestError(self.model.provider, self.model.model, detail)


@dataclass
class _Spent:
    """What one score has cost so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    duration_s: float = 0.0
    retries: int = 0

    def add(self, completion: Completion) -> None:
        if (usage := completion.usage) is not None:
            self.input_tokens += usage.prompt_tokens
            self.output_tokens += usage.completion_tokens
        if self.cost_usd is not None:
            self.cost_usd = None if completion.cost_usd is None else self.cost_usd + completion.cost_usd
        self.duration_s += completion.latency_s
        self.retries += completion.attempts - 1

    def on(self, error: ProviderRequestError) -> ProviderRequestError:
        """Write on ``error`` what was spent until it."""
        error.input_tokens, error.output_tokens = self.input_tokens, self.output_tokens
        error.cost_usd, error.duration_s, error.retries = self.cost_usd, self.duration_s, self.retries
        return error


def _first_format(judge_model: JudgeModel) -> int:
    """Strict output where the model is known to have it, or nothing is known; else JSON mode."""
    known = OPENAI_COMPATIBLE.get(judge_model.provider)
    if judge_model.api_base and (known is None or judge_model.api_base != known.base_url):
        return _SCHEMA  # whatever serves this name there, it is not what the table tells of
    entry = table_entry(judge_model.endpoint)
    if entry is None or entry.get("supports_response_schema"):
        return _SCHEMA
    return _JSON_MODE


def _is_about_format(error: ModelCallError) -> bool:
    return (
        error.category == "bad_request"
        and error.status in (400, 422)
        and _ABOUT_FORMAT.search(error.provider_message) is not None
    )
