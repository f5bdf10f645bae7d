"""Stepping through an agent loop from a notebook or a script; the command's session is tested on a terminal."""

from __future__ import annotations

from typing import Any

import pytest

from osmosis_ai.rollout.eval.test_mode import InteractiveLLMClient, InteractiveRunner, InteractiveStep
from tests.evaluation.agent_loop.loop_agents import ADD, Agent, ScriptedClient, row

HELLO = [{"role": "user", "content": "hello"}]


async def test_the_model_stops_after_each_reply_while_it_is_paused() -> None:
    steps: list[InteractiveStep] = []

    async def on_step(step: InteractiveStep) -> None:
        steps.append(step)

    model = ScriptedClient()
    client = InteractiveLLMClient(model, on_step)
    client.reset_metrics()
    client.set_tools([ADD])
    await client.chat_completions(HELLO)
    client.paused = False
    await client.chat_completions(HELLO)
    client.clear_tools()
    assert [(step.turn, step.step_type, step.finish_reason) for step in steps] == [
        (1, "llm_response", "stop")
    ]
    assert [step.turn for step in client.steps] == [1, 2]
    assert client.messages == [*HELLO, {"role": "assistant", "content": "about: hello"}]
    assert (model.tools, client.tools) == (None, [ADD])
    assert client.get_metrics().num_llm_calls == 2
    await client.close()
    assert model.closed


async def test_a_session_without_a_terminal_of_its_own_asks_on_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["1", "t", "q", "0", "c", ""])
    asked: list[str] = []

    def type_in(prompt: str) -> str:
        asked.append(prompt)
        try:
            return next(answers)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", type_in)
    rows: list[Any] = [row("first"), row("second")]
    agent = Agent()
    results = await InteractiveRunner(agent, ScriptedClient()).run_session(rows.__getitem__, range(2))
    assert [(result.row_index, result.success, result.error) for result in results] == [
        (1, False, "Aborted by user"),
        (0, True, None),
    ]
    assert [result.total_tokens for result in results] == [8, 8]
    assert len(asked) == 7
    shown = capsys.readouterr().out
    assert "about: second" in shown
    assert "add-up: Add." in shown
    assert [request.rollout_id for request in agent.requests] == ["test-1", "test-0"]
