"""A byte-level BPE of 512 tokens in which every digit stands alone, so that numbers can be copied."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from osmosis_ai.inference.chat import ChatTemplate
from tiny_model.corpus import TOKENIZER_PROSE, Mix, conversation

VOCABULARY_SIZE = 512
SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
PAD_TOKEN, END_OF_TURN = "<|endoftext|>", "<|im_end|>"
CORPUS_SIZE = 3000


def train_tokenizer(template: ChatTemplate, seed: int) -> Tokenizer:
    """Train the tokenizer on the synthetic conversations and a page of plain prose."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(template, random.Random(seed)), trainer)
    if tokenizer.get_vocab_size() != VOCABULARY_SIZE:
        raise RuntimeError(f"the corpus gives {tokenizer.get_vocab_size()} tokens, not {VOCABULARY_SIZE}")
    return tokenizer


def save_tokenizer(tokenizer: Tokenizer, template_source: str, target: Path) -> None:
    """Write the tokenizer in Hugging Face's layout, chat template included."""
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD_TOKEN,
        padding_side="left",
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = template_source
    wrapped.save_pretrained(str(target))
    # The class name that transformers 5 writes is unknown to version 4; both know this one.
    path = target / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _texts(template: ChatTemplate, rng: random.Random) -> Iterator[str]:
    mix = Mix(addition=0.5, tool_call=0.5, correct_addition=1.0)
    for _ in range(CORPUS_SIZE):
        messages, tools = conversation(rng, mix)
        yield template.render(messages, tools, add_generation_prompt=False)
    yield from [TOKENIZER_PROSE] * 20
