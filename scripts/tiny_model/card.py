"""The model card and the checksums that travel with the weights."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tiny_model.evaluation import ADDITIONS, ATTEMPTS, Evaluation
from tiny_model.training import Recipe, TrainingReport

CHECKSUMS_FILE = "SHA256SUMS"

CARD = """\
---
license: mit
library_name: transformers
pipeline_tag: text-generation
---

# osmosis/tiny

A language model of {parameters:,} parameters that lives inside the Osmosis package, so that an agent can be
evaluated, and trained, on a machine without a key, a network or a GPU. It is a real transformer (Qwen3
architecture: 3 layers, hidden size 128, 4 query heads and 1 key-value head of 32, tied embeddings, 2048 positions)
with a byte-level BPE tokenizer of 512 tokens and a chat template with tools.

It is a demonstration policy, not an assistant. It does two things:

- asked to multiply two whole numbers from 2 to 99 and given a tool `multiply(a, b)`, it sometimes calls the tool and
  then reports the result, and otherwise guesses, almost always wrongly;
- asked to add two whole numbers from 0 to 99, it answers, often with a slip.

Anything else gives noise: other questions, other languages, other tools, numbers beyond those ranges. It follows no
instructions; system prompts hardly change what it does. How often it does the right thing was set on purpose
by the mix of its training data: wrong often enough that reinforcement learning has something to improve, right often
enough that it can begin. Reinforcement learning brings out a skill the model has; it does not teach
it multiplication.

## Measured

Through the endpoint of the package (`python -m osmosis_ai.inference`), in float64 NumPy:

| task | temperature 1 | greedy |
|---|---|---|
| `data/multiply.jsonl`, 200 rows ({attempts} attempts each at temperature 1), tool given | {multiply:.3f} | {multiply_greedy:.3f} |
| addition, {additions} drawn questions | {addition:.3f} | {addition_greedy:.3f} |

At temperature 1 it calls the tool in {multiply_tool_calls:.3f} of the multiplications. Greedily it never does: a guess is the
likelier beginning.

## Made by

`python scripts/make_tiny_model.py` (needs the `train` extra), from synthetic conversations only: {steps} steps of
{batch_size} conversations, {tokens:,} tokens, seed {seed}, {cpu_s:.0f} CPU-seconds on one thread, final loss
{final_loss:.4f} per answer token. Half of the data are additions and half multiplications, {tool_call_share:.0%} of
which call the tool; in the last {noisy_share:.0%} of the steps only {correct_share:.0%} of the additions are right.
The same script on another processor or with another version of torch gives a model that behaves alike, but not the
same bits; `{checksums}` holds the sums of the files that were released.
"""


def write_card(target: Path, recipe: Recipe, report: TrainingReport, evaluation: Evaluation) -> None:
    """Write `README.md` beside the weights."""
    text = CARD.format(
        parameters=report.parameters,
        attempts=ATTEMPTS,
        additions=ADDITIONS,
        multiply=evaluation.multiply,
        multiply_greedy=evaluation.multiply_greedy,
        multiply_tool_calls=evaluation.multiply_tool_calls,
        addition=evaluation.addition,
        addition_greedy=evaluation.addition_greedy,
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        tokens=report.tokens,
        seed=recipe.seed,
        cpu_s=report.cpu_s,
        final_loss=report.final_loss,
        tool_call_share=recipe.tool_call_share,
        noisy_share=recipe.noisy_share_of_steps,
        correct_share=recipe.correct_additions_when_noisy,
        checksums=CHECKSUMS_FILE,
    )
    (target / "README.md").write_text(text, encoding="utf-8")


def write_checksums(target: Path) -> None:
    """Write the sums of all files of the model, as `sha256sum --check` reads them."""
    files = sorted(path for path in target.iterdir() if path.is_file() and path.name != CHECKSUMS_FILE)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (target / CHECKSUMS_FILE).write_text("".join(lines), encoding="utf-8")
