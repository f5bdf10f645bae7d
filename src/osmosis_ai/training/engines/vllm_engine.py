"""vLLM as the policy engine: a server in its own environment, reached over HTTP.

Tokens go in and come out as ids over ``/v1/completions``. Templates and tool calls are handled on our side, so that CPU
and GPU tokenise alike. Every policy version is an adapter under a new name: vLLM would reload a replaced adapter for
every request, and its prefix cache identifies adapters by name. A call keeps its initial version, and an old version is
unloaded when its last call ends. A restarted server gets its adapter again.

Several servers share the rollouts. All calls of a rollout go to one server, whose prefix cache has its earlier turns. A
server that stops answering is restarted, or probed until it answers, while its rollouts continue on the others.

A wrong option would only show as a policy that learns worse, so its samples are checked before the first step
(:mod:`.logprob_check`), with the adapter and with a changed one. vLLM fills omitted parameters from the model's ``generation_config.json`` (Qwen3 samples from
the 20 likeliest tokens at temperature 0.6), so every request sets all parameters. SGLang is not supported: its
documentation does not state the temperature of its log-probabilities.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import shlex
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

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
from osmosis_ai.llm.transport import connection_failure, open_session
from osmosis_ai.processes.service import Service, ServiceDiedError, ServiceSpec, free_port
from osmosis_ai.sandbox.gpus import VISIBLE_ENV
from osmosis_ai.training.engines.adapter_upload import ADAPTER_FILES, UPLOADS
from osmosis_ai.training.engines.policy_engine import RemoteModel, RemotePolicyEngine, can_be_sampled

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
        name: str = "the vLLM server",
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
                name=name,
                command=[*program, "serve", model, "--enable-lora", *ours, *settings.vllm_args],
                env=env,
                cwd=Path.cwd(),
                log_path=log_path,
                addresses=[self.url],
                start_timeout_s=settings.vllm_start_timeout_s,
                late_hint="raise [advanced].vllm_start_timeout_s",
                stop_grace_s=STOP_GRACE_S,
                restarts=RESTARTS,
                guarded=True,
            )
        )


logger = logging.getLogger(__name__)

ATTEMPTS = 4
REQUEST_TIMEOUT_S = 1800.0
# A server with running calls that does not answer a probe in this time is lost.
ANSWER_TIMEOUT_S = 60.0
PROBE_INTERVAL_S = 10.0
_TRANSIENT = frozenset({408, 429, 500, 502, 503, 504})
_SEED_MASK = (1 << 63) - 1
_UNLOAD = "/v1/unload_lora_adapter"
_MOE_OPTION = "--enable-mixed-moe-lora-format"
_START = (
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 vllm serve MODEL --enable-lora --logprobs-mode processed_logprobs "
    "--generation-config vllm"
)
_LORA_HINT = (
    f"start it with `{_START}`; a server that cannot read the run's directory also needs "
    "`--middleware osmosis_ai.training.engines.adapter_upload.AdapterUpload`"
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


class _TransientError(NetworkError):
    """A retry may help; it gives the same tokens, which depend on the seed alone."""


class _FailedError(_TransientError):
    """The server answered, and repeatedly failed."""


class _RefusedError(OsmosisError):
    status: int


class _Replica:
    """One vLLM server. Its methods raise NetworkError when it does not answer.

    ``recovery`` is the task that recovers a lost server, and ``loss`` is why it was lost; None while it answers.
    """

    _http: aiohttp.ClientSession | None = None
    context_length: int
    loss: OsmosisError
    recovery: asyncio.Task[None] | None = None
    # Requests without an answer so far.
    waiting = 0

    def __init__(self, server: VllmServer | str, model: str, api_key: str | None) -> None:
        self.server = None if isinstance(server, str) else server
        self.url = (server if isinstance(server, str) else server.url).rstrip("/")
        self._model = model
        key = api_key if self.server is None else self.server.api_key
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._receives_adapters = False

    def __str__(self) -> str:
        return self.url

    async def open(self, note: Callable[[str], None], *, again: bool = False) -> None:
        """Start the server if it is ours and does not run (``again``: in any case), and connect."""
        if self.server is not None:
            await self.server.revive(note, unresponsive=again)
        await self.close()
        self._http = open_session(timeout_s=REQUEST_TIMEOUT_S, headers=self._headers)
        try:
            self.context_length = await self._served_length()
            self._receives_adapters = False
            with suppress(_RefusedError):  # something else may answer every path
                self._receives_adapters = "files" in await self.send("GET", UPLOADS)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Disconnect, which ends the running requests."""
        if self._http is not None:
            await self._http.close()

    async def load(self, adapter: Path) -> None:
        path = str(adapter.resolve())
        if self._receives_adapters:
            for file in ADAPTER_FILES:
                stored = await self.send("PUT", f"{UPLOADS}/{adapter.name}/{file}", adapter / file)
                path = stored["path"]
        # The last is read with _MOE_OPTION only.
        body = {"lora_name": adapter.name, "lora_path": path, "is_3d_lora_weight": True}
        await self.send("POST", "/v1/load_lora_adapter", body)

    async def unload(self, name: str) -> None:
        try:
            await self.send("POST", _UNLOAD, {"lora_name": name})
            if self._receives_adapters:
                await self.send("DELETE", f"{UPLOADS}/{name}")
        except OsmosisError as error:  # harmless: the server evicts unused adapters
            logger.warning("the adapter %s could not be unloaded: %s", name, error.message)

    async def complete(self, question: Mapping[str, Any], adapter: Path | None) -> dict[str, Any]:
        """Return a completion; a server that was restarted gets the adapter again."""
        try:
            return await self.send("POST", "/v1/completions", question)
        except _RefusedError as error:
            if error.status != 404 or adapter is None:
                raise
        await self.load(adapter)
        return await self.send("POST", "/v1/completions", question)

    async def probe(self) -> None:
        """Disconnect if the server does not answer; its requests then fail."""
        try:
            await self._served_length()
        except OsmosisError:
            await self.close()

    async def _served_length(self) -> int:
        listed = (await self.send("GET", "/v1/models")).get("data") or ()
        for entry in listed:
            if entry.get("id") == self._model and entry.get("max_model_len"):
                return int(entry["max_model_len"])
        names = ", ".join(f"`{entry.get('id')}`" for entry in listed)
        raise OsmosisError(
            f"vLLM at {self.url} does not serve `{self._model}` (available: {names or 'none'})."
        )

    @stamina.retry(on=_TransientError, attempts=ATTEMPTS, timeout=None)
    async def send(
        self, method: str, path: str, body: Mapping[str, Any] | Path | None = None
    ) -> dict[str, Any]:
        """Send a request with a JSON body or a file, with retries of transient errors."""
        http, lost = self._http, f"vLLM at {self.url} cannot be reached: "
        is_quick = method in ("GET", "DELETE") or path == _UNLOAD
        total_s = ANSWER_TIMEOUT_S if is_quick else REQUEST_TIMEOUT_S
        limit = aiohttp.ClientTimeout(total=total_s, sock_connect=ANSWER_TIMEOUT_S)
        if http is None or http.closed:
            raise NetworkError(f"{lost}the connection was closed")
        self.waiting += 1
        try:
            with body.open("rb") if isinstance(body, Path) else nullcontext() as data:
                content = {"json": body} if data is None else {"data": data}
                async with http.request(method, self.url + path, timeout=limit, **content) as response:
                    text = await response.text()
                    if response.status in _TRANSIENT:
                        raise _FailedError(f"{lost}HTTP {response.status}: {text[:500]}")
                    # Another call may have loaded the adapter, or an answer was lost.
                    if response.status >= 400 and "already been loaded" not in text:
                        refused = _RefusedError(
                            f"vLLM at {self.url}{path} refused the request (HTTP {response.status}): {text[:500]}",
                            hint=_LORA_HINT if "lora" in path else None,
                        )
                        refused.status = response.status
                        raise refused
                    # Loading an adapter is answered with a sentence.
                    reply = await response.json() if "json" in response.content_type else {}
        except asyncio.TimeoutError as error:
            raise NetworkError(f"{lost}it did not answer in time") from error
        except (aiohttp.ClientError, ValueError) as error:
            is_gone = http.closed or (self.server is not None and self.server.failure() is not None)
            kind = NetworkError if is_gone else _TransientError
            raise kind(f"{lost}{connection_failure(error)}") from error
        finally:
            self.waiting -= 1
        return reply if isinstance(reply, dict) else {}


