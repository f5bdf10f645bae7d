"""Eval functions: how they are found, what they are given, and that each call ends in a number or a reason."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osmosis_ai import osmosis_reward
from osmosis_ai.rollout.loop.eval_functions import (
    EvalFnError,
    EvalFnWrapper,
    last_answer,
    load_eval_fn,
    load_eval_fns,
    wrap_eval_fns,
)

CONVERSATION: list[dict[str, Any]] = [
    {"role": "user", "content": "6 * 7?"},
    {"role": "assistant", "content": "it is 42"},
    {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "tool", "content": "9"},
]
REWARDS = """
from osmosis_ai import osmosis_reward

calls = []


@osmosis_reward
def exact(solution_str: str, ground_truth: str, extra_info: dict = None) -> float:
    calls.append((solution_str, ground_truth, extra_info))
    return float(solution_str == ground_truth)


def whole(messages, ground_truth, metadata):
    return len(messages)


class Later:
    async def __call__(self, messages, **_):
        return 0.25


def handed_out(solution_str, **_):
    async def later():
        return 0.75

    return later()


later = Later()
neither = lambda text: 1.0
bare = lambda: 1.0
number = 3
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "rewards_here.py").write_text(REWARDS)
    (tmp_path / "breaks.py").write_text("1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "rewards_here", raising=False)
    return tmp_path


@pytest.mark.usefixtures("project")
async def test_functions_are_called_by_their_first_parameter_with_all_three_arguments_by_name() -> None:
    functions = load_eval_fns([f"rewards_here:{name}" for name in ("exact", "whole", "later", "handed_out")])
    assert [(each.name, each.mode) for each in functions] == [
        ("rewards_here:exact", "simple"),
        ("rewards_here:whole", "full"),
        ("rewards_here:later", "full"),
        ("rewards_here:handed_out", "simple"),
    ]
    row = {"user_prompt": "6 * 7?", "hard": True}
    scores = [await each.score(CONVERSATION, "it is 42", row, timeout_s=60) for each in functions]
    assert [score.value for score in scores] == [1.0, 4.0, 0.25, 0.75]
    assert await functions[0](CONVERSATION, None, row) == 0.0
    assert sys.modules["rewards_here"].calls == [("it is 42", "it is 42", row), ("it is 42", None, row)]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("rewards_here", "write module:attribute"),
        ("nowhere_at_all:exact", "no module 'nowhere_at_all'"),
        ("rewards_here:exakt", "no attribute 'exakt'"),
        ("breaks:exact", "ZeroDivisionError: division by zero (breaks.py:1"),
        ("rewards_here:neither", "must be 'solution_str' .* or 'messages' .*, not 'text'"),
        ("rewards_here:bare", "and it has none"),
        ("rewards_here:number", "must be a function, not int 3"),
        ("rewards_here:Later", "must be a function, not type"),
    ],
)
def test_what_is_no_eval_function_is_refused_in_one_line(path: str, words: str) -> None:
    pattern = words if ".*" in words else "".join(f"[{c}]" if c in "()[]" else c for c in words)
    with pytest.raises(EvalFnError, match=pattern) as caught:
        load_eval_fn(path)
    assert "\n" not in caught.value.message


@pytest.mark.usefixtures("project")
def test_the_same_function_is_not_taken_twice_nor_is_a_name() -> None:
    with pytest.raises(EvalFnError, match="Duplicate eval function path: 'rewards_here:exact'"):
        load_eval_fns(["rewards_here:exact", "rewards_here:whole", "rewards_here:exact"])

    def agent(solution_str: str, **_: Any) -> float:
        return 1.0

    for functions in ([agent], [load_eval_fn("rewards_here:exact")] * 2):
        with pytest.raises(EvalFnError, match="two scores would be called"):
            wrap_eval_fns(functions)
    with pytest.raises(EvalFnError, match="must be a list of functions"):
        wrap_eval_fns(agent)
    assert [each.name for each in wrap_eval_fns([whole_number, "rewards_here:whole"])] == [
        "whole_number",
        "rewards_here:whole",
    ]


@osmosis_reward
def whole_number(solution_str: str, ground_truth: str, extra_info: dict = {}) -> float:  # noqa: B006 - as users write it
    return 1


def leaves(solution_str: str, **_: Any) -> float:
    sys.exit(3)


def lacks(solution_str: str, ground_truth: str) -> float:
    return 1.0


def runs_out(solution_str: str, **_: Any) -> float:
    return next(iter(()))


