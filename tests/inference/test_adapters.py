"""Adapters made by PEFT, served without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save

from osmosis_ai.errors import NotFoundError, OsmosisError
from osmosis_ai.inference.model import (
    ADAPTER_CONFIG_FILE,
    ADAPTER_WEIGHTS_FILE,
    PROVENANCE_FILE,
    Model,
    load_adapted_model,
    trained_tool_call_format,
)
from osmosis_ai.inference.server import load_parts
from tests.inference.conftest import save_adapter
from tests.inference.test_model import teacher_forced
from tests.lazily import lazily

with lazily("torch", "transformers", "peft"):
    import torch


@pytest.mark.parametrize(
    "changes",
    [{}, {"use_rslora": True}, {"target_modules": ["q_proj", "v_proj"], "lora_alpha": 3}],
    ids=["all linear layers", "rank-stabilised", "two projections"],
)
def test_a_merged_adapter_equals_peft(
    model_dir: Path, tmp_path: Path, prompts: list[tuple[int, ...]], changes: dict[str, Any]
) -> None:
    merged = save_adapter(model_dir, tmp_path, **changes).merge_and_unload().eval()
    model, base_model = load_adapted_model(model_dir, tmp_path), Model.load(model_dir)
    assert model.fingerprint != base_model.fingerprint
    for prompt in prompts[:3]:
        with torch.no_grad():
            expected = merged(input_ids=torch.tensor([prompt])).logits[0].log_softmax(-1).numpy()
        gap = np.abs(teacher_forced(model, list(prompt)) - expected).max()
        assert gap < 1e-6 * max(1.0, np.abs(expected).max())
        base = teacher_forced(base_model, list(prompt))
        assert np.abs(base - expected).max() > 0.1, "the adapter changes nothing"


def test_a_folder_without_an_adapter(model_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match=f"`{ADAPTER_CONFIG_FILE}` is missing"):
        load_adapted_model(model_dir, tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"use_dora": True}, "`use_dora`"),
        ({"bias": "all"}, "`bias`"),
        ({"rank_pattern": {"q_proj": 4}}, "`rank_pattern`"),
        ({"modules_to_save": ["embed_tokens"]}, "`modules_to_save`"),
        ({"peft_type": "IA3"}, "of the kind `IA3`"),
    ],
)
def test_unsupported_adapters(model_dir: Path, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    save_adapter(model_dir, tmp_path)
    config = json.loads((tmp_path / ADAPTER_CONFIG_FILE).read_text())
    (tmp_path / ADAPTER_CONFIG_FILE).write_text(json.dumps(config | changes))
    with pytest.raises(OsmosisError, match=words):
        load_adapted_model(model_dir, tmp_path)


def test_damaged_adapters(model_dir: Path, tmp_path: Path) -> None:
    save_adapter(model_dir, tmp_path)
    path = tmp_path / ADAPTER_WEIGHTS_FILE
    tensors = load_file(path)
    wider = {key: np.tile(value, (1, 2)) if "lora_A" in key else value for key, value in tensors.items()}
    for contents, words in (
        (save(dict(list(tensors.items())[1:])), "one matrix of two"),
        (save({"foreign": np.zeros(2)}), "`foreign` is not a matrix of a LoRA adapter"),
        (save(wider), "does not fit the model"),
        (b"no tensors", "cannot be read"),
    ):
        path.write_bytes(contents)
        with pytest.raises(OsmosisError, match=words):
            load_adapted_model(model_dir, tmp_path)


def served_format(model: str, adapter: Path | None = None) -> str | None:
    _, chat = load_parts(model, adapter)
    return chat.tool_calls.format.name if chat.tool_calls.format else None


def test_an_adapter_keeps_its_tool_call_format(model_dir: Path, tmp_path: Path) -> None:
    save_adapter(model_dir, tmp_path)
    assert served_format("osmosis/tiny", tmp_path) == "hermes"
    (tmp_path / PROVENANCE_FILE).write_text(json.dumps({"settings": {"tool_call_format": "mistral"}}))
    assert served_format("osmosis/tiny", tmp_path) == "mistral"
    assert served_format(str(model_dir), tmp_path) == "mistral"
    assert served_format("osmosis/tiny") == "hermes"


@pytest.mark.parametrize(
    "provenance",
    [None, "{", "[]", "{}", '{"settings": null}', '{"settings": {"tool_call_format": "other"}}', "\xff", "7"],
)
def test_foreign_files_next_to_an_adapter(tmp_path: Path, provenance: str | None) -> None:
    if provenance is not None:
        (tmp_path / PROVENANCE_FILE).write_bytes(provenance.encode("latin-1"))
    assert trained_tool_call_format(tmp_path) is None
