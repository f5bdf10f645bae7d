"""An agent loop hosted as a rollout: its request, scores and failures."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from osmosis_ai import osmosis_reward
from osmosis_ai.rollout import (
    ExecutionResult,
    RolloutAgentLoop,
    RolloutContext,
    RolloutErrorCategory,
    RolloutResult,
    RolloutStatus,
    create_app,
)
from osmosis_ai.rollout.core.exceptions import (
    AgentLoopLoadError,
    OsmosisRolloutError,
    OsmosisServerError,
    OsmosisValidationError,
)
from osmosis_ai.rollout.eval_functions import (
    EvalFnError,
    EvalFnWrapper,
    last_answer,
    load_eval_fn,
    load_eval_fns,
    wrap_eval_fns,
)
from osmosis_ai.rollout.extra_fields import read_outcome
from osmosis_ai.rollout.hosting import (
    SETTINGS_ENV,
    AgentLoopBackend,
    HostedLoopSettings,
    agent_of,
    module_backend,
    read_settings,
)
from osmosis_ai.rollout.model_client import close_shared_connections
from osmosis_ai.rollout.tools import normalize_tools
from tests.evaluation.agent_loop.loop_agents import Agent
from tests.rollout.local_rollouts import execute, hang, request
from tests.rollout.world import Controller, serving
from tests.standin_model import Reply, StandInModel, error_reply

from .server.agents import ADD

SUM = normalize_tools([ADD])[0]
SUM_PAYLOAD = {**ADD, "function": {**ADD["function"], "strict": False}}


def agent(run: Callable[[Any], Any], tools: Any = ()) -> Agent:
    return Agent(run, list(tools) if isinstance(tools, tuple) else tools)


class Synchronous(RolloutAgentLoop):
    """Written without a single `async`."""

    name = "synchronous"

    def __init__(self, tools: Callable[[], Any] = list) -> None:
        self._tools = tools

    def get_tools(self, request: Any) -> Any:
        return self._tools()

    def run(self, ctx: Any) -> Any:
        return ctx.complete([])


async def done(ctx: Any) -> RolloutResult:
    return ctx.complete([*ctx.request.messages, {"role": "assistant", "content": "ok"}])


def correct(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
    return float(solution_str == ground_truth)


def backend(loop: RolloutAgentLoop, *functions: Callable[..., Any], **settings: Any) -> AgentLoopBackend:
    return AgentLoopBackend(loop, [EvalFnWrapper(each) for each in functions], HostedLoopSettings(**settings))


async def host(
    loop: RolloutAgentLoop, *functions: Callable[..., Any], settings: Any = None, **changes: Any
) -> tuple[ExecutionResult, ExecutionResult]:
    """Run one rollout, and return how the agent and the grading ended."""
    hosted = backend(loop, *functions, **(settings or {}))
    with RolloutContext("http://127.0.0.1:1", "K", "r1"):
        return await execute(hosted, request(**changes))


async def test_request_of_a_dataset_row() -> None:
    seen: list[Any] = []

    async def look(ctx: Any) -> RolloutResult:
        seen.append(ctx.request)
        return await done(ctx)

    settings = {
        "max_turns": 3,
        "completion_params": {"temperature": 0.5},
        "metadata": {"execution_mode": "eval"},
        "rollout_ids": "eval",
    }
    where = {"row_index": 0, "source_row_index": 7, "run_index": 2}
    await host(agent(look), correct, settings=settings, metadata={"hard": True}, extra_fields=where)
    await host(agent(look), correct, prompt=[], label=None, metadata={"ground_truth": "9", "table": [1]})
    first, second = seen
    assert (first.rollout_id, first.max_turns) == ("eval-7-run-2", 3)
    assert first.completion_params == {"temperature": 0.5}
    assert first.messages == [{"role": "user", "content": "say ok"}]
    assert first.metadata == {
        "ground_truth": "ok",
        "row_index": 7,
        "hard": True,
        "execution_mode": "eval",
        "run_index": 2,
    }
    assert (first.server_url, first.api_key) == ("http://127.0.0.1:1", "K")
    assert (second.rollout_id, second.messages, second.max_turns) == ("r1", [], 10)
    assert second.metadata == {"ground_truth": "9", "table": [1]}


async def test_eval_functions_score_the_row() -> None:
    rows: list[Any] = []

    def whole(messages: Any, ground_truth: str, metadata: dict[str, Any]) -> float:
        rows.append((ground_truth, metadata))
        return 0.5

    def broken(solution_str: str, ground_truth: str, extra_info: dict[str, Any]) -> float:
        raise RuntimeError("no judge")

    async def rewarded(ctx: Any) -> RolloutResult:
        return ctx.complete([{"role": "assistant", "content": "ok"}], finish_reason="max_turns", reward=0.125)

    prompt = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "say ok"}]
    _, graded = await host(agent(rewarded), correct, whole, broken, prompt=prompt, metadata={"hard": True})
    assert graded.status is RolloutStatus.SUCCESS
    assert graded.sample is not None
    assert graded.sample.reward == 1.0
    outcome = read_outcome(graded.sample.extra_fields)
    assert outcome.finish_reason == "max_turns"
    assert outcome.scores == {"agent": 0.125, "correct": 1.0, "whole": 0.5}
    assert outcome.unscored == {"broken": "RuntimeError: no judge"}
    assert rows == [
        ("ok", {"system_prompt": "be brief", "user_prompt": "say ok", "ground_truth": "ok", "hard": True})
    ]


async def test_reward_of_the_agent() -> None:
    def rewards(reward: Any) -> RolloutAgentLoop:
        return ending(lambda ctx: ctx.complete([], reward=reward))

    _, graded = await host(rewards(0.75), label=None)
    assert graded.sample is not None
    assert (graded.status, graded.sample.reward) == (RolloutStatus.SUCCESS, 0.75)
    for reward, words in (
        (None, "gave no reward"),
        (float("nan"), "not a finite number: nan"),
        ("1", "number: '1'"),
    ):
        completion, graded = await host(rewards(reward))
        assert completion.status is RolloutStatus.SUCCESS
        assert (graded.status, graded.err_category) == (RolloutStatus.FAILURE, None)
        assert graded.err_message is not None
        assert graded.err_message.startswith("nothing was graded: ")
        assert words in graded.err_message


@pytest.mark.parametrize(
    ("function", "category", "words"),
    [
        (lambda solution_str, **_: 1 / 0, RolloutErrorCategory.AGENT_ERROR, "ZeroDivisionError"),
        (
            lambda solution_str, **_: None,
            RolloutErrorCategory.VALIDATION_ERROR,
            "must return a number, not None",
        ),
        (lambda solution_str, **_: asyncio.sleep(3600), RolloutErrorCategory.TIMEOUT, "within 0.25s"),
    ],
)
async def test_a_failing_eval_function(function: Any, category: RolloutErrorCategory, words: str) -> None:
    limit_s = 0.25 if category is RolloutErrorCategory.TIMEOUT else 60.0
    _, graded = await host(agent(done), function, grader_timeout_sec=limit_s)
    assert (graded.status, graded.err_category) == (RolloutStatus.FAILURE, category)
    assert graded.err_message is not None
    assert graded.err_message.startswith("eval function '<lambda>': ")
    assert words in graded.err_message


async def raises(ctx: Any) -> Any:
    raise ValueError("no such city")


async def leaves(ctx: Any) -> Any:
    sys.exit(2)


def ending(end: Callable[[Any], Any]) -> RolloutAgentLoop:
    async def run(ctx: Any) -> Any:
        return end(ctx)

    return agent(run)


async def blocks(ctx: Any) -> Any:
    """Hold up every other rollout of the process, and come back too late."""
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    return await done(ctx)


@pytest.mark.parametrize(
    ("loop", "category", "words"),
    [
        (agent(raises), "agent_error", "no such city"),
        (ending(lambda ctx: ctx.error("the shop is closed")), "agent_error", "the shop is closed"),
        (ending(lambda _: None), "validation_error", "must return a RolloutResult .* it returned NoneType"),
        (
            ending(lambda _: RolloutResult("DONE", [], "stop")),
            "validation_error",
            "COMPLETED or ERROR, not 'DONE'",
        ),
        (agent(leaves), "agent_error", "tried to exit the process"),
        (agent(hang), "timeout", "the agent did not finish within its 0.05s deadline"),
        (agent(blocks), "timeout", "the agent did not finish within its 0.05s deadline"),
        (agent(done, tools=None), "validation_error", "Tool validation error: .* returned None"),
        (agent(done, tools=({"type": "function"},)), "validation_error", "missing 'function'"),
        (Synchronous(), "validation_error", "`run` must be `async def`"),
        (Synchronous(tuple), "validation_error", "returned tuple; it must return a list"),
        (Synchronous(lambda: {}["catalogue"]), "agent_error", "catalogue"),
    ],
)
async def test_a_failing_agent(loop: RolloutAgentLoop, category: str, words: str) -> None:
    timeout_s = 0.05 if category == "timeout" else 60.0
    completion, graded = await host(loop, correct, agent_timeout_sec=timeout_s)
    for result in (completion, graded):
        assert result.status is RolloutStatus.FAILURE
        assert result.err_category is not None
        assert result.err_category.value == category
        assert result.err_message is not None
        assert re.search(words, result.err_message), result.err_message


async def test_chat_requests_and_replies_of_a_hosted_agent() -> None:
    heard: list[Any] = []

    async def talk(ctx: Any) -> RolloutResult:
        arguments = {"temperature": 0.5, "seed": 3, "stop": ["END"], "logprobs": None}
        heard.append(await ctx.chat(ctx.request.messages, **arguments))
        for tools in ([], None, [SUM]):
            try:
                await ctx.chat(ctx.request.messages, tools=tools)
            except OsmosisRolloutError as error:
                heard.append(error)
        heard.append(ctx.llm.get_metrics())
        return await done(ctx)

    async with StandInModel() as model:
        logprobs = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.5}]}
        model.script(
            Reply(
                content=None,
                tool_calls=[("add", {})],
                choice_extra={"token_ids": [5, 6], "logprobs": logprobs},
                usage={"prompt_tokens": 7, "completion_tokens": 2},
            ),
            Reply(body={"choices": []}),
            error_reply(404, "no such model"),
            error_reply(503, "try later"),
        )
        with RolloutContext(model.base_url, "K", "r1"):
            completion, _ = await execute(backend(agent(talk, tools=(SUM,)), correct), request())
    assert completion.status is RolloutStatus.SUCCESS, completion.err_message
    reply, unreadable, refused, failed, metrics = heard
    first, *others = [sent.body for sent in model.requests]
    assert model.requests[0].headers["Authorization"] == "Bearer K"
    assert first == {
        "model": "default",
        "messages": [{"role": "user", "content": "say ok"}],
        "tools": [SUM_PAYLOAD],
        "temperature": 0.5,
        "seed": 3,
        "stop": ["END"],
    }
    assert [body.get("tools") for body in others] == [None, [SUM_PAYLOAD], [SUM_PAYLOAD]]
    call = {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    assert reply.message == {"role": "assistant", "tool_calls": [call]}
    assert (reply.finish_reason, reply.token_ids, reply.logprobs) == ("tool_calls", [5, 6], [-0.5, -1.5])
    assert isinstance(unreadable, OsmosisServerError)
    assert isinstance(refused, OsmosisValidationError)
    assert (refused.status_code, str(refused)) == (404, "the model answered HTTP 404: no such model")
    assert isinstance(failed, OsmosisServerError)
    assert (metrics.num_llm_calls, metrics.prompt_tokens, metrics.response_tokens) == (4, 7, 2)
    await close_shared_connections()


async def test_broken_connections_to_the_model_are_retried() -> None:
    async def ask(ctx: Any) -> RolloutResult:
        reply = await ctx.chat(ctx.request.messages)
        return ctx.complete([reply.message])

    async with StandInModel() as model:
        model.script(Reply(disconnect=True), Reply(disconnect=True))
        with RolloutContext(model.base_url, "K", "r1"):
            completion, _ = await execute(backend(agent(ask), correct), request())
    assert completion.status is RolloutStatus.SUCCESS, completion.err_message
    retries = [sent.headers.get("x-stainless-retry-count") for sent in model.requests]
    assert retries == [None, "1", "2"]
    completion, _ = await host(agent(ask), correct)
    assert completion.err_message is not None
    assert completion.err_message.startswith("the model cannot be reached: cannot connect to 127.0.0.1:1")
    await close_shared_connections()


async def test_a_conversation_without_json_form_keeps_its_scores() -> None:
    async def circular(ctx: Any) -> RolloutResult:
        message: dict[str, Any] = {"role": "assistant"}
        message["content"] = [message]
        return ctx.complete([message])

    def half(messages: Any, ground_truth: str, metadata: Any) -> float:
        messages.append("junk")
        return 0.5

    hosted = backend(agent(circular), half, correct)
    async with Controller().serving() as controller, serving(hosted) as client:
        assert (await client.post("/rollout", json=controller.init_body())).status_code == 202
        sample = (await controller.wait_for("grader"))["sample"]
    assert (sample["messages"], sample["reward"]) == ([], 0.5)
    outcome = read_outcome(sample["extra_fields"])
    assert (outcome.finish_reason, outcome.scores["half"]) == ("stop", 0.5)
    assert set(outcome.scores) | set(outcome.unscored) == {"half", "correct"}


def test_the_agent_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    made = agent(done)
    module = ModuleType("entry")
    monkeypatch.setitem(sys.modules, "entry", module)
    with pytest.raises(AgentLoopLoadError, match=r"main.py holds no agent"):
        agent_of(module, "main.py")
    module.app = create_app(made)
    assert agent_of(module, "main.py") is made
    module.agent_loop = type(made)
    assert type(agent_of(module, "main.py")) is type(made)
    module.eval_fns = [correct]
    assert [each.name for each in module_backend(made, module, HostedLoopSettings()).eval_fns] == ["correct"]
    assert module_backend(made, module, HostedLoopSettings(eval_fns=[])).eval_fns == []


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


def returns_coroutine(solution_str, **_):
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
async def test_modes_of_eval_functions() -> None:
    functions = load_eval_fns(
        [f"rewards_here:{name}" for name in ("exact", "whole", "later", "returns_coroutine")]
    )
    assert [(each.name, each.mode) for each in functions] == [
        ("rewards_here:exact", "simple"),
        ("rewards_here:whole", "full"),
        ("rewards_here:later", "full"),
        ("rewards_here:returns_coroutine", "simple"),
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
def test_invalid_eval_functions(path: str, words: str) -> None:
    pattern = words if ".*" in words else "".join(f"[{c}]" if c in "()[]" else c for c in words)
    with pytest.raises(EvalFnError, match=pattern) as caught:
        load_eval_fn(path)
    assert "\n" not in caught.value.message


@osmosis_reward
def whole_number(solution_str: str, ground_truth: str, extra_info: dict = {}) -> float:  # noqa: B006 - as users write it
    return 1


def lacks(solution_str: str, ground_truth: str) -> float:
    return 1.0


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
        (lambda solution_str, **_: sys.exit(3), "RuntimeError: the function raised SystemExit: 3"),
        (lambda solution_str, **_: next(iter(())), "RuntimeError: the function raised StopIteration"),
        (cancels, "RuntimeError: the code cancelled its own task"),
    ],
)
async def test_results_that_are_not_scores(function: Any, reason: str) -> None:
    score = await EvalFnWrapper(function).score(CONVERSATION, "42", {})
    assert score.value is None
    assert score.reason is not None
    assert score.reason.startswith(reason)


async def test_numeric_types_and_last_answers() -> None:
    for value in (1, True, 0.5, np.float32(0.5), np.int64(3)):
        score = await EvalFnWrapper(lambda solution_str, value=value, **_: value).score(CONVERSATION)
        assert score.value == float(value)
    parts = [{"type": "text", "text": "42"}]
    assert last_answer([{"role": "assistant", "content": parts}]) == str(parts)
    assert last_answer(CONVERSATION[:1]) == ""


async def test_an_eval_function_cannot_change_its_arguments() -> None:
    def careless(messages: Any, ground_truth: str, metadata: Any) -> float:
        messages[0].clear()
        messages[:] = ["junk"]
        metadata["nested"].clear()
        metadata.clear()
        return 1.0

    messages, row = [{"role": "assistant", "content": "42"}], {"nested": {"a": 1}}
    assert (await EvalFnWrapper(careless).score(messages, "42", row)).value == 1.0
    assert (messages, row) == ([{"role": "assistant", "content": "42"}], {"nested": {"a": 1}})


async def test_hanging_eval_functions_time_out() -> None:
    released = threading.Event()

    def blocks(solution_str: str, **_: Any) -> float:
        released.wait()
        return 1.0

    async def waits(messages: Any, **_: Any) -> float:
        await asyncio.Event().wait()
        return 1.0

    try:
        hanging = [EvalFnWrapper(blocks), EvalFnWrapper(waits)] * 20
        scores = await asyncio.gather(*(each.score(CONVERSATION, timeout_s=0.05) for each in hanging))
        assert {score.reason for score in scores} == {"the function did not return within 0.05s"}
        fine = await EvalFnWrapper(lambda solution_str, **_: 1.0).score(CONVERSATION, timeout_s=60)
        assert fine.value == 1.0
    finally:
        released.set()


@pytest.mark.usefixtures("project")
def test_duplicate_eval_functions() -> None:
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


def test_hosting_settings() -> None:
    assert read_settings({}) == HostedLoopSettings()
    said = json.dumps({"eval_fns": ["rewards:exact"], "max_turns": 4})
    assert read_settings({SETTINGS_ENV: said}).max_turns == 4
    for wrong in ("{", '{"max_turn": 4}', "[]"):
        with pytest.raises(AgentLoopLoadError, match=SETTINGS_ENV) as caught:
            read_settings({SETTINGS_ENV: wrong})
        assert "\n" not in caught.value.message
