"""Middleware for vLLM that receives adapters over HTTP, for a server that does not share a disk with the trainer.

    VLLM_API_KEY=... vllm serve MODEL ... --middleware osmosis_ai.training.engines.adapter_upload.AdapterUpload

vLLM loads adapters by path only. The trainer uploads the files and then passes the returned path to vLLM. This
module needs only the standard library: without `osmosis-ai` in vLLM's environment, a copy of the file on its PYTHONPATH
is enough (`--middleware adapter_upload.AdapterUpload`).

    GET /osmosis/adapters               reports that uploads are possible
    PUT /osmosis/adapters/NAME/FILE     stores a file atomically; returns the adapter's directory
    DELETE /osmosis/adapters/NAME       deletes an adapter
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import re
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

UPLOADS = "/osmosis/adapters"
ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
KEY_ENV = "VLLM_API_KEY"
# An adapter of rank 128 on all matrices of a model of a trillion parameters is smaller.
LARGEST_FILE_BYTES = 64 * 2**30
_NAME = re.compile(r"[A-Za-z0-9_-]{1,200}")

Receive = Callable[[], Awaitable[dict[str, Any]]]


class AdapterUpload:
    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._key = os.environ.get(KEY_ENV, "")
        if not self._key:
            raise RuntimeError(f"{KEY_ENV} is not set (required to receive adapters).")
        self._directory = tempfile.TemporaryDirectory(prefix="osmosis-adapters-")

    async def __call__(
        self, scope: dict[str, Any], receive: Receive, send: Callable[..., Awaitable[None]]
    ) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == UPLOADS or path.startswith(f"{UPLOADS}/")):
            await self._app(scope, receive, send)
            return
        try:
            status, answer = await self._answer(scope, path.split("/")[3:], receive)
        except OSError as error:
            status, answer = 507, f"The file could not be stored: {error.strerror}."
        body = answer if isinstance(answer, dict) else {"error": {"message": answer}}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async def _answer(
        self, scope: dict[str, Any], parts: list[str], receive: Receive
    ) -> tuple[int, dict[str, Any] | str]:
        headers, root = dict(scope["headers"]), Path(self._directory.name)
        if not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self._key}".encode()):
            return 401, "The API key is missing or wrong."
        if parts and not _NAME.fullmatch(parts[0]):
            return 400, "The name of an adapter consists of letters, digits, '-' and '_'."
        match scope["method"], parts:
            case "GET", []:
                return 200, {"files": ADAPTER_FILES}
            case "PUT", [name, file] if file in ADAPTER_FILES:
                length = headers.get(b"content-length", b"")
                if not length.isdigit():
                    return 411, "The request has no Content-Length."
                if int(length) > LARGEST_FILE_BYTES:
                    return 413, f"The file has more than {LARGEST_FILE_BYTES} bytes."
                if not await _store(root / name / file, int(length), receive):
                    return 400, "The body and its Content-Length differ."
                return 200, {"path": str(root / name)}
            case "DELETE", [name]:
                await asyncio.to_thread(shutil.rmtree, root / name, ignore_errors=True)
                return 200, {}
        return 404, "There is no such resource."


async def _store(target: Path, length: int, receive: Receive) -> bool:
    """Write a request's body to ``target``, unless it has another length."""
    target.parent.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as file:
        try:
            message: dict[str, Any] = {"more_body": True}
            while message.get("more_body") and file.tell() <= length:
                message = await receive()  # without `more_body` if the client disconnects
                await asyncio.to_thread(file.write, message.get("body", b""))
            file.flush()
            if file.tell() != length:
                return False
            Path(file.name).replace(target)
            return True
        finally:
            Path(file.name).unlink(missing_ok=True)
