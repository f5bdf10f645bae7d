"""HTTP server for `/v1/chat/completions`, `/v1/models` and `/health`, on aiohttp.

A disconnected client cancels its generation. Errors have OpenAI's format.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from osmosis_ai.inference.catalog import built_in_model, served_models
from osmosis_ai.inference.chat import BuiltInChat, ChatFormat
from osmosis_ai.inference.engine import InferenceEngine, LanguageModel
from osmosis_ai.inference.model import Model, load_adapted_model, trained_tool_call_format
from osmosis_ai.inference.openai_api import ChatCompletion, ChatCompletions
from osmosis_ai.inference.protocol import OpenAIError

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 * 1024 * 1024
# How long the server waits for slow clients when it ends.
SHUTDOWN_TIMEOUT_S = 2.0

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Endpoint:
    """The routes over one model; clients need ``api_key``, unless it is None."""

    def __init__(self, api: ChatCompletions, *, api_key: str | None) -> None:
        self._api = api
        self._key = api_key

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=MAX_BODY_BYTES)
        app.router.add_post("/v1/chat/completions", self._chat_completions)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/health", self._health)
        return app

    def runner(self) -> web.AppRunner:
        """Return the application's runner, which cancels the handler of a client that disconnects."""
        app, timeout = self.application(), SHUTDOWN_TIMEOUT_S
        return web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=timeout)

    async def _chat_completions(self, request: web.Request) -> web.StreamResponse:
        try:
            body = orjson.loads(await request.read())
        except orjson.JSONDecodeError as error:
            raise OpenAIError(400, f"the request body is not valid JSON: {error}.") from error
        result = await self._api.create(body)
        if not isinstance(result, ChatCompletion):
            return _json(result)
        headers = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
        response = web.StreamResponse(headers=headers)
        async with aclosing(result):
            await response.prepare(request)
            try:
                async for chunk in result:
                    await response.write(_event(chunk))
            except OpenAIError as error:  # the status has been sent: the error is an event
                await response.write(_event(error.body()))
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def _models(self, _request: web.Request) -> web.Response:
        return _json(self._api.models())

    async def _health(self, _request: web.Request) -> web.Response:
        engine = self._api.engine
        status = {"status": "failed" if engine.failure else "ok", "model": self._api.model_name}
        return _json(status | engine.stats(), status=503 if engine.failure else 200)

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Check the key, and return every failure in OpenAI's format."""
        try:
            if self._key is not None and request.path.startswith("/v1/"):
                scheme, _, given = request.headers.get("Authorization", "").partition(" ")
                right = hmac.compare_digest(given.strip().encode(), self._key.encode())
                if scheme.lower() != "bearer" or not right:
                    raise OpenAIError(401, "the bearer key is missing or wrong.", code="invalid_api_key")
            return await handler(request)
        except OpenAIError as error:
            return _json(error.body(), status=error.status, headers=error.headers())
        except web.HTTPException as error:
            refusal = OpenAIError(error.status, f"{request.method} {request.path}: {error.reason}.")
            allow = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
            return _json(refusal.body(), status=error.status, headers=allow)
        except ConnectionError:
            raise  # the client is gone; aiohttp cleans up
        except Exception:  # the edge of the process: the client gets an error it can read
            logger.exception("a request failed")
            message = "the model server failed; its log holds the traceback."
            failure = OpenAIError(500, message, type="server_error")
            return _json(failure.body(), status=500)


def load_parts(model: str, adapter: Path | None = None) -> tuple[LanguageModel, ChatFormat]:
    """Load a model and its chat format; raises OsmosisError."""
    chosen = trained_tool_call_format(adapter) if adapter else None
    if model not in served_models():
        import torch

        from osmosis_ai.inference.torch_engine import PretrainedChat, TorchModel

        device = "cuda" if torch.cuda.is_available() else "cpu"
        chat = PretrainedChat.load(model, tool_call_format=chosen)
        return TorchModel.load(model, adapter=adapter, device=device), chat
    directory = built_in_model(model)
    network = load_adapted_model(directory, adapter) if adapter else Model.load(directory)
    return network, BuiltInChat(directory, tool_call_format=chosen)


async def serve(model: str, adapter: Path | None, name: str, api_key: str) -> None:
    """Serve a model as ``name`` until SIGINT or SIGTERM; prints one JSON line when ready."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    network, chat = load_parts(model, adapter)
    # Clients may drop the provider's part of the name.
    names = (name, name.partition("/")[2] or name)
    with InferenceEngine(network) as engine:
        api = ChatCompletions(engine, chat, names)
        runner = Endpoint(api, api_key=api_key).runner()
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            base_url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
            ready = {"base_url": base_url, "model": api.model_name, "fingerprint": api.fingerprint}
            sys.stdout.write(json.dumps(ready) + "\n")
            sys.stdout.flush()
            await stop.wait()
        finally:
            await runner.cleanup()


def _json(value: Any, *, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    body, kind = orjson.dumps(value), "application/json"
    return web.Response(body=body, status=status, headers=headers, content_type=kind)


def _event(chunk: Any) -> bytes:
    return b"data: " + orjson.dumps(chunk) + b"\n\n"