class VllmEngine(RemotePolicyEngine):
    """Serves the policy with vLLM servers: running ones (URLs), or our own; an async context manager."""

    def __init__(
        self,
        servers: Sequence[VllmServer | str],
        *,
        model: str,
        end_token_ids: frozenset[int],
        adapters_dir: Path,
        api_key: str | None = None,
        run: str = "policy",
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        super().__init__(model)
        self.servers = self._replicas = [_Replica(server, model, api_key) for server in servers]
        self._note = note
        self._base_model = self._serving = model
        self._end_tokens = end_token_ids
        self._adapters_dir = adapters_dir
        # The name is part of a URL.
        self._run = re.sub(r"[^A-Za-z0-9_-]", "-", run)
        self._version = 0
        self._calls: Counter[str] = Counter()
        self._assigned: MutableMapping[object, _Replica] = WeakKeyDictionary()
        self._publishing = asyncio.Lock()
        self._probing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> VllmEngine:
        opening = [
            asyncio.create_task(self._answers(replica, replica.open(self._note)))
            for replica in self._replicas
        ]
        try:
            await asyncio.gather(*opening)
            lengths = [replica.context_length for replica in await self._available()]
        except BaseException:
            for task in opening:
                task.cancel()
            await asyncio.gather(*opening, return_exceptions=True)
            await self.__aexit__()
            raise
        self.model = RemoteModel(Dimensions(min(lengths), self._end_tokens))
        self._probing = asyncio.create_task(self._probe())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        tasks = [self._probing, *(replica.recovery for replica in self._replicas)]
        self._tasks.update(task for task in tasks if task is not None)
        await self.close()
        if self._serving != self._base_model:
            await self._unload(self._serving)
        await asyncio.gather(*(replica.close() for replica in self._replicas))
        await asyncio.gather(*(replica.server.stop() for replica in self._replicas if replica.server))

    def submit(self, generations: Sequence[Generation], listener: Listener) -> Cancellable:
        if any(generation.top_p < 1.0 for generation in generations):
            raise OsmosisError(
                "vLLM returns log-probabilities after `top_p`; no policy gradient can be computed from them.",
                hint="set `rollout_top_p = 1.0`",
            )
        return super().submit(generations, listener)

    async def publish(self, policy: Learner, version: int) -> None:
        """Load ``policy`` under a new name on all servers for later calls; running calls keep theirs."""
        name = f"{self._run}-v{version}"
        directory = self._adapters_dir / name
        await asyncio.to_thread(policy.save_adapter, directory, for_vllm=True)
        before = self._serving
        try:
            while self._serving != name:
                await self._available()
                async with self._publishing:
                    loading = (self._answers(each, each.load(directory)) for each in self._living())
                    if any(await asyncio.gather(*loading)):
                        self._serving, self._version = name, version
        except OsmosisError:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        await self._retire(before)

    async def _answers(self, replica: _Replica, request: Awaitable[None]) -> bool:
        try:
            await request
        except (NetworkError, _RefusedError) as error:
            if isinstance(error, _RefusedError) and len(self._replicas) == 1:
                raise
            self._lose(replica, error)
            return False
        return True

    def _living(self) -> list[_Replica]:
        return [replica for replica in self._replicas if replica.recovery is None]

    async def _available(self) -> list[_Replica]:
        """Return the servers that answer. Wait if ours restart; raise OsmosisError if there is nothing to wait for."""
        while not (living := self._living()):
            restarting = [each.recovery for each in self._replicas if each.server and each.recovery]
            if all(task.done() for task in restarting):
                loss, count = self._replicas[0].loss, len(self._replicas)
                if count > 1:
                    loss = NetworkError(f"All {count} vLLM servers are unavailable. {loss.message}")
                self.failure = loss
                raise loss
            await asyncio.wait(restarting, return_when=asyncio.FIRST_COMPLETED)
        return living

    async def _replica_of(self, rollout: object) -> _Replica:
        """Return the rollout's server; a new rollout gets the one with the fewest."""
        living = await self._available()
        if isinstance(rollout, _Replica) and rollout in living:
            return rollout
        if self._assigned.get(rollout) not in living:
            rollouts = Counter(self._assigned.values())
            self._assigned[rollout] = min(living, key=lambda replica: rollouts[replica])
        return self._assigned[rollout]

    def _lose(self, replica: _Replica, loss: OsmosisError) -> None:
        if replica.recovery is None:
            replica.loss = loss
            replica.recovery = asyncio.create_task(self._recover(replica))

    async def _recover(self, replica: _Replica) -> None:
        """Wait until a server answers again, or restart ours, and give it the policy."""
        await replica.close()
        if replica.server is None and len(self._replicas) > 1:
            self._report(replica.loss)
        while True:
            if replica.server is None:
                await asyncio.sleep(PROBE_INTERVAL_S)
            try:
                await replica.open(self._report, again=True)
                async with self._publishing:
                    if self._serving != self._base_model:
                        await replica.load(self._adapters_dir / self._serving)
                    replica.recovery = None
            except ServiceDiedError as error:
                replica.loss = error
                return self._report(error)
            except OsmosisError as error:
                replica.loss = error
            else:
                return self._report(f"vLLM at {replica.url} answers again")

    def _report(self, event: OsmosisError | str) -> None:
        """Note an event and, if there are several servers, how many are available."""
        message = str(event).splitlines()[0].rstrip(".") + "."
        if len(self._replicas) > 1:
            message += f" {len(self._living())} of {len(self._replicas)} vLLM servers are available."
        self._note(message)

    async def _probe(self) -> None:
        """Find servers that accept calls but do not answer."""
        while True:
            await asyncio.sleep(PROBE_INTERVAL_S)
            await asyncio.gather(*(each.probe() for each in self._replicas if each.waiting))

    async def _answer(self, generation: Generation, listener: Listener) -> None:
        name, version = self._serving, self._version
        rollout = generation.rollout or asyncio.current_task()
        adapter = self._adapters_dir / name if name != self._base_model else None
        self._calls[name] += 1
        try:
            reply, failures = None, 0
            while reply is None:
                replica = await self._replica_of(rollout)
                try:
                    reply = await replica.complete(_completion_request(generation, name), adapter)
                except NetworkError as error:  # another server gives the same tokens
                    failures += isinstance(error, _FailedError)
                    if failures > 1:
                        raise  # the request is the reason
                    self._lose(replica, error)
            for emission in _emissions(generation, reply, version):
                listener.emitted(emission)
        except OsmosisError as error:
            listener.failed(EngineStoppedError(error.message, hint=error.hint))
        except Exception:
            # The task's edge: without this, the caller would wait forever.
            logger.exception("a response from vLLM could not be read")
            listener.failed(
                EngineStoppedError("a response from vLLM could not be read; the log has the traceback.")
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
        await asyncio.gather(*(replica.unload(name) for replica in self._living()))
        shutil.rmtree(self._adapters_dir / name, ignore_errors=True)


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
    if not ids or not logprobs or len(ids) != len(logprobs) or None in logprobs:
        raise OsmosisError(
            "vLLM did not return one log-probability and one id for each token it sampled.",
            hint="use vLLM 0.10.2 or newer, which supports `return_token_ids`",
        )
    if not can_be_sampled(ids, logprobs, generation.max_tokens):
        raise OsmosisError("vLLM returned tokens or log-probabilities that are not valid.")
    read = choice.get("prompt_token_ids") or reply.get("prompt_token_ids")
    if read is not None and list(read) != list(generation.prompt):
        raise OsmosisError(
            "vLLM read a different prompt from the one it was sent: it must not add or cut tokens."
        )
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
