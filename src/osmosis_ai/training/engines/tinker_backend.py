"""Train and sample on a server of the Tinker API: SkyRL on a cluster, the hosted service, or another.

The server has the model, the adapter, the optimiser and the sampler. This side runs the agents and the graders, records
tokens, computes advantages, and decides when to validate and to save. A step sends the recorded tokens, the sampler's
log-probabilities, and per-token advantages that contain our averaging over tokens, because the API's losses are
sums. The losses of the API that equal ours:

    policy loss without importance_cap    ppo
    with importance_cap                   cispo, whose weight is min(ratio, cap)
    cross-entropy (method = "sft")        cross_entropy

Servers differ in how they sum cross_entropy and what settings cispo has. At the policy's own log-probabilities, which a
forward pass computes first, the gradient of importance_sampling is advantage times gradient of the log-probability on
every server. With the weights of the tokens as advantages, this replaces both.

Weights never pass through this process, except for the adapter of a saved checkpoint.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import httpx
import torch
from torch import Tensor

from osmosis_ai.errors import NetworkError, OsmosisError, install_command
from osmosis_ai.files import is_disk_full, write_json
from osmosis_ai.inference.engine import (
    Dimensions,
    Emission,
    EngineStoppedError,
    FinishReason,
    Generation,
    Listener,
    SampledToken,
)
from osmosis_ai.training.engines.policy_engine import RemoteModel, RemotePolicyEngine, can_be_sampled
from osmosis_ai.training.learner.learner import warmed_up
from osmosis_ai.training.learner.policy import SequenceScores, SessionLostError
from osmosis_ai.training.learner.policy_model import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from osmosis_ai.training.learner.step import StepMetrics, StepSums
from osmosis_ai.training.objective.batches import (
    BatchTotals,
    TrainingRow,
    batch_totals,
    collate,
    training_rows,
)
from osmosis_ai.training.objective.losses import cross_entropy, policy_objective, token_weights

if TYPE_CHECKING:
    import tinker

    from osmosis_ai.config.training import TrainingSettings
    from osmosis_ai.training.objective.sequences import TokenSequence

T = TypeVar("T")
logger = logging.getLogger(__name__)

API_KEY_ENV = "TINKER_API_KEY"
# A step of a large model, and the wait for a server that starts.
STEP_TIMEOUT_S = 3600.0
CONNECT_TIMEOUT_S = 30.0
ARCHIVE_TIMEOUT_S = 600.0
# An adapter of rank 128 on all matrices of a model of a trillion parameters is smaller.
LARGEST_ADAPTER = 64 * 2**30
LARGEST_CONFIG = 2**20
_SEED_MASK = (1 << 31) - 1
# The client requires a key of this form; a server without accounts ignores it.
_NO_KEY = "tml-none"


def require_tinker_extra() -> None:
    """Raise OsmosisError unless the client of the Tinker API is installed."""
    if find_spec("tinker") is None:
        raise OsmosisError(
            'backend = "tinker" needs the extra `tinker`, which is not installed.',
            hint=f"install it with: {install_command('tinker')}",
        )


class TinkerServer:
    """The connection to a server; checks at once that the server has the model."""

    def __init__(self, settings: TrainingSettings, model_path: str, api_key: str | None) -> None:
        require_tinker_extra()
        # No reports about this process to the server's operator.
        os.environ.setdefault("TINKER_TELEMETRY", "0")
        import tinker

        logging.getLogger("tinker").setLevel(logging.ERROR)
        self.model_path = model_path
        self.url = settings.tinker_url
        self._key = (api_key or "").strip() or _NO_KEY
        if not self._key.isascii():
            raise OsmosisError(f"{API_KEY_ENV} contains characters that are not ASCII.")
        self.place = f"the Tinker server at {self.url}" if self.url else "the hosted Tinker service"
        try:
            # The client itself tries for minutes to reach a server that is not there.
            if self.url is not None:
                headers = {"X-API-Key": self._key}
                address = f"{self._address}/get_server_capabilities"
                httpx.get(address, headers=headers, timeout=CONNECT_TIMEOUT_S).raise_for_status()
            self.service = tinker.ServiceClient(base_url=self.url, api_key=self._key)
            served = self.service.get_server_capabilities().supported_models
        except Exception as error:  # the client raises errors of several libraries
            lost = self.lost(error, "did not list its models")
            if isinstance(lost, SessionLostError) and (_status(error) or 0) < 500:
                lost = OsmosisError(lost.message, hint=lost.hint)  # it would be the same the next time
            raise lost from error
        by_name = {model.model_name: model for model in served}
        if model_path not in by_name:
            names = ", ".join(f"`{name[:100]}`" for name in sorted(filter(None, by_name))[:10])
            raise OsmosisError(f"{self.place} does not serve `{model_path}` (available: {names or 'none'}).")
        self.max_positions: int | None = by_name[model_path].max_context_length

    @property
    def _address(self) -> str:
        return f"{(self.url or '').rstrip('/')}/api/v1"

    def lost(self, error: Exception, what: str) -> OsmosisError:
        """Return a client's exception as one sentence without the key."""
        import tinker

        said = " ".join(str(error).replace(self._key, "***").split()).partition(" for self.request_id=")[0]
        said = said[:500].rstrip(".") or type(error).__name__
        status = _status(error)
        if status in (401, 403):
            return OsmosisError(
                f"{self.place} refused the API key.", hint=f"list {API_KEY_ENV} in [secrets].required"
            )
        if status in (301, 302, 303, 307, 308):  # the client would send the key there
            return OsmosisError(
                f"{self.place} redirects requests.", hint="set [advanced].tinker_url to its final address"
            )
        if status in (400, 422):  # the same request would be refused again
            return OsmosisError(f"{self.place} {what}: {said}")
        if isinstance(error, (tinker.APIConnectionError, httpx.TransportError)):
            return NetworkError(f"{self.place} could not be reached: {said}")
        return SessionLostError(f"{self.place} {what}: {said}")

    def unload(self, model_id: str) -> None:
        """Have our own server forget a policy; otherwise it does after minutes without a heartbeat."""
        body, headers = {"model_id": model_id, "type": "unload_model"}, {"X-API-Key": self._key}
        with suppress(httpx.HTTPError):
            httpx.post(f"{self._address}/unload_model", json=body, headers=headers, timeout=CONNECT_TIMEOUT_S)

    def download_adapter(self, sampler_path: str, directory: Path) -> None:
        """Write a saved adapter in PEFT's format to a new ``directory``."""
        run, *_, name = sampler_path.removeprefix("tinker://").split("/")
        checkpoint = f"sampler_weights/{name}" if "/sampler_weights/" in sampler_path else name
        rest = self.service.create_rest_client()
        address = rest.get_checkpoint_archive_url(run, checkpoint).result(timeout=ARCHIVE_TIMEOUT_S).url
        # Only the server itself gets the key; the hosted service answers with a signed address elsewhere.
        is_own = self.url is not None and _origin(address) == _origin(self.url)
        headers = {"X-API-Key": self._key} if is_own else {}
        with (
            tempfile.TemporaryFile(dir=directory.parent) as archive,
            httpx.stream(
                "GET", address, headers=headers, timeout=ARCHIVE_TIMEOUT_S, follow_redirects=not is_own
            ) as response,
        ):
            response.raise_for_status()
            for part in response.iter_bytes():
                archive.write(part)
                if archive.tell() > LARGEST_ADAPTER:
                    raise ValueError("the archive of the adapter is too large")
            archive.seek(0)
            unpack_adapter(archive, directory, self.model_path)


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx.URL(url)  # has no port if it is the scheme's default
    return parsed.scheme, parsed.host, parsed.port


