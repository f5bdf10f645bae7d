"""Providers that do not speak OpenAI's protocol are judges all the same; here a stand-in for Anthropic's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from osmosis_ai.rubric.judge import Judge
from osmosis_ai.rubric.judge_model import resolve_judge
from osmosis_ai.rubric.types import JudgeTask, ModelNotFoundError

pytestmark = [pytest.mark.imports_much, pytest.mark.usefixtures("without_waiting")]

CANARY = "sk-canary-7f3a9b2c"
VERDICT = {"score": 0.75, "explanation": "fine"}


class StandInAnthropic:
    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        self.keys.append(request.headers.get("x-api-key"))
        if body["model"] == "claude-3-gone":
            error = {"type": "not_found_error", "message": f"model: claude-3-gone, key: {CANARY}"}
            return web.json_response({"type": "error", "error": error}, status=404)
        if len(self.bodies) == 1:
            error = {"type": "rate_limit_error", "message": "slow down"}
            return web.json_response(
                {"type": "error", "error": error}, status=429, headers={"retry-after": "0"}
            )
        content = {"type": "tool_use", "id": "t", "name": body["tools"][0]["name"], "input": VERDICT}
        return web.json_response(
            {
                "id": "msg",
                "type": "message",
                "role": "assistant",
                "model": body["model"],
                "content": [content],
                "stop_reason": "tool_use",
                "stop_sequence": None,
                "usage": {"input_tokens": 100, "output_tokens": 10},
            }
        )


@pytest.fixture
async def anthropic(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[StandInAnthropic]:
    provider = StandInAnthropic()
    app = web.Application()
    app.router.add_post("/v1/messages", provider.answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setenv("ANTHROPIC_API_BASE", f"http://127.0.0.1:{runner.addresses[0][1]}")
    yield provider
    await runner.cleanup()


async def test_a_judge_behind_litellm_scores_after_a_rate_limit(anthropic: StandInAnthropic) -> None:
    info = {"provider": "anthropic", "model": "claude-3-haiku-20240307", "api_key": CANARY}
    async with Judge(resolve_judge(info, env={})) as judge:
        judgement = await judge.score(JudgeTask("Be kind.", "hello"), call_index=1)
    assert (judgement.score, judgement.explanation, judgement.retries) == (0.75, "fine", 1)
    assert (judgement.input_tokens, judgement.output_tokens) == (100, 10)
    assert anthropic.keys == [CANARY, CANARY]
    assert anthropic.bodies[-1]["temperature"] == 0
    schema = anthropic.bodies[-1]["tools"][0]["input_schema"]
    assert schema["required"] == ["score", "explanation"]


async def test_a_model_that_is_not_there_is_said_without_the_key(anthropic: StandInAnthropic) -> None:
    info = {"provider": "anthropic", "model": "claude-3-gone", "api_key": CANARY}
    async with Judge(resolve_judge(info, env={})) as judge:
        with pytest.raises(ModelNotFoundError, match="claude-3-gone") as caught:
            await judge.score(JudgeTask("Be kind.", "hello"))
    assert CANARY not in f"{caught.value!r} {vars(caught.value)}"
