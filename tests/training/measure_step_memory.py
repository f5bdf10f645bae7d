"""Measure what a learner's step adds to this process's memory at its peak; print it beside the estimate.

The peak is the kernel's (`VmHWM`), reset before the step. It is a process of its own since a peak is
never forgotten, and since `MALLOC_MMAP_THRESHOLD_` must be set so that freed tensors are given back.
"""

from __future__ import annotations

import functools
import gc
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.training.learner.learner import Learner
from osmosis_ai.training.model_support import model_support
from osmosis_ai.training.objective.sequences import TokenSequence
from osmosis_ai.training.runs.memory_estimate import estimate

LENGTH = 192
# On a CPU; on a GPU without and with bfloat16, where the learner computes activations again.
MODES = ((torch.float32, False), (torch.float32, True), (torch.bfloat16, True))
# Most processors have no instructions for bfloat16 and take seven times as long over it.
ROWS = {torch.float32: 8, torch.bfloat16: 4}


def settings(rows: int) -> TrainingSettings:
    return TrainingSettings(
        micro_batch_tokens=rows * LENGTH,
        max_prompt_length=LENGTH // 2,
        max_response_length=LENGTH // 2,
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
    ids, mask = list(range(7, 7 + length)), [0] * half + [1] * half
    return [TokenSequence(str(row), ids, mask, [0.0] * length, [0] * length) for row in range(rows)]


def memory(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith(name))


def measure(learner: Learner, rows: int) -> int:
    # The first step makes the optimiser's state and what kernels keep for a shape.
    learner.step(sequences(rows, LENGTH), [1.0] * rows)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    learner.step(sequences(rows, LENGTH), [1.0] * rows)
    return memory("VmHWM") - before


def main(directory: Path) -> None:
    sizes = json.loads(sys.stdin.read())
    make_model(directory, sizes)
    found = model_support(str(directory), settings(max(ROWS.values())))
    results = []
    from_pretrained = AutoModelForCausalLM.from_pretrained
    # Without a GPU, the kernels of experts work with copies in bfloat16.
    for dtype, recompute in MODES[:2] if "num_experts" in sizes else MODES:
        load = functools.partial(from_pretrained, dtype=dtype)
        AutoModelForCausalLM.from_pretrained = lambda path, load=load, **_: load(path)
        chosen = settings(ROWS[dtype])
        learner = Learner(str(directory), chosen, "cpu")
        if recompute:
            learner.model.activation_checkpointing_enable({"use_reentrant": False})
        expected = estimate(
            found.layout,
            found.plan,
            chosen,
            weight_bytes=dtype.itemsize,
            recompute_activations=recompute,
        )
        results.append({"measured": measure(learner, ROWS[dtype]), "estimated": expected.step_peak})
        del learner
    print(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
