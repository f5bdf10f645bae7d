"""What a training step costs beyond the network's own forward and backward passes, on a CPU.

Three measurements, each a ratio to an ideal of the same run, so that the machine hardly matters:

- sampling: tokens per second with several sessions against one, and the engine's CPU time against that of the
  network's forward passes;
- learning: CPU time of a learner's step against plain forward pass, loss, backward pass and optimizer step over the
  same tokens;
- whole steps of `osmosis/tiny` through the rollout protocol: CPU time of the trainer and of the rollout server against
  the network's share.

With `--wide`, only a step of a model with a vocabulary of 151,936 and 2 layers is measured, which takes minutes: 4
sequences of 2,048 tokens, their memory and CPU time. `gpu.py` measures GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

# Before torch is imported: with a model this small a second thread costs more than it brings.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from gpu import measured, random_model, sequences, settings_for
from harness import Row, cpu_s, multiply_training, options, report, scratch, step_medians, tree_cpu_s

from osmosis_ai import event_loop
from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.inference.chat import BuiltInChat
from osmosis_ai.inference.engine import Generation, InferenceEngine
from osmosis_ai.inference.openai_api import TokenFeed
from osmosis_ai.inference.torch_engine import TorchModel
from osmosis_ai.training.engines.policy_engine import InProcessPolicyEngine
from osmosis_ai.training.learner.learner import Learner
from osmosis_ai.training.objective.batches import collate, plan_micro_batches, training_rows
from osmosis_ai.training.runs.loop import TrainingHooks
from osmosis_ai.training.runs.metrics import StepRecord
from osmosis_ai.training.runs.trainer import Trainer

TINY = "osmosis/tiny"
TINY_VOCABULARY = 512
LONGEST_ANSWER = 40


def main() -> None:
    given = options(__doc__, sessions=[1, 8, 32], rounds=3, steps=4, rollouts=128, wide=False)
    if given.wide:
        report(given, wide_vocabulary())
        return
    rows = [*sampling(sorted({1, *given.sessions}), given.rounds), learning(given.rounds, given.rollouts)]
    report(given, [*rows, event_loop.run(whole_steps(given.steps, given.rollouts))])


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


def thread_s(work: Callable[[], Any]) -> float:
    """Return the seconds that this thread computes for ``work``."""
    started = time.thread_time()
    work()
    return time.thread_time() - started


@contextlib.contextmanager
def clocked(owner: type, name: str) -> Iterator[list[float]]:
    """Collect the CPU time of each call of a method."""
    method, seconds = getattr(owner, name), []

    def timed(*arguments: Any, **options: Any) -> Any:
        started = time.thread_time()
        returned = method(*arguments, **options)
        seconds.append(time.thread_time() - started)
        return returned

    setattr(owner, name, timed)
    try:
        yield seconds
    finally:
        setattr(owner, name, method)


# --- sampling ------------------------------------------------------------------------------------------


def sampling(sessions: list[int], rounds: int) -> list[Row]:
    """Return tokens per second for each number of sessions, and the share of all else than forward passes."""
    network = TorchModel.load(built_in_model(TINY), dtype=torch.float64, max_positions=512 + LONGEST_ANSWER)
    most, rows = max(sessions), []
    with (
        InferenceEngine(network, max_batch=most, kept=most) as engine,
        clocked(TorchModel, "_forward") as forward,
    ):
        policy = InProcessPolicyEngine(engine)
        asyncio.run(generate(policy, questions(most, seed=0), most))
        for count in sessions:
            speeds, overheads = [], []
            for turn in range(rounds):
                asked = questions(max(32, 4 * count), seed=1 + turn)
                forward.clear()
                started, used = time.perf_counter(), time.process_time()
                tokens = asyncio.run(generate(policy, asked, count))
                elapsed, used = time.perf_counter() - started, time.process_time() - used
                speeds.append(tokens / elapsed)
                overheads.append(used / sum(forward) - 1)
            rows.append({"sessions": count, "tokens_per_s": round(statistics.median(speeds)),
                         "overhead": round(statistics.median(overheads), 3)})  # fmt: skip
    return [
        row | {"against_one_by_one": round(row["tokens_per_s"] / rows[0]["tokens_per_s"], 2)} for row in rows
    ]


def questions(count: int, seed: int) -> list[Generation]:
    """Return prompts of the multiply rollout, each eight times."""
    chat = BuiltInChat(built_in_model(TINY))
    function = {"name": "multiply", "parameters": {"properties": {"a": {}, "b": {}}}}
    asked = []
    for number in range(count):
        question = f"What is {11 + number // 8 % 89} * {99 - number // 8 % 83}?"
        system = {"role": "system", "content": "Answer with #### and the number."}
        messages = [system, {"role": "user", "content": question}]
        prompt = chat.encode(chat.render(messages, [{"type": "function", "function": function}]))
        asked.append(
            Generation(tuple(prompt), LONGEST_ANSWER, seed * 100_000 + number, stop_tokens=frozenset({2}))
        )
    return asked


async def generate(policy: InProcessPolicyEngine, asked: list[Generation], sessions: int) -> int:
    """Ask with so many sessions at once, each its next question when it has its answer; return the number of tokens."""
    waiting = iter(asked)

    async def session() -> int:
        feeds = (TokenFeed(policy, [question], every_token=False) for question in waiting)
        return sum([len(await feed.read()) for feed in feeds])

    return sum(await asyncio.gather(*(session() for _ in range(sessions))))


# --- learning ------------------------------------------------------------------------------------------


def learning(rounds: int, rollouts: int) -> Row:
    """Return the cost of a step against that of the plain passes over the same tokens."""
    settings = TrainingSettings(
        lr=1e-3, max_response_length=LONGEST_ANSWER, kl_interval=0, logprob_gap_limit=float("inf")
    )
    learner = Learner(TINY, settings, "cpu")
    batch = sequences(rollouts, 64, TINY_VOCABULARY, 40), [(-1.0) ** number for number in range(rollouts)]
    passes = plain_passes(learner, training_rows(*batch)[0])

    def step() -> None:
        learner.step(*batch, policy_version=1)  # later than that of the tokens

    step()
    passes()
    seconds = [(thread_s(passes), thread_s(step)) for _ in range(rounds)]
    plain, whole = (statistics.median(each) for each in zip(*seconds, strict=True))
    return {
        "sequences": rollouts,
        "step_s": round(whole, 3),
        "plain_passes_s": round(plain, 3),
        "tokens_per_s": round(rollouts * 64 / whole),
        "overhead": round(statistics.median(s / p for p, s in seconds) - 1, 3),
    }


def plain_passes(learner: Learner, rows: list[Any]) -> Callable[[], None]:
    """Return what no learner can do without: forward, log-probability of each sampled token, backward, AdamW."""
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


async def whole_steps(steps: int, rollouts: int) -> Row:
    """Return the CPU time of a step through the rollout protocol.

    The network's share is what the engine's passes and the learner's step take. All else in the trainer (the protocol,
    HTTP, templates, recording, checkpoints) is its overhead. The rollout server is a process of its own.
    """
    marks: list[tuple[float, float, float]] = []

    class Clock(TrainingHooks):
        """Notes after each step what the trainer, the network and the rollout server have used."""

        def step(self, record: StepRecord, total_steps: int) -> None:
            server = tree_cpu_s(os.getpid()) - cpu_s(os.getpid())
            marks.append((time.process_time(), sum(forward) + sum(learned), server))

    spec = multiply_training(rollouts // 8, max_steps=steps + 1)
    with scratch() as folder, clocked(TorchModel, "_forward") as forward, clocked(Learner, "step") as learned:
        summary = await Trainer(spec, folder / "run", Clock()).run()
    # The first step fills caches.
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
        **step_medians(summary.records),
    }


if __name__ == "__main__":
    main()
