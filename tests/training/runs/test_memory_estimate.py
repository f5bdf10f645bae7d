from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.training.runs.memory_estimate import GIB, TOLERANCE, ModelShape, estimate
from tests.lazily import lazily

with lazily("torch"):
    from tests.training.learner_builders import tiny_learner

ROOT = Path(__file__).parents[3]
SETTINGS = TrainingSettings()
# Qwen3-8B, from its published configuration.
EIGHT_B = ModelShape(
    parameters=8_190_735_360,
    outside_layers=1_244_663_808,
    adapted_parameters=6_945_767_424,
    adapter_parameters=43_646_976,
    layers=36,
    hidden=4096,
    vocabulary=151_936,
    intermediate=12_288,
    query_width=4096,
    key_width=1024,
)

DEEP = {"vocab_size": 512, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8,
        "num_key_value_heads": 2, "head_dim": 64}  # fmt: skip
WIDE_VOCABULARY = {"vocab_size": 40_000, "hidden_size": 128, "intermediate_size": 512, "num_hidden_layers": 2,
                   "num_key_value_heads": 4, "head_dim": 32}  # fmt: skip


@pytest.mark.e2e
@pytest.mark.parametrize("sizes", [pytest.param(DEEP, marks=pytest.mark.nightly), WIDE_VOCABULARY])
def test_the_estimate_is_near_the_measured_peak_of_a_step(sizes, tmp_path):
    output = subprocess.run(
        [sys.executable, "-m", "tests.training.measure_step_memory", str(tmp_path)],
        input=json.dumps(sizes),
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"},
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
    ).stdout
    results = json.loads(output)
    assert len(results) == 4, "in float32 and bfloat16, with activations kept and recomputed"
    for result in results:
        assert result["estimated"] == pytest.approx(result["measured"], rel=TOLERANCE)


def test_sizes_are_read_without_loading_weights_and_agree_with_the_learner():
    shape = ModelShape.read("osmosis/tiny", SETTINGS)
    learner = tiny_learner()
    assert shape.adapter_parameters == sum(p.numel() for p in learner._parameters)
    assert shape.adapted_parameters == sum(weight.numel() for weight in learner.merged_state().values())
    assert shape.parameters == sum(p.numel() for p in learner.model.parameters()) - shape.adapter_parameters
    assert shape.outside_layers == 512 * 128 + 128, (
        "embeddings, which also make the logits, and the last norm"
    )
    assert (shape.layers, shape.hidden, shape.vocabulary, shape.key_width) == (3, 128, 512, 32)


def test_the_parts_add_up_and_decide_whether_it_fits():
    needed = estimate(EIGHT_B, SETTINGS, 80 * GIB)
    assert needed.total == sum(needed.parts().values())
    assert needed.weights == needed.serving_weights == 2 * EIGHT_B.parameters
    assert needed.optimizer == 2 * needed.adapter == 2 * needed.gradients
    assert needed.fits is (needed.total <= 80 * GIB)
    assert estimate(EIGHT_B, SETTINGS, 24 * GIB).fits is False
    assert estimate(EIGHT_B, SETTINGS).fits is None


def test_a_split_model_needs_its_share_and_what_is_whole_for_the_moment():
    four = SETTINGS.model_copy(update={"shard_model": True, "learner_processes": 4})
    needed, whole = estimate(EIGHT_B, four, serves=False), estimate(EIGHT_B, SETTINGS, serves=False)
    assert needed.weights == whole.weights / 4
    layer = 2 * (EIGHT_B.parameters - EIGHT_B.outside_layers) / EIGHT_B.layers
    assert needed.gathered == pytest.approx(2 * EIGHT_B.outside_layers + 2 * layer)
    assert needed.total == pytest.approx(whole.total - whole.weights * 3 / 4 + needed.gathered)


def test_the_sessions_that_fit_fill_the_memory_that_is_left():
    needed = estimate(EIGHT_B, SETTINGS, 141 * GIB)
    # 2 (keys, values) x 36 layers x 1024 x 2 bytes x 16384 tokens.
    assert needed.kv_bytes_per_session == 2 * 36 * 1024 * 2 * 16_384
    filled = estimate(EIGHT_B, SETTINGS, 141 * GIB, serving_sessions=needed.sessions_that_fit)
    assert filled.fits
    assert estimate(EIGHT_B, SETTINGS, 141 * GIB, serving_sessions=needed.sessions_that_fit + 1).fits is False
    assert estimate(EIGHT_B, SETTINGS, 8 * GIB).sessions_that_fit == 0
