"""A small update is served whole, also where the weights have too few bits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from osmosis_ai.errors import OsmosisError
from tests.lazily import lazily
from tests.training.policy_world import MODEL_DIR

with lazily("torch"):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    from osmosis_ai.inference.low_rank import LowRankUpdate
    from osmosis_ai.inference.torch_model import TorchModel
    from osmosis_ai.inference.torch_serving import load_served_model
    from osmosis_ai.training.learner.policy_model import low_rank_updates, merged_tensors, save_adapter

IDS = np.array([[1, 60, 90, 120, 200, 250]])


def policy(dtype: Any, size: float) -> Any:
    """The tiny model with an adapter whose updates are about so large, as after a few steps at a small rate."""
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=dtype)
    made = get_peft_model(base, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"))
    for name, parameter in made.named_parameters():
        if "lora_A" in name or "lora_B" in name:
            parameter.data = parameter.data.float()
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape) * size
    return made.eval()


def logits(model: TorchModel) -> Any:
    cache = model.new_cache(1)
    return model.extend(cache, slice(0, 1), IDS, np.zeros(1, np.int64), np.array([IDS.shape[1] - 1])).float()


def served_state(state: Any) -> Any:
    served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16))
    assert served.rounds_weights
    served.load_weights(dict(state))
    return logits(served)


def test_merged_into_bfloat16_a_small_update_loses_most_of_its_bits_and_beside_it_none() -> None:
    learned = policy(torch.bfloat16, size=2e-6)
    base = dict(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16).named_parameters())
    for (name, merged), (_, beside) in zip(merged_tensors(learned), low_rank_updates(learned), strict=True):
        assert float((merged != base[name]).double().mean()) < 0.2, f"most of {name} is as in the base"
        assert beside.a.dtype == beside.b.dtype == torch.float32


def test_what_is_served_in_bfloat16_is_what_the_learner_computes() -> None:
    learned = policy(torch.bfloat16, size=1e-2)
    with torch.no_grad():
        wanted = learned(input_ids=torch.from_numpy(IDS)).logits[:, -1].float()
    untouched = served_state({})
    beside, merged = served_state(low_rank_updates(learned)), served_state(merged_tensors(learned))
    assert float((beside - untouched).abs().max()) > 0.1, "the adapter changes something"
    gaps = [float((found - wanted).abs().mean()) for found in (beside, merged)]
    assert gaps[0] < gaps[1] / 2


def test_a_later_version_replaces_the_one_before() -> None:
    served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16))
    before = logits(served)
    for size in (1e-2, 0.0):
        served.load_weights(dict(low_rank_updates(policy(torch.bfloat16, size=size))))
    torch.testing.assert_close(logits(served), before)


def test_in_float32_both_ways_of_serving_are_one() -> None:
    learned = policy(torch.float32, size=1e-2)
    found = []
    for state in (low_rank_updates(learned), merged_tensors(learned)):
        served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32))
        assert not served.rounds_weights
        served.load_weights(dict(state))
        found.append(logits(served))
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)


def test_an_update_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    served = TorchModel(AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16))
    before = logits(served)
    name = "model.layers.0.self_attn.q_proj.weight"
    with pytest.raises(OsmosisError, match="does not fit"):
        served.load_weights({name: LowRankUpdate(torch.ones(2, 3), torch.ones(4, 2), 1.0)})
    torch.testing.assert_close(logits(served), before)


def test_a_deployed_adapter_is_merged_where_the_weights_have_the_bits_for_it(tmp_path: Path) -> None:
    learned = policy(torch.float32, size=1e-2)
    save_adapter(learned, tmp_path)
    served = load_served_model(str(MODEL_DIR), tmp_path)
    with torch.no_grad():
        wanted = learned(input_ids=torch.from_numpy(IDS)).logits[:, -1]
    torch.testing.assert_close(logits(served), wanted, atol=1e-4, rtol=1e-3)