@dataclass(frozen=True)
class _Loss:
    """A loss of the API and its configuration. ``at_policy``: its ratios are relative to the current policy."""

    name: str
    config: dict[str, float] | None = None
    at_policy: bool = False


def api_loss(settings: TrainingSettings) -> _Loss:
    """Return the loss of the API that equals the settings' one."""
    server, cap = settings.tinker_server, settings.importance_cap
    # SkyRL's JAX backend divides each conversation's cross-entropy by its number of tokens.
    if settings.method == "sft" and server != "skyrl":
        return _Loss("cross_entropy")
    if settings.method == "rl" and cap is not None and server == "hosted":
        return _Loss("cispo", {"clip_low_threshold": 0.0, "clip_high_threshold": cap})
    if settings.method == "sft" or cap is not None:
        return _Loss("importance_sampling", at_policy=True)
    if server == "other":  # the ratio is 1: every batch is learned from once, by the policy that sampled it
        return _Loss("importance_sampling")
    low, high = 1 - settings.clip_low, 1 + settings.clip_high
    return _Loss("ppo", {"clip_low_threshold": max(0.0, low), "clip_high_threshold": high})


class TinkerLearner:
    """The policy on a server, with the interface of :class:`~osmosis_ai.training.learner.learner.Learner`."""

    device = "tinker"
    # Saving a large model takes a server minutes.
    saves_every_step = False
    trainable_parameters = None

    def __init__(self, server: TinkerServer, settings: TrainingSettings, run: str) -> None:
        self.server = server
        self.settings = settings
        self.updates = 0
        self._run = run
        self._client: tinker.TrainingClient | None = None
        self._loss = api_loss(settings)

    def __str__(self) -> str:
        kind, loss = self.settings.tinker_server, self._loss
        scored = ", with rescored log-probabilities" if loss.at_policy else ""
        return f"{self.server.place} ({kind}); loss: {loss.name}{scored}"

    @property
    def client(self) -> tinker.TrainingClient:
        """The training session; opened at first use, because a resumed run opens another one."""
        if self._client is None:
            settings = self.settings
            try:
                self._client = self._call(
                    lambda: self.server.service.create_lora_training_client(
                        self.server.model_path,
                        rank=settings.lora_rank,
                        seed=settings.seed,
                        train_unembed=False,
                    ),
                    "could not open a training session",
                )
            except SessionLostError as error:
                # Others may leave a server that is full; other refusals are final.
                if "(status 400)" in error.message and "maximum number" not in error.message.lower():
                    raise OsmosisError(error.message) from error
                raise
        return self._client

    def step(
        self,
        sequences: Sequence[TokenSequence],
        advantages: Sequence[float],
        *,
        policy_version: int | None = None,
    ) -> StepMetrics:
        from tinker import types

        settings, loss = self.settings, self._loss
        rows, rollouts = training_rows(sequences, advantages)
        if not rows:
            return StepMetrics(updates=self.updates)
        totals = batch_totals(rows, rollouts, settings.max_response_length)
        references = self._forward(rows) if loss.at_policy else [row.logprobs[1:] for row in rows]
        data = [
            self._datum(row, reference, totals, len(rows))
            for row, reference in zip(rows, references, strict=True)
        ]
        done = self._result(
            lambda: self.client.forward_backward(data, loss.name, loss.config),
            "could not compute the gradient",
        )
        metrics = self._metrics(rows, self._logprobs(done, rows), totals, policy_version)
        rate = warmed_up(settings.lr, self.updates, settings.warmup_steps)
        adam = types.AdamParams(
            learning_rate=rate,
            beta1=0.9,
            beta2=settings.adam_beta2,
            eps=1e-8,
            weight_decay=settings.weight_decay,
            grad_clip_norm=settings.grad_clip,
        )
        optimised = self._result(lambda: self.client.optim_step(adam), "could not update the policy")
        self.updates += 1
        norms = [value for key, value in (optimised.metrics or {}).items() if key.endswith("grad_norm")]
        if not all(map(math.isfinite, norms)):
            raise SessionLostError(
                f"{self.server.place} updated the policy with a gradient that contains NaN or infinity."
            )
        return replace(
            metrics, updates=self.updates, learning_rate=rate, grad_norm=norms[0] if norms else None
        )

    def _datum(
        self, row: TrainingRow, reference: Sequence[float], totals: BatchTotals, sequences: int
    ) -> tinker.Datum:
        """Return a row; ratios are relative to the log-probabilities ``reference``."""
        settings = self.settings
        mask_1T = torch.tensor([row.mask[1:]], dtype=torch.float32)
        if settings.method == "sft":
            shares_T = mask_1T[0] / totals.tokens
        else:
            lengths_1 = torch.tensor([row.response_length])
            shares_T = row.advantage * token_weights(settings.loss_type, mask_1T, lengths_1, totals)[0]
        if self._loss.name == "cross_entropy":
            return _datum(row, weights=shares_T)
        # A server may have no number for a token that was not sampled.
        reference_T = torch.tensor(reference, dtype=torch.float32).nan_to_num(posinf=0.0, neginf=0.0)
        if self._loss.at_policy and settings.method == "rl":
            importance_T = (reference_T - torch.tensor(row.logprobs[1:])).exp()
            shares_T = shares_T * importance_T.clamp(max=settings.importance_cap)
        inputs = {"logprobs": reference_T}
        if settings.tinker_server == "skyrl":
            # SkyRL's FSDP and Megatron backends sum the weighted losses. Its JAX backend divides the sum of each
            # sequence by that of its weights, and takes the mean over sequences. With these weights, both are equal.
            scale = len(shares_T) * sequences
            inputs["weights"] = torch.full((len(shares_T),), 1 / scale)
            shares_T = shares_T * scale
        return _datum(row, **inputs, advantages=shares_T)

    def _metrics(
        self,
        rows: Sequence[TrainingRow],
        logprobs: Sequence[Sequence[float]],
        totals: BatchTotals,
        policy_version: int | None,
    ) -> StepMetrics:
        """Compute our loss and the distance to the sampler from the server's log-probabilities."""
        settings, is_rl = self.settings, self.settings.method == "rl"
        sums, largest = StepSums.zeros(torch.device("cpu")), 0.0
        for row, values in zip(rows, logprobs, strict=True):
            batch = collate([row], torch.device("cpu"))
            current_1K = torch.tensor([values], dtype=torch.float32)[:, batch.columns_K]
            if is_rl:
                loss, terms, gap_1K = policy_objective(
                    settings, batch, totals, current_1K, policy_version=policy_version
                )
                sums.add(loss=loss, **terms)
                largest = max(largest, float(gap_1K.max()))
            else:
                sums.add(loss=cross_entropy(current_1K, batch.mask_BK, totals), tokens=batch.mask_BK)
        limit = settings.logprob_gap_limit or math.inf
        if largest > limit:
            raise SessionLostError(
                f"update {self.updates + 1} was refused: the sampler's log-probabilities differ from those of "
                f"training by up to {largest:.2g} (limit {limit:g})."
            )
        tokens, fresh = float(sums.tokens), float(sums.gap_tokens)
        found = StepMetrics(
            updates=self.updates, learned=True, sequences=len(rows), tokens=int(tokens), loss=float(sums.loss)
        )
        if not is_rl:
            return found
        return replace(
            found,
            clip_fraction=float(sums.clipped) / tokens,
            importance_capped=float(sums.capped) / tokens if settings.importance_cap else None,
            kl_sampler=float(sums.approx_kl) / tokens,
            logprob_gap_max=largest if fresh else None,
            logprob_gap_mean=float(sums.gap) / fresh if fresh else None,
            stale_fraction=1 - fresh / tokens,
        )

    def logprobs(self, sequences: Sequence[TokenSequence]) -> list[list[float]]:
        """Return the policy's log-probabilities of ``sequences``, 0.0 where no token was sampled."""
        rows, _ = training_rows(sequences, [0.0] * len(sequences))
        if not rows:
            return [[0.0] * len(sequence.ids) for sequence in sequences]
        found = iter(self._forward(rows))
        scored = []
        for sequence in sequences:
            values = [0.0] * len(sequence.ids)
            if sum(sequence.mask[1:]):
                for place, value in enumerate(next(found), start=1):
                    values[place] = value if sequence.mask[place] else 0.0
            scored.append(values)
        return scored

    def _forward(self, rows: Sequence[TrainingRow]) -> list[list[float]]:
        data = [_datum(row, weights=torch.tensor(row.mask[1:], dtype=torch.float32)) for row in rows]
        done = self._result(lambda: self.client.forward(data, "cross_entropy"), "could not score tokens")
        return self._logprobs(done, rows)

    def _logprobs(self, done: tinker.ForwardBackwardOutput, rows: Sequence[TrainingRow]) -> list[list[float]]:
        """Return the log-probability of each predicted token, whether it was sampled or not."""
        outputs = done.loss_fn_outputs
        found = [output["logprobs"].tolist() if "logprobs" in output else [] for output in outputs]
        if (counts := [len(values) for values in found]) != [len(row.ids) - 1 for row in rows]:
            tokens = sum(len(row.ids) - 1 for row in rows)
            raise SessionLostError(
                f"{self.server.place} returned {sum(counts)} log-probabilities for {tokens} tokens."
            )
        for row, values in zip(rows, found, strict=True):
            if not all(map(math.isfinite, compress(values, row.mask[1:]))):
                raise SessionLostError(
                    f"{self.server.place} returned log-probabilities that contain NaN or infinity."
                )
        return found

    def scores(self, sequences: Sequence[TokenSequence]) -> list[SequenceScores]:
        return [SequenceScores(values, None, None) for values in self.logprobs(sequences)]

    def new_sampler(self) -> tinker.SamplingClient:
        """Return what samples from the current weights."""
        return self._call(
            lambda: self.client.save_weights_and_get_sampling_client(), "could not publish the policy"
        )

    def save_adapter(self, directory: Path) -> None:
        """Download the adapter in PEFT's format to a new ``directory``; there is none if the server has no downloads."""
        saved = self._result(
            lambda: self.client.save_weights_for_sampler(self._name("adapter")), "could not save the adapter"
        )
        try:
            self.server.download_adapter(saved.path, directory)
        except Exception as error:  # of httpx, the client or a damaged archive
            if isinstance(error, OSError) and is_disk_full(error):
                raise
            if self.settings.tinker_server == "other" and _status(error) in (404, 405, 501):
                return
            raise self.server.lost(error, "did not return the adapter") from error

    def state_dict(self) -> dict[str, Any]:
        """Save the policy and its optimiser on the server; return where."""
        saved = self._result(lambda: self.client.save_state(self._name("state")), "could not save the policy")
        return {"tinker_path": saved.path, "tinker_url": self.server.url or "", "updates": self.updates}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Open a session with the policy and the optimiser that :meth:`state_dict` saved."""
        path = state.get("tinker_path")
        if not isinstance(path, str):
            raise OsmosisError('the checkpoint was not saved with backend = "tinker".')
        try:
            self._client = self._call(
                lambda: self.server.service.create_training_client_from_state_with_optimizer(
                    path, base_model=self.server.model_path
                ),
                f"does not have the checkpoint {path}",
            )
        except SessionLostError as error:
            saved_at = state.get("tinker_url") or "the hosted service"
            if saved_at == (self.server.url or "the hosted service"):
                raise
            hint = (
                f"the checkpoint was saved at {saved_at}; set [advanced].tinker_url to the server that has it"
            )
            raise OsmosisError(error.message, hint=hint) from error
        self.updates = state["updates"]

    def abandon(self) -> None:
        """Do nothing: there are no other processes."""

    def close(self) -> None:
        """Free the adapter's place on the server; the hosted service does so by itself."""
        client, self._client = self._client, None
        if client is not None and self.server.url is not None:
            self.server.unload(client.model_id)

    def _name(self, what: str) -> str:
        return f"{self._run}-{what}-{self.updates:06d}-{secrets.token_hex(3)}"

    def _call(self, work: Callable[[], T], what: str) -> T:
        try:
            found: Any = work()
            # Clients since 0.38 return the future of another client.
            return found.result() if hasattr(found, "result") else found  # type: ignore[no-any-return]
        except OsmosisError:  # no session could be opened
            raise
        except Exception as error:  # the client raises errors of several libraries
            raise self.server.lost(error, what) from error

    def _result(self, submit: Callable[[], Any], what: str) -> Any:
        return self._call(lambda: submit().result(timeout=STEP_TIMEOUT_S), what)


