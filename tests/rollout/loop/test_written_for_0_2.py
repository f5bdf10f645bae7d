"""What tests of projects written for 0.2 do: they patch by path, bring clients of their own, and call the program."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import httpx
import pytest
from fastapi.testclient import TestClient
from osmosis_ai.rollout.eval.common.errors import ToolValidationError
from osmosis_ai.rollout.eval.common.runner import LocalRolloutRunner, validate_tools
from osmosis_ai.rollout.eval.evaluation import EvalFnWrapper

from osmosis_ai.rollout import (
    CompletionsResult,
    OsmosisLLMClient,
    OsmosisTransportError,
    RolloutClientSettings,
    RolloutMetrics,
    RolloutResult,
    RolloutSettings,
    ValidationResult,
    create_app,
    serve_agent_loop,
    validate_and_report,
)
from tests.evaluation.agent_loop.loop_agents import Agent

from .agents import CannedModel, Echo

INIT = {
    "rollout_id": "R1",
    "server_url": "http://controller",
    "messages": [{"role": "user", "content": "hi"}],
    "completion_params": {},
    "api_key": "CB",
}
ROW = {"system_prompt": "s", "user_prompt": "u", "ground_truth": "1"}


class OwnClient:
    """A controller's client as a test writes it: no more than what is documented."""

    made: list[dict[str, Any]]

    def __init__(self, server_url: str, rollout_id: str, api_key: str | None = None) -> None:
        self.made.append({"server_url": server_url, "rollout_id": rollout_id, "api_key": api_key})

    async def __aenter__(self) -> OwnClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def chat_completions(self, messages: list[dict[str, Any]], **_: Any) -> CompletionsResult:
        return CompletionsResult({"role": "assistant", "content": "ok"})

    def get_metrics(self) -> RolloutMetrics:
        return RolloutMetrics()

    ended: threading.Event

    async def complete_rollout(self, status: str, final_messages: list[Any], **_: Any) -> None:
        self.made[-1]["status"] = status
        self.ended.set()


@pytest.fixture
def own_client(monkeypatch: pytest.MonkeyPatch) -> None:
    OwnClient.made, OwnClient.ended = [], threading.Event()
    monkeypatch.setattr("osmosis_ai.rollout.server.app.OsmosisLLMClient", OwnClient)


@pytest.mark.usefixtures("own_client")
def test_a_patched_client_of_a_served_agent() -> None:
    with TestClient(create_app(Echo())) as server:
        assert server.post("/v1/rollout/init", json=INIT).status_code == 202
        assert OwnClient.ended.wait(60)
    expected = {"server_url": "http://controller", "rollout_id": "R1", "api_key": "CB", "status": "COMPLETED"}
    assert OwnClient.made == [expected]


def test_settings_of_the_client() -> None:
    settings = RolloutSettings(client=RolloutClientSettings(max_retries=7))
    controller = MagicMock()
    controller.return_value.__aenter__.side_effect = RuntimeError("no further")
    with (
        patch("osmosis_ai.rollout.server.app.OsmosisLLMClient", controller),
        TestClient(create_app(Echo(), settings=settings)) as server,
    ):
        server.post("/v1/rollout/init", json=INIT)
    assert controller.call_args.kwargs["settings"].max_retries == 7


def test_patches_of_serve_agent_loop(capsys: pytest.CaptureFixture[str]) -> None:
    with (
        patch("osmosis_ai.rollout.server.serve.validate_agent_loop") as validate,
        patch("osmosis_ai.rollout.server.serve.create_app") as create,
        patch("uvicorn.Server.run"),
    ):
        validate.return_value = ValidationResult(True)
        serve_agent_loop(Echo(), host="127.0.0.1", port=0, skip_register=True, api_key="K")
    assert validate.called and create.call_args.kwargs["api_key"] == "K"
    assert "API key: (provided)" in capsys.readouterr().err


def test_validate_and_report(capsys: pytest.CaptureFixture[str]) -> None:
    assert validate_and_report(Echo(), True)
    assert "Agent loop 'echo' is valid: 0 tools, 0 warnings" in capsys.readouterr().out
    assert not validate_and_report(MagicMock(name=None, spec=["name"]))
    assert "error: [MISSING_RUN_METHOD]" in capsys.readouterr().err


async def test_transport_errors() -> None:
    client = OsmosisLLMClient("http://controller", "R1", max_retries=0)
    with (
        patch("httpx.AsyncClient.post", AsyncMock(side_effect=httpx.RequestError("no way"))),
        pytest.raises(OsmosisTransportError, match="no way"),
    ):
        await client.chat_completions([])


@pytest.mark.parametrize("tool", [{}, {"name": "add"}])
def test_all_problems_of_a_tool_are_reported(tool: dict[str, Any]) -> None:
    with pytest.raises(ToolValidationError, match=r"missing 'type'.*missing 'function'"):
        validate_tools([tool])


async def test_metrics_of_the_agent() -> None:
    async def count_itself(ctx: Any) -> RolloutResult:
        if ctx.request.metadata["row_index"]:
            raise RuntimeError("broken")
        metrics = RolloutMetrics(prompt_tokens=100, response_tokens=50, num_llm_calls=2)
        return RolloutResult("COMPLETED", [], "stop", metrics=metrics)

    runner = LocalRolloutRunner(Agent(count_itself), MagicMock())
    ok, failed = [await runner.run_single(ROW, index) for index in range(2)]
    assert (ok.success, ok.token_usage["total_tokens"], ok.token_usage["num_llm_calls"]) == (True, 150, 2)
    assert (failed.error, failed.token_usage["total_tokens"]) == ("broken", 0)


async def test_a_client_with_two_methods() -> None:
    """It counts calls and never starts over."""
    runner = LocalRolloutRunner(Echo(), CannedModel())  # type: ignore[arg-type]
    rows = [await runner.run_single(ROW, index) for index in range(2)]
    usage = {"prompt_tokens": 7, "completion_tokens": 0, "total_tokens": 7, "num_llm_calls": 1}
    assert [(each.success, each.token_usage) for each in rows] == [(True, usage)] * 2


def _exact(solution_str: str, ground_truth: str, extra_info: Any) -> float:
    return float(solution_str == ground_truth)


@pytest.mark.parametrize("given", [(_exact, "m:exact"), ("m:exact", _exact)])
async def test_arguments_of_eval_fn_wrapper(given: tuple[Any, Any]) -> None:
    wrapped = EvalFnWrapper(*given)
    assert (wrapped.name, wrapped.mode) == ("m:exact", "simple")
    assert await wrapped([{"role": "assistant", "content": "1"}], "1", {}) == 1.0


@pytest.mark.usefixtures("own_client")
async def test_a_rollout_ends_with_its_event_loop() -> None:
    began: asyncio.Future[asyncio.Task[Any] | None] = asyncio.get_running_loop().create_future()

    async def wait_for_ever(ctx: Any) -> None:
        began.set_result(asyncio.current_task())
        await asyncio.Event().wait()

    app = create_app(Agent(wait_for_ever))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://agent") as caller:
        assert (await caller.post("/v1/rollout/init", json=INIT)).status_code == 202
    task = await began
    [rollout] = app.state.rollouts.rollout_tasks.values()
    # As the end of a loop does, in the order in which the agent is done first.
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    rollout.cancel()
    await asyncio.wait({rollout}, timeout=60)
    assert rollout.cancelled() and "status" not in OwnClient.made[-1]