async def cancels(solution_str: str, **_: Any) -> float:
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda solution_str, **_: None, "the function must return a number, not None"),
        (lambda solution_str, **_: "0.5", "the function must return a number, not str '0.5'"),
        (lambda solution_str, **_: float("nan"), "the function must return a finite number, not nan"),
        (lambda solution_str, **_: 10**400, "the function must return a finite number, not inf"),
        (lambda solution_str, **_: {}["x"], "KeyError: 'x'"),
        (lambda solution_str, **_: 1 / 0, "ZeroDivisionError: division by zero"),
        (whole_number, "`whole_number` must return a float, and returned int: 1."),
        (lacks, "TypeError: lacks() got an unexpected keyword argument 'extra_info'"),
        (leaves, "RuntimeError: the function raised SystemExit: 3"),
        (runs_out, "RuntimeError: the function raised StopIteration"),
        (cancels, "RuntimeError: the code cancelled its own task"),
    ],
)
async def test_a_call_without_a_finite_number_is_unscored_and_says_why(function: Any, reason: str) -> None:
    score = await EvalFnWrapper(function).score(CONVERSATION, "42", {})
    assert score.value is None
    assert score.reason is not None
    assert score.reason.startswith(reason)


async def test_numbers_of_every_kind_are_scores() -> None:
    for value in (1, True, 0.5, np.float32(0.5), np.int64(3)):
        score = await EvalFnWrapper(lambda solution_str, value=value, **_: value).score(CONVERSATION)
        assert score.value == float(value)


async def test_what_a_function_does_to_what_it_is_given_reaches_no_other_and_is_not_kept() -> None:
    def careless(messages: Any, ground_truth: str, metadata: Any) -> float:
        messages[0].clear()
        messages[:] = ["junk"]
        metadata["nested"].clear()
        metadata.clear()
        return 1.0

    messages, row = [{"role": "assistant", "content": "42"}], {"nested": {"a": 1}}
    assert (await EvalFnWrapper(careless).score(messages, "42", row)).value == 1.0
    assert (messages, row) == ([{"role": "assistant", "content": "42"}], {"nested": {"a": 1}})


async def test_a_function_that_hangs_is_left_after_its_time_and_hurts_no_other() -> None:
    released = threading.Event()
    try:

        def blocks(solution_str: str, **_: Any) -> float:
            released.wait()
            return 1.0

        async def waits(messages: Any, **_: Any) -> float:
            await asyncio.Event().wait()
            return 1.0

        hanging = [EvalFnWrapper(blocks), EvalFnWrapper(waits)] * 20
        scores = await asyncio.gather(*(each.score(CONVERSATION, timeout_s=0.05) for each in hanging))
        assert {score.reason for score in scores} == {"the function did not return within 0.05s"}
        fine = await EvalFnWrapper(lambda solution_str, **_: 1.0).score(CONVERSATION, timeout_s=60)
        assert fine.value == 1.0
    finally:
        released.set()


async def is_closed(work: Coroutine[Any, Any, Any]) -> None:
    until = time.monotonic() + 60
    while inspect.getcoroutinestate(work) != inspect.CORO_CLOSED:
        assert time.monotonic() < until
        await asyncio.sleep(0.001)


async def test_a_coroutine_that_is_handed_out_too_late_is_closed_and_not_left_unawaited() -> None:
    released, work = threading.Event(), asyncio.sleep(0, 1.0)

    def comes_late(solution_str: str, **_: Any) -> Any:
        released.wait()
        return work

    score = await EvalFnWrapper(comes_late).score(CONVERSATION, timeout_s=0.05)
    assert score.reason == "the function did not return within 0.05s"
    released.set()
    await is_closed(work)


async def test_a_coroutine_of_which_nobody_heard_in_its_time_is_closed() -> None:
    loop, work = asyncio.get_running_loop(), asyncio.sleep(0, 1.0)

    def hands_out_while_the_loop_is_busy(solution_str: str, **_: Any) -> Any:
        loop.call_soon_threadsafe(time.sleep, 0.2)
        return work

    score = await EvalFnWrapper(hands_out_while_the_loop_is_busy).score(CONVERSATION, timeout_s=0.1)
    assert score.reason == "the function did not return within 0.1s"
    await is_closed(work)


def test_the_answer_is_the_last_assistant_message_that_has_content() -> None:
    assert last_answer(CONVERSATION) == "it is 42"
    assert last_answer(CONVERSATION[:1]) == ""
    parts = [{"type": "text", "text": "42"}]
    assert last_answer([{"role": "assistant", "content": parts}]) == str(parts)
