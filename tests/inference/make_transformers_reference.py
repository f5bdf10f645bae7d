"""Writes ``transformers_reference.json`` again: ``python -m tests.inference.make_transformers_reference``, after a change of the tiny model."""

from __future__ import annotations

import json
import random
from pathlib import Path
from unittest.mock import patch

import torch
from scripts.make_tiny_model import BALANCED, TARGET, conversation
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from osmosis_ai.inference.chat import ChatTemplate

REFERENCE = Path(__file__).with_name("transformers_reference.json")


def write_reference(model_dir: Path) -> None:
    """Write the log-probabilities that `transformers` computes, so that tests can compare without torch.

    Norms and rotations are computed in float32 there whatever the model's type, which costs up to 5e-5 of a
    log-probability. They are lifted to float64 here.
    """
    model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float64).eval()
    exponents = torch.arange(0, model.config.head_dim, 2, dtype=torch.float64) / model.config.head_dim
    model.model.rotary_emb.inv_freq = model.config.rope_parameters["rope_theta"] ** -exponents
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    template, rng, cases = ChatTemplate.load(model_dir), random.Random(2), []
    for _ in range(4):
        messages, tools = conversation(rng, BALANCED)
        ids = tokenizer.encode(template.render(messages, tools, add_generation_prompt=False)).ids
        with (
            torch.no_grad(),
            patch.multiple(torch, float=torch.float64, float32=torch.float64),
            patch.object(torch.Tensor, "float", torch.Tensor.double),
        ):
            log_probs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        scored = [round(log_probs[place, token].item(), 8) for place, token in enumerate(ids[1:])]
        cases.append({"ids": ids, "logprobs": scored})
    REFERENCE.write_text(json.dumps(cases) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_reference(TARGET)
