"""What a training step costs beyond the network's own forward and backward passes, on a CPU.

Three measurements, each a ratio to an ideal of the same run, so that the machine hardly matters:

- sampling: tokens a second at several numbers of sessions against one by one, and the engine's
  processor time against that of the network's forward passes alone;
- learning: the processor time of a learner's step against a plain forward pass, loss, backward pass and
  optimiser step over the same padded tokens;
- whole steps of `osmosis/tiny` through the rollout protocol: processor time of the trainer and of the
  rollout's server against the network's share.

With `--wide`, only a step of a model with a vocabulary of 151,936 and 2 layers is measured, which takes minutes: 4
sequences of 2,048 tokens, their memory and processor time. `gpu.py` measures GPUs.

    python benchmarks/training.py [--sessions 1 8 32] [--rounds 3] [--wide]
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

# Before torch is imported: with a model this small a second thread costs more than it brings.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from gpu import measured, random_model, sequences, settings_for
from harness import Row, cpu_s, multiply_training, options, report, scratch, tree_cpu_s

from osmosis_ai import event_loop
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.engine import Generation, InferenceEngine, SampledToken
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.inference.torch_engine import TorchModel
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine
from osmosis_ai.training.learner.learner import Learner
from osmosis_ai.training.objective.batches import collate, plan_micro_batches, training_rows
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, TokenSequence
from osmosis_ai.training.runs.loop import TrainingHooks
from osmosis_ai.training.runs.metrics import StepRecord
from osmosis_ai.training.runs.trainer import Trainer

TINY = "osmosis/tiny"
GROUP = 8
LONGEST_ANSWER = 40


def main() -> None:
    given = options(__doc__, sessions=[1, 8, 32], rounds=3, steps=4, rollouts=128, wide=False)
    if given.wide:
        report(given, wide_vocabulary())
        return
    sessions = sorted({1, *given.sessions})
    bench = Bench(max(sessions), given.rounds)
    rows: list[Row] = [*sampling(bench, sessions), learning(bench, given.rollouts)]
    if given.steps:
        rows.append(event_loop.run(whole_steps(given.steps, given.rollouts)))
    report(given, rows)


def wide_vocabulary(length: int = 2048) -> list[Row]:
    """Return the memory and CPU time of two steps, and their losses."""
    sizes = {"model_type": "qwen2", "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 151_936}  # fmt: skip
    with scratch() as folder:
        learner = Learner(
            random_model(folder, "cpu", sizes), settings_for(4 * length, max_prompt_length=1), "cpu"
        )
    batch = sequences(4, length, sizes["vocab_size"], 1)
    learner.step(sequences(1, 8, sizes["vocab_size"], 1), [1.0])
    rows: list[Row] = []
    for _ in range(2):
        metrics, seconds, peak = measured("cpu", lambda: learner.step(batch, [1.0, -1.0, 0.5, -0.25]))
        rows.append({"peak_gib": peak / 2**30, "cpu_s": seconds, "loss": metrics.loss})
    return rows


# --- the same work for all ---------------------------------------------------------------------------


class Bench:
    """A learner, and questions in groups."""

    def __init__(self, sessions: int, rounds: int) -> None:
        self.rounds, self.sessions = rounds, sessions
        settings = TrainingSettings(
            lr=1e-3, max_response_length=LONGEST_ANSWER, kl_interval=0, logprob_gap_limit=float("inf")
        )
        self.learner = Learner(TINY, settings, "cpu")

    def questions(self, count: int, seed: int) -> list[Generation]:
        """Prompts of the multiply rollout, GROUP attempts on each."""
        prompts = [tuple(_chat().encode(_prompt(number // GROUP))) for number in range(count)]
        return [
            Generation(prompt, LONGEST_ANSWER, seed * 100_000 + number, frozenset({2}))
            for number, prompt in enumerate(prompts)
        ]

    def engine(self) -> InferenceEngine:
        """As a run opens it."""
        network = TorchModel.load(
            built_in_model(TINY), dtype=torch.float64, max_positions=512 + LONGEST_ANSWER
        )
        return InferenceEngine(network, max_batch=self.sessions, kept=self.sessions)


def thread_s(work: Callable[[], Any]) -> float:
    """Return the seconds that this thread computes for ``work``."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


