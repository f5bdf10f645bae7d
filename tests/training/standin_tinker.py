"""A stand-in for a Tinker server: the messages of SkyRL 0.4, computed by the learner and the engine of this package.

It differs from SkyRL where a test says so: in how a loss is summed, in what it refuses, and in what it loses.
"""

from __future__ import annotations

import asyncio
import copy
import io
import tarfile
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from aiohttp import web
from tinker.proto import tinker_public_pb2 as pb

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.engine import Generation, InferenceEngine
from osmosis_ai.inference.model import Model
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.training.learner import policy_model
from tests.training.policy_world import MODEL_DIR

KEY = "tml-a-secret-key"
LOSSES = frozenset({"cross_entropy", "importance_sampling", "ppo", "cispo"})
_NUMPY = {pb.DTYPE_FLOAT32: np.float32, pb.DTYPE_INT64: np.int64}


def array(tensor: pb.TensorData) -> np.ndarray:
    return np.frombuffer(tensor.dense, dtype=_NUMPY[tensor.dtype])


class HostedModel:
    """A base with an adapter, its gradients and its optimiser."""

    def __init__(self, rank: int, seed: int) -> None:
        settings = TrainingSettings(lora_rank=rank, seed=seed)
        self.policy = policy_model.load_policy("osmosis/tiny", settings, torch.device("cpu"))
        self.parameters = [p for p in self.policy.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.0)
        self.sequences = 0

    def logprobs(self, ids: list[int], targets: list[int]) -> torch.Tensor:
        logits = self.policy(input_ids=torch.tensor([ids]), use_cache=False).logits[0]
        return torch.log_softmax(logits.float(), -1).gather(1, torch.tensor(targets)[:, None])[:, 0]

    def state(self) -> dict[str, Any]:
        return {
            "adapter": policy_model.adapter_state(self.policy),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
        }

    def load(self, state: dict[str, Any]) -> None:
        policy_model.load_adapter_state(self.policy, state["adapter"])
        self.optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))


