"""Mock controller for tests of agent loops. It plays the model and records how rollouts ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from .utils.imports import needs_extra

if TYPE_CHECKING:
    from fastapi import FastAPI

    from .types import MessageDict

ToolCallGenerator = Callable[[dict[str, Any]], "list[dict[str, Any]] | None"]
"""Returns the tool calls that answer a message; None or an empty list for a text answer."""

_COMPLETIONS_PATH = "/v1/chat/completions"
_COMPLETED_PATH = "/v1/rollout/completed"


class RolloutCompletionTracker:
    """Collects the final reports of rollouts in ``responses``; ``event`` is set once there is one."""

    def __init__(self) -> None:
        self.event = threading.Event()
        self.responses: list[dict[str, Any]] = []

    def record(self, response: dict[str, Any]) -> None:
        """Store a report and wake up waiters."""
        self.responses.append(response)
        self.event.set()

    def clear(self) -> None:
        """Remove all reports."""
        self.responses.clear()
        self.event.clear()

    def wait(self, timeout: float = 5.0) -> bool:
        """Wait up to ``timeout`` seconds for a report and return whether there is one."""
        return self.event.wait(timeout)


def fake_token_ids(text: str) -> list[int]:
    """Return one token per character."""
    return list(range(len(text)))


def fake_prompt_token_ids(messages: Sequence[MessageDict]) -> list[int]:
    """Return ten tokens per message."""
    return list(range(10 * max(1, len(messages))))


def create_mock_trainer_app(
    tracker: RolloutCompletionTracker | None = None, tool_call_generator: ToolCallGenerator | None = None
) -> FastAPI:
    """Return a controller that calls ``add`` when a user asks to calculate, and answers OK otherwise.

    ``tracker`` receives every finished rollout. ``tool_call_generator`` chooses the tool calls for the last message.
    """
    with needs_extra("server", "the mock controller"):
        from fastapi import FastAPI
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
    """Route the requests of agent loops to ``client``, a TestClient of the mock trainer, with pytest's ``monkeypatch``."""
    import httpx

    from .client import OsmosisLLMClient

    original = httpx.AsyncClient.post

    async def post(self: httpx.AsyncClient, url: Any, **kwargs: Any) -> Any:
        path = httpx.URL(str(url)).path
        for known in (_COMPLETIONS_PATH, _COMPLETED_PATH):
            if path.endswith(known):
                return client.post(known, json=kwargs.get("json"), headers=kwargs.get("headers"))
        return await original(self, url, **kwargs)

    monkeypatch.setattr(httpx.AsyncClient, "post", post)
    # A served agent's clients would share connections, which are not httpx's.
    monkeypatch.setattr(OsmosisLLMClient, "share_connections", lambda _: None)


def _completion(body: dict[str, Any], generate: ToolCallGenerator) -> dict[str, Any]:
    """Return an OpenAI reply with the token data of a trained model."""
    messages = body.get("messages") or [{}]
    message: dict[str, Any] = {"role": "assistant", "content": "OK."}
    if messages[-1].get("role") == "tool":
        message["content"] = "The calculation is complete."
    elif calls := generate(messages[-1]):
        message |= {"content": "I will calculate that.", "tool_calls": calls}
    token_ids, prompt_token_ids = fake_token_ids(message["content"]), fake_prompt_token_ids(messages)
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


def _calculation(message: MessageDict) -> list[dict[str, Any]] | None:
    text = str(message.get("content") or "").lower()
    words = ("calculate", "add", "sum", "plus", "subtract", "multiply", "divide")
    if message.get("role") != "user" or not any(word in text for word in words):
        return None
    function = {"name": "add", "arguments": '{"a": 5, "b": 3}'}
    return [{"id": "call_mock_add", "type": "function", "function": function}]
