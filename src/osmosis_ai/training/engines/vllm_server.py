"""A vLLM server as a child of the trainer, from an environment of its own.

It listens on the loopback interface, answers only to a key made for it, and ends with the trainer,
however that ends. It can be started again when it has died: the adapter it served is on the disk.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.errors import OsmosisError
from osmosis_ai.llm.transport import open_session
from osmosis_ai.supervision import ChildProcess, free_port

if TYPE_CHECKING:
    from typing_extensions import Self

# How often a server that died is started again in one session: more has a cause that a person must find.
RESTARTS = 3
LOG_TAIL_LINES = 20
PROBE_TIMEOUT_S = 5.0
POLL_S = 0.2
STOP_GRACE_S = 20.0
# The adapter that is served and the one before, which calls under way still use.
_ADAPTERS = 2
# What is for this process and not for vLLM.
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "OSMOSIS_TOKEN")


@dataclass(frozen=True)
class VllmServerSpec:
    """What to start.

    Attributes:
        command: the `vllm` program, with what stands before its first argument.
        model: a folder or a name that vLLM loads.
        served_as: the name requests call it by.
        lora_rank: of the adapters it will serve.
        max_positions: the longest sequence.
        dtype: what it computes in: that of the learner.
        args: further arguments of `vllm serve`; they win over ours.
        environ: the variables it inherits.
        offline: whether it may not fetch a model.
        log_path: its output is appended to it.
        start_timeout_s: how long it may take to load the model.
    """

    command: str | Sequence[str]
    model: str
    served_as: str
    lora_rank: int
    max_positions: int
    log_path: Path
    dtype: str = "auto"
    args: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    offline: bool = True
    start_timeout_s: float = 1800.0


class VllmServer:
    """Runs `vllm serve` while an ``async with`` block lasts.

    Args:
        spec: what to start.
        note: told, in a sentence, when the server died and is started again.

    Attributes:
        api_key: the bearer key it answers to, made anew for every server.

    Raises:
        OsmosisError: on entering: it does not start, with the end of its log.
    """

    def __init__(self, spec: VllmServerSpec, *, note: Callable[[str], None] = lambda _: None) -> None:
        self._spec = spec
        self._note = note
        self.api_key = secrets.token_urlsafe(32)
        self._port = free_port()
        self._process: ChildProcess | None = None
        self._restarts = 0
        self._starting = asyncio.Lock()

    async def __aenter__(self) -> Self:
        await self._start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._stop()

    @property
    def url(self) -> str:
        """Where it listens, without ``/v1``; the same after it was started again."""
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Of the process group that is the server."""
        assert self._process is not None, "the server is used outside of `async with`"
        return self._process.pid

    async def revive(self) -> bool:
        """Start the server again if it has died; return whether it had.

        Raises:
            OsmosisError: it does not start, or it died too often.
        """
        async with self._starting:
            if self._process is not None and self._process.poll() is None:
                return False
            status = self._process.poll() if self._process is not None else None
            if self._restarts >= RESTARTS:
                raise self._failure(f"the vLLM server died again and again ({_exit(status)})")
            self._restarts += 1
            self._note(f"the vLLM server died ({_exit(status)}) and is started again.")
            await self._stop()
            await self._start()
            return True

    async def _start(self) -> None:
        spec = self._spec
        spec.log_path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(spec.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(descriptor, "ab") as log:
            self._process = ChildProcess(
                [sys.executable, "-m", "osmosis_ai.supervision", *self._command()],
                env=self._environment(),
                cwd=Path.cwd(),
                stdout=log,
            )
        try:
            await self._until_healthy(self._process)
        except BaseException:
            await self._stop()
            raise

    async def _stop(self) -> None:
        if self._process is not None:
            await self._process.stop(grace_s=STOP_GRACE_S)
            self._process = None

    def _command(self) -> list[str]:
        spec = self._spec
        program = shlex.split(spec.command) if isinstance(spec.command, str) else [*spec.command]
        ours = {
            "--host": "127.0.0.1",
            "--port": str(self._port),
            "--served-model-name": spec.served_as,
            "--max-model-len": str(spec.max_positions),
            "--max-lora-rank": str(_lora_rank_of_vllm(spec.lora_rank)),
            "--max-loras": str(_ADAPTERS),
            "--dtype": spec.dtype,  # by itself it makes 16 bits of a float32 model
            "--logprobs-mode": "processed_logprobs",
            # Not the model's own defaults for what a request might leave out.
            "--generation-config": "vllm",
        }
        options = [part for option in ours.items() for part in option]
        return [*program, "serve", spec.model, "--enable-lora", *options, *spec.args]

    def _environment(self) -> dict[str, str]:
        spec = self._spec
        env = {name: value for name, value in spec.environ.items() if name not in _NOT_INHERITED}
        env |= {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_API_KEY": self.api_key,
            "PYTHONUNBUFFERED": "1",
        }
        return env | ({"HF_HUB_OFFLINE": "1"} if spec.offline else {})

    async def _until_healthy(self, process: ChildProcess) -> None:
        healthy = asyncio.create_task(self._answers())
        ended = asyncio.create_task(process.wait())
        try:
            await asyncio.wait(
                {healthy, ended},
                timeout=self._spec.start_timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if healthy.done():
                return
            if ended.done():
                raise self._failure(f"the vLLM server ended before it was ready ({_exit(ended.result())})")
            raise self._failure(
                f"the vLLM server was not ready after {self._spec.start_timeout_s:g} s",
                hint="[advanced].vllm_start_timeout_s gives it longer",
            )
        finally:
            healthy.cancel()
            ended.cancel()
            await asyncio.gather(healthy, ended, return_exceptions=True)

    async def _answers(self) -> None:
        """Wait until the server says that it is well."""
        import aiohttp

        async with open_session(timeout_s=PROBE_TIMEOUT_S) as session:
            while True:
                try:
                    async with session.get(f"{self.url}/health") as reply:
                        if reply.status == 200:
                            return
                except (aiohttp.ClientError, asyncio.TimeoutError):
                    pass
                await asyncio.sleep(POLL_S)

    def _failure(self, what: str, *, hint: str | None = None) -> OsmosisError:
        try:
            lines = self._spec.log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        tail = "\n".join(f"  {line}" for line in lines[-LOG_TAIL_LINES:])
        return OsmosisError(f"{what}; the end of {self._spec.log_path}:\n{tail}", hint=hint)


# What vLLM accepts as --max-lora-rank.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


def _lora_rank_of_vllm(rank: int) -> int:
    return next((allowed for allowed in _RANKS if allowed >= rank), rank)


def _exit(status: int | None) -> str:
    """An exit status in words; a guarded program's signal is 128 plus its number."""
    if status is None:
        return "it is gone"
    number = -status if status < 0 else status - 128
    return f"signal {number}" if 0 < number < 65 else f"exit status {status}"
