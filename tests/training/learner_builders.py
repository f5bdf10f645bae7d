"""Sequences for learners to learn from: made up, or sampled from the built-in model by transformers."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import cache
from itertools import cycle, islice

import torch

from osmosis_ai.config.training import TrainingSettings
from osmosis_ai.inference.catalog import built_in_model
from osmosis_ai.training.learner.learner import Learner
from osmosis_ai.training.objective.sequences import NOT_SAMPLED, TokenSequence

torch.set_num_threads(1)

TINY = "osmosis/tiny"


def tiny_learner(model: str = TINY, **settings) -> Learner:
    return Learner(model, TrainingSettings(**{"lr": 1e-3, "max_response_length": 16} | settings), "cpu")


def made_up_sequences(count: int, seed: int = 0) -> list[TokenSequence]:
    """Sequences of random tokens and lengths, in two turns; their log-probabilities are not filled in."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        turns = [
            (0, draw.randint(2, 9)),
            (1, draw.randint(1, 6)),
            (0, draw.randint(1, 4)),
            (1, draw.randint(1, 5)),
        ]
        mask = [kind for kind, length in turns for _ in range(length)]
        ids = [draw.randrange(7, 512) for _ in mask]
        versions = [sampled - 1 for sampled in mask]
        found.append(TokenSequence(f"rollout-{number}", ids, mask, [0.0] * len(ids), versions))
    return found


def as_sampled_by(learner: Learner, sequences: list[TokenSequence]) -> list[TokenSequence]:
    """The same sequences with the log-probabilities that the learner's policy gives them."""
    return [
        replace(s, logprobs=logprobs)
        for s, logprobs in zip(sequences, learner.logprobs(sequences), strict=True)
    ]


def batch_for(learner: Learner, count: int = 6, seed: int = 0) -> tuple[list[TokenSequence], list[float]]:
    """Made-up on-policy sequences and advantages for them."""
    draw = random.Random(seed + 1)
    sequences = as_sampled_by(learner, made_up_sequences(count, seed))
    return sequences, [draw.choice([-1.5, -0.5, 0.5, 1.0]) for _ in sequences]


@cache
def _tokenizer():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(built_in_model(TINY))


@dataclass(frozen=True)
class Sample:
    sequence: TokenSequence
    reward: float


def sample_additions(model, *, prompts: int, group: int, seed: int) -> list[list[Sample]]:
    """Groups of answers of ``model`` to additions of two-digit numbers; 1.0 for a right one, else 0.0."""
    draw = random.Random(seed)
    questions = [(draw.randint(10, 99), draw.randint(10, 99)) for _ in range(prompts)]
    asked = [
        _tokenizer().apply_chat_template(
            [{"role": "user", "content": f"What is {left} + {right}?"}],
            add_generation_prompt=True,
            tokenize=False,
        )
        for left, right in questions
    ]
    # Digits are tokens: the prompts are equally long, and are answered together.
    ids = _tokenizer()(asked, return_tensors="pt", add_special_tokens=False).input_ids
    ids = ids.repeat_interleave(group, 0)
    torch.manual_seed(seed)
    with torch.no_grad():
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=10,
            return_dict_in_generate=True,
            output_logits=True,
        )
    logprobs = torch.stack(output.logits, 1).float().log_softmax(-1)
    new = output.sequences[:, ids.shape[1] :]
    chosen = logprobs.gather(2, new[..., None])[..., 0]
    answers = [
        _sample(row.tolist(), answer.tolist(), of_answer.tolist(), sum(questions[i // group]), f"{seed}-{i}")
        for i, (row, answer, of_answer) in enumerate(zip(ids, new, chosen, strict=True))
    ]
    return [answers[start : start + group] for start in range(0, len(answers), group)]


QUOTES = 8


def quoting_another_agent(groups: list[list[Sample]]) -> list[list[Sample]]:
    """The same samples, where each right answer is followed by another agent's wrong ones, as context.

    The policy did not sample what the other said: a learner that trains on it learns the wrong answers.
    """
    separator = _tokenizer()("\n", add_special_tokens=False).input_ids
    quoted = []
    for group in groups:
        wrong = [sample.sequence.ids for sample in group if not sample.reward]
        context = [token for ids in islice(cycle(wrong), QUOTES) for token in separator + ids]
        quoted.append([_followed_by(context, sample) if sample.reward else sample for sample in group])
    return quoted


def _followed_by(context: list[int], sample: Sample) -> Sample:
    s, length = sample.sequence, len(context)
    sequence = replace(
        s,
        ids=s.ids + context,
        mask=s.mask + [0] * length,
        logprobs=s.logprobs + [0.0] * length,
        versions=s.versions + [NOT_SAMPLED] * length,
    )
    return Sample(sequence, sample.reward)


def _sample(prompt: list[int], answer: list[int], logprobs: list[float], right: int, name: str) -> Sample:
    end = _tokenizer().eos_token_id
    length = answer.index(end) + 1 if end in answer else len(answer)
    answer, logprobs = answer[:length], logprobs[:length]
    text = _tokenizer().decode(answer, skip_special_tokens=True).strip()
    sequence = TokenSequence(
        name,
        ids=prompt + answer,
        mask=[0] * len(prompt) + [1] * length,
        logprobs=[0.0] * len(prompt) + logprobs,
        versions=[NOT_SAMPLED] * len(prompt) + [0] * length,
    )
    return Sample(sequence, float(text == f"#### {right}" and answer[-1] == end))
