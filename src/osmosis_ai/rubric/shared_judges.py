"""The judges behind ``evaluate_rubric``: one event loop in a thread of its own, for the whole process.

Whoever asks, from a plain function, from many threads or from inside another event loop, shares the
connections, the rate limits and what was learnt about an endpoint. A forked child starts afresh: it has
neither the thread nor the right to the parent's connections.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections import OrderedDict
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from typing import Any

from osmosis_ai.rollout.judge_calls import note_judge_call
from osmosis_ai.rubric.errors import ProviderRequestError
from osmosis_ai.rubric.judge import Judge
from osmosis_ai.rubric.judge_model import JudgeModel
from osmosis_ai.rubric.task import Judgement, JudgeTask

# The caller's threads and tasks are the real limit; this one only keeps a mistake from opening thousands.
_MOST_IN_FLIGHT = 256
_MOST_JUDGES_KEPT = 16
_CLOSING_S = 5.0


def submit(judge_model: JudgeModel, task: JudgeTask) -> Future[Judgement]:
    """Ask a judge in the background; cancelling the future cancels the call."""
    thread = _thread()
    return asyncio.run_coroutine_threadsafe(thread.score(judge_model, task), thread.loop)


async def _noted(judge: Judge, task: JudgeTask) -> Judgement:
    """Ask, and tell the grading that does: the caller's context variables came along with the question."""
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
    """The loop, its thread, and the judges that live there."""

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
        """Close every connection and end the thread; calls under way are abandoned."""
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
            # Taken out before it is waited for: nobody may be given a judge that closes.
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
    """End the thread, if there is one; the next question starts another."""
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
        # Kept, not collected: the destructors would complain of connections that are the parent's to close.
        _left_to_the_parent.append(_current)
        _current = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