def _datum(row: TrainingRow, **inputs: Tensor) -> tinker.Datum:
    """Return a sequence as the API takes it, with one value of each input per predicted token."""
    from tinker import types

    given = {"target_tokens": torch.tensor(row.ids[1:]), **inputs}
    return types.Datum(
        model_input=types.ModelInput.from_ints(list(row.ids[:-1])),
        loss_fn_inputs={name: types.TensorData.from_torch(values) for name, values in given.items()},
    )


def unpack_adapter(archive: BinaryIO, directory: Path, model_path: str) -> None:
    """Write an archive's adapter, with a configuration that names its modules and base, to ``directory``."""
    from safetensors import safe_open

    directory.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=archive) as tar:
        for member in tar:
            name = Path(member.name).name
            file = tar.extractfile(member) if member.isfile() else None
            if file is None or name not in (ADAPTER_WEIGHTS, ADAPTER_CONFIG):
                continue
            if member.size > (LARGEST_CONFIG if name == ADAPTER_CONFIG else LARGEST_ADAPTER):
                raise ValueError("the adapter is too large")
            with (directory / name).open("wb") as copy:
                shutil.copyfileobj(file, copy)
    if not all((directory / name).exists() for name in (ADAPTER_WEIGHTS, ADAPTER_CONFIG)):
        raise ValueError("the archive holds no adapter in PEFT's format")
    found: dict[str, Any] = json.loads((directory / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    with safe_open(directory / ADAPTER_WEIGHTS, framework="pt") as weights:
        modules = {key.split(".lora_")[0].rsplit(".", 1)[-1] for key in weights.keys()}  # noqa: SIM118
    found |= {
        "base_model_name_or_path": model_path,
        "target_modules": found.get("target_modules") or sorted(modules),
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
    }
    write_json(directory / ADAPTER_CONFIG, found, durable=False)


class TinkerEngine(RemotePolicyEngine):
    """Samples from the policy of a :class:`TinkerLearner`; a rollout's calls use the newest published version."""

    def __init__(self, learner: TinkerLearner, *, end_token_ids: frozenset[int], max_positions: int) -> None:
        super().__init__(learner.server.model_path)
        self._learner = learner
        self.model = RemoteModel(Dimensions(max_positions, end_token_ids))
        self._sampler: tinker.SamplingClient | None = None
        self._version = 0

    async def publish(self, policy: TinkerLearner, version: int) -> None:
        """Sample from the learner's current weights from now on; running calls end with the previous ones."""
        self._sampler = await asyncio.to_thread(policy.new_sampler)
        self._version = version

    async def _answer(self, generation: Generation, listener: Listener) -> None:
        from tinker import types

        version, sampler = self._version, self._sampler
        assert sampler is not None, "nothing was published"
        params = types.SamplingParams(
            max_tokens=generation.max_tokens,
            temperature=generation.temperature,
            top_p=generation.top_p,
            seed=generation.stream & _SEED_MASK,
            stop=sorted(generation.stop_tokens),
        )
        try:
            prompt = types.ModelInput.from_ints(list(generation.prompt))
            reply = await sampler.sample_async(prompt, 1, params)
            sequence = reply.sequences[0]
            tokens, logprobs = list(sequence.tokens), sequence.logprobs
            if logprobs is None or not can_be_sampled(tokens, logprobs, generation.max_tokens):
                raise OsmosisError(
                    f"{self._learner.server.place} sampled tokens without valid log-probabilities."
                )
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the task's edge: without this, the caller would wait forever
            lost = (
                error
                if isinstance(error, OsmosisError)
                else self._learner.server.lost(error, "could not sample")
            )
            self.failure = lost
            listener.failed(EngineStoppedError(lost.message, hint=lost.hint))
            return
        finish: FinishReason = "length" if sequence.stop_reason == "length" else "stop"
        last = len(tokens) - 1
        for place, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            sampled = SampledToken(token, float(logprob), (), version)
            listener.emitted(Emission(generation, sampled, finish if place == last else None))
