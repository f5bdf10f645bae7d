"""The format of a Hugging Face folder, and the built-in model's format, which must be the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models

from osmosis_ai.errors import OsmosisError
from osmosis_ai.inference.chat_format import BuiltInChat
from osmosis_ai.inference.template import TemplateError
from tests.inference.conftest import multiply_tool, question
from tests.lazily import lazily

with lazily("transformers"):
    import transformers

    from osmosis_ai.inference.torch_chat import PretrainedChat


CALL = {"type": "function", "function": {"name": "multiply", "arguments": '{"a":12,  "b": 34}'}}
CONVERSATION: list[dict[str, Any]] = [
    {"role": "system", "content": "Be careful. Ünïcode."},
    *question(),
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "408", "tool_call_id": "c"},
]


@pytest.fixture(scope="module")
def pretrained(model_dir: Path) -> PretrainedChat:
    return PretrainedChat.load(model_dir)


@pytest.mark.parametrize("end", [True, False])
def test_transformers_and_the_built_in_format_write_and_read_the_same(
    pretrained: PretrainedChat, model_dir: Path, end: bool
) -> None:
    built_in = BuiltInChat(model_dir)
    text = built_in.render(CONVERSATION, [multiply_tool()], add_generation_prompt=end)
    assert pretrained.render(CONVERSATION, [multiply_tool()], add_generation_prompt=end) == text
    ids = built_in.encode(text)
    assert pretrained.encode(text) == ids
    decoder = pretrained.decoder()
    assert "".join(map(decoder.feed, ids)) + decoder.finish() == text
    assert [pretrained.token_bytes(i) for i in ids] == [built_in.token_bytes(i) for i in ids]
    assert pretrained.token_id("</tool_call>") == built_in.token_id("</tool_call>") is not None


def test_a_template_that_expects_mappings_gets_them(model_dir: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = (
        "{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert PretrainedChat(tokenizer).render(CONVERSATION, []) == '{"a": 12, "b": 34}'
    broken = {**CALL, "function": {"name": "multiply", "arguments": "{12"}}
    assert PretrainedChat(tokenizer).render([{"role": "assistant", "tool_calls": [broken]}], []) == '"{12"'


def test_messages_that_the_template_refuses_are_a_template_error(model_dir: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(TemplateError, match="roles must alternate"):
        PretrainedChat(tokenizer).render(CONVERSATION, [])


def test_a_model_without_a_chat_template_can_not_be_trained(model_dir: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    tokenizer.chat_template = None
    with pytest.raises(OsmosisError, match="no chat template"):
        PretrainedChat(tokenizer)


def test_a_vocabulary_that_is_not_of_bytes_is_decoded_by_its_own_rules() -> None:
    pieces = ["<unk>", "▁Hello", "▁world", "!", "<0xC3>", "<0xA9>"]
    raw = RawTokenizer(
        models.WordLevel({piece: index for index, piece in enumerate(pieces)}, unk_token="<unk>")
    )
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    chat = PretrainedChat(
        transformers.PreTrainedTokenizerFast(tokenizer_object=raw, chat_template="{{ messages[0].content }}")
    )
    decoder = chat.decoder()
    assert "".join([*map(decoder.feed, [1, 2, 3, 4, 5]), decoder.finish()]) == "Hello world!é"


def test_a_folder_without_a_tokenizer_is_said_to_have_none(tmp_path: Path) -> None:
    with pytest.raises(OsmosisError, match="can not be loaded"):
        PretrainedChat.load(tmp_path)
