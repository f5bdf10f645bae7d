"""The mock trainer that users test their agents with."""

from __future__ import annotations

import httpx
import pytest
from fastapi.testclient import TestClient

from osmosis_ai.rollout.loop.client import OsmosisLLMClient
from osmosis_ai.rollout.loop.testing import (
    RolloutCompletionTracker,
    create_mock_trainer_app,
    fake_prompt_token_ids,
    fake_token_ids,
    patch_httpx_for_mock_trainer,
)


async def test_a_rollout_runs_against_the_mock_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = RolloutCompletionTracker()
    trainer = TestClient(create_mock_trainer_app(tracker))
    patch_httpx_for_mock_trainer(trainer, monkeypatch)

    async with OsmosisLLMClient("http://trainer", "r1") as client:
        plain = await client.chat_completions([{"role": "user", "content": "Hello"}])
        asked = await client.chat_completions([{"role": "user", "content": "Please ADD 5 and 3"}])
        ended = await client.chat_completions([{"role": "tool", "content": "8"}])
        assert tracker.wait(timeout=0) is False
        await client.complete_rollout("COMPLETED", [])

    assert (plain.content, plain.finish_reason, plain.token_ids) == ("OK.", "stop", [0, 1, 2])
    (call,) = asked.tool_calls
    assert (call["id"], call["function"]) == (
        "call_mock_add",
        {"name": "add", "arguments": '{"a": 5, "b": 3}'},
    )
    assert ended.content == "The calculation is complete." and not ended.has_tool_calls
    assert tracker.wait() and tracker.responses[0]["rollout_id"] == "r1"
    assert trainer.get("/v1/rollout/completed/r1").json()["status"] == "COMPLETED"
    assert trainer.get("/v1/rollout/completed/other").json() == {}
    assert trainer.get("/health").json() == {"status": "healthy", "service": "mock-trainer"}
    tracker.clear()
    assert (tracker.responses, tracker.event.is_set()) == ([], False)


async def test_tool_calls_can_be_generated_and_other_addresses_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    trainer = TestClient(create_mock_trainer_app(tool_call_generator=lambda message: calls))

    reply = trainer.post(
        "/v1/chat/completions", json={"rollout_id": "r", "messages": [{"role": "user"}]}
    ).json()
    assert reply["id"] == "r" and reply["choices"][0]["message"]["tool_calls"] == calls
    assert len(reply["prompt_token_ids"]) == reply["usage"]["prompt_tokens"] == 10

    patch_httpx_for_mock_trainer(trainer, monkeypatch)
    elsewhere = httpx.MockTransport(lambda request: httpx.Response(204))
    async with httpx.AsyncClient(transport=elsewhere) as other:
        assert (await other.post("http://x/y")).status_code == 204


def test_fake_tokens_are_as_many_as_documented() -> None:
    assert fake_token_ids("abc") == [0, 1, 2]
    assert (len(fake_prompt_token_ids([])), len(fake_prompt_token_ids([{}, {}]))) == (10, 20)
