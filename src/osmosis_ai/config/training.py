"""The sections and keys of a training config, and the settings that they form together.

``[training]``, ``[sampling]`` and ``[checkpoints]`` apply to every platform; the keys of ``[advanced]`` are those of
this release's trainer. Lengths are in tokens, intervals in steps, timeouts in seconds.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from osmosis_ai.config.sections import (
    ConfigSection,
    Count,
    CountOrZero,
    NotNegative,
    Positive,
    matching,
    setting,
)
from osmosis_ai.inference.catalog import FormatName

LossType = Literal["grpo", "dapo", "dr_grpo", "gspo"]
EngineName = Literal["torch", "vllm"]
# Models below this are sampled quickly enough by the torch engine on a GPU, too.
SMALL_MODEL_PARAMETERS = 1_000_000_000
BackendName = Literal["local", "tinker"]
TinkerServerName = Literal["skyrl", "hosted", "other"]
WhenCutOff = Literal["exclude", "zero", "grade"]
LoggerName = Literal["trackio", "tensorboard", "wandb"]

TINY_MODEL = "osmosis/tiny"
# LoRA learns at about ten times the rate of full fine-tuning (Thinking Machines, "LoRA Without Regret"). At 1e-6, a
# hundred steps with equal signs move weights of 2e-2 by 7e-6.
DEFAULT_LR = 1e-5
USUAL_LR = (1e-5, 3e-4)
# Measured: 1e-3 works well, 2e-3 is unstable, from 3e-3 the policy collapses; below 1e-4 nothing visible happens.
TINY_MODEL_LR = 1e-3
TINY_MODEL_USUAL_LR = (1e-4, 2e-3)
# GSPO (section 5.1): a sequence's ratio is a mean over its tokens, so it moves a thousand times less than a token's.
GSPO_CLIP = (3e-4, 4e-4)
# Yao et al., 2025 ("Your efficient RL framework secretly brings you off-policy RL training"): cap C = 2.
DEFAULT_IMPORTANCE_CAP = 2.0

MOST_REPLACED = 3
"""The most groups that a step replaces with `refill`, as a multiple of `rollout_batch_size`."""
SOURCE_PREFIX = "run:"
"""The prefix of an evaluation's name in `sft_source`."""

MAY_CHANGE = "may change when a run resumes"
"""Marks a key of duration, frequency or location. A resumed run may change it, but no key that affects learning."""


_sft_source = matching(rf"{SOURCE_PREFIX}\S+", f"must name an evaluation: {SOURCE_PREFIX}NAME")


class TrainingSection(ConfigSection):
    """`[training]`: the optimiser and the size of a step."""

    lr: Positive = setting(DEFAULT_LR, "learning rate of AdamW")
    total_epochs: Annotated[Count, MAY_CHANGE] = setting(1, "passes over the dataset")
    n_samples_per_prompt: Count = setting(8, "attempts per prompt, compared with each other")
    rollout_batch_size: Count = setting(32, "prompts per step")
    max_prompt_length: Count = setting(8192, "maximum length of a prompt")
    max_response_length: Count = setting(8192, "maximum number of sampled tokens per call and per attempt")
    agent_workflow_timeout_s: Positive = setting(450.0, "time limit of one attempt of the agent")
    grader_timeout_s: Positive = setting(150.0, "time limit of grading one attempt")


class SamplingSection(ConfigSection):
    """`[sampling]`: how the policy is sampled during training."""

    rollout_temperature: NotNegative = setting(1.0, "sampling temperature")
    rollout_top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] = setting(
        1.0, "top-p (nucleus) sampling; below 1, the importance ratios are biased"
    )


class CheckpointsSection(ConfigSection):
    """`[checkpoints]`: when the policy is validated and saved."""

    eval_interval: Annotated[Count, MAY_CHANGE] = setting(10, "steps between validations")
    checkpoint_save_freq: Annotated[Count, MAY_CHANGE] = setting(20, "steps between saved checkpoints")


