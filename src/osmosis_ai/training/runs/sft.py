"""Supervised fine-tuning: the policy learns the assistant's turns of conversations with cross-entropy.

The recording of rollouts turns conversations into tokens, as if the model had sampled each turn now: what the chat
template opens a turn with is read, and the rest, up to the token that ends it, is learned. A template that rewrites
earlier turns splits a conversation into several sequences, in which every turn is learned once.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from osmosis_ai.datasets import ConversationRow, iter_conversations
from osmosis_ai.datasets.conversations import read_conversation_row
from osmosis_ai.errors import OsmosisError
from osmosis_ai.evaluation.conversation import as_conversation_row
from osmosis_ai.evaluation.export import read_run
from osmosis_ai.inference.chat import ChatFormat
from osmosis_ai.inference.engine import SampledToken
from osmosis_ai.training.engines.recording import PromptPrefixCache, Recording
from osmosis_ai.training.objective.sequences import TokenSequence
from osmosis_ai.training.runs.loop import StepLoop
from osmosis_ai.training.runs.metrics import VALIDATION_LOSS, learning_metrics
from osmosis_ai.training.runs.rollouts import Measured
from osmosis_ai.training.runs.spec import SplitRows, ValidationPlan, overlap_warnings

if TYPE_CHECKING:
    from osmosis_ai.config.training import TrainingSettings

_MOST_PLACES = 5


@dataclass(eq=False, kw_only=True)
class SupervisedLoop(StepLoop):
    """Supervised fine-tuning; a row is the sequences of a conversation."""

    rows: SplitRows[list[TokenSequence]]
    validated_by = VALIDATION_LOSS

    async def _advance(self, step: int) -> Measured:
        batch = [sequence for index in self.order.batch(step) for sequence in self.rows.training[index]]
        learned, learning_s, warnings = await self._learn(batch, [1.0] * len(batch))
        return Measured(learning_metrics(learned, learning_s), warnings)

    async def _validate(self, step: int) -> Measured:
        started = time.monotonic()
        held_out = [sequence for conversation in self.rows.held_out for sequence in conversation]
        logprobs = await self._in_learner_thread(lambda: self.learner.logprobs(held_out))
        tokens = sum(sum(sequence.mask) for sequence in held_out)
        loss = -math.fsum(value for sequence in logprobs for value in sequence) / tokens
        return Measured({VALIDATION_LOSS: loss, "time/validation_s": time.monotonic() - started})


def split_conversations(dataset: Path, plan: ValidationPlan, seed: int) -> SplitRows[ConversationRow]:
    """Hold out a share of the dataset's prompts: all conversations that begin alike are on the same side."""
    rows = list(_conversations(dataset))
    if not rows:
        raise OsmosisError(f"`{dataset}` has no conversations to learn from.")
    if plan.path is not None:
        others = list(iter_conversations(plan.path))
        held = [others[index] for index in plan.choose(len(others), seed)]
        overlap = overlap_warnings((row.prompt for row in rows), (row.prompt for row in held))
        return SplitRows(dict(enumerate(rows)), held, overlap)
    prompts = list(dict.fromkeys(row.prompt for row in rows))
    held_out = {prompts[index] for index in plan.choose(len(prompts), seed)}
    training = {index: row for index, row in enumerate(rows) if row.prompt not in held_out}
    return SplitRows(training, [row for row in rows if row.prompt in held_out])


def _conversations(dataset: Path) -> Iterator[ConversationRow]:
    """Yield the conversations of a dataset file, or the passing attempts in the directory of a local evaluation."""
    if not dataset.is_dir():
        yield from iter_conversations(dataset)
        return
    run = read_run(dataset)
    for sample in run.samples():
        if run.passes(sample.result) and (row := as_conversation_row(sample.conversation)) is not None:
            yield read_conversation_row(row)


def tokenise_conversations(
    rows: SplitRows[ConversationRow], chat: ChatFormat, end_tokens: frozenset[int], settings: TrainingSettings
) -> SplitRows[list[TokenSequence]]:
    """Return the conversations in tokens, with a warning for each reason why some are left out."""
    longest = settings.max_prompt_length + settings.max_response_length
    cache, left_out = PromptPrefixCache(chat), dict[str, list[str | None]]()

    def tokenised(row: ConversationRow) -> list[TokenSequence] | None:
        try:
            sequences = conversation_tokens(row, chat, end_tokens, cache)
            if any(len(sequence.ids) > longest for sequence in sequences):
                raise ValueError(f"longer than max_prompt_length + max_response_length = {longest:,} tokens")
            return sequences
        except ValueError as error:
            left_out.setdefault(str(error), []).append(row.place)
            return None

    training = {index: found for index, row in rows.training.items() if (found := tokenised(row))}
    held_out = [found for row in rows.held_out if (found := tokenised(row))]
    total = len(rows.training) + len(rows.held_out)
    reasons = []
    for why, places in left_out.items():
        known = [place for place in places if place][:_MOST_PLACES]
        known += ["…"] * (0 < len(known) < len(places))
        listed = f" ({', '.join(known)})" if known else ""
        reasons.append(f"{len(places):,} of {total:,} conversations are left out: {why}{listed}.")
    if not training:
        raise OsmosisError(f"no conversation is usable for training. {' '.join(reasons)}")
    return SplitRows(training, held_out, (*rows.warnings, *reasons))


def conversation_tokens(
    row: ConversationRow, chat: ChatFormat, end_tokens: frozenset[int], cache: PromptPrefixCache | None = None
) -> list[TokenSequence]:
    """Return the sequences of a conversation, in which the assistant's tokens are marked as sampled.

    Raises ValueError if a message contains a special token, if the chat template cannot render it, or if it does not
    write a turn the way the model samples one: after the generation prompt, up to one of ``end_tokens``.
    """
    # The tokenizer recognises special tokens in messages, too.
    written = json.dumps([row.messages, row.tools], ensure_ascii=False)
    for token in chat.special_tokens:
        if json.dumps(token, ensure_ascii=False)[1:-1] in written:
            raise ValueError(f"a message contains the special token {token}")
    recording = Recording("", chat, end_tokens, cache)
    marks = [chat.token_bytes(token).decode() for token in end_tokens]
    for index, message in enumerate(row.messages):
        if message["role"] != "assistant":
            continue
        prompt = recording.prompt(row.messages[:index], row.tools)
        opening = chat.render(row.messages[:index], row.tools)
        text = chat.render(row.messages[: index + 1], row.tools, add_generation_prompt=False)
        if not text.startswith(opening):
            raise ValueError("the chat template does not begin an assistant turn with its generation prompt")
        turn = text[len(opening) :]
        end = max((turn.rfind(mark) + len(mark) for mark in marks if mark in turn), default=0)
        if not end or turn[end:].strip():
            raise ValueError("the chat template does not end the turn with the model's end-of-turn token")
        if any(mark in turn[: end - 1] for mark in marks):  # sampling would have ended there
            raise ValueError("an assistant turn contains the model's end-of-turn token")
        if any(call["function"]["name"] not in turn for call in message.get("tool_calls", ())):
            raise ValueError("the chat template omits the assistant's tool calls")
        recording.add(prompt, [SampledToken(id, 0.0) for id in chat.encode(turn[:end])], message)
    return recording.recorded().sequences
