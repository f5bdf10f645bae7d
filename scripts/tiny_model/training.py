"""Supervised training of the tiny model: a fixed number of steps, one thread, one seed.

Only the assistant's own tokens carry loss. The number of steps is fixed, never the time: the same
script gives the same model on a busy machine.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from osmosis_ai.inference.chat import ChatTemplate
from tiny_model.corpus import Mix, conversation
from tiny_model.tokenizer import END_OF_TURN, PAD_TOKEN, VOCABULARY_SIZE

IGNORED = -100
REPORT_EVERY = 50


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what comes out."""

    seed: int = 0
    steps: int = 1600
    batch_size: int = 64
    peak_learning_rate: float = 3e-3
    warm_up_steps: int = 30
    final_learning_rate_share: float = 0.05
    addition_share: float = 0.5
    tool_call_share: float = 0.42
    noisy_share_of_steps: float = 0.2
    correct_additions_when_noisy: float = 0.35

    def learning_rate(self, step: int) -> float:
        """Linear warm-up, then linear decay to a small share of the peak."""
        progress = step / self.steps
        decay = self.final_learning_rate_share + (1 - self.final_learning_rate_share) * (1 - progress)
        return self.peak_learning_rate * min(1.0, (step + 1) / self.warm_up_steps) * decay

    def mix(self, step: int) -> Mix:
        """Clean additions until the skill is there, then mostly slips, so that there is room to learn."""
        noisy = step >= self.steps * (1 - self.noisy_share_of_steps)
        correct = self.correct_additions_when_noisy if noisy else 1.0
        return Mix(self.addition_share, self.tool_call_share, correct)


@dataclass(frozen=True)
class TrainingReport:
    """What the training cost and where its loss ended."""

    steps: int
    final_loss: float
    tokens: int
    cpu_s: float
    parameters: int


def model_config(tokenizer: Tokenizer) -> Qwen3Config:
    """The architecture: Qwen3 in miniature, with tied embeddings and one key-value head."""
    return Qwen3Config(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END_OF_TURN),
        pad_token_id=tokenizer.token_to_id(PAD_TOKEN),
        dtype="float32",
    )


def train(recipe: Recipe, tokenizer: Tokenizer, template: ChatTemplate, target: Path) -> TrainingReport:
    """Train the model and save it to ``target`` in Hugging Face's layout."""
    torch.set_num_threads(1)
    torch.manual_seed(recipe.seed)
    torch.use_deterministic_algorithms(True)
    rng = random.Random(recipe.seed)
    model = Qwen3ForCausalLM(model_config(tokenizer))
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.peak_learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
    )
    encode = _Encoder(tokenizer, template)
    started, tokens, recent = time.process_time(), 0, []
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate(step)
        batch = [encode(rng, recipe.mix(step)) for _ in range(recipe.batch_size)]
        recent.append(_update(model, optimizer, batch))
        tokens += sum(len(ids) for ids, _ in batch)
        if (step + 1) % REPORT_EVERY == 0:
            mean = sum(recent[-REPORT_EVERY:]) / REPORT_EVERY
            print(f"step {step + 1} loss {mean:.4f} {time.process_time() - started:.0f} CPU-s", flush=True)
    _save(model, tokenizer, target)
    return TrainingReport(
        steps=recipe.steps,
        final_loss=sum(recent[-REPORT_EVERY:]) / REPORT_EVERY,
        tokens=tokens,
        cpu_s=time.process_time() - started,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
    )


class _Encoder:
    """A drawn conversation as token ids and labels; only assistant turns, end mark included, have labels."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer = tokenizer
        self._template = template
        self._opening = tokenizer.encode("<|im_start|>assistant\n").ids
        self._end = tokenizer.token_to_id(END_OF_TURN)

    def __call__(self, rng: random.Random, mix: Mix) -> tuple[list[int], list[int]]:
        messages, tools = conversation(rng, mix)
        ids = self._tokenizer.encode(self._template.render(messages, tools, add_generation_prompt=False)).ids
        labels = [IGNORED] * len(ids)
        width = len(self._opening)
        for start in range(len(ids) - width):
            if ids[start : start + width] == self._opening:
                end = ids.index(self._end, start) + 1
                labels[start + width : end] = ids[start + width : end]
        return ids, labels


def _update(
    model: Qwen3ForCausalLM, optimizer: torch.optim.Optimizer, batch: list[tuple[list[int], list[int]]]
) -> float:
    """One optimizer step over the batch; two halves by length, so that short rows are not padded to long ones."""
    batch = sorted(batch, key=lambda row: len(row[0]))
    half = len(batch) // 2
    scored = sum(label != IGNORED for _, labels in batch for label in labels)
    optimizer.zero_grad()
    total = 0.0
    for part in (batch[:half], batch[half:]):
        width = max(len(ids) for ids, _ in part)
        inputs = torch.tensor([ids + [0] * (width - len(ids)) for ids, _ in part])
        targets = torch.tensor([labels + [IGNORED] * (width - len(labels)) for _, labels in part])
        # Right padding and causal attention: a padded position is never seen by a real one.
        logits = model(input_ids=inputs, use_cache=False).logits[:, :-1]
        loss = F.cross_entropy(
            logits.reshape(-1, logits.size(-1)),
            targets[:, 1:].reshape(-1),
            ignore_index=IGNORED,
            reduction="sum",
        )
        (loss / scored).backward()
        total += loss.item() / scored
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return total


def _save(model: Qwen3ForCausalLM, tokenizer: Tokenizer, target: Path) -> None:
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.token_to_id(END_OF_TURN), pad_token_id=tokenizer.token_to_id(PAD_TOKEN)
    )
    model.save_pretrained(str(target))
