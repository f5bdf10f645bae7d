"""What `transformers` computes with the weights, kept so that tests can compare without torch.

Norms and rotations are computed in float32 there whatever the model's type, which costs up to 5e-5
of a log-probability. The reference lifts them to float64, so that a test against it can be sharp.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from osmosis_ai.inference.chat import ChatTemplate
from tiny_model.corpus import Mix, conversation

CONVERSATIONS = 4


def write_reference(model_dir: Path, target: Path) -> None:
    """Write token ids and the log-probability of each token given those before it."""
    model = Qwen3ForCausalLM.from_pretrained(model_dir, dtype=torch.float64).eval()
    tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
    template, rng = ChatTemplate.load(model_dir), random.Random(2)
    mix = Mix(addition=0.5, tool_call=0.5, correct_addition=1.0)
    cases = []
    for _ in range(CONVERSATIONS):
        messages, tools = conversation(rng, mix)
        ids = tokenizer.encode(template.render(messages, tools, add_generation_prompt=False)).ids
        with torch.no_grad(), _everything_in_float64(model):
            log_probs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)
        scored = [round(log_probs[place, token].item(), 8) for place, token in enumerate(ids[1:])]
        cases.append({"ids": ids, "logprobs": scored})
    target.write_text(json.dumps(cases) + "\n", encoding="utf-8")


@contextmanager
def _everything_in_float64(model: Qwen3ForCausalLM) -> Iterator[None]:
    config = model.config
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float64) / config.head_dim
    model.model.rotary_emb.inv_freq = config.rope_parameters["rope_theta"] ** -exponents
    with (
        patch.multiple(torch, float=torch.float64, float32=torch.float64),
        patch.object(torch.Tensor, "float", torch.Tensor.double),
    ):
        yield
