"""The endpoint of a model as a child process.

The model computes in a process of its own, so that it never holds up the event loop of whoever
asks it. It listens on a free port of the loopback interface, answers only to a key made for it,
and ends with its parent, however that ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import IO, Any

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.catalog import MODELS_DIR, EngineName, built_in_model, served_models
from osmosis_ai.process_environment import chosen, python_environment
from osmosis_ai.supervision import ChildProcess

__all__ = ["InferenceServer", "served_models"]

API_KEY_ENV = "OSMOSIS_INFERENCE_API_KEY"
# The libraries that may be behind NumPy's products, each with its own name for the same thing.
SINGLE_THREAD_ENV = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
# Some models of the hub are only for those who are logged in to it.
_HUB_LOGIN = ("HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN")
LOG_TAIL_LINES = 20
# torch alone takes seconds to import; billions of weights are read from the disk, or fetched first.
START_TIMEOUT_S: dict[EngineName, float] = {"numpy": 60.0, "torch": 900.0}


class InferenceServer:
    """Serves a model while an ``async with`` block lasts.

    Args:
        model: one of :func:`served_models`; for torch, a folder or a name on the Hugging Face hub.
        engine: what computes.
        adapter: a folder with a LoRA adapter, which is merged into the model.
        served_as: the name requests call it by; the model's own when None.
        max_batch: how many sequences it generates at once.
        start_timeout_s: how long it may take to listen; by default as long as the engine may need.

    Attributes:
        model: the name requests call it by.
        api_key: the bearer key it answers to, made anew for every server.

    Raises:
        NotFoundError: when there is no such model.
    """

    def __init__(
        self,
        model: str = "osmosis/tiny",
        *,
        engine: EngineName = "numpy",
        adapter: Path | None = None,
        served_as: str | None = None,
        max_batch: int = 32,
        start_timeout_s: float | None = None,
    ) -> None:
        self._base = built_in_model(model).name if engine == "numpy" else model
        self._engine = engine
        self._adapter = adapter
        self.model = served_as or self._base
        self.api_key = secrets.token_urlsafe(24)
        self._max_batch = max_batch
        self._start_timeout_s = START_TIMEOUT_S[engine] if start_timeout_s is None else start_timeout_s
        self._process: ChildProcess | None = None
        self._log: deque[str] = deque(maxlen=LOG_TAIL_LINES)
        self._base_url: str | None = None

    def __repr__(self) -> str:
        return f"InferenceServer(model={self.model!r}, base_url={self._base_url!r})"

    @property
    def base_url(self) -> str:
        """Where it listens, as OpenAI clients want it: ``http://127.0.0.1:<port>/v1``.

        Raises:
            OsmosisError: when it is not running.
        """
        if self._base_url is None:
            raise OsmosisError(f"the server of `{self.model}` is not running.", code="INTERNAL")
        return self._base_url

    async def __aenter__(self) -> InferenceServer:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start the process and wait until it listens.

        Raises:
            OsmosisError: when it ends or stays silent instead, with the last lines it wrote.
        """
        process = self._spawn()
        self._process = process
        ready: Future[dict[str, Any]] = Future()
        assert process.stdout is not None
        threading.Thread(
            target=self._read_output, args=(process.stdout, ready), name="osmosis-inference-log", daemon=True
        ).start()
        try:
            announcement = await asyncio.wait_for(asyncio.wrap_future(ready), self._start_timeout_s)
        except asyncio.TimeoutError:
            # Its exit status would be that of our own signal.
            await self._end(process)
            raise self._start_failure(f"was not ready after {self._start_timeout_s:g} s") from None
        except EOFError:
            status = await self._end(process)
            raise self._start_failure(f"did not start (exit status {status})") from None
        except BaseException:
            await self._end(process)
            raise
        self._base_url = announcement["base_url"]

    async def stop(self) -> None:
        """End the process; harmless when it does not run."""
        self._base_url = None
        if self._process is not None:
            await self._end(self._process)

    async def wait_exit(self) -> int:
        """Wait until the process ends, of itself or by :meth:`stop`; return its exit status."""
        if self._process is None:
            raise OsmosisError(f"the server of `{self.model}` is not running.", code="INTERNAL")
        return await self._process.wait()

    def _start_failure(self, what: str) -> OsmosisError:
        log = self.log_tail() or "(it wrote nothing)"
        return OsmosisError(f"the server of `{self.model}` {what}. It wrote:\n{log}", code="INTERNAL")

    def log_tail(self) -> str:
        """Return the last lines the process wrote, for error messages."""
        return "\n".join(self._log)

    def _spawn(self) -> ChildProcess:
        command = [sys.executable, "-m", "osmosis_ai.inference", "--model", self._base]
        command += ["--port", "0", "--max-batch", str(self._max_batch), "--served-as", self.model]
        command += ["--engine", self._engine]
        if self._adapter is not None:
            command += ["--adapter", str(self._adapter.resolve())]
        environment = {
            **python_environment(os.environ),
            **chosen(os.environ, _HUB_LOGIN),
            **SINGLE_THREAD_ENV,
            API_KEY_ENV: self.api_key,
            "PYTHONUNBUFFERED": "1",
            "PYTHONSAFEPATH": "1",
        }
        # `-m` puts the working directory on the module path (before Python 3.11 always): it must
        # be one without modules, or a user's `random.py` would be imported as Python's own.
        return ChildProcess(command, env=environment, cwd=MODELS_DIR, stdout=subprocess.PIPE)

    async def _end(self, process: ChildProcess) -> int:
        self._process = None
        return await process.stop()

    def _read_output(self, output: IO[bytes], ready: Future[dict[str, Any]]) -> None:
        """Keep the pipe from filling up; the first line of JSON is the announcement."""
        with output:
            for raw in output:
                line = raw.decode("utf-8", errors="replace").rstrip()
                self._log.append(line)
                if not ready.done() and line.startswith('{"base_url"'):
                    ready.set_result(json.loads(line))
        if not ready.done():
            ready.set_exception(EOFError())
