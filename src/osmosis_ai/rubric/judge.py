"""Concurrent judge calls, and the judges shared by all calls of ``evaluate_rubric``.

Every score comes from the judge. An unreadable reply is asked for once more, with the reason, and then raises
:class:`UnscoredError`. :class:`osmosis_ai.llm.client.ModelClient` handles waiting, retries and rate limits.

The shared judges run on one event loop in its own thread, so that all threads and event loops share connections, rate
limits and the known capabilities of an endpoint. A forked child starts its own thread, since it has neither the
parent's thread nor the right to use its connections.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import re
import threading
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from osmosis_ai.llm.client import Completion, ModelClient
from osmosis_ai.llm.errors import ModelCallError
from osmosis_ai.llm.limiter import Limiter
from osmosis_ai.llm.prices import table_entry
from osmosis_ai.llm.providers import OPENAI_COMPATIBLE
from osmosis_ai.redaction import Redactor
from osmosis_ai.rollout.extra_fields import note_judge_call
from osmosis_ai.rubric.judge_model import JudgeModel
from osmosis_ai.rubric.prompt import RESPONSE_SCHEMA, Messages, ask_again, build_prompt
from osmosis_ai.rubric.reply import ParsedReply, ReplyError, read_completion
from osmosis_ai.rubric.types import (
    Judgement,
    JudgeTask,
    ModelNotFoundError,
    ProviderRequestError,
    UnscoredError,
)

logger = logging.getLogger(__name__)

# Response formats, strictest first. A format that the endpoint refuses is not tried again.
_FORMATS: tuple[dict[str, Any] | None, ...] = (
    {"type": "json_schema", "json_schema": RESPONSE_SCHEMA},
    {"type": "json_object"},
    None,
)
_SCHEMA, _JSON_MODE = 0, 1
_ABOUT_FORMAT = re.compile(r"response[_ ]?format|json[_ ]?(schema|object|mode)|structured[_ ]output", re.I)


class Judge:
    """One judge: an async context manager, for one event loop."""

    def __init__(self, judge_model: JudgeModel, *, max_in_flight: int = 8, keep_raw: bool = True) -> None:
        self.model = judge_model
        self._keep_raw = keep_raw
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
        await self._client.aclose()

    async def score(self, task: JudgeTask, *, call_index: int = 0) -> Judgement:
        if self.model.timeout_s == 0:
            raise self._failure("A timeout of 0 seconds leaves no time for an answer.")
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

    @property
    def limiter(self) -> Limiter:
        """The limiter of the provider's account. Read it inside the event loop."""
        return self._client.limiter

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
                # Another call may have found this out meanwhile.
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
            raw=self._raw(completion),
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
            self._redactor.text(
                f"The judge's reply has no readable score, even after a second request: {problem}"
            ),
            reason=problem.reason,
            raw=self._raw(completion),
        )

    def _raw(self, completion: Completion) -> Any:
        return self._redactor.tree(completion.response) if self._keep_raw else None

    def _translated(self, error: ModelCallError) -> ProviderRequestError:
        cls = ModelNotFoundError if error.category == "not_found" else ProviderRequestError
        status = f" (HTTP {error.status})" if error.status else ""
        failure = cls(
            self.model.provider,
            self.model.model,
            self._redactor.text(f"{error.summary[:1].upper()}{error.summary[1:]}{status}"),
            code=error.code,
            hint=error.hint,
        )
        failure.category = error.category
        return failure

    def _failure(self, detail: str) -> ProviderRequestError:
        return ProviderRequestError(self.model.provider, self.model.model, detail)


@dataclass
class _Spent:
    """Usage of one score so far."""

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
        """Record the usage so far on ``error``."""
        error.input_tokens, error.output_tokens = self.input_tokens, self.output_tokens
        error.cost_usd, error.duration_s, error.retries = self.cost_usd, self.duration_s, self.retries
        return error