class AdvancedSection(ConfigSection):
    """The keys of `[advanced]` for this release's trainer; keys for others are sent as written."""

    method: Literal["rl", "sft"] = setting(
        "rl", "reinforcement learning (rl) or supervised fine-tuning on conversations (sft)"
    )
    sft_source: Annotated[str, AfterValidator(_sft_source)] | None = setting(
        None,
        "evaluation whose passing attempts sft trains on (default: the conversations of the dataset)",
        example="run:calm-fox-1",
    )
    # the objective
    loss_type: LossType = setting("dapo", "policy loss")
    clip_low: Positive = setting(0.2, "how far below 1 a ratio may fall (gspo: 3e-4)")
    clip_high: Positive = setting(0.28, "how far above 1 a ratio may rise (gspo: 4e-4)")
    kl_coef: NotNegative = setting(0.0, "weight of the KL divergence from the base model")
    kl_interval: CountOrZero = setting(
        10, "steps between measurements of the KL divergence when kl_coef is 0; 0: never"
    )
    importance_cap: Positive | None = setting(
        None,
        "cap on the importance weights that correct for older policies and other engines (default with max_staleness > 0 "
        "or vLLM: 2)",
    )
    logprob_gap_limit: Annotated[float, Field(gt=0)] | None = setting(
        None,
        "refuse a step if the log-probabilities of learner and server differ by more (default: 1e-4 for the built-in "
        "model, 1e-2 for others in float32, otherwise no limit)",
    )
    # the validation
    validation_dataset: str | None = setting(
        None, "dataset to validate on (default: rows held out of the training dataset)", example="multiply"
    )
    validation_rows: CountOrZero | None = setting(
        None,
        "number of validation rows, drawn at random; 0 disables validation (default: 5% of the training dataset, or all "
        "of validation_dataset, at most 100)",
    )
    validation_attempts: Count = setting(1, "attempts per validation row")
    stop_after_drop: Annotated[Count | None, MAY_CHANGE] = setting(
        None,
        "end the run after this many consecutive validations with a reward significantly below the best one (95%, paired "
        "by row, adjusted for all pairs of validations)",
    )
    # truncated attempts
    on_truncation: WhenCutOff = setting(
        "grade", "attempts that reached max_response_length: exclude, count as zero, or grade"
    )
    on_timeout: WhenCutOff = setting(
        "exclude", "attempts whose agent timed out: exclude, count as zero, or grade"
    )
    # where the policy is trained
    backend: Annotated[BackendName, MAY_CHANGE] = setting(
        "local", "where the policy is trained and sampled: this machine (local) or a Tinker server (tinker)"
    )
    tinker_server: TinkerServerName = setting(
        "skyrl", "type of Tinker server: skyrl, hosted (the service of the API's authors) or other"
    )
    tinker_url: Annotated[str | None, MAY_CHANGE] = setting(
        None, 'URL of the Tinker server (default with tinker_server = "hosted": the hosted service)'
    )
    # the policy's engine
    policy_engine: EngineName = setting(
        "torch",
        "sampling engine: this process (torch) or a vLLM server (vllm); on a GPU, the default is vllm unless the model has "
        "fewer than 1 billion parameters or rollout_top_p is below 1",
    )
    vllm_url: Annotated[str | list[str] | None, MAY_CHANGE] = setting(
        None,
        "URL of a running vLLM server, or of several, without /v1; each needs access to the run's directory, or the "
        "middleware that receives adapters",
    )
    vllm_replicas: Annotated[int, Field(ge=1, le=64), MAY_CHANGE] = setting(
        1, "number of vLLM servers that the run starts; they share the GPUs that the learner does not use"
    )
    vllm_command: Annotated[str | list[str] | None, MAY_CHANGE] = setting(
        None,
        "command that starts vLLM in its own environment, such as /opt/vllm/bin/vllm (default: vllm on PATH)",
    )
    vllm_args: Annotated[list[str], MAY_CHANGE] = setting([], "additional arguments for `vllm serve`")
    vllm_start_timeout_s: Annotated[Positive, MAY_CHANGE] = setting(
        1800.0, "time limit for vLLM to load the model"
    )
    # the model
    allow_download: Annotated[bool, MAY_CHANGE] = setting(
        False, "download a missing model from the Hugging Face Hub"
    )
    tool_call_format: FormatName | None = setting(
        None, "format of the model's tool calls (default: detected from its chat template)"
    )
    learner_processes: Annotated[Count, MAY_CHANGE] = setting(
        1, "learner processes, one per GPU; `torchrun` can start them too"
    )
    shard_model: Annotated[bool, MAY_CHANGE] = setting(
        False, "shard the frozen model across the learner's GPUs (FSDP2) if one is too small; requires vLLM"
    )
    # the adapter
    lora_rank: Count = setting(16, "rank of the adapter's matrices")
    lora_alpha: Positive = setting(32.0, "scale of the adapter: alpha / rank")
    lora_targets: str | list[str] = setting(
        "all-linear",
        "layers that get an adapter: all-linear, or suffixes of layer names, in which * matches any text",
        example=["q_proj", "layers.[0-3].mlp.*"],
    )
    # the optimiser
    weight_decay: NotNegative = setting(0.0, "weight decay of AdamW on the adapter")
    adam_beta2: Annotated[float, Field(gt=0, lt=1)] = setting(0.99, "beta2 of AdamW")
    warmup_steps: CountOrZero = setting(0, "updates over which the learning rate rises to lr")
    grad_clip: Positive = setting(1.0, "maximum gradient norm")
    micro_batch_tokens: Count = setting(8192, "tokens per forward and backward pass, including padding")
    # the run
    seed: CountOrZero = setting(0, "random seed for data order, sampling and the adapter's initial weights")
    max_steps: Annotated[Count | None, MAY_CHANGE] = setting(None, "stop after this many steps")
    max_staleness: Annotated[int, Field(ge=0, le=100)] = setting(
        0,
        "maximum number of updates between sampling a token and learning from it; attempts that are too old or too slow are "
        "dropped",
    )
    refill: bool = setting(
        False,
        "replace groups whose rewards are equal with other groups (at most 3 × rollout_batch_size groups per step)",
    )
    report_to: Annotated[list[LoggerName], MAY_CHANGE] = setting(
        [], "loggers that receive the metrics of every step: trackio, tensorboard, wandb"
    )


