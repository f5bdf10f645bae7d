"""A controller for the tests of agent loops: it plays the model, and keeps how rollouts ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ..types.sample import MessageDict

ToolCallGenerator = Callable[[dict[str, Any]], "list[dict[str, Any]] | None"]
"""Returns the tool calls that answer a message; None or nothing for a text."""

_WORDS_OF_A_CALCULATION = ("calculate", "add", "sum", "plus", "subtract", "multiply", "divide")
_COMPLETIONS_PATH = "/v1/chat/completions"
_COMPLETED_PATH = "/v1/rollout/completed"


class RolloutCompletionTracker:
    """Keeps the reports of rollouts that ended.

    Attributes:
        event: set once there is one.
        responses: all of them, the oldest first.
    """

    def __init__(self) -> None:
        self.event = threading.Event()
        self.responses: list[dict[str, Any]] = []

    def record(self, response: dict[str, Any]) -> None:
        """Keep a report, and wake who waits."""
        self.responses.append(response)
        self.event.set()

    def clear(self) -> None:
        """Forget all reports."""
        self.responses.clear()
        self.event.clear()

    def wait(self, timeout: float = 5.0) -> bool:
        """Wait for a report, ``timeout`` seconds at most; tell whether there is one."""
        return self.event.wait(timeout)


def fake_token_ids(text: str) -> list[int]:
    """Return one token for each character."""
    return list(range(len(text)))


def fake_prompt_token_ids(messages: Sequence[MessageDict]) -> list[int]:
    """Return ten tokens for each message."""
    return list(range(10 * max(1, len(messages))))


def create_mock_trainer_app(
    tracker: RolloutCompletionTracker | None = None,
    tool_call_generator: ToolCallGenerator | None = None,
) -> FastAPI:
    """Return a controller that calls ``add`` when a user wants to calculate, and says OK otherwise.

    Args:
        tracker: called with every rollout that ends.
        tool_call_generator: decides on the tool calls for the last message instead.

    Raises:
        MissingExtraError: without FastAPI.
    """
    try:
        from fastapi import FastAPI
    except ModuleNotFoundError as error:
        from osmosis_ai.errors import MissingExtraError

        raise MissingExtraError("server", "fastapi") from error
    app = FastAPI(title="mock trainer")
    ended: dict[str, dict[str, Any]] = {}

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "healthy", "service": "mock-trainer"}

    @app.post(_COMPLETIONS_PATH)
    async def complete(body: dict[str, Any]) -> dict[str, Any]:
        return _completion(body, tool_call_generator or _calculation)

    @app.post(_COMPLETED_PATH)
    async def completed(body: dict[str, Any]) -> dict[str, str]:
        ended[str(body.get("rollout_id"))] = body
        if tracker is not None:
            tracker.record(body)
        return {"status": "ok"}

    @app.get(_COMPLETED_PATH + "/{rollout_id}")
    async def how_it_ended(rollout_id: str) -> dict[str, Any]:
        return ended.get(rollout_id, {})

    return app


def patch_httpx_for_mock_trainer(client: Any, monkeypatch: Any) -> None:
    """Lead what agent loops send to their controller to a mock trainer.

    Args:
        client: a FastAPI ``TestClient`` of :func:`create_mock_trainer_app`.
        monkeypatch: pytest's.
    """
    import httpx

    original = httpx.AsyncClient.post

    async def post(self: httpx.AsyncClient, url: Any, **kwargs: Any) -> Any:
        path = httpx.URL(str(url)).path
        for known in (_COMPLETIONS_PATH, _COMPLETED_PATH):
            if path.endswith(known):
                return client.post(known, json=kwargs.get("json"), headers=kwargs.get("headers"))
        return await original(self, url, **kwargs)

    monkeypatch.setattr(httpx.AsyncClient, "post", post)


def _completion(body: dict[str, Any], generate: ToolCallGenerator) -> dict[str, Any]:
    """Return the reply to a request: OpenAI's, with tokens as a trained model's has them."""
    messages = body.get("messages") or [{}]
    message = _answer(messages[-1], generate)
    token_ids = fake_token_ids(message["content"] or "")
    prompt_token_ids = fake_prompt_token_ids(messages)
    return {
        "id": body.get("rollout_id") or "mock",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": body.get("model") or "default",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": len(prompt_token_ids),
            "completion_tokens": len(token_ids),
            "total_tokens": len(prompt_token_ids) + len(token_ids),
        },
        "token_ids": token_ids,
        "logprobs": [0.0] * len(token_ids),
        "prompt_token_ids": prompt_token_ids,
    }


def _answer(last: MessageDict, generate: ToolCallGenerator) -> dict[str, Any]:
    if last.get("role") == "tool":
        return {"role": "assistant", "content": "The calculation is complete."}
    calls = generate(last)
    if calls:
        return {"role": "assistant", "content": "I will calculate that.", "tool_calls": calls}
    return {"role": "assistant", "content": "OK."}


def _calculation(message: MessageDict) -> list[dict[str, Any]] | None:
    text = str(message.get("content") or "").lower()
    if message.get("role") != "user" or not any(word in text for word in _WORDS_OF_A_CALCULATION):
        return None
    function = {"name": "add", "arguments": '{"a": 5, "b": 3}'}
    return [{"id": "call_mock_add", "type": "function", "function": function}]
