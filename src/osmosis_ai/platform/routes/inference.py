"""Served models as an OpenAI API: `/v1/chat/completions` and `/v1/models`.

A model is built in, or an adapter deployed in a workspace of the key's owner. Requests need an API key, not a CLI
token. Errors have OpenAI's format. A disconnected client cancels its generation, streaming or not.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import orjson
from fastapi import APIRouter, Depends, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from osmosis_ai.inference.protocol import OpenAIError
from osmosis_ai.platform.accounts import Principal, TokenRejected
from osmosis_ai.platform.db.tables import DbLoraModel
from osmosis_ai.platform.http.authentication import Services, bearer_token
from osmosis_ai.platform.http.errors import ApiError
from osmosis_ai.platform.http.routing import ApiRoute
from osmosis_ai.platform.models import ModelUnavailableError, ServableModel
from osmosis_ai.platform.services import PlatformServices

if TYPE_CHECKING:
    import aiohttp

_EVENTS = "text/event-stream"
_STOPPED = "the model server stopped before its reply was complete."
_T = TypeVar("_T")


class _OpenAIRoute(ApiRoute):
    """A route whose errors have OpenAI's format."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_shaped(request: Request) -> Response:
            try:
                return await handle(request)
            except OpenAIError as error:
                refusal = error
            except TokenRejected as error:
                create = "Create an API key with `osmosis platform token create --kind api_key`."
                refusal = OpenAIError(401, f"{error.message} {create}", code="invalid_api_key")
            except ApiError as error:
                code = "invalid_api_key" if error.status == 401 else error.reason.lower()
                refusal = OpenAIError(error.status, error.message, code=code)
            return JSONResponse(refusal.body(), refusal.status, refusal.headers())

        return handle_shaped


router = APIRouter(prefix="/v1", route_class=_OpenAIRoute, redirect_slashes=False)


async def _authenticate(request: Request, services: Services) -> Principal:
    """Return the user and API key of a request (a dependency)."""
    plain = bearer_token(request)
    key = await run_in_threadpool(services.accounts.authenticate, plain, kinds=("api_key",))
    if not await run_in_threadpool(services.workspaces.has_member, key.user.id, key.token.workspace_id):
        where = "that workspace" if key.token.workspace_id is not None else "any workspace"
        raise OpenAIError(
            403, f"the user of this API key is no longer a member of {where}.", code="not_a_member"
        )
    return key


ApiKey = Annotated[Principal, Depends(_authenticate)]


@router.post("/chat/completions", response_class=Response)
async def chat_completions(request: Request, services: Services, key: ApiKey) -> Response:
    """Create a chat completion, optionally as a stream of server-sent events."""
    body = await request.body()
    model = await _served_model(services, key, _requested_model(body))
    with ExitStack() as held:
        held.enter_context(services.model_servers.place(key.token.id, model))
        upstream = await _unless_disconnected(
            request, services.model_servers.post(model, "/chat/completions", body)
        )
        held.callback(upstream.close)
        if upstream.content_type == _EVENTS:
            return _Relay(upstream, held.pop_all())
        content = await _unless_disconnected(request, _content(upstream))
        headers = {name: upstream.headers[name] for name in ("Retry-After",) if name in upstream.headers}
        return Response(content, upstream.status, headers, upstream.content_type)


@router.get("/models", response_class=Response)
async def list_models(services: Services, key: ApiKey) -> Response:
    """List the served models."""
    built_in = [_described(name, services.model_servers.created) for name in services.model_servers.models]
    adapters = [_described_adapter(found) for found in await _deployed(services, key)]
    return JSONResponse({"object": "list", "data": built_in + adapters})


@router.get("/models/{name:path}", response_class=Response)
async def get_model(services: Services, key: ApiKey, name: str) -> Response:
    """Return one served model."""
    model = await _served_model(services, key, name)
    if model.adapter_id is None:
        return JSONResponse(_described(model.name, services.model_servers.created))
    return JSONResponse(_described_adapter((await _deployed(services, key, model.name))[0]))


@router.api_route("/{path:path}", methods=["GET", "POST", "PUT", "PATCH", "DELETE"], include_in_schema=False)
async def no_such_route(request: Request, path: str) -> Response:
    """Reply to an unknown path in OpenAI's error format."""
    raise OpenAIError(404, f"no route matches {request.method} /v1/{path[:200]}.", code="unknown_url")


def _described(name: str, created: int) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "osmosis"}


def _described_adapter(model: DbLoraModel) -> dict[str, Any]:
    described = _described(model.inference_name, int(model.created_at.timestamp()))
    return {**described, "parent": model.base_model}


async def _deployed(
    services: PlatformServices, key: Principal, name: str | None = None
) -> Sequence[DbLoraModel]:
    return await run_in_threadpool(services.lora_models.deployed, key.user.id, key.token.workspace_id, name)


def _requested_model(body: bytes) -> str:
    try:
        name = orjson.loads(body)["model"]
    except orjson.JSONDecodeError:
        raise OpenAIError(400, "the request body is not valid JSON.") from None
    except (KeyError, TypeError):
        name = None
    if not isinstance(name, str):
        raise OpenAIError(
            400, "the request must name a model.", param="model", code="missing_required_parameter"
        )
    return name


async def _served_model(services: PlatformServices, key: Principal, name: str) -> ServableModel:
    model = services.model_servers.find(name)
    if model is not None:
        return model
    found = await _deployed(services, key, name)
    if found:
        return ServableModel(name, found[0].id)
    adapters = [each.inference_name for each in await _deployed(services, key)]
    served = ", ".join(f"'{known}'" for known in (*services.model_servers.models, *adapters))
    raise OpenAIError(
        404,
        f"the model '{name[:200]}' is not served here. Served models: {served}. To serve an adapter, deploy it "
        "with `osmosis model deploy NAME`.",
        param="model",
        code="model_not_found",
    )


async def _content(upstream: aiohttp.ClientResponse) -> bytes:
    import aiohttp

    try:
        return await upstream.read()
    except (aiohttp.ClientError, asyncio.TimeoutError) as error:
        raise ModelUnavailableError(_STOPPED) from error


class _Relay(StreamingResponse):
    """Forwards a stream of events; ``held`` is closed when it ends."""

    def __init__(self, upstream: aiohttp.ClientResponse, held: ExitStack) -> None:
        # Without the second header, proxies buffer the stream.
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(_events(upstream), upstream.status, headers, _EVENTS)
        self._held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._held:
            await super().__call__(scope, receive, send)


async def _events(upstream: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    import aiohttp

    try:
        async for chunk in upstream.content.iter_any():
            yield chunk
    except (aiohttp.ClientError, asyncio.TimeoutError):
        # The status line has been sent, so the error is an event.
        error = OpenAIError(503, _STOPPED, type="server_error")
        yield b"\n\ndata: " + orjson.dumps(error.body()) + b"\n\n"


async def _unless_disconnected(request: Request, work: Awaitable[_T]) -> _T:
    """Await ``work``; cancel it if the client disconnects."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_disconnect(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
