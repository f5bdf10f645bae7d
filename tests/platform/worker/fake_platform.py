"""A small server of the worker protocol that answers as a test says, and a port for any application."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from osmosis_ai.api.models.workers import Assignment
from osmosis_ai.processes.addresses import listen

LEASE = "osml_lease-canary"
RUN = {
    "id": "run_1",
    "name": "a",
    "kind": "eval",
    "workspace_id": "wsp_1",
    "request": {},
    "commit_sha": "c" * 40,
    "rollout_name": "multiply",
    "dataset_name": "rows",
    "model_path": "osmosis/tiny",
    "seed": 0,
    "selection": {"total_rows": 1, "limit": 1, "draw_seed": None, "sha256": "0" * 64, "extension": "jsonl"},
}
ASSIGNMENT: dict[str, Any] = {
    "run": RUN,
    "shard": {"id": "shd_1"},
    "lease": {"token": LEASE, "attempt": 1, "term_s": 30.0},
    "secrets": {"KEY": "secret-canary"},
    "dataset": {"url": "/blobs/rows", "size": 1, "sha256": "0" * 64},
    "dataset_extension": "jsonl",
    "next_poll_s": 1.0,
}
OFFSET_AT_7 = {"error": "no", "code": "JOURNAL_OFFSET", "details": {"bytes": 7}}


def assignment(name: str = "1", **changes: Any) -> Assignment:
    """Return an assignment; dictionaries are merged into its parts."""
    parts = {**ASSIGNMENT, "run": {**RUN, "id": f"run_{name}", "name": name}, "shard": {"id": f"shd_{name}"}}
    for key, value in changes.items():
        parts[key] = {**parts.get(key, {}), **value} if isinstance(value, dict) else value
    return Assignment.model_validate(parts)


def refusal(status: int, code: str = "BUSY", **more: Any) -> JSONResponse:
    return JSONResponse({"error": code.lower(), "code": code, **more}, status_code=status)


@contextmanager
def serving(app: ASGIApp) -> Iterator[str]:
    """Serve an application on a port of this machine; gives its URL."""
    listener = listen("127.0.0.1", 0)
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


class Switch:
    """An application that passes requests on to another one, so that tests can share a server."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@dataclass
class Asked:
    """A request that the platform received."""

    call: str
    headers: dict[str, str]
    body: Any


class FakePlatform:
    """Answers calls.

    Attributes:
        answer: returns the reply to a call, or None for the usual one; runs in a thread of its own.
        replies: to the next calls, one after the other, before ``answer`` is asked.
        stored: replies of the store, the last one repeatedly; if empty, the store works.
        sync: what a usual sync answers.
    """

    def __init__(self) -> None:
        self.answer: Callable[[Asked], Response | None] = lambda _: None
        self.replies: list[Response] = []
        self.stored: list[Response] = []
        self.sync: dict[str, Any] = {"stop": False, "term_s": 30.0, "next_poll_s": 1.0}
        self.asked: list[Asked] = []
        self.blobs: dict[str, bytes] = {}
        methods = ["GET", "POST"]
        self.app = Starlette(
            routes=[
                Route("/api/workers/v2/{call:path}", self._call, methods=methods),
                Route("/blobs/{name:path}", self._blob, methods=["GET", "PUT"]),
            ]
        )

    def calls(self, name: str) -> list[Asked]:
        """Return the calls of one kind."""
        return [each for each in self.asked if each.call.endswith(name)]

    @property
    def messages(self) -> list[str]:
        """Return the messages of all log lines that were received."""
        logs = [
            asked.body["log"]["lines"] for asked in self.calls("sync") if asked.body and "log" in asked.body
        ]
        return [line["message"] for lines in logs for line in lines]

    async def _call(self, request: Request) -> Response:
        body = await request.body()
        if request.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        asked = Asked(request.path_params["call"], dict(request.headers), json.loads(body or b"null"))
        self.asked.append(asked)
        if self.replies:
            return self.replies.pop(0)
        return await run_in_threadpool(self.answer, asked) or self._usual(asked.call.rpartition("/")[2])

    def _usual(self, call: str) -> Response:
        known: dict[str, Any] = {"claim": {"next_poll_s": 1.0}, "sync": self.sync}
        if call == "journal":
            return Response(self.blobs.get("journal", b""))
        return JSONResponse(known.get(call, {"status": "finished"}))

    async def _blob(self, request: Request) -> Response:
        name, content = request.path_params["name"], await request.body()
        self.asked.append(Asked(f"blobs/{name}", dict(request.headers), content))
        if self.stored:
            return self.stored.pop(0) if len(self.stored) > 1 else self.stored[0]
        if request.method == "PUT":
            self.blobs[name] = content
        return Response(self.blobs[name], headers={"ETag": '"tag"'})
