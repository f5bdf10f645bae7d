"""An agent's side of the policy's endpoint, over real HTTP, and the tiny model behind it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.inference.chat import BuiltInChat, ChatFormat
from osmosis_ai.inference.engine import Generation, InferenceEngine, Listener
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import Cancellable
from osmosis_ai.training.engines.policy_bridge import PolicyBridge
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine
from tests.controller.proxy_world import serve_proxy

TOKEN = "a-token"
END = 2  # <|im_end|>
MODEL_DIR = built_in_model("osmosis/tiny")
SETTINGS = TrainingSettings(max_prompt_length=400, max_response_length=200)
properties = {"a": {"type": "integer"}, "b": {"type": "integer"}}
MULTIPLY = {"type": "function", "function": {"name": "multiply", "parameters": {"properties": properties}}}


def question(a: int = 12, b: int = 34) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"What is {a} * {b}?"}]


def tool_answer(reply: Mapping[str, Any], content: str = "408") -> list[dict[str, Any]]:
    """The assistant's turn and the tool's, as an agent appends them."""
    call_id = reply["tool_calls"][0]["id"]
    return [dict(reply), {"role": "tool", "tool_call_id": call_id, "content": content}]


class RecordingEngine(InProcessPolicyEngine):
    """The engine, which keeps the generations that it was asked for."""

    def __init__(self, engine: InferenceEngine) -> None:
        super().__init__(engine)
        self.asked: list[Generation] = []

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        self.asked += generations
        return super().submit(generations, listener)


@dataclass
class PolicyWorld:
    bridge: PolicyBridge
    engine: RecordingEngine
    chat: ChatFormat
    url: str
    http: aiohttp.ClientSession

    async def ask(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        rollout_id: str = "r1",
        retry_count: int | None = None,
        **changes: Any,
    ) -> tuple[int, Any]:
        """One call; the status and the decoded answer."""
        async with self._post(messages, rollout_id, retry_count, changes) as response:
            return response.status, await response.json()

    async def reply(self, messages: Sequence[Mapping[str, Any]], **changes: Any) -> dict[str, Any]:
        """The message of an answered call."""
        status, answer = await self.ask(messages, **changes)
        assert status == 200, answer
        message: dict[str, Any] = answer["choices"][0]["message"]
        return message

    async def events(self, messages: Sequence[Mapping[str, Any]], **changes: Any) -> list[Any]:
        """A streamed answer's chunks."""
        async with self._post(messages, "r1", None, {"stream": True, **changes}) as response:
            lines = (await response.text()).split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]

    def _post(self, messages: Any, rollout_id: str, retry: int | None, changes: Any) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        if retry is not None:
            headers["x-stainless-retry-count"] = str(retry)
        body = {"messages": list(messages), "tools": [MULTIPLY], **changes}
        path = f"{self.url}/v1/rollouts/{rollout_id}/chat/completions"
        return self.http.post(path, json=body, headers=headers)


def chat_with_template(template: str) -> ChatFormat:
    """Return the tiny model's tokens under another template."""
    from transformers import AutoTokenizer

    from osmosis_ai.inference.torch_engine import PretrainedChat

    tokenizer = AutoTokenizer.from_pretrained(MODEL_DIR)
    tokenizer.chat_template = template
    return PretrainedChat(tokenizer)


@asynccontextmanager
async def policy_world(
    *, settings: TrainingSettings = SETTINGS, chat: ChatFormat | None = None, **options: Any
) -> AsyncIterator[PolicyWorld]:
    """Serve the tiny model to the open rollout `r1`, whose calls have the seeds 0, 1, 2 ..."""
    chat = chat or BuiltInChat(MODEL_DIR)
    with InferenceEngine(Model.load(MODEL_DIR)) as running:
        engine = RecordingEngine(running)
        bridge = PolicyBridge(engine, chat, model_path="osmosis/tiny", settings=settings, **options)
        timeout = aiohttp.ClientTimeout(total=60)
        async with serve_proxy(bridge, TOKEN) as url, aiohttp.ClientSession(timeout=timeout) as http:
            try:
                bridge.open("r1", seed_for=lambda index: index)
                yield PolicyWorld(bridge, engine, chat, url, http)
            finally:
                calls = bridge._rollouts.get("r1")
                bridge.discard("r1")
                tasks = [call.task for call in calls.running] if calls else []
                await asyncio.gather(*tasks, return_exceptions=True)
