"""A stand-in for vLLM: the fields it documents, over the tiny model; also as a process.

    python -m tests.training.standin_vllm serve MODEL --enable-lora --port 8000 ...

takes the arguments of `vllm serve` that are given to it, and refuses without those that training needs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from osmosis_ai.inference.engine import ContinuousBatch, Generation, InferenceEngine, SampledToken
from osmosis_ai.inference.model import Model, load_adapted_model
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.training.engines.adapter_upload import AdapterUpload
from osmosis_ai.training.engines.vllm_engine import VllmEngine
from tests.training.policy_world import END, MODEL_DIR
from tests.training.truncating_model import with_parameters

KEY = "server-key"


@dataclass
class StandInVllm:
    """`/v1/completions` over the tiny model, and adapters by name.

    Attributes:
        fail: statuses to answer the next requests with.
        change: edits every completion before it is sent.
        hold: completions wait for it.
        silent: accepts requests and answers none.
        upload: the middleware that receives adapters.
        generation_config: the model's, which fills in what a request leaves out.
        forced: what every request is given, whatever it says.
    """

    takes_adapters: bool = True
    loaded: dict[str, str] = field(default_factory=dict)
    unloaded: list[str] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    fail: list[int] = field(default_factory=list)
    change: dict[str, Any] = field(default_factory=dict)
    hold: asyncio.Event | None = None
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    kill: Callable[[], Awaitable[None]] | None = None
    served_as: str = "base"
    key: str = KEY
    silent: bool = False
    upload: AdapterUpload | None = None
    generation_config: dict[str, Any] = field(default_factory=dict)
    forced: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._model = Model.load(MODEL_DIR)

    async def models(self, _request: web.Request) -> web.Response:
        if self.silent:
            await asyncio.Event().wait()
        return web.json_response({"object": "list", "data": [{"id": self.served_as, "max_model_len": 512}]})

    async def completions(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert request.headers["Authorization"] == f"Bearer {self.key}"
        self.requests.append(body)
        self.arrived.set()
        if self.fail:
            return web.json_response({"error": {"message": "not now"}}, status=self.fail.pop(0))
        if self.silent:
            await asyncio.Event().wait()
        if self.hold:
            await self.hold.wait()
        if body["model"] not in (self.served_as, *self.loaded):
            return web.json_response({"error": {"message": "no such model"}}, status=404)
        tokens = await self.sampled({**self.generation_config, **body, **self.forced})
        tops = [{f"token_id:{i}": p for i, p in [*token.top, (token.id, token.logprob)]} for token in tokens]
        choice = {
            "index": 0,
            "text": "",
            "token_ids": [token.id for token in tokens],
            "prompt_token_ids": body["prompt"],
            "finish_reason": "stop" if tokens[-1].id in body["stop_token_ids"] else "length",
            "logprobs": {
                "tokens": [f"token_id:{token.id}" for token in tokens],
                "token_logprobs": [token.logprob for token in tokens],
                "top_logprobs": tops if body["logprobs"] else None,
            },
        }
        return web.json_response({"object": "text_completion", "choices": [choice | self.change]})

    async def sampled(self, body: dict[str, Any]) -> list[SampledToken]:
        return sample(self._model, body)

    def close(self) -> None:
        """End what it started."""

    async def health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def load(self, request: web.Request) -> web.Response:
        body = await request.json()
        if not self.takes_adapters:
            return web.json_response({"error": {"message": "unknown path"}}, status=404)
        assert (Path(body["lora_path"]) / "adapter_config.json").is_file()
        assert body["is_3d_lora_weight"] is True
        if body["lora_name"] in self.loaded:
            message = f"The lora adapter '{body['lora_name']}' has already been loaded."
            return web.json_response({"error": {"message": message}}, status=400)
        self.loaded[body["lora_name"]] = body["lora_path"]
        return web.Response(text=f"Success: LoRA adapter '{body['lora_name']}' added successfully.")

    async def uploads(self, request: web.Request) -> web.Response:
        """Answer with the middleware, an ASGI application."""
        if self.upload is None:
            return web.Response(status=404)
        headers = [(name.lower().encode(), value.encode()) for name, value in request.headers.items()]
        scope = {"type": "http", "method": request.method, "path": request.path, "headers": headers}
        body, answered = await request.read(), []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(message: dict[str, Any]) -> None:
            answered.append(message)

        await self.upload(scope, receive, send)
        [start, content] = answered
        return web.Response(status=start["status"], body=content["body"], content_type="application/json")

    async def unload(self, request: web.Request) -> web.Response:
        if self.silent:
            await asyncio.Event().wait()
        name = (await request.json())["lora_name"]
        self.loaded.pop(name)
        self.unloaded.append(name)
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")


def _generation(body: dict[str, Any]) -> Generation:
    return Generation(
        tuple(body["prompt"]),
        body["max_tokens"],
        body["seed"],
        frozenset(body["stop_token_ids"]),
        temperature=body["temperature"],
        top_logprobs=body["logprobs"],
    )


def sample(model: Model, body: dict[str, Any]) -> list[SampledToken]:
    batch: Any = ContinuousBatch(with_parameters(model, body), 1)
    emissions = batch.admit([_generation(body)])
    while len(batch):
        emissions += batch.step()
    return [emission.token for emission in emissions]


def application(server: StandInVllm) -> web.Application:
    app = web.Application()
    app.router.add_get("/health", server.health)
    app.router.add_get("/v1/models", server.models)
    app.router.add_post("/v1/completions", server.completions)
    app.router.add_post("/v1/load_lora_adapter", server.load)
    app.router.add_route("*", "/osmosis/adapters{path:.*}", server.uploads)
    app.router.add_post("/v1/unload_lora_adapter", server.unload)
    return app


@asynccontextmanager
async def standing_in(
    kind: type[StandInVllm] = StandInVllm, port: int = 0, **settings: Any
) -> AsyncIterator[Any]:
    server = kind(**settings)
    runner = web.AppRunner(application(server), shutdown_timeout=0.01)
    await runner.setup()
    server.kill = runner.cleanup
    try:
        await web.TCPSite(runner, "127.0.0.1", port).start()
        server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()
        server.close()


def connect(servers: StandInVllm | Sequence[StandInVllm], adapters: Path, **changes: Any) -> VllmEngine:
    settings: dict[str, Any] = {"model": "base", "api_key": KEY, "run": "r", **changes}
    urls = [each.url for each in ([servers] if isinstance(servers, StandInVllm) else servers)]
    return VllmEngine(urls, end_token_ids=frozenset({END}), adapters_dir=adapters, **settings)


@dataclass
class ServingStandIn(StandInVllm):
    """Samples with the adapters it was given, many calls at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._engines: dict[tuple[Any, ...], InferenceEngine] = {}

    async def unload(self, request: web.Request) -> web.Response:
        answer = await super().unload(request)
        for key in [key for key in self._engines if key[0] == self.unloaded[-1]]:
            self._engines.pop(key).close()
        return answer

    async def sampled(self, body: dict[str, Any]) -> list[SampledToken]:
        feed = TokenFeed(self._engine(body), [_generation(body)], every_token=False)
        try:
            return [emission.token for _, emission in await feed.read()]
        finally:
            feed.close()

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()

    def _engine(self, body: dict[str, Any]) -> InferenceEngine:
        name, adapter = body["model"], self.loaded.get(body["model"])
        key = (name, *(body.get(parameter) for parameter in ("top_p", "top_k", "repetition_penalty")))
        if key not in self._engines:
            model = load_adapted_model(MODEL_DIR, Path(adapter)) if adapter else self._model
            self._engines[key] = InferenceEngine(with_parameters(model, body)).__enter__()
        return self._engines[key]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("model")
    for option in ("--host", "--port", "--served-model-name", "--max-model-len", "--max-lora-rank"):
        parser.add_argument(option, required=True)
    parser.add_argument("--max-loras", required=True, type=int, choices=[2])
    parser.add_argument("--enable-lora", required=True, action="store_true")
    parser.add_argument("--logprobs-mode", required=True, choices=["processed_logprobs"])
    parser.add_argument("--dtype", required=True, choices=["float32"])
    parser.add_argument("--generation-config", required=True, choices=["vllm"])
    parser.add_argument("--seed", help="stands for an argument that the user adds")
    arguments = parser.parse_args()
    assert os.environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert os.environ["HF_HUB_OFFLINE"] == "1"
    server = ServingStandIn(served_as=arguments.served_model_name, key=os.environ["VLLM_API_KEY"])
    web.run_app(application(server), host=arguments.host, port=int(arguments.port), print=None)


if __name__ == "__main__":
    main()