@dataclass
class StandInTinker:
    """A server on the loopback interface.

    Attributes:
        mean_over_sequences: whether losses are divided as SkyRL's JAX backend does; otherwise they are sums.
        lose_at: numbers of the optimiser steps, over all sessions, that find their session lost.
        fail: statuses of the next answers about gradients.
        nan: whether log-probabilities are not numbers.
        outputs: how many of the outputs of a gradient are returned.
        drop: how many updates are made without an answer, since the connection breaks.
        redirect_to: where all requests are redirected.
        has_archives: whether adapters can be downloaded.
        archives_at: the address of another server that has the archives.
        losses: the losses that the server has.
        requests: the losses that were asked for, and their configurations.
        accept_s: how long a gradient or an update takes until it is accepted.
        result_s: how long it then takes until its result is known.
    """

    mean_over_sequences: bool = True
    lose_at: set[int] = field(default_factory=set)
    nan: bool = False
    outputs: int | None = None
    drop: int = 0
    redirect_to: str = ""
    has_archives: bool = True
    archives_at: str = ""
    losses: frozenset[str] = LOSSES
    fail: list[int] = field(default_factory=list)
    requests: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    names: list[str] = field(default_factory=lambda: ["osmosis/tiny"])
    accept_s: float = 0.0
    result_s: float = 0.0
    url: str = ""

    def __post_init__(self) -> None:
        self.models: dict[str, HostedModel] = {}
        self.saved: dict[str, dict[str, Any]] = {}
        self.archives: dict[str, bytes] = {}
        self.keys: list[str | None] = []
        self.updates_sent = 0
        self.gradient: list[torch.Tensor] = []
        self._replies: dict[str, tuple[float, Any]] = {}
        self._answers: dict[tuple[str, int], Any] = {}
        self._made = 0
        self._steps = 0
        self._engine = InferenceEngine(Model.load(MODEL_DIR))
        self._lock = threading.Lock()

    def _number(self) -> int:
        self._made += 1
        return self._made

    def _model(self, name: str) -> HostedModel:
        if name not in self.models:
            raise web.HTTPNotFound(text='{"detail": "Model not found"}', content_type="application/json")
        return self.models[name]

    def _later(self, reply: Any, after_s: float = 0.0, **facts: Any) -> web.Response:
        number = str(self._number())
        self._replies[number] = (time.monotonic() + after_s, reply)
        return web.json_response({"future_id": number, "status": "pending", "request_id": number, **facts})

    async def handle(self, request: web.Request) -> web.StreamResponse:
        path = request.path.removeprefix("/api/v1/")
        self.keys.append(request.headers.get("X-API-Key"))
        if self.redirect_to:
            raise web.HTTPTemporaryRedirect(f"{self.redirect_to}{request.path}")
        if self.keys[-1] != KEY and not self.archives_at:
            return web.json_response({"detail": "wrong key"}, status=401)
        if path.endswith("/archive") and not self.has_archives:
            return web.json_response({"detail": "Not Found"}, status=404)
        if path.endswith("/archive"):
            own = f"{self.url}/api/v1/{path.removesuffix('archive')}download"
            raise web.HTTPFound(self.archives_at or own)
        if path.endswith("/download"):
            return web.Response(body=self.archives[path.split("/")[-2]])
        handler = getattr(self, f"_{path.replace('/', '_')}", None)
        if handler is None:
            return web.json_response({"detail": "Not Found"}, status=404)
        if path == "forward_backward" and self.fail:
            return web.json_response({"detail": "not now"}, status=self.fail.pop(0))
        if request.content_type == "application/x-protobuf":
            return await asyncio.to_thread(handler, await request.read())
        body = await request.json() if request.method == "POST" else {}
        if path == "optim_step":
            return await self._update(request, body)
        found = handler(body)
        return await found if asyncio.iscoroutine(found) else found

    async def _update(self, request: web.Request, body: Any) -> web.StreamResponse:
        self.updates_sent += 1
        update = partial(self._optim_step, body)
        reply = await asyncio.to_thread(self._once, body["model_id"], body["seq_id"], update)
        if self.drop and request.transport is not None:
            self.drop -= 1
            request.transport.close()
        return reply

    def _once(self, model: str, number: int, work: Callable[[], web.Response]) -> web.Response:
        """Answer a request that is sent again as before; its number identifies it."""
        with self._lock:
            if (model, number) not in self._answers:
                time.sleep(self.accept_s)
                self._answers[model, number] = work().body
            return web.Response(body=self._answers[model, number], content_type="application/json")

    def _client_config(self, _body: Any) -> web.Response:
        return web.json_response({"pjwt_auth_enabled": False})

    def _get_server_capabilities(self, _body: Any) -> web.Response:
        return web.json_response({"supported_models": [{"model_name": name} for name in self.names]})

    def _create_session(self, _body: Any) -> web.Response:
        return web.json_response({"type": "create_session", "session_id": f"session_{self._number()}"})

    def _session_heartbeat(self, _body: Any) -> web.Response:
        return web.json_response({"type": "session_heartbeat"})

    def _unload_model(self, body: Any) -> web.Response:
        self._model(body["model_id"])
        del self.models[body["model_id"]]
        return web.json_response({"request_id": str(self._number()), "model_id": body["model_id"]})

    def _weights_info(self, body: Any) -> web.Response:
        if body["tinker_path"] not in self.saved:
            return web.json_response({"detail": "Model not found"}, status=404)
        return web.json_response({"base_model": self.names[0], "is_lora": True, "lora_rank": 16})

    def _create_model(self, body: Any) -> web.Response:
        name = f"model_{self._number()}"
        config = body["lora_config"]
        self.models[name] = HostedModel(config["rank"], config.get("seed") or 0)
        made = {"model_id": name, "base_model": body["base_model"], "lora_config": config}
        return self._later(made, **made)

    def _get_info(self, body: Any) -> web.Response:
        data = {"arch": "qwen3", "model_name": self.names[0], "tokenizer_id": self.names[0]}
        return web.json_response({"model_data": data, "model_id": body["model_id"], "is_lora": True})

    def _load_weights(self, body: Any) -> web.Response:
        self._model(body["model_id"]).load(self.saved[body["path"]])
        return self._later({"type": "load_weights"})

    def _save_weights(self, body: Any) -> web.Response:
        path = f"tinker://{body['model_id']}/weights/{body['path']}"
        self.saved[path] = self._model(body["model_id"]).state()
        return self._later({"path": path, "type": "save_weights"})

    def _save_weights_for_sampler(self, body: Any) -> web.Response:
        model = self._model(body["model_id"])
        if body.get("path"):
            self.archives[body["path"]] = _archive(model)
            path = f"tinker://{body['model_id']}/{body['path']}"
            return self._later({"path": path, "type": "save_weights_for_sampler"})
        merged = dict(policy_model.merged_tensors(model.policy))
        self._engine.publish(
            {name: tensor.detach().numpy() for name, tensor in merged.items()}, self._number()
        )
        reply = {
            "path": None,
            "type": "save_weights_for_sampler",
            "sampling_session_id": f"s{self._number()}",
        }
        return self._later(reply)

    async def _asample(self, body: Any) -> web.Response:
        params = body["sampling_params"]
        generation = Generation(
            prompt=tuple(body["prompt"]["chunks"][0]["tokens"]),
            max_tokens=params["max_tokens"],
            stream=params["seed"],
            stop_tokens=frozenset(params["stop"]),
            temperature=params["temperature"],
        )
        feed = TokenFeed(self._engine, [generation], every_token=False)
        tokens, reason = [], None
        while reason is None:
            for _, emission in await feed.read():
                tokens.append(emission.token)
                reason = emission.finish_reason
        reply = pb.SampleResponse()
        sequence = reply.sequences.add()
        sequence.stop_reason = pb.STOP_REASON_LENGTH if reason == "length" else pb.STOP_REASON_STOP
        sequence.tokens = np.array([token.id for token in tokens], dtype=np.int32).tobytes()
        logprobs = [np.nan if self.nan else token.logprob for token in tokens]
        sequence.logprobs = np.array(logprobs, dtype=np.float32).tobytes()
        return self._later(reply.SerializeToString())

    def _forward_backward(self, body: bytes) -> web.Response:
        asked = pb.ForwardBackwardRequest.FromString(body)
        if asked.loss_fn not in self.losses:
            return web.json_response({"detail": f"no loss {asked.loss_fn}"}, status=422)
        return self._once(asked.model_id, asked.seq_id, lambda: self._gradient(asked))

    def _gradient(self, asked: pb.ForwardBackwardRequest) -> web.Response:
        learns = not asked.forward_only
        model = self._model(asked.model_id)
        config = dict(asked.loss_fn_config)
        if learns:
            self.requests.append((asked.loss_fn, config))
        found = []
        for datum in asked.data:
            ids = np.frombuffer(datum.model_input[0].encoded_text.tokens, dtype=np.int32).tolist()
            inputs = {name: array(tensor).copy() for name, tensor in datum.loss_fn_inputs.items()}
            logprobs = model.logprobs(ids, inputs.pop("target_tokens").tolist())
            found.append(logprobs.detach().numpy().astype(np.float32))
            if learns:
                given = {name: torch.from_numpy(values) for name, values in inputs.items()}
                self._loss(asked.loss_fn, logprobs, given, config).backward()
                model.sequences += 1
        if self.nan:
            found = [np.full_like(values, np.nan) for values in found]
        found = found[: self.outputs]
        return self._later(_output(found), self.result_s)

    def _loss(
        self, name: str, logprobs: torch.Tensor, inputs: dict[str, torch.Tensor], config: dict[str, float]
    ) -> torch.Tensor:
        """Return a sequence's loss by the formulas of the API's documentation."""
        weights = inputs.get("weights", torch.ones_like(logprobs))
        if name == "cross_entropy":
            values = -logprobs
        else:
            ratio, advantages = (logprobs - inputs["logprobs"]).exp(), inputs["advantages"]
            clipped = ratio.clamp(config.get("clip_low_threshold", 0), config.get("clip_high_threshold", 1e9))
            values = {
                "importance_sampling": -ratio * advantages,
                "ppo": -torch.minimum(ratio * advantages, clipped * advantages),
                "cispo": -clipped.detach() * logprobs * advantages,
            }[name]
        total = (weights * values).sum()
        return total / weights.sum() if self.mean_over_sequences else total

    def _optim_step(self, body: Any) -> web.Response:
        self._steps += 1
        if self._steps in self.lose_at:
            self.models.clear()
        model, adam = self._model(body["model_id"]), body["adam_params"]
        for parameter in model.parameters:
            if self.mean_over_sequences and parameter.grad is not None:
                parameter.grad /= model.sequences
        self.gradient = [parameter.grad.clone() for parameter in model.parameters]
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters if p.grad is not None])
        group = model.optimizer.param_groups[0]
        group.update(lr=adam["learning_rate"], betas=(adam["beta1"], adam["beta2"]), eps=adam["eps"])
        group["weight_decay"] = adam["weight_decay"]
        model.optimizer.step()
        model.optimizer.zero_grad()
        model.sequences = 0
        return self._later({"metrics": {"skyrl.ai/grad_norm": float(norm)}}, self.result_s)

    async def _retrieve_future(self, body: Any) -> web.Response:
        known_at, reply = self._replies[body["request_id"]]
        await asyncio.sleep(known_at - time.monotonic())
        if isinstance(reply, bytes):
            return web.Response(body=reply, content_type="application/x-protobuf")
        return web.json_response(reply)