def _prompt(number: int) -> str:
    question = f"What is {11 + number % 89} * {99 - number % 83}?"
    system = {"role": "system", "content": "Answer with #### and the number."}
    function = {"name": "multiply", "parameters": {"properties": {"a": {}, "b": {}}}}
    tools = [{"type": "function", "function": function}]
    return _chat().render([system, {"role": "user", "content": question}], tools)


def _chat() -> BuiltInChat:
    return BuiltInChat(built_in_model(TINY))


# --- sampling ------------------------------------------------------------------------------------------


def sampling(bench: Bench, sessions: list[int]) -> list[dict[str, Any]]:
    """Return tokens a second for each number of sessions, and the share of all else than forward passes."""
    rows = []
    with bench.engine() as engine, ForwardClock() as clock:
        policy = InProcessPolicyEngine(engine)
        asyncio.run(generate(policy, bench.questions(bench.sessions, seed=0), bench.sessions))
        for count in sessions:
            speeds, overheads = [], []
            for turn in range(bench.rounds):
                questions = bench.questions(max(32, 4 * count), seed=1 + turn)
                clock.seconds = 0.0
                started, used = time.perf_counter(), time.process_time()
                tokens = asyncio.run(generate(policy, questions, count))
                elapsed, used = time.perf_counter() - started, time.process_time() - used
                speeds.append(sum(map(len, tokens)) / elapsed)
                overheads.append(used / clock.seconds - 1)
            rows.append({"sessions": count, "tokens_per_s": round(statistics.median(speeds)),
                         "overhead": round(statistics.median(overheads), 3)})  # fmt: skip
    return [
        row | {"against_one_by_one": round(row["tokens_per_s"] / rows[0]["tokens_per_s"], 2)} for row in rows
    ]


async def generate(
    policy: InProcessPolicyEngine, questions: list[Generation], sessions: int
) -> list[list[SampledToken]]:
    """Ask with so many sessions at once, each its next question when it has its answer."""
    waiting = iter(questions)
    answers: list[list[SampledToken]] = []

    async def session() -> None:
        for question in waiting:
            feed = TokenFeed(policy, [question], every_token=False)
            answers.append([emission.token for _, emission in await feed.read()])

    await asyncio.gather(*(session() for _ in range(sessions)))
    return answers


class ForwardClock:
    """Adds up the time of the network's own passes while it samples."""

    seconds = 0.0

    def __enter__(self) -> ForwardClock:
        self._network = network = TorchModel._forward
        timed_by = self

        def timed(model: TorchModel, *arguments: Any) -> Any:
            output: list[Any] = []
            timed_by.seconds += thread_s(lambda: output.append(network(model, *arguments)))
            return output[0]

        TorchModel._forward = timed  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        TorchModel._forward = self._network  # type: ignore[method-assign]


# --- learning ------------------------------------------------------------------------------------------


# What one step learns from: sequences and their advantages.
LearningBatch = tuple[list[TokenSequence], list[float]]


def learning(bench: Bench, rollouts: int) -> dict[str, Any]:
    """Return the cost of a step against that of the plain passes over the same tokens."""
    batch = sampled_batch(bench, rollouts)
    passes = plain_passes(bench, batch)
    learner = bench.learner
    version = learner.updates + 1_000_000  # the tokens are another policy's after the first step

    def step() -> None:
        learner.step(*batch, policy_version=version)

    step()
    passes()
    seconds = [(thread_s(passes), thread_s(step)) for _ in range(bench.rounds)]
    plain, whole = statistics.median(p for p, _ in seconds), statistics.median(s for _, s in seconds)
    tokens = sum(len(sequence.ids) for sequence in batch[0])
    return {
        "sequences": len(batch[0]),
        "tokens": tokens,
        "step_s": round(whole, 3),
        "plain_passes_s": round(plain, 3),
        "tokens_per_s": round(tokens / whole),
        "overhead": round(statistics.median(s / p for p, s in seconds) - 1, 3),
    }


