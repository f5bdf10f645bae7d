"""A vLLM server run by the trainer, in its own environment.

It listens on the loopback interface and requires a generated key. It can be restarted after a crash, because its
adapter is on disk.
"""

from __future__ import annotations

import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from osmosis_ai.processes import Service, ServiceSpec, free_port

# How often a server that died is started again in one session: more has a cause that a person must find.
RESTARTS = 3
STOP_GRACE_S = 20.0
# The adapter that is served and the one before, which calls under way still use.
_ADAPTERS = 2
# What is for this process and not for vLLM.
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "OSMOSIS_TOKEN")
# What vLLM accepts as --max-lora-rank.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class VllmServer(Service):
    """Runs `vllm serve` while an ``async with`` block lasts."""

    def __init__(
        self,
        command: str | Sequence[str],
        *,
        model: str,
        served_as: str,
        lora_rank: int,
        max_positions: int,
        log_path: Path,
        dtype: str = "auto",
        args: Sequence[str] = (),
        environ: Mapping[str, str],
        offline: bool = True,
        start_timeout_s: float = 1800.0,
    ) -> None:
        self.api_key = secrets.token_urlsafe(32)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        program = shlex.split(command) if isinstance(command, str) else [*command]
        options = {
            "--host": "127.0.0.1",
            "--port": str(port),
            "--served-model-name": served_as,
            "--max-model-len": str(max_positions),
            "--max-lora-rank": str(next((allowed for allowed in _RANKS if allowed >= lora_rank), lora_rank)),
            "--max-loras": str(_ADAPTERS),
            "--dtype": dtype,  # by itself it makes 16 bits of a float32 model
            "--logprobs-mode": "processed_logprobs",
            # Not the model's own defaults for what a request might leave out.
            "--generation-config": "vllm",
        }
        env = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}
        env |= {
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
            "VLLM_API_KEY": self.api_key,
            "PYTHONUNBUFFERED": "1",
        }
        if offline:
            env["HF_HUB_OFFLINE"] = "1"
        ours = [part for option in options.items() for part in option]
        spec = ServiceSpec(
            name="the vLLM server",
            command=[*program, "serve", model, "--enable-lora", *ours, *args],
            env=env,
            cwd=Path.cwd(),
            log_path=log_path,
            addresses=[self.url],
            start_timeout_s=start_timeout_s,
            late_hint="[advanced].vllm_start_timeout_s gives it longer",
            stop_grace_s=STOP_GRACE_S,
            restarts=RESTARTS,
            guarded=True,
        )
        super().__init__(spec)
