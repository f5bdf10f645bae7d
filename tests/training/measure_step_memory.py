"""Measure what a learner's step adds to memory at its peak, on a CPU and as on a GPU; print it beside the estimate.

On a CPU it is the peak of this process (`VmHWM`), reset before the step. This needs a process of its own, since a peak is
never forgotten and `MALLOC_MMAP_THRESHOLD_` must be set so that freed tensors are given back. As on a GPU, with bfloat16 and
recomputed activations, it is the peak of torch's allocator: kernels for CPUs also keep copies of bfloat16 weights, which no GPU has.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.training.learner.learner import Learner
from osmosis_ai.training.model_support import model_support
from osmosis_ai.training.objective.sequences import TokenSequence
from osmosis_ai.training.runs.memory_estimate import estimate

# Most processors have no instructions for bfloat16 and take seven times as long over it.
TOKENS = {torch.float32: 2304, torch.bfloat16: 768}


def settings(tokens: int, length: int) -> TrainingSettings:
    return TrainingSettings(
        micro_batch_tokens=tokens,
        max_prompt_length=length // 2,
        max_response_length=length // 2,
        logprob_gap_limit=float("inf"),
        kl_interval=0,
        policy_engine="vllm",  # only the learner is measured
        importance_cap=None,
    )


def make_model(directory: Path, sizes: dict[str, Any]) -> None:
    config = AutoConfig.for_model(**{"tie_word_embeddings": True, "num_attention_heads": 4} | sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(directory)


def sequences(rows: int, length: int) -> list[TokenSequence]:
    half = length // 2
    ids, mask = [7 + number % 500 for number in range(length)], [0] * half + [1] * half
    return [TokenSequence(str(row), ids, mask, [0.0] * length, [0] * length) for row in range(rows)]


def memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(name))


def resident_peak(work: Callable[[], Any]) -> int:
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    work()
    return memory("VmHWM") - before


def allocated_peak(work: Callable[[], Any]) -> int:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        work()
    events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
    return max(accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())))


def main(directory: Path) -> None:
    sizes = json.loads(sys.stdin.read())
    length = sizes.pop("length", 192)
    make_model(directory, sizes)
    results = []
    from_pretrained = AutoModelForCausalLM.from_pretrained
    for dtype, tokens in TOKENS.items():
        load = functools.partial(from_pretrained, dtype=dtype)
        AutoModelForCausalLM.from_pretrained = lambda path, load=load, **_: load(path)
        chosen, on_gpu = settings(tokens, length), dtype == torch.bfloat16
        found = model_support(str(directory), chosen)
        learner = Learner(str(directory), chosen, "cpu")
        if on_gpu:
            learner.model.activation_checkpointing_enable({"use_reentrant": False})
        rows = tokens // length
        step = functools.partial(learner.step, sequences(rows, length), [1.0] * rows)
        step()  # makes the optimiser's state and what kernels keep for a shape
        measured = (allocated_peak if on_gpu else resident_peak)(step)
        expected = estimate(
            found.layout, found.plan, chosen, weight_bytes=dtype.itemsize, recompute_activations=on_gpu
        )
        results.append({"measured": measured, "estimated": expected.step_peak})
        del learner, step
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
