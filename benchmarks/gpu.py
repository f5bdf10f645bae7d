"""Measure learner and engines on one device, in parts of at most five minutes with a JSON file each.

    python benchmarks/gpu.py --results DIR                       # all parts, on a GPU
    python benchmarks/gpu.py --device cpu --results DIR          # the same with tiny models: only that it runs

parts:
    memory    peak of a learner's step at three lengths, its ratio to the estimate, and tokens per second
    experts   the same for a mixture of experts, at one length
    engine    tokens per second of the torch engine, and its cache in proportion to the estimate
    resume    whether a run that is killed and resumed ends with the weights of an undisturbed one
    vllm      seconds per step with vLLM and the learner on one device; only where `vllm` is on PATH
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

import torch
from harness import Row, median, multiply_training, options, report, resident_bytes, scratch, step_medians
from transformers import AutoConfig, AutoModelForCausalLM

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.engine import ContinuousBatch, Generation, cache_bytes
from osmosis_ai.inference.torch_engine import TorchModel
from osmosis_ai.training.learner.checkpoints import checkpoints_in
from osmosis_ai.training.learner.learner import Learner
from osmosis_ai.training.model_support import model_support
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, TokenSequence
from osmosis_ai.training.runs.memory_estimate import estimate
from osmosis_ai.training.runs.spec import TrainingSpec
from osmosis_ai.training.runs.trainer import Trainer, TrainingSummary

# Shapes of published models with random weights, and tiny ones for a CPU.
DENSE = {
    "cuda": {"model_type": "qwen2", "hidden_size": 1536, "num_hidden_layers": 28, "num_attention_heads": 12,
             "num_key_value_heads": 2, "intermediate_size": 8960, "vocab_size": 151_936},
    "cpu": {"model_type": "qwen2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "intermediate_size": 192, "vocab_size": 20_000},
}  # fmt: skip
EXPERTS = {
    "cuda": {"model_type": "qwen3_moe", "hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16,
             "num_key_value_heads": 4, "head_dim": 64, "num_experts": 32, "num_experts_per_tok": 8,
             "moe_intermediate_size": 512, "intermediate_size": 3072, "vocab_size": 151_936},
    "cpu": {"model_type": "qwen3_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2,
            "moe_intermediate_size": 32, "intermediate_size": 96, "vocab_size": 20_000},
}  # fmt: skip
LENGTHS = {"cuda": [2048, 8192, 32_768], "cpu": [256, 512, 1024]}


def random_model(folder: Path, device: str, sizes: dict[str, Any]) -> str:
    config = AutoConfig.for_model(**sizes, max_position_embeddings=65_536, tie_word_embeddings=True)
    torch.manual_seed(0)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    AutoModelForCausalLM.from_config(config, dtype=dtype).save_pretrained(folder)
    return str(folder)


def settings_for(length: int, **changes: Any) -> TrainingSettings:
    """Micro-batches of one sequence, of which half is the prompt."""
    half = length // 2
    given = {"max_prompt_length": half, "max_response_length": length - half, "micro_batch_tokens": length,
             "kl_interval": 0, "logprob_gap_limit": float("inf"), "policy_engine": "vllm"}  # fmt: skip
    return TrainingSettings(**given | changes)


def sequences(count: int, length: int, vocabulary: int, prompt: int) -> list[TokenSequence]:
    """Random tokens, those after ``prompt`` as if a policy had sampled them."""
    ids = torch.randint(0, vocabulary, (count, length), generator=torch.Generator().manual_seed(1)).tolist()
    sampled = length - prompt
    return [
        TokenSequence(f"{number}", row, [0] * prompt + [1] * sampled, [0.0] * prompt + [-10.0] * sampled,
                      [NOT_SAMPLED] * prompt + [0] * sampled)
        for number, row in enumerate(ids)
    ]  # fmt: skip


def measured(device: str, work: Callable[[], Any]) -> tuple[Any, float, int]:
    """Return what ``work`` returns, its seconds (CPU time on a CPU), and the memory that it adds at its peak."""
    gc.collect()
    if device != "cpu":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before, started = torch.cuda.memory_allocated(), time.perf_counter()
        result = work()
        torch.cuda.synchronize()
        return result, time.perf_counter() - started, torch.cuda.max_memory_allocated() - before

    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, started = resident_bytes("VmRSS"), time.process_time()
    result = work()
    return result, time.process_time() - started, resident_bytes("VmHWM") - before


def learner_steps(
    device: str, sizes: dict[str, Any], lengths: Sequence[int], model_path: str
) -> Iterator[Row]:
    found = model_support(model_path, settings_for(lengths[0]))
    assert found.layout is not None and found.plan is not None
    sized: dict[str, Any] = {"weight_bytes": 4, "recompute_activations": False} if device == "cpu" else {}
    for length in lengths:
        settings = settings_for(length)
        expected = estimate(found.layout, found.plan, settings, **sized)
        learner = Learner(model_path, settings, device)
        batch = sequences(2, length, sizes["vocab_size"], length // 2)
        learner.step(batch, [1.0, -1.0])  # the optimiser's state, and kernels' first use
        steps = [measured(device, lambda: learner.step(batch, [1.0, -1.0])) for _ in range(3)]  # noqa: B023
        seconds, peak = median([step[1] for step in steps], 4), max(step[2] for step in steps)
        yield {"tokens": length, "peak_gib": peak / 2**30, "of_the_estimate": peak / expected.step_peak,
               "tokens_per_s": 2 * length / seconds}  # fmt: skip


def memory(device: str, folder: Path) -> list[Row]:
    path = random_model(folder, device, DENSE[device])
    return list(learner_steps(device, DENSE[device], LENGTHS[device], path))


def experts(device: str, folder: Path) -> list[Row]:
    path = random_model(folder, device, EXPERTS[device])
    return list(learner_steps(device, EXPERTS[device], LENGTHS[device][:1], path))


def engine(device: str, folder: Path) -> list[Row]:
    sizes, length = DENSE[device], LENGTHS[device][0]
    network = TorchModel.load(random_model(folder, device, sizes), device=device, max_positions=length)
    rows: list[Row] = []
    for count in (1, 8, 32):
        batch, new = ContinuousBatch(network, count, kept=0), 64
        prompts = sequences(count, length - new, sizes["vocab_size"], 0)
        wanted = [Generation(tuple(s.ids), new, n, frozenset()) for n, s in enumerate(prompts)]
        for start in range(0, count, 4):
            batch.admit(wanted[start : start + 4])
        width = 2 * sizes["hidden_size"] // sizes["num_attention_heads"] * sizes["num_key_value_heads"]
        most = cache_bytes(count, length, layers=sizes["num_hidden_layers"], width=width,
                           number_bytes=4 if device == "cpu" else 2)  # fmt: skip
        used = batch.cache_bytes / most
        _, seconds, _ = measured(device, lambda: [batch.step() for _ in range(new // 2)])  # noqa: B023
        rows.append(
            {"sessions": count, "cache_of_the_estimate": used, "tokens_per_s": count * new / 2 / seconds}
        )
    return rows


def train(spec: TrainingSpec, run_dir: Path) -> TrainingSummary:
    return asyncio.run(Trainer(spec, run_dir).run())


def resume(device: str, folder: Path) -> list[Row]:
    dataset, processes = folder / "rows.jsonl", get_context("spawn")
    with dataset.open("w") as file:
        for a, b in [(a, b) for a in range(11, 59) for b in (3, 7)]:
            question = {"role": "user", "content": f"What is {a} * {b}?"}
            answer = {"role": "assistant", "content": f"#### {a * b}"}
            file.write(json.dumps({"messages": [question, answer]}) + "\n")
    spec = multiply_training(
        16, dataset=dataset, device=device, method="sft", max_steps=5, checkpoint_save_freq=1
    )

    def start(name: str) -> SpawnProcess:
        process = processes.Process(target=train, args=(spec, folder / name))
        process.start()
        return process

    def adapter(name: str) -> bytes:
        newest = checkpoints_in(folder / name / "checkpoints")[-1]
        return (newest.adapter_dir / "adapter_model.safetensors").read_bytes()

    start("whole").join()
    killed = start("killed")
    while len(checkpoints_in(folder / "killed" / "checkpoints")) < 2 and killed.is_alive():
        time.sleep(0.02)
    killed.kill()
    killed.join()
    start("killed").join()
    is_killed = killed.exitcode == -signal.SIGKILL
    return [{"killed": is_killed, "same_weights": adapter("whole") == adapter("killed")}]


def vllm(device: str, folder: Path) -> list[Row]:
    if shutil.which("vllm") is None:
        return [{"left_out": "vllm is not on PATH"}]
    spec = multiply_training(8, device=device, policy_engine="vllm", max_steps=4)
    return [step_medians(train(spec, folder / "run").records, "train/logprob_gap_mean")]


PARTS: dict[str, Callable[[str, Path], list[Row]]] = {
    "memory": memory, "experts": experts, "engine": engine, "resume": resume, "vllm": vllm,
}  # fmt: skip


def main() -> None:
    given = options(__doc__, device="cuda", parts=list(PARTS), results=".")
    results = Path(given.results)
    results.mkdir(parents=True, exist_ok=True)
    for part in given.parts:
        with scratch() as folder:
            started = time.perf_counter()
            rows = PARTS[part](given.device, folder)
        print(f"\n{part}: {time.perf_counter() - started:.0f} s")
        given.output = results / f"{part}.json"
        report(given, rows)


if __name__ == "__main__":
    main()
