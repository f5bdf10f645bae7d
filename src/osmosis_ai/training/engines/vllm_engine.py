"""vLLM as the policy engine: a server in its own environment, reached over HTTP.

Tokens go in and come out as ids over ``/v1/completions``. Templates and tool calls are handled on our side, so that CPU
and GPU tokenise alike. Every policy version is an adapter under a new name: vLLM would reload a replaced adapter for
every request, and its prefix cache identifies adapters by name. A call keeps its initial version, and an old version is
unloaded when its last call ends. A restarted server gets its adapter again.

A wrong option would only show as a policy that learns worse, so its samples are checked before the first step
(:mod:`.logprob_check`), with the adapter and with a changed one. vLLM fills omitted parameters from the model's ``generation_config.json`` (Qwen3 samples from
the 20 likeliest tokens at temperature 0.6), so every request sets all parameters. SGLang is not supported: its
documentation does not state the temperature of its log-probabilities.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import shlex
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import aiohttp
import stamina

from osmosis_ai.errors import NetworkError, OsmosisError
from osmosis_ai.inference.engine import (
    Dimensions,
    Emission,
    EngineStoppedError,
    FinishReason,
    Generation,
    Listener,
    SampledToken,
)
from osmosis_ai.inference.openai_api import Cancellable
from osmosis_ai.llm.transport import open_session
from osmosis_ai.processes.service import Service, ServiceSpec, free_port
from osmosis_ai.sandbox.gpus import VISIBLE_ENV
from osmosis_ai.training.engines.policy_engine import RemoteModel, RemotePolicyEngine

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.training.learner.learner import Learner

# Restarts of a dead server in one session. More have a cause that a user must find.
RESTARTS = 3
STOP_GRACE_S = 20.0
# The served adapter and the previous one, which running calls still use.
_ADAPTERS = 2
# Variables of this process that vLLM must not inherit.
_NOT_INHERITED = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONPATH", "OSMOSIS_TOKEN")
# Values that vLLM accepts for --max-lora-rank.
_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)


class VllmServer(Service):
    """A vLLM server of the trainer, in its own environment, on the loopback interface with a generated key.

    ``gpus`` are those that the learner does not use; None on a CPU. Without one, both share the learner's.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        *,
        model: str,
        served_as: str,
        dtype: str,
        gpus: Sequence[str] | None,
        experts: bool,
        environ: Mapping[str, str],
        log_path: Path,
    ) -> None:
        self.api_key = secrets.token_urlsafe(32)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        command = settings.vllm_command or []
        program = shlex.split(command) if isinstance(command, str) else command
        rank = next((allowed for allowed in _RANKS if allowed >= settings.lora_rank), settings.lora_rank)
        options = {
            "--host": "127.0.0.1",
            "--port": str(port),
            "--served-model-name": served_as,
            "--max-model-len": str(settings.max_prompt_length + settings.max_response_length),
            "--max-lora-rank": str(rank),
            "--max-loras": str(_ADAPTERS),
            "--dtype": dtype,  # vLLM's default is 16 bits for a float32 model
            "--logprobs-mode": "processed_logprobs",
            # Not the model's own defaults for what a request might leave out.
            "--generation-config": "vllm",
        }
        env = {name: value for name, value in environ.items() if name not in _NOT_INHERITED}
        env |= {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_API_KEY": self.api_key}
        env |= {"PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1"}
        if gpus:
            env[VISIBLE_ENV] = ",".join(gpus)
        elif gpus is not None:  # the learner needs the rest of the GPU
            options["--gpu-memory-utilization"] = "0.45"
        ours = [part for option in options.items() for part in option]
        if experts:  # their adapters are one tensor a layer, as PEFT has them
            ours.append(_MOE_OPTION)
        super().__init__(
            ServiceSpec(
                name="the vLLM server",
                command=[*program, "serve", model, "--enable-lora", *ours, *settings.vllm_args],
                env=env,
                cwd=Path.cwd(),
                log_path=log_path,
                addresses=[self.url],
                start_timeout_s=settings.vllm_start_timeout_s,
                late_hint="[advanced].vllm_start_timeout_s gives it longer",
                stop_grace_s=STOP_GRACE_S,
                restarts=RESTARTS,
                guarded=True,
            )
        )


logger = logging.getLogger(__name__)

ATTEMPTS = 4
REQUEST_TIMEOUT_S = 1800.0
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_SEED_MASK = (1 << 63) - 1
_MOE_OPTION = "--enable-mixed-moe-lora-format"
_START = (
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --logprobs-mode processed_logprobs "
    "--generation-config vllm"
)
# The whole distribution at the temperature, as the learner computes it; and only our stop tokens end a turn.
_UNTRUNCATED: Mapping[str, Any] = {
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_tokens": 0,
    "ignore_eos": True,
    "n": 1,
    "echo": False,
    "stream": False,
}


class _TransientError(Exception):
    """A retry may help; it gives the same tokens, which depend on the seed alone."""


class _UnknownError(OsmosisError):
    """The server does not know the requested model or adapter."""


class VllmEngine(RemotePolicyEngine):
    """Serves the policy with a running vLLM server; an async context manager."""

    _http: aiohttp.ClientSession

    def __init__(
        self,
        base_url: str,
        *,
        model: str,
        end_token_ids: frozenset[int],
        adapters_dir: Path,
        api_key: str | None = None,
        run: str = "policy",
        server: VllmServer | None = None,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(model)
        self._server, self._note = server, note
        self._url = base_url.rstrip("/")
        self._base_model = self._serving = model
        self._end_tokens = end_token_ids
        self._adapters_dir = adapters_dir
        key = server.api_key if server is not None else api_key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._loading = asyncio.Lock()
        self._run = run
        self._version = 0
        self._calls: Counter[str] = Counter()

    async def __aenter__(self) -> VllmEngine:
        self._http = open_session(timeout_s=REQUEST_TIMEOUT_S, headers=self._headers)
        try:
            self.model = RemoteModel(Dimensions(await self._context_length(), self._end_tokens))
        except BaseException:
            await self._http.close()
            raise
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()
        if self._serving != self._base_model:
            await self._unload(self._serving)
        await self._http.close()

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        if any(generation.top_p < 1.0 for generation in generations):
            raise OsmosisError(
                "vLLM gives log-probabilities after `top_p`, which no policy gradient can be computed from.",
                hint="set `rollout_top_p = 1.0`",
            )
        return super().submit(generations, listener)

    async def publish(self, policy: Learner, version: int) -> None:
        """Load ``policy`` under a new name for later calls; running calls keep theirs."""
        name = f"{self._run}-v{version}"
        directory = self._adapters_dir / name
        await asyncio.to_thread(policy.save_adapter, directory, for_vllm=True)
        try:
            await self._load(name)
        except OsmosisError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        before, self._serving, self._version = self._serving, name, version
        await self._retire(before)

    async def _load(self, name: str) -> None:
        path = str((self._adapters_dir / name).resolve())
        # The last is read with _MOE_OPTION only.
        adapter = {"lora_name": name, "lora_path": path, "is_3d_lora_weight": True}
        await self._send("/v1/load_lora_adapter", adapter)

    async def _complete(self, generation: Generation, name: str) -> dict[str, Any]:
        question = _completion_request(generation, name)
        try:
            return await self._send("/v1/completions", question)
        except _UnknownError:
            if name == self._base_model:
                raise
        async with self._loading:  # only one of the failed calls loads the adapter again
            try:
                return await self._send("/v1/completions", question)
            except _UnknownError:
                await self._load(name)
        return await self._send("/v1/completions", question)

    async def _answer(self, generation: Generation, listener: Listener) -> None:
        name, version = self._serving, self._version
        self._calls[name] += 1
        try:
            reply = await self._complete(generation, name)
            for emission in _emissions(generation, reply, version):
                listener.emitted(emission)
        except OsmosisError as error:
            listener.failed(EngineStoppedError(error.message, hint=error.hint))
        except Exception:
            # The task's edge: without this, the caller would wait forever.
            logger.exception("a call of vLLM could not be read")
            listener.failed(
                EngineStoppedError("a reply of vLLM could not be read; the log has the traceback.")
            )
        finally:
            self._calls[name] -= 1
            await self._retire(name)

    async def _retire(self, name: str) -> None:
        """Unload a version that is no longer served and has no running calls."""
        if name not in (self._serving, self._base_model) and not self._calls[name]:
            del self._calls[name]
            await self._unload(name)

    async def _unload(self, name: str) -> None:
        try:
            await self._send("/v1/unload_lora_adapter", {"lora_name": name})
        except OsmosisError as error:  # harmless: the server evicts unused adapters
            logger.warning("the adapter %s could not be unloaded: %s", name, error.message)
        shutil.rmtree(self._adapters_dir / name, ignore_errors=True)

    async def _context_length(self) -> int:
        listed = await self._send("/v1/models")
        for entry in listed.get("data") or ():
            if entry.get("id") == self._base_model and entry.get("max_model_len"):
                return int(entry["max_model_len"])
        names = ", ".join(f"`{entry.get('id')}`" for entry in listed.get("data") or ())
        raise OsmosisError(
            f"vLLM at {self._url} does not serve `{self._base_model}`; it serves {names or 'nothing'}."
        )

    async def _send(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """POST ``body``, or GET without one, with retries of transient errors."""
        try:
            return await self._try(path, body)
        except _TransientError as error:
            self.failure = NetworkError(f"vLLM at {self._url} cannot be reached: {error}")
            raise self.failure from error

    @stamina.retry(on=_TransientError, attempts=ATTEMPTS, timeout=None)
    async def _try(self, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        method = "GET" if body is None else "POST"
        try:
            async with self._http.request(method, self._url + path, json=body) as response:
                text = await response.text()
                if response.status in _TRANSIENT:
                    raise _TransientError(f"HTTP {response.status}: {text[:500]}")
                if response.status == 404 and body is not None and "model" in body:
                    raise _UnknownError(f"vLLM at {self._url} does not know `{body['model']}`: {text[:500]}")
                if response.status >= 400:
                    raise OsmosisError(
                        f"vLLM at {self._url}{path} refused the request (HTTP {response.status}): {text[:500]}",
                        hint=f"start it with `{_START}`" if "lora" in path else None,
                    )
                # Loading an adapter is answered with a sentence.
                reply = await response.json() if "json" in response.content_type else {}
        except (aiohttp.ClientError, asyncio.TimeoutError) as error:
            if self._server is not None:
                try:
                    await self._server.revive(self._note)
                except OsmosisError as lost:
                    self.failure = lost
                    raise
            raise _TransientError(str(error) or type(error).__name__) from error
        return reply if isinstance(reply, dict) else {}


def _completion_request(generation: Generation, model: str) -> dict[str, Any]:
    return {
        **_UNTRUNCATED,
        "model": model,
        "prompt": list(generation.prompt),
        "max_tokens": generation.max_tokens,
        "temperature": generation.temperature,
        "seed": generation.stream & _SEED_MASK,
        "stop_token_ids": sorted(generation.stop_tokens),
        "logprobs": generation.top_logprobs,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        "skip_special_tokens": False,
    }


def _emissions(generation: Generation, reply: Mapping[str, Any], version: int) -> list[Emission]:
    """Read a completion; refuse one that is not the requested one, token by token."""
    choice = (reply.get("choices") or [{}])[0]
    ids, scores = choice.get("token_ids"), choice.get("logprobs") or {}
    logprobs = scores.get("token_logprobs")
    if not ids or not logprobs or len(ids) != len(logprobs):
        raise OsmosisError(
            "vLLM did not return one log-probability and one id for each token it sampled.",
            hint="use vLLM 0.10.2 or newer, which knows `return_token_ids`",
        )
    read = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
    if read is not None and list(read) != list(generation.prompt):
        raise OsmosisError("vLLM read another prompt than it was sent: it must not add or cut tokens.")
    finish: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
    tops = scores.get("top_logprobs") or [None] * len(ids)
    last = len(ids) - 1
    return [
        Emission(
            generation,
            SampledToken(token, logprob, _alternatives(top, generation.top_logprobs), version),
            finish if place == last else None,
        )
        for place, (token, logprob, top) in enumerate(zip(ids, logprobs, tops, strict=True))
    ]


def _alternatives(top: Mapping[str, float] | None, count: int) -> tuple[tuple[int, float], ...]:
    """The likeliest tokens; vLLM names them ``token_id:N`` and adds the sampled one to them."""
    if not count:
        return ()
    named = [(int(name.removeprefix("token_id:")), logprob) for name, logprob in (top or {}).items()]
    return tuple(sorted(named, key=lambda pair: -pair[1])[:count])
