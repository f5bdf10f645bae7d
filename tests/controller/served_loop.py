"""An agent that implements the protocol itself, in this process or in one of its own.

The last message of a rollout selects what it does, see :meth:`ServedLoop._work`. As a process it prints its port:
``python -m tests.controller.served_loop KEY PORT WORKS_ON``, where ``WORKS_ON`` may be empty.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "adds",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number", "description": None, "enum": None}},
            "required": ["a"],
        },
        "strict": False,
    },
}


class ServedLoop:
    """The agent.

    Attributes:
        inits: bodies of accepted inits.
        replies: what was answered to each request of its own, as (status, JSON).
        before_init: may answer an init in place of the agent.
        health: may answer a health check in its place.
        works_on: number of rollouts that it works on; the later ones hang. None is all.
    """

    def __init__(self, key: str = "K-server", *, works_on: int | None = None) -> None:
        self.key = key
        self.works_on = works_on
        self.inits: list[dict[str, Any]] = []
        self.headers: list[str] = []
        self.replies: list[tuple[int, Any]] = []
        self.before_init: Callable[[dict[str, Any]], web.Response | None] = lambda body: None
        self.health: Callable[[web.Request], web.Response | None] = lambda request: None
        self.accept = asyncio.Event()
        self.accept.set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._completed = 0
        self._http: aiohttp.ClientSession | None = None

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/health", self._health)
        app.router.add_get("/platform/health", self._health)
        app.router.add_post("/v1/rollout/init", self._init)
        app.on_startup.append(self._open)
        app.on_cleanup.append(self._close)
        return app

    def forget(self) -> None:
        """Lose all rollouts, like an agent that was restarted."""
        for task in self._tasks.values():
            task.cancel()
        self._tasks.clear()

    async def post(self, body: dict[str, Any], path: str, sent: Any, *, key: str | None = None) -> Any:
        """Call the controller of a rollout."""
        assert self._http is not None
        headers = {"Authorization": f"Bearer {key or body['api_key']}"}
        async with self._http.post(body["server_url"] + path, json=sent, headers=headers) as reply:
            self.replies.append((reply.status, await reply.json()))
            return self.replies[-1][1]

    async def chat(self, body: dict[str, Any], messages: list[Any], **changed: Any) -> Any:
        sent = {
            "model": "default",
            "messages": messages,
            "rollout_id": body["rollout_id"],
            "temperature": 1.0,
            "top_p": 1.0,
            "max_tokens": 64,
            "logprobs": True,
        }
        return await self.post(body, "/v1/chat/completions", {**sent, **changed})

    async def complete(self, body: dict[str, Any], **changed: Any) -> Any:
        sent = {
            "rollout_id": body["rollout_id"],
            "status": "COMPLETED",
            "final_messages": body["messages"],
            "finish_reason": "stop",
            "metrics": {"num_llm_calls": 1},
            "extra_fields": {},
        }
        return await self.post(body, "/v1/rollout/completed", {**sent, **changed})

    async def _open(self, _app: web.Application) -> None:
        self._http = aiohttp.ClientSession()

    async def _close(self, _app: web.Application) -> None:
        self.forget()
        if self._http is not None:
            await self._http.close()

    async def _health(self, request: web.Request) -> web.Response:
        instead = self.health(request)
        if instead is not None:
            return instead
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"detail": "Invalid or missing API key"}, status=401)
        return web.json_response(
            {
                "status": "healthy",
                "agent_loop": "loop",
                "active_rollouts": len(self._tasks),
                "completed_rollouts": self._completed,
            }
        )

    async def _init(self, request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.json_response({"detail": "Invalid or missing API key"}, status=401)
        body = await request.json()
        instead = self.before_init(body)
        if instead is not None:
            return instead
        rollout_id = body["rollout_id"]
        if rollout_id not in self._tasks:
            self.inits.append(body)
            hangs = self.works_on is not None and len(self.inits) > self.works_on
            self._tasks[rollout_id] = task = asyncio.create_task(self._work(body, hangs=hangs))
            task.add_done_callback(lambda _: self._done(rollout_id))
        await self.accept.wait()
        return web.json_response({"rollout_id": rollout_id, "tools": [TOOL]}, status=202)

    def _done(self, rollout_id: str) -> None:
        self._completed += self._tasks.pop(rollout_id, None) is not None

    async def _work(self, body: dict[str, Any], *, hangs: bool) -> None:
        said = body["messages"][-1]["content"]
        if hangs or said == "hang":
            await asyncio.Event().wait()
        if said == "error":
            await self.complete(body, status="ERROR", finish_reason="error", error_message="the tool broke")
        elif said == "break":
            await self.chat(body, body["messages"])
            error = {"status": "ERROR", "finish_reason": "error", "error_message": "broke"}
            await self.complete(body, **error, final_messages=[])
        elif said == "stopping" and len(self.inits) == 1:
            await self.complete(body, status="ERROR", finish_reason="cancelled", error_message="shut down")
        elif said == "no reward":
            await self.complete(body)
        elif said == "nan":
            await self.complete(body, reward=float("nan"))
        elif said == "misuse":
            await self._misuse(body)
        else:
            answer = await self.chat(body, body["messages"])
            message = answer["choices"][0]["message"]
            await self.complete(body, reward=1.0, final_messages=[*body["messages"], message])

    async def _misuse(self, body: dict[str, Any]) -> None:
        await self.chat(body, body["messages"], rollout_id="another")
        await self.post(body, "/v1/chat/completions", {"messages": []}, key="K-server")
        await self.complete(body, rollout_id="another", reward=1.0)
        await self.post(body, "/v1/rollout/completed", {"rollout_id": body["rollout_id"]}, key="wrong")
        await self.complete(body, status="success")
        await self.complete(body, reward=0.5)
        await self.complete(body, reward=1.0)
        await self.chat(body, body["messages"])


class LoopProcess(subprocess.Popen[bytes]):
    """The agent as a process of its own, which listens; for the arguments see :class:`ServedLoop`."""

    def __init__(self, key: str, port: int = 0, *, works_on: int | None = None) -> None:
        command = [sys.executable, "-m", "tests.controller.served_loop", key, str(port), str(works_on or "")]
        super().__init__(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE)
        assert self.stdout is not None
        self.port = int(self.stdout.readline())

    def kill(self) -> None:
        """Kill it, like a crash, and wait."""
        super().kill()
        self.wait()

    def __exit__(self, *exc_info: Any) -> None:
        self.kill()
        super().__exit__(*exc_info)


async def main(key: str, port: int, works_on: int | None) -> None:
    runner = web.AppRunner(ServedLoop(key, works_on=works_on).app(), access_log=None)
    await runner.setup()
    while True:
        try:
            await web.TCPSite(runner, "127.0.0.1", port, reuse_address=True).start()
            break
        except OSError:  # a connection of another process may have the port of a killed agent for a while
            await asyncio.sleep(0.5)
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]) if sys.argv[3] else None))