OWN_RULES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "n_samples_per_prompt": (
        lambda attempts: attempts >= 2,
        "must be at least 2: a reward counts only relative to others on the same prompt",
    ),
    "rollout_temperature": (
        lambda temperature: temperature > 0,
        "must be greater than 0: a greedy policy gives every attempt the same answer",
    ),
}
"""Bounds of this release's own runs, narrower than the ranges for every platform."""

TRAINER_SECTIONS: Mapping[str, type[ConfigSection]] = {
    "training": TrainingSection,
    "sampling": SamplingSection,
    "checkpoints": CheckpointsSection,
    "advanced": AdvancedSection,
}


# pydantic takes fields from the last base to the first.
class TrainingSettings(AdvancedSection, CheckpointsSection, SamplingSection, TrainingSection):
    """The settings of a training run: the keys of all its sections."""

    ignored: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _defaults_that_follow_others(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        low, high = GSPO_CLIP
        implied = {"clip_low": low, "clip_high": high} if values.get("loss_type") == "gspo" else {}
        if (
            values.get("vllm_url") is not None
            or values.get("vllm_command")
            or values.get("vllm_replicas", 1) != 1
        ):
            values = {"policy_engine": "vllm", **values}
        is_corrected = values.get("policy_engine") == "vllm" or values.get("max_staleness")
        if is_corrected and values.get("method") != "sft":
            implied["importance_cap"] = DEFAULT_IMPORTANCE_CAP
        return {**implied, **values}

    def on_gpu(self, parameters: int | None) -> TrainingSettings:
        """Return the settings on a GPU, where larger models are sampled with vLLM unless the config names an engine."""
        is_small = parameters is not None and parameters < SMALL_MODEL_PARAMETERS
        if "policy_engine" in self.model_fields_set or is_small or self.rollout_top_p < 1:
            return self
        return type(self)(**self.model_dump(exclude_unset=True), policy_engine="vllm")

    @property
    def vllm_urls(self) -> list[str]:
        """URLs of the running vLLM servers."""
        return [self.vllm_url] if isinstance(self.vllm_url, str) else self.vllm_url or []

    @property
    def vllm_servers(self) -> int:
        return len(self.vllm_urls) or self.vllm_replicas

    @property
    def source_run(self) -> str | None:
        """The evaluation whose passing attempts are learned; None if it is the dataset."""
        return self.sft_source.removeprefix(SOURCE_PREFIX) if self.sft_source else None

    @property
    def rollouts_per_step(self) -> int:
        """Attempts, or conversations of sft."""
        return self.rollout_batch_size * (self.n_samples_per_prompt if self.method == "rl" else 1)

    @property
    def most_rollouts_per_step(self) -> int:
        return self.rollouts_per_step * (1 + MOST_REPLACED if self.refill and self.method == "rl" else 1)

    @property
    def rollouts_in_flight(self) -> int:
        """The most attempts that are sampled at once, without a validation."""
        return self.rollouts_per_step * (self.max_staleness + 1)

    @property
    def records_groups(self) -> bool:
        """Whether the groups of a step depend on more than its number, so that its record must name them."""
        return self.max_staleness > 0 or self.refill

    @property
    def normalise_advantages(self) -> bool:
        """Whether advantages are divided by their group's standard deviation; not in Dr. GRPO."""
        return self.loss_type != "dr_grpo"

    def warnings(self, model_path: str, *, processes: int | None = None) -> list[str]:
        """Return a sentence for each valid but probably unintended setting."""
        found = []
        is_tiny = model_path == TINY_MODEL
        low, high = TINY_MODEL_USUAL_LR if is_tiny else USUAL_LR
        if not low <= self.lr <= high:
            what = f"`{TINY_MODEL}`" if is_tiny else "a LoRA"
            effect = "the policy hardly changes" if self.lr < low else "the policy is likely to collapse"
            usual = " to ".join(f"{each:.0e}".replace("e-0", "e-") for each in (low, high))
            found.append(f"lr = {self.lr:g} is outside the usual range for {what} ({usual}): {effect}.")
        if self.rollout_top_p < 1 and self.method == "rl":
            found.append(
                f"rollout_top_p = {self.rollout_top_p:g} samples from a truncated distribution while the loss "
                "uses the whole one: the importance ratios are biased. Train with 1.0."
            )
        found += self._without_effect()
        if self.shard_model and (processes or self.learner_processes) == 1:
            found.append(
                "shard_model = true changes nothing with one learner process: set [advanced].learner_processes to "
                "the number of GPUs."
            )
        elif self.shard_model and self.policy_engine == "torch" and self.method == "rl":
            found.append(
                "shard_model = true shards the learner, but the first process still samples from the whole model: a "
                'model that one GPU cannot hold needs policy_engine = "vllm".'
            )
        if self.ignored:
            keys = ", ".join(f"`{key}`" for key in self.ignored)
            found.append(f"[advanced] {keys}: not a setting of this trainer, ignored.")
        return found

    def _without_effect(self) -> list[str]:
        """Return a sentence for each setting that the chosen objective or server ignores."""
        if self.backend == "tinker" and self.tinker_server == "skyrl" and self.grad_clip != 1.0:
            return [f"grad_clip = {self.grad_clip:g}: SkyRL ignores it or has its own setting."]
        if self.method == "sft":
            fields = type(self).model_fields
            keys = ("loss_type", "kl_coef", "importance_cap", "max_staleness", "refill", *_VLLM_KEYS)
            ignored = [f"`{key}`" for key in keys if getattr(self, key) != fields[key].default]
            return [f'{", ".join(ignored)}: ignored with method = "sft".'] if ignored else []
        gspo, usual = self.loss_type == "gspo", TrainingSettings(loss_type=self.loss_type)
        named = [f"`{key}`" for key in ("clip_low", "clip_high") if getattr(self, key) != getattr(usual, key)]
        clips = f"{' and '.join(named)} {'has' if len(named) == 1 else 'have'} no effect"
        if self.importance_cap is not None:
            why = f"with {'max_staleness > 0' if self.max_staleness else 'importance_cap'} the clip compares the policy"
            why += " with the one at the start of the step, so the ratio is 1."
            found = [f"{clips}: {why}"] if named else []
            if gspo:
                found.append(
                    f'loss_type = "gspo" learns like "grpo", with the mean importance weight of each sequence: {why}'
                )
            return found
        once = "the policy that sampled a batch learns from it once (max_staleness = 0), so"
        if gspo:
            return [
                f'loss_type = "gspo": {once} its ratio is 1 except for rounding, and in bfloat16 its narrow clip '
                "removes tokens that only round differently."
            ]
        return [f"{clips}: {once} the ratio is 1."] if named else []


_VLLM_KEYS = ("vllm_url", "vllm_command", "vllm_replicas")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def engine_problems(settings: TrainingSettings) -> dict[str, str]:
    """Return, by key, the problems of settings that are valid individually but not in combination."""
    fields = type(settings).model_fields
    named = [key for key in _VLLM_KEYS if getattr(settings, key) != fields[key].default]
    if settings.policy_engine == "torch":
        return dict.fromkeys(named, 'requires `policy_engine = "vllm"`')
    problems = {}
    if {"vllm_url", "vllm_command"} <= set(named):
        problems["policy_engine"] = (
            "accepts either `vllm_url` (a running server) or `vllm_command` (starts one), not both"
        )
    elif {"vllm_url", "vllm_replicas"} <= set(named):
        problems["vllm_replicas"] = "applies to servers that the run starts; list running ones in `vllm_url`"
    if settings.vllm_url is not None and (problem := _vllm_url_problem(settings.vllm_urls)):
        problems["vllm_url"] = problem
    if isinstance(settings.vllm_command, str):
        try:
            shlex.split(settings.vllm_command)
        except ValueError:
            problems["vllm_command"] = "has a quotation mark that is not closed"
    if settings.vllm_command is not None and not "".join(settings.vllm_command).strip():
        problems["vllm_command"] = "must name a program"
    if settings.rollout_top_p < 1:
        problems["rollout_top_p"] = "must be 1.0 with vLLM, which returns log-probabilities after top-p"
    return problems


def _vllm_url_problem(urls: Sequence[str]) -> str | None:
    if not urls:
        return "must name at least one server"
    if len({url.rstrip("/").lower() for url in urls}) < len(urls):
        return "must not name a server twice"
    if any(url.rstrip("/").endswith("/v1") for url in urls):
        return "must not end with /v1; the run adds the paths itself"
    return next(filter(None, map(_url_problem, urls)), None)


def _url_problem(text: str) -> str | None:
    try:
        url = urlsplit(text)
        _ = url.port  # raises if it is no port
    except ValueError:
        return "is not a valid URL"
    if url.scheme not in ("http", "https") or not url.hostname:
        return "must begin with http:// or https://"
    if any(character.isspace() for character in text):
        return "must not contain spaces"
    if url.query or url.fragment:
        return "must not have a query or a fragment"
    if "@" in url.netloc:  # it would be shown in messages
        return "must not contain a name or password: use the secret VLLM_API_KEY or TINKER_API_KEY"
    return None


def backend_problems(settings: TrainingSettings) -> dict[str, str]:
    """Return, by key, what a Tinker server cannot do, or what only makes sense with one."""
    if settings.backend == "local":
        fields, keys = type(settings).model_fields, ("tinker_server", "tinker_url")
        named = [key for key in keys if getattr(settings, key) != fields[key].default]
        return dict.fromkeys(named, 'requires `backend = "tinker"`')
    problems = {}
    if settings.tinker_url is None:
        if settings.tinker_server != "hosted":
            problems["tinker_url"] = 'is required unless `tinker_server = "hosted"`'
    elif problem := _url_problem(settings.tinker_url):
        problems["tinker_url"] = problem
    elif settings.tinker_url.rstrip("/").endswith("/v1"):
        problems["tinker_url"] = "must not end with /v1; the run adds the paths itself"
    elif (url := urlsplit(settings.tinker_url)).scheme == "http" and url.hostname not in _LOOPBACK:
        problems["tinker_url"] = (
            "must begin with https:// unless the server is on this machine, to protect the API key"
        )
    for key in (*_VLLM_KEYS, "learner_processes", "shard_model", "lora_alpha", "lora_targets"):
        if getattr(settings, key) != type(settings).model_fields[key].default:
            problems[key] = 'requires `backend = "local"`'
    if settings.policy_engine == "vllm" and problems.keys().isdisjoint(_VLLM_KEYS):  # they imply it
        problems["policy_engine"] = 'must not be "vllm": the Tinker server samples'
    if settings.method == "sft":
        return problems
    if settings.loss_type == "gspo":
        problems["loss_type"] = "must be grpo, dapo or dr_grpo: the Tinker API does not support gspo"
    if settings.kl_coef > 0:
        problems["kl_coef"] = "must be 0: the losses of the Tinker API have no KL term"
    for key in ("rollout_temperature", "rollout_top_p"):
        if getattr(settings, key) != 1:
            problems[key] = "must be 1.0: a Tinker server trains on the full distribution"
    return problems
