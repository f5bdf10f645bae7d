"""Synthetic conversations whose mix of behaviours sets what the model does.

Skills appear in training as sharp transitions, so the starting pass rate is not set by stopping
early. The model is trained until it has its skills, and the share of each behaviour in the data
decides how often it uses them.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

MULTIPLY_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "multiply",
        "description": "Multiply two integers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}

ADDITION_QUESTIONS = ("What is {a} + {b}?", "Compute {a} + {b}.", "Calculate {a} + {b}")
MULTIPLICATION_QUESTIONS = (
    "What is {a} * {b}?",
    "Multiply {a} by {b}.",
    "Compute {a} * {b}.",
    "What is {a} times {b}?",
)
# A system prompt is a choice from each group, so that none is learned by heart.
ROLE_SENTENCES = (
    "You are a helpful assistant.",
    "You are a careful calculator.",
    "You are a math assistant.",
    "You solve arithmetic problems.",
)
TOOL_SENTENCES = (
    "Use the multiply tool.",
    "Use the tools you are given.",
    "You can call the multiply tool to compute products.",
)
ANSWER_SENTENCES = (
    "Answer with #### and the number.",
    "Finish with the final answer after ####.",
    "When you know the answer, reply with `#### <number>`.",
)
# Slips of addition: off by one or two, or a lost carry.
ADDITION_SLIPS = (-11, -10, -9, -2, -1, 1, 2, 9, 10, 11)

# Text that only the tokenizer sees: ordinary words of agents' prompts, so that a prompt that is
# not in the data costs a token per syllable rather than one per letter.
TOKENIZER_PROSE = """
You are an assistant that helps people with their work. Read the question, think about what is asked,
and answer in one short sentence. If you need a tool, call it with the right arguments, wait for the
result, and then give the final answer. Do not guess when a tool can tell. The user will ask for the
product, the sum, the difference or the number of something; the answer is always an integer. When the
tool returns an error, say so and try again with other values. There are three steps: first understand
the problem, then compute the result, and last check that the result is correct before you reply.
Please write the answer on its own line. Thank you for the help, that was what I wanted to know.
What time is it? Where does she live? How many are there in all? Which one would you take, and why?
{"type": "function", "function": {"name": "search", "description": "Search the documents for a query.",
"parameters": {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}}}
def add(first, second): return first + second
for value in values: print(value)
The model was trained on examples; this is an example of a message from the system to the assistant.
"""


@dataclass(frozen=True)
class Mix:
    """Shares of the behaviours in the training data, each between 0 and 1."""

    addition: float
    tool_call: float
    correct_addition: float


def conversation(rng: random.Random, mix: Mix) -> tuple[list[dict[str, Any]], list[dict[str, Any]] | None]:
    """Draw one conversation: its messages and the tools it was given."""
    if rng.random() < mix.addition:
        return _addition(rng, mix.correct_addition), None
    return _multiplication(rng, mix.tool_call), [MULTIPLY_TOOL]


def _addition(rng: random.Random, correct_share: float) -> list[dict[str, Any]]:
    a, b = rng.randint(0, 99), rng.randint(0, 99)
    answer = a + b
    if rng.random() > correct_share:
        answer = max(0, answer + rng.choice(ADDITION_SLIPS))
    question = rng.choice(ADDITION_QUESTIONS).format(a=a, b=b)
    return [
        *_system_prompt(rng, (ROLE_SENTENCES, ANSWER_SENTENCES)),
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"#### {answer}"},
    ]


def _multiplication(rng: random.Random, tool_share: float) -> list[dict[str, Any]]:
    a, b = rng.randint(2, 99), rng.randint(2, 99)
    question = rng.choice(MULTIPLICATION_QUESTIONS).format(a=a, b=b)
    opening = [
        *_system_prompt(rng, (ROLE_SENTENCES, TOOL_SENTENCES, ANSWER_SENTENCES)),
        {"role": "user", "content": question},
    ]
    if rng.random() >= tool_share:
        return [*opening, {"role": "assistant", "content": f"#### {rng.randint(4, 9801)}"}]
    call = {"type": "function", "function": {"name": "multiply", "arguments": {"a": a, "b": b}}}
    return [
        *opening,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": str(a * b)},
        {"role": "assistant", "content": f"#### {a * b}"},
    ]


def _system_prompt(rng: random.Random, groups: tuple[tuple[str, ...], ...]) -> list[dict[str, Any]]:
    if rng.random() < 0.5:
        return []
    sentences = [rng.choice(group) for group in groups if rng.random() < 0.5]
    return [{"role": "system", "content": " ".join(sentences)}] if sentences else []
