"""A rollout's real process, and the controller's end of the protocol, for as long as a test needs them."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

DEADLINE_S = 300.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServedRollout:
    """Runs ``main.py`` of a directory as a script and takes its callbacks."""

    def __init__(self, directory: Path, artifacts: Path) -> None:
        self._directory = directory
        self._artifacts = artifacts
        self._callbacks: dict[str, asyncio.Future[dict[str, Any]]] = {}

    async def __aenter__(self) -> ServedRollout:
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        environment = {
            **os.environ,
            "_OSMOSIS_ROLLOUT_HOST": "127.0.0.1",
            "_OSMOSIS_ROLLOUT_PORT": str(port),
            "_OSMOSIS_ROLLOUT_ARTIFACT_ROOT": str(self._artifacts),
        }
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "main.py", cwd=self._directory, env=environment, stderr=asyncio.subprocess.PIPE
        )
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=DEADLINE_S))
        controller = web.Application(client_max_size=2**26)
        controller.router.add_post("/{id}/{channel}", self._take)
        self._controller = web.AppRunner(controller, access_log=None, shutdown_timeout=0.1)
        await self._controller.setup()
        await web.TCPSite(self._controller, "127.0.0.1", 0).start()
        self._controller_url = f"http://127.0.0.1:{self._controller.addresses[0][1]}"
        await asyncio.wait_for(self._healthy(), DEADLINE_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        await self._controller.cleanup()
        if self._process.returncode is None:
            self._process.terminate()
        await asyncio.wait_for(self._process.communicate(), DEADLINE_S)

    async def health(self) -> dict[str, Any]:
        async with self._session.get(f"{self._url}/health") as response:
            answer: dict[str, Any] = await response.json()
            return answer

    async def attempt(self, prompt: str, label: str, chat_url: str, *, name: str = "a") -> dict[str, Any]:
        """Run one attempt and return what the rollout reported: ``{"completion": …, "grader": …}``."""
        loop = asyncio.get_running_loop()
        waits = {channel: loop.create_future() for channel in ("completion", "grader")}
        self._callbacks.update({f"{name}/{channel}": future for channel, future in waits.items()})
        body = {
            "rollout_id": name,
            "initial_messages": [{"role": "user", "content": prompt}],
            "label": label,
            "chat_completions_url": chat_url,
            "llm_api_key": "rollout-key",
            "controller_api_key": "controller-key",
            "completion_callback_url": f"{self._controller_url}/{name}/completion",
            "grader_callback_url": f"{self._controller_url}/{name}/grader",
            "agent_timeout_sec": DEADLINE_S,
            "grader_timeout_sec": DEADLINE_S,
        }
        async with self._session.post(f"{self._url}/rollout", json=body) as response:
            assert response.status == 202, await response.text()
        return {channel: await asyncio.wait_for(future, DEADLINE_S) for channel, future in waits.items()}

    async def _take(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == "Bearer controller-key"
        future = self._callbacks[f"{request.match_info['id']}/{request.match_info['channel']}"]
        if not future.done():
            future.set_result(await request.json())
        return web.json_response({})

    async def _healthy(self) -> None:
        while self._process.returncode is None:
            try:
                await self.health()
                return
            except aiohttp.ClientConnectionError:
                await asyncio.sleep(0.05)
        assert self._process.stderr is not None
        raise AssertionError((await self._process.stderr.read()).decode())