def _output(logprobs: list[np.ndarray]) -> bytes:
    reply = pb.ForwardBackwardOutput(loss_fn_output_type="scalar")
    record = reply.loss_fn_outputs.add()
    record.num_datums = len(logprobs)
    tensor = record.fields["logprobs"]
    tensor.dtype = pb.DTYPE_FLOAT32
    tensor.offsets = np.cumsum([0, *(values.nbytes for values in logprobs)], dtype=np.int64).tobytes()
    tensor.data = b"".join(values.tobytes() for values in logprobs)
    return reply.SerializeToString()


def _archive(model: HostedModel) -> bytes:
    """Pack the adapter as SkyRL does, whose configuration names no modules."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w:gz") as tar:
        policy_model.save_adapter(model.policy, Path(folder) / "adapter")
        tar.add(Path(folder) / "adapter", arcname="")
    return packed.getvalue()


@contextmanager
def tinker_server(**options: Any) -> Iterator[StandInTinker]:
    server = StandInTinker(**options)
    with server._engine, served(server.handle) as server.url:
        yield server


@contextmanager
def served(handle: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Iterator[str]:
    """Serve all paths from a thread, so that a client may block; yield the address."""
    loop, ready, ended = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    port = 0

    async def serve() -> None:
        nonlocal port
        app = web.Application(client_max_size=2**30)
        app.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        ready.set()
        await ended.wait()
        await runner.cleanup()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),), daemon=True)
    thread.start()
    assert ready.wait(30)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
        loop.close()