def sampled_batch(bench: Bench, rollouts: int) -> LearningBatch:
    """Answers of the model itself, with advantages of both signs."""
    questions = bench.questions(rollouts, seed=99)
    with bench.engine() as engine:
        answers = asyncio.run(generate(InProcessPolicyEngine(engine), questions, 1))
    sequences = []
    for number, (question, tokens) in enumerate(zip(questions, answers, strict=True)):
        given = len(question.prompt)
        sequences.append(
            TokenSequence(
                f"rollout-{number}",
                ids=[*question.prompt, *(token.id for token in tokens)],
                mask=[0] * given + [1] * len(tokens),
                logprobs=[0.0] * given + [token.logprob for token in tokens],
                versions=[NOT_SAMPLED] * given + [0] * len(tokens),
            )
        )
    return sequences, [1.0 if number % 2 else -1.0 for number in range(len(sequences))]


def plain_passes(bench: Bench, batch: LearningBatch) -> Callable[[], None]:
    """What no learner can do without: forward, log-probability of each sampled token, backward, AdamW."""
    learner = bench.learner
    rows, _ = training_rows(*batch)
    plan = plan_micro_batches([len(row.ids) for row in rows], learner.settings.micro_batch_tokens)
    micro_batches = [collate([rows[index] for index in indices], learner.device) for indices in plan]
    parameters = [p for p in learner.model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-9, fused=True)

    def passes() -> None:
        for one in micro_batches:
            logits = learner.model(input_ids=one.ids_BT, logits_to_keep=one.columns_K, use_cache=False).logits
            chosen = logits.float().log_softmax(-1).gather(2, one.targets_BK[..., None])[..., 0]
            (chosen * one.mask_BK).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return passes


# --- whole steps -----------------------------------------------------------------------------------------


async def whole_steps(steps: int, rollouts: int) -> dict[str, Any]:
    """Return processor seconds of a step of so many rollouts through the rollout protocol.

    The network's share is what the engine's passes and the learner's step take. All else in the trainer (the
    protocol, HTTP, templates, recording, checkpoints) is its overhead; the rollout's server, a process of its
    own that runs the agent and the grader, is told apart.
    """
    learning, sampling_clock = [0.0], ForwardClock()
    marks: list[tuple[float, float, float]] = []

    class Clock(TrainingHooks):
        """Notes after each step what has been used: by the trainer, by the network, by the rollout's server."""

        def step(self, record: StepRecord, total_steps: int) -> None:
            marks.append(
                (
                    time.process_time(),
                    sampling_clock.seconds + learning[0],
                    tree_cpu_s(os.getpid()) - cpu_s(os.getpid()),
                )
            )

    class TimedLearner(Learner):
        """Adds up the time of its steps."""

        def step(self, *arguments: Any, **options: Any) -> Any:
            output: list[Any] = []
            learning[0] += thread_s(lambda: output.append(Learner.step(self, *arguments, **options)))
            return output[0]

    spec = multiply_training(rollouts, GROUP, max_steps=steps + 1)
    with scratch() as folder, sampling_clock:
        summary = await Trainer(
            spec,
            folder / "run",
            Clock(),
            make_learner=lambda spec: TimedLearner(spec.model_path, spec.settings, spec.device),
        ).run()
    # The first step fills caches.
    first_step = summary.records[0].step
    trainer, network, server = (
        (last - first) / steps for first, last in zip(marks[0], marks[-1], strict=True)
    )
    return {
        "steps": steps,
        "rollouts": rollouts,
        "trainer_cpu_s": round(trainer, 3),
        "rollout_server_cpu_s": round(server, 3),
        "network_cpu_s": round(network, 3),
        "trainer_overhead": round(trainer / network - 1, 3),
        "overhead_with_server": round((trainer + server) / network - 1, 3),
        "share_of_all_else": round(1 - network / (trainer + server), 3),
        **{
            name: round(statistics.median(values), 3)
            for name, key in {
                "step_s": "time/step_s",
                "sampling_s": "time/sampling_s",
                "learning_s": "time/learning_s",
                "publishing_s": "time/publishing_s",
                "checkpoint_s": "time/checkpoint_s",
                "sampling_tokens_per_s": "speed/sampling_tokens_per_s",
                "learning_tokens_per_s": "speed/learning_tokens_per_s",
            }.items()
            # A checkpoint is not saved at every step.
            if (
                values := [
                    record.metrics[key]
                    for record in summary.records
                    if key in record.metrics and record.step > first_step
                ]
            )
        },
    }


if __name__ == "__main__":
    main()