def _first_format(judge_model: JudgeModel) -> int:
    """Return strict output if the model supports it or is unknown, and JSON mode otherwise."""
    known = OPENAI_COMPATIBLE.get(judge_model.provider)
    if judge_model.api_base and (known is None or judge_model.api_base != known.base_url):
        return _SCHEMA  # a custom endpoint may serve another model under this name
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


# The caller's threads and tasks are the real limit; this one only stops a mistake from opening thousands.
_MOST_IN_FLIGHT = 256
_MOST_JUDGES_KEPT = 16
_CLOSING_S = 5.0


def submit(judge_model: JudgeModel, task: JudgeTask) -> Future[Judgement]:
    """Ask a judge in the background. Cancelling the future cancels the call."""
    thread = _thread()
    return asyncio.run_coroutine_threadsafe(thread.score(judge_model, task), thread.loop)


async def _noted(judge: Judge, task: JudgeTask) -> Judgement:
    """Ask a judge and record the call with the current grading, found through the caller's context variables."""
    model = judge.model.name
    try:
        judgement = await judge.score(task)
    except ProviderRequestError as error:
        _note(error, {"model": model, "error": error.detail})
        raise
    noted = {"model": model, "score": judgement.score, "explanation": judgement.explanation}
    if judgement.stated_score is not None:
        noted["stated_score"] = judgement.stated_score
    _note(judgement, noted)
    return judgement


def _note(spent: Judgement | ProviderRequestError, judgement: dict[str, Any]) -> None:
    tokens = spent.input_tokens + spent.output_tokens
    note_judge_call(tokens=tokens, cost_usd=spent.cost_usd, judgement=judgement)


class _JudgingThread:
    """The event loop, its thread and the judges on it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._judges: OrderedDict[JudgeModel, Judge] = OrderedDict()
        self._busy: dict[JudgeModel, int] = {}
        self._thread = threading.Thread(target=self.loop.run_forever, name="osmosis-judging", daemon=True)
        self._thread.start()

    async def score(self, judge_model: JudgeModel, task: JudgeTask) -> Judgement:
        judge = self._judges.get(judge_model)
        if judge is None:
            judge = self._judges[judge_model] = Judge(judge_model, max_in_flight=_MOST_IN_FLIGHT)
        self._judges.move_to_end(judge_model)
        self._busy[judge_model] = self._busy.get(judge_model, 0) + 1
        try:
            await self._close_idle(beyond=_MOST_JUDGES_KEPT)
            return await _noted(judge, task)
        finally:
            self._busy[judge_model] -= 1

    def close(self) -> None:
        """Close all connections and end the thread, abandoning open calls."""
        closing = asyncio.run_coroutine_threadsafe(self._close_all(), self.loop)
        with suppress(FutureTimeoutError):
            closing.result(timeout=_CLOSING_S)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(timeout=_CLOSING_S)

    async def _close_all(self) -> None:
        under_way = asyncio.all_tasks() - {asyncio.current_task()}
        for one in under_way:
            one.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        await self._close_idle(beyond=0)

    async def _close_idle(self, *, beyond: int) -> None:
        surplus = len(self._judges) - beyond
        idle = [judge_model for judge_model in self._judges if not self._busy.get(judge_model)]
        for judge_model in idle[: max(0, surplus)]:
            self._busy.pop(judge_model, None)
            # Remove it first: a judge that is closing must not be reused.
            await self._judges.pop(judge_model).aclose()


_lock = threading.Lock()
_current: _JudgingThread | None = None
_left_to_the_parent: list[_JudgingThread] = []


def _thread() -> _JudgingThread:
    global _current
    with _lock:
        if _current is None:
            _current = _JudgingThread()
            atexit.register(close)
        return _current


def close() -> None:
    """End the thread if it is running. The next question starts a new one."""
    global _current
    with _lock:
        thread, _current = _current, None
    atexit.unregister(close)
    if thread is not None:
        thread.close()


def _start_afresh() -> None:
    global _lock, _current
    _lock = threading.Lock()
    if _current is not None:
        # Keep a reference: the destructors would complain about connections that only the parent may close.
        _left_to_the_parent.append(_current)
        _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
